// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Work that several threads do ahead of time and one takes in order.

#include <cstddef>
#include <functional>
#include <future>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace examples {

//! Takes results 0 ... count - 1 in order on this thread, while other threads make the next ones.
//! What is taken does not depend on the number of threads.
//! @param wanted `wanted(i)`, on this thread: whether to make it, asked before it is begun and when
//! its turn comes; the second answer counts
//! @param make `make(i)`, on any thread, several at once
//! @param take `take(i, future)`, on this thread: its result or its exception
//! @param ahead how many are begun before their turn; 0: each is made on this thread in its turn
//! @param early numbers of those that take longest: begun first of all, where any are begun ahead
template <class Wanted, class Make, class Take>
void take_in_order(std::size_t count,
                   std::size_t ahead,
                   Wanted const& wanted,
                   Make const& make,
                   Take const& take,
                   std::span<std::size_t const> early = {}) {
  std::vector<std::future<std::invoke_result_t<Make const&, std::size_t>>> begun(count);
  auto const begin = [&](std::size_t i) {
    if (!begun[i].valid() && wanted(i))
      begun[i] = std::async(std::launch::async, std::cref(make), i);
  };
  for (std::size_t const i : ahead > 0 ? early : std::span<std::size_t const>{})
    begin(i);
  std::size_t next = 0;
  for (std::size_t i = 0; i < count; ++i) {
    for (; next < count && next < i + ahead; ++next)
      begin(next);
    auto made = std::move(begun[i]);
    if (!wanted(i))
      continue;
    if (!made.valid())
      made = std::async(std::launch::deferred, std::cref(make), i);
    take(i, std::move(made));
  }
}

} // namespace examples
