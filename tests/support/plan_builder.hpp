// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Plans written by hand, good and bad: the order of items is given, the rest is filled in.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/device_program.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/schedule/schedule.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace support {

[[nodiscard]] inline pipelining::pass forward(int stage, int microbatch) {
  return pipelining::row_writer::make(pipelining::pass_kind::forward, stage, microbatch);
}
[[nodiscard]] inline pipelining::pass backward(int stage, int microbatch) {
  return pipelining::row_writer::make(pipelining::pass_kind::backward, stage, microbatch);
}

//! One line of a program. `joins`: posted together with the message before it.
struct line {
  pipelining::operation what;
  pipelining::pass work;
  int peer = pipelining::nothing;
  bool joins = false;
};
[[nodiscard]] inline line run(pipelining::pass what) {
  return {pipelining::operation::run, what};
}
[[nodiscard]] inline line send(pipelining::pass what, int to) {
  return {pipelining::operation::send, what, to};
}
[[nodiscard]] inline line receive(pipelining::pass what, int from) {
  return {pipelining::operation::receive, what, from};
}
[[nodiscard]] inline line joined(line one) {
  one.joins = true;
  return one;
}

//! A plan with these programs: lanes, groups and sequence numbers as written, no slots, no waits.
template <class Policy = pipelining::communicators::per_pair>
[[nodiscard]] pipelining::plan build(pipelining::shape const& extents,
                                     std::vector<std::vector<line>> const& devices) {
  pipelining::plan result;
  result.over.extents = extents;
  result.policy = Policy::name;
  result.key = &Policy::key;
  result.duplex_groups = Policy::duplex_groups;
  result.offsets.push_back(0);
  for (std::size_t device = 0; device < devices.size(); ++device) {
    auto const first = result.items.size();
    for (line const& one : devices[device]) {
      pipelining::item step;
      step.what = one.what;
      step.work = one.work;
      step.joins = one.joins;
      if (one.what != pipelining::operation::run) {
        step.message = static_cast<int>(result.messages.size());
        step.first_use = static_cast<int>(result.uses.size());
        step.use_count = 1;
        result.messages.push_back({one.peer});
        result.uses.push_back({});
      }
      result.items.push_back(step);
    }
    pipelining::detail::program work{result.items.data() + first,
                                     static_cast<int>(devices[device].size()),
                                     result.uses.data(),
                                     result.messages.data()};
    result.lanes.push_back(pipelining::detail::number_messages(
      work, result.key, static_cast<int>(device), extents.devices));
    result.offsets.push_back(static_cast<int>(result.items.size()));
    result.arena_bytes.push_back(0);
  }
  result.layouts.resize(devices.size() * pipelining::detail::slot_classes);
  return result;
}

} // namespace support
