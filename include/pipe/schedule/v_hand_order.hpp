// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The hand-made zero-bubble order on a V. Header for
//! pipelining::detail::write_zero_bubble_v.

#include <pipe/schedule/building_block.hpp>
#include <pipe/schedule/v_timeline.hpp>

#include <cstdint>

namespace pipelining::inline v0_1 {
namespace detail {

//! Appends the next unit of a leg to a row, unless the units have run out.
struct leg_writer {
  std::uint32_t* codes;
  int units;
  int next[leg::count] = {};

  constexpr void push(int at) {
    if (next[at] < units) {
      *codes = static_cast<std::uint32_t>(next[at]) << 3 | static_cast<std::uint32_t>(at);
      ++codes;
    }
    ++next[at];
  }
  constexpr void push(int at, int times) {
    for (int i = 0; i < times; ++i)
      push(at);
  }
};

//! The order of Zero Bubble's hand-made V on one device, written for max(2P - 1, M) microbatches of
//! which those from M on are left out.
constexpr void write_zero_bubble_v(v_timeline& line, int device) {
  int const devices = line.problem.devices;
  int const units = line.problem.units;
  int const most = units > 2 * devices - 1 ? units : 2 * devices - 1;
  leg_writer row{line.codes + line.first_of(device), units};
  row.push(leg::forward_down, 2 * (devices - device) - 1);
  for (int i = 0; i < device; ++i) {
    row.push(leg::forward_up);
    row.push(leg::forward_down);
  }
  for (int i = 0; i < devices - device; ++i) {
    row.push(leg::forward_up);
    row.push(leg::backward_down);
    row.push(leg::weight_down);
  }
  while (row.next[leg::forward_up] < row.next[leg::forward_down] ||
         row.next[leg::forward_down] < most) {
    if (row.next[leg::forward_down] < most)
      row.push(leg::forward_down);
    row.push(leg::backward_up);
    row.push(leg::weight_up);
    row.push(leg::forward_up);
    row.push(leg::backward_down);
    row.push(leg::weight_down);
  }
  for (int i = 0; i < device; ++i) {
    row.push(leg::backward_up);
    row.push(leg::backward_down);
  }
  for (int i = 0; i < devices - device; ++i) {
    row.push(leg::backward_up);
    row.push(leg::weight_up);
  }
  row.push(leg::weight_down, most - row.next[leg::weight_down]);
  row.push(leg::weight_up, most - row.next[leg::weight_up]);
}

} // namespace detail
} // namespace pipelining::inline v0_1
