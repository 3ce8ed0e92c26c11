// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Turns a verdict into a compile error that names the rule and the passes.

#include <pipe/flow/pass.hpp>
#include <pipe/timetable/verify.hpp>

namespace pipelining::inline v0_3::detail {

// These types exist for their names: compilers print the arguments of the template that holds a
// failed static_assert.
template <int>
struct devices;
template <int>
struct microbatches;
template <int>
struct device;
template <int>
struct entry;
template <pass_kind>
struct runs;
template <int>
struct stage;
template <int>
struct microbatch;
template <int>
struct chunk;
template <class...>
struct conflicts_with;

template <rule Broken,
          class Schedule,
          class Devices,
          class Microbatches,
          class Device,
          class Entry,
          class... Pass>
struct timetable_breaks {
  static_assert(
    Broken != rule::unknown_pass,
    "timetable: a pass names a stage, microbatch or chunk that the pipeline does not have");
  static_assert(Broken != rule::wrong_device,
                "timetable: a pass is on a device that does not hold its stage");
  static_assert(Broken != rule::lone_half,
                "timetable: an overlapped pass does not follow the other half of its pair");
  static_assert(Broken != rule::repeated_pass, "timetable: a pass stands twice");
  static_assert(Broken != rule::missing_pass, "timetable: a pass is missing");
  static_assert(Broken != rule::wrong_kinds,
                "timetable: the kinds of passes of a unit do not go together: one reads what none "
                "makes, or none frees what one makes");
  static_assert(Broken != rule::not_there,
                "timetable: a pass stands where what it needs of its stage is not there: weights "
                "that have been gathered, or memory for its gradients");
  static_assert(Broken != rule::waits_for_ever,
                "timetable: a pass waits for ever: the order of passes is circular");
  static_assert(Broken != rule::overlaps,
                "timetable: a pass starts before the pass before it on the same device has ended");
  static_assert(Broken != rule::before_dependency,
                "timetable: a pass starts before a pass that it depends on has ended and arrived");
  static_assert(Broken != rule::over_memory,
                "timetable: a device holds more activations than the limit allows");
};

// A class, not an alias: g++ 12 fails on alias templates over class-type arguments.
template <report Verdict, class Schedule, int Devices, int Microbatches>
struct diagnosis : timetable_breaks<Verdict.broken,
                                    Schedule,
                                    devices<Devices>,
                                    microbatches<Microbatches>,
                                    device<Verdict.device>,
                                    entry<Verdict.entry>,
                                    runs<Verdict.what.kind>,
                                    stage<Verdict.what.stage>,
                                    microbatch<Verdict.what.microbatch>,
                                    chunk<Verdict.what.chunk>,
                                    conflicts_with<runs<Verdict.other.kind>,
                                                   stage<Verdict.other.stage>,
                                                   microbatch<Verdict.other.microbatch>,
                                                   chunk<Verdict.other.chunk>>> {};

} // namespace pipelining::inline v0_3::detail
