// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Items, cycles and proofs in words. Header for pipelining::describe of plans.

#include <pipe/core/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/timetable/describe.hpp>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace pipelining::inline v0_1 {

//! @brief A step in words: "send the forward of stage 1, microbatch 0 to device 2".
[[nodiscard]] inline std::string describe(item const& step, bool with_chunk) {
  std::string text = word(step.what);
  text += step.what == operation::run ? " " : " what comes of ";
  text += "the " + describe(step.work, with_chunk);
  if (step.what == operation::send)
    text += " to device " + std::to_string(step.peer);
  if (step.what == operation::receive)
    text += " from device " + std::to_string(step.peer);
  return text;
}

//! @brief The sentence of a rule of plans.
[[nodiscard]] constexpr char const* sentence(plan_rule broken) noexcept {
  switch (broken) {
  case plan_rule::none: return "the plan is proven";
  case plan_rule::waits_forward: return "an item waits for an item that does not come before it";
  case plan_rule::bad_group: return "a group of messages is not the same at both ends";
  case plan_rule::unmatched: return "a message is not sent once and received once";
  case plan_rule::sizes_differ: return "the two ends of a message disagree on its size";
  case plan_rule::fifo_differs:
    return "the two ends of an edge disagree on the order of its messages";
  case plan_rule::circular: return "devices wait for each other in a circle";
  case plan_rule::wrong_content: return "a step reads a slot that holds something else";
  case plan_rule::unordered:
    return "a step may start before an item that it depends on is complete";
  }
  return "unknown rule";
}

//! @brief Where a plan that does not drain stands: the devices of the circle, each with what it
//! waits for.
//! @return one line per device, empty for a plan that drains.
[[nodiscard]] inline std::string describe_circle(plan_view work) {
  auto const devices = static_cast<std::size_t>(work.extents.devices);
  std::vector<int> at(devices);
  std::vector<int> stack(devices);
  auto const queued = std::make_unique<bool[]>(devices);
  if (drain(work, at.data(), stack.data(), queued.get()))
    return {};
  auto const ended = [&](int device) {
    return static_cast<std::size_t>(at[static_cast<std::size_t>(device)]) ==
           work.program_of(device).size();
  };
  auto const item_at = [&](int device) -> item const& {
    return work.program_of(device)[static_cast<std::size_t>(at[static_cast<std::size_t>(device)])];
  };
  int device = 0;
  while (ended(device))
    ++device;
  // Every device that stands still waits for its peer: following peers leads into the circle, or to
  // one that has ended.
  for (std::size_t step = 0; step < devices && !ended(item_at(device).peer); ++step)
    device = item_at(device).peer;
  std::string text;
  int const start = device;
  do {
    item const& step = item_at(device);
    text += "  device " + std::to_string(device) + ", item " +
            std::to_string(at[static_cast<std::size_t>(device)]) + ": " +
            describe(step, work.extents.chunks > 1) + "\n";
    if (ended(step.peer)) {
      text += "  device " + std::to_string(step.peer) + " has ended\n";
      break;
    }
    device = step.peer;
  } while (device != start);
  return text;
}

//! @brief A proof's verdict as a sentence that names the devices and items, with the circle where
//! there is one.
[[nodiscard]] inline std::string describe(proof const& verdict, plan_view work) {
  std::string text = std::string("plan: ") + sentence(verdict.broken);
  if (verdict)
    return text;
  if (verdict.broken == plan_rule::circular)
    return text + ":\n" + describe_circle(work);
  auto const name = [&](int device, int index) {
    return "device " + std::to_string(device) + ", item " + std::to_string(index) + ": " +
           describe(work.program_of(device)[static_cast<std::size_t>(index)],
                    work.extents.chunks > 1);
  };
  text += " (" + name(verdict.device, verdict.item_index);
  if (verdict.other_item >= 0 && verdict.other_device >= 0)
    text += "; with " + name(verdict.other_device, verdict.other_item);
  return text + ")";
}

} // namespace pipelining::inline v0_1
