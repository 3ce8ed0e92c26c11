// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Work that several threads do ahead of time and one takes in order.

#include <cstddef>
#include <deque>
#include <functional>
#include <future>
#include <type_traits>
#include <utility>

namespace examples {

//! Takes results 0 ... count - 1 in order on this thread, while other threads make the next ones.
//! What is taken does not depend on the number of threads.
//! @param wanted `wanted(i)`, on this thread: whether to make it, asked before it is begun and when
//! its turn comes; the second answer counts
//! @param make `make(i)`, on any thread, several at once
//! @param take `take(i, future)`, on this thread: its result or its exception
//! @param ahead how many are begun before their turn; 0: each is made on this thread in its turn
template <class Wanted, class Make, class Take>
void take_in_order(
  std::size_t count, std::size_t ahead, Wanted const& wanted, Make const& make, Take const& take) {
  std::deque<std::future<std::invoke_result_t<Make const&, std::size_t>>> begun;
  std::size_t next = 0;
  for (std::size_t i = 0; i < count; ++i) {
    for (; next < count && next - i < ahead; ++next) {
      begun.emplace_back();
      if (wanted(next))
        begun.back() = std::async(std::launch::async, std::cref(make), next);
    }
    if (begun.empty())
      begun.emplace_back();
    auto made = std::move(begun.front());
    begun.pop_front();
    next = next > i ? next : i + 1;
    if (!wanted(i))
      continue;
    if (!made.valid())
      made = std::async(std::launch::deferred, std::cref(make), i);
    take(i, std::move(made));
  }
}

} // namespace examples
