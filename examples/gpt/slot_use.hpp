// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What of a pool of slots was planned, and what came of it.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/slot_class.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/planner/model/device_memory.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstdint>

namespace gpt {

namespace pp = pipelining;

//! Slots of a pool of a device, in bytes.
struct slot_use {
  std::int64_t planned = 0;  //!< what the plan reserves
  std::int64_t measured = 0; //!< the most that was in use at once
};

//! @param ran when each pass of a step ran. @param sizes of the plan: `bytes(pool, pass)`
template <class Sizes>
[[nodiscard]] slot_use slot_use_of(
  pp::plan_view work, pp::timetable_view ran, Sizes const& sizes, int device, pp::slot_class of) {
  return {work.layout(device, of).count * work.layout(device, of).bytes,
          static_cast<std::int64_t>(pp::peak_slot_bytes(ran, device, of, [&](pp::pass const& what) {
            return static_cast<double>(sizes.bytes(of, what));
          }))};
}

} // namespace gpt
