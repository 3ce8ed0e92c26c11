// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Plans with something left out, which no proof may accept. Header for leave_out_waits.

#include <pipe/flow/flow.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/proof.hpp>
#include <pipe/plan/prove.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace support {

//! @brief The message of an item, to be spoiled.
[[nodiscard]] inline pipelining::detail::message_end& message_of(pipelining::plan& of,
                                                                 pipelining::item const& step) {
  return of.messages.at(static_cast<std::size_t>(step.message));
}
//! @brief The exchange that the message of an item is part of, to be spoiled.
[[nodiscard]] inline int& exchange_at(pipelining::plan& of, pipelining::item const& step) {
  of.exchanges.resize(of.messages.size(), pipelining::nothing);
  return of.exchanges.at(static_cast<std::size_t>(step.message));
}
//! @brief The uses of an item, to be spoiled.
[[nodiscard]] inline std::span<pipelining::use> uses_of(pipelining::plan& of,
                                                        pipelining::item const& step) {
  return {of.uses.data() + step.first_use, step.use_count};
}
//! @brief The uses of an item in a place, to be spoiled.
[[nodiscard]] inline std::vector<pipelining::use*>
uses_at(pipelining::plan& of, pipelining::item const& step, pipelining::detail::slot_place place) {
  std::vector<pipelining::use*> found;
  for (pipelining::use& one : uses_of(of, step))
    if (one.at == place)
      found.push_back(&one);
  return found;
}

//! @brief Gives the first use of an item in a list the slot of each further one of the list, and
//! checks that the proof misses its data.
//! @return how often
inline int swap_uses(pipelining::plan const& whole, std::size_t item) {
  int swapped = 0;
  for (auto const place :
       {pipelining::detail::slot_place::inputs, pipelining::detail::slot_place::outputs}) {
    pipelining::plan broken = whole;
    auto const listed = uses_at(broken, whole.items[item], place);
    for (std::size_t k = 1; k < listed.size(); ++k) {
      std::swap(*listed[0], *listed[k]);
      CHECK(pipelining::prove(broken).broken == pipelining::proof::rule::wrong_content);
      std::swap(*listed[0], *listed[k]);
      ++swapped;
    }
  }
  return swapped;
}

//! @brief Leaves out one wait of a plan after the other, and checks that the proof misses it.
//! @return how many there were
inline int leave_out_waits(pipelining::plan const& whole) {
  int left_out = 0;
  for (std::size_t i = 0; i < whole.items.size(); ++i)
    for (int k = 0; k < whole.items[i].wait_count; ++k) {
      pipelining::plan broken = whole;
      pipelining::item& step = broken.items[i];
      auto const first = static_cast<std::size_t>(step.first_wait);
      broken.waits[first + static_cast<std::size_t>(k)] =
        broken.waits[first + static_cast<std::size_t>(step.wait_count) - 1];
      --step.wait_count;
      CHECK(pipelining::prove(broken).broken == pipelining::proof::rule::unordered);
      ++left_out;
    }
  return left_out;
}

} // namespace support
