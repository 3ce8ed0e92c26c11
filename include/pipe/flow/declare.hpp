// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Flows that keep the rules. Header for pipelining::declare.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/flow_rules.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/resolve.hpp>

#include <algorithm>
#include <initializer_list>
#include <span>
#include <stdexcept>

namespace pipelining::inline v0_3 {

namespace detail {

//! Works out what follows from the data and kinds of a flow.
//! @throws std::invalid_argument with the sentence of the first rule that is broken.
constexpr void resolve(flow& of) {
  flow_rules const rules(of);
  rules.check_parts();
  flow_resolution(of).run(
    [&rules](flow_set const* makers, flow_set const* reached, flow_set const* made) {
      rules.check_uses(makers);
      rules.check_ends(reached, made);
    });
}

//! The flow of kinds, with data.
[[nodiscard]] constexpr flow declared_with(flow result, std::span<datum const> data) {
  if (result.kind_count == 0)
    throw std::invalid_argument("flow: there is no kind of pass; declare one");
  for (datum const& one : data) {
    require(
      result.data_count < flow::most_data, one, "is one too many; a flow has at most 64 data");
    result.data[result.data_count++] = one;
  }
  resolve(result);
  return result;
}

} // namespace detail

//! @brief Declares a flow: its data, numbered from 0 on, and its kinds of passes under their
//! numbers.
//!
//! Works out who waits for whom. What a pass waits for is who made what it reads; reads that others
//! imply are left out, so a pass waits for at most one row of another stage and four of its own.
//!
//! @throws std::invalid_argument (in the compiler: no constant, and the same sentence) for what
//! `flow_rules` refuse: numbers that are none, a kind that makes nothing or uses more slots than a
//! pass has, data that nobody makes, or that one kind frees and another may still read.
//! @complexity O(k^2 e + r^3) for k kinds of e effects and r rows, and at most 1,024 sets of kinds.
[[nodiscard]] constexpr flow declare(std::span<datum const> data,
                                     std::span<detail::numbered_kind const> kinds) {
  flow result;
  for (detail::numbered_kind const& one : kinds) {
    detail::require(detail::index_of(one.number) < flow::most_kinds && !result[one.number].exists(),
                    one.kind,
                    "has a number of 64 or more, or that of another kind; use another pass_kind");
    detail::require(one.kind.exists(), one.kind, "has no word; give it one");
    result.kinds[detail::index_of(one.number)] = one.kind;
    result.kind_count = std::max(result.kind_count, detail::index_of(one.number) + 1);
  }
  return detail::declared_with(result, data);
}

//! @brief The same of lists.
[[nodiscard]] constexpr flow declare(std::initializer_list<datum> data,
                                     std::initializer_list<detail::numbered_kind> kinds) {
  return declare(std::span(data.begin(), data.size()), std::span(kinds.begin(), kinds.size()));
}

//! @brief The same of kinds that are numbered from 0 on; `kind_named` finds them by their words.
[[nodiscard]] constexpr flow declare(std::span<datum const> data,
                                     std::span<kind_of_pass const> kinds) {
  flow result;
  for (kind_of_pass const& one : kinds) {
    detail::require(
      result.kind_count < flow::most_kinds, one, "is one too many; a flow has at most 64 kinds");
    detail::require(one.exists(), one, "has no word; give it one");
    result.kinds[result.kind_count++] = one;
  }
  return detail::declared_with(result, data);
}

} // namespace pipelining::inline v0_3
