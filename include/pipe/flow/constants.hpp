// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Work that the compiler does in as many constant evaluations as it takes: compilers limit
//! the steps of one evaluation, not their sum.

#include <pipe/flow/array_of.hpp>

#include <type_traits>
#include <utility>

namespace pipelining::inline v0_3::detail {

//! What `Work` has made after `Steps` steps, each step a constant evaluation of its own.
template <class Work, int Steps>
inline constexpr typename Work::state after = Work::go_on(after<Work, Steps - 1>, Steps - 1);
template <class Work>
inline constexpr typename Work::state after<Work, 0> = Work::start();

//! Values of one type.
template <class Value, int Count>
struct list_of {
  array_of<Value, Count> of;
};

//! What `make` gives for 0 to `Count` - 1. It takes the number as a type with a `value`, so that
//! what it gives may be a constant of its own for each.
template <int Count, class Make>
[[nodiscard]] constexpr auto each(Make make) {
  return [&make]<int... Number>(std::integer_sequence<int, Number...>) {
    using value = decltype(make(std::integral_constant<int, 0>{}));
    return list_of<value, Count>{{make(std::integral_constant<int, Number>{})...}};
  }
  (std::make_integer_sequence<int, Count>{});
}

//! The first verdict that is not good, or a good one.
template <class Verdict, int Count>
[[nodiscard]] constexpr Verdict first_failing(list_of<Verdict, Count> const& all) {
  for (Verdict const& verdict : all.of)
    if (!verdict)
      return verdict;
  return {};
}

} // namespace pipelining::inline v0_3::detail
