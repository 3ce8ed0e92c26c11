// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What can be wrong with a timetable. Header for pipelining::rule and pipelining::report.

#include <pipe/flow/pass.hpp>

#include <cstdint>

namespace pipelining::inline v0_3 {

//! @brief What can be wrong with a timetable, in the order in which `verify` looks for it.
enum class rule : std::uint8_t {
  none,              //!< nothing is wrong
  unknown_pass,      //!< a stage, microbatch or chunk that the pipeline does not have
  wrong_device,      //!< a pass on a device that does not hold its stage
  lone_half,         //!< an overlapped pass that is not the second half of a pair
  repeated_pass,     //!< a pass that stands twice, or a fused backward beside one of its halves
  missing_pass,      //!< a unit without its forward, or without its whole backward, on some stage
  wrong_kinds,       //!< a unit whose kinds of passes do not go together: a copy of what was not to
                     //!< leave, a datum that nobody gives back
  not_there,         //!< a pass that needs weights that are not gathered then, or memory for
                     //!< gradients
  waits_for_ever,    //!< a pass without a finite start and end: it waits, in a circle, for itself
  overlaps,          //!< a pass that starts before the pass before it on the same device has ended
  before_dependency, //!< a pass that starts before a pass it waits for has ended and its message
                     //!< has arrived
  over_memory        //!< a device that holds more activations than allowed
};

//! @brief The verdict of `verify`: the first broken rule, where it is broken, and the passes
//! involved.
struct report {
  rule broken = rule::none; //!< the rule, none where all is well
  int device = 0;           //!< where it is broken
  int entry = 0;            //!< position in the device's row
  pass what;                //!< the pass that breaks the rule
  pass other;               //!< the pass it is in conflict with, where there is one
  int held = 0;             //!< over_memory: the chunks of activations held

  [[nodiscard]] constexpr explicit operator bool() const noexcept { return broken == rule::none; }
};

namespace detail {

//! No limit on the activations of a device.
inline constexpr int unlimited = 0x7fffffff;

} // namespace detail

} // namespace pipelining::inline v0_3
