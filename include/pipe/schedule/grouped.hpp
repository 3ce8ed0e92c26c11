// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief K forward, K backward. Header for pipelining::Grouped.

#include <pipe/schedule/schedule.hpp>

#include <algorithm>
#include <stdexcept>

namespace pipelining::inline v0_3 {

//! @brief kFkB: 1F1B over groups of `Group` microbatches, so that a message has the time of K - 1
//! rounds to travel.
//!
//! Bubble (P - 1)(F + B) with no latency, as 1F1B. With latency it is (P - 1)(F + B + 2 latency),
//! whatever M, when K divides M and 2 latency <= (K - 1)(F + B); K = 1 + ceil(2 latency / (F + B))
//! is the smallest such K. Peak min(K (P - d), M) activations on device d. K = 1 is 1F1B, K >= M is
//! GPipe; the last group may be smaller. Any P >= 1, M >= 1, K >= 1.
//!
//! @tparam Group microbatches of a group, or `dynamic` for a number that is known only at run time.
//! @throws std::invalid_argument from `arrange` when the group is smaller than 1.
//! @complexity O(1) per pass.
//! @source Wang et al., "Ada-Grouper: Accelerating Pipeline Parallelism in Preempted Network by
//! Adaptive Group-Scheduling for Micro-Batches", arXiv:2303.01675; the bubble with latency is an
//! own derivation, checked by simulation.
template <int Group = dynamic>
struct Grouped {
  static_assert(Group == dynamic || Group >= 1, "Grouped: a group has at least one microbatch");

  detail::parameter<Group> group{};

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    if (group < 1)
      throw std::invalid_argument("Grouped: a group has at least one microbatch");
    return {.devices = devices, .microbatches = microbatches};
  }
  constexpr void order(shape const& extents, int device, row_writer& out) const {
    int const all = extents.microbatches;
    int const size = std::min<int>(group, all);
    int const ahead = std::min(extents.devices - 1 - device, (all - 1) / size + 1);
    int forward = 0;
    for (; forward < std::min(ahead * size, all); ++forward)
      out.forward(device, forward);
    for (int backward = 0; backward < all;) {
      for (int const end = std::min(forward + size, all); forward < end; ++forward)
        out.forward(device, forward);
      for (int const end = std::min(backward + size, all); backward < end; ++backward)
        out.backward(device, backward);
    }
  }
};

} // namespace pipelining::inline v0_3
