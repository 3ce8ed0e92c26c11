// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Rules of timetables, and sentences about passes and broken rules. Header for
//! pipelining::report and pipelining::describe.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>

#include <cstdint>
#include <iterator>
#include <string>

namespace pipelining::inline v0_3 {

//! @brief The verdict of `verify`: the first broken rule, where it is broken, and the passes
//! involved.
struct report {
  //! @brief The rules of a timetable, in the order in which `verify` checks them.
  enum class rule : std::uint8_t {
    none,            //!< nothing is wrong
    too_many_passes, //!< a row longer than all passes of the device's stages
    unknown_pass,    //!< a stage, microbatch or chunk that the pipeline does not have
    wrong_device,    //!< a pass on a device that does not hold its stage
    lone_half,       //!< an overlapped pass that is not the second half of a pair
    repeated_pass,   //!< a pass that stands twice, or a fused backward next to one of its halves
    missing_pass,    //!< a unit without its forward, or without its whole backward, on some stage
    wrong_kinds,     //!< a unit whose kinds of passes do not go together: a copy of what was not to
                     //!< leave, a datum that nobody gives back
    not_there,       //!< a pass that needs weights that are not gathered then, or memory for
                     //!< gradients
    waits_for_ever,  //!< a pass without a finite start and end: it waits, in a circle, for itself
    overlaps,        //!< a pass that starts before the pass before it on the same device has ended
    before_dependency, //!< a pass that starts before a pass it waits for has ended and its message
                       //!< has arrived
    over_memory        //!< a device that holds more activations than allowed
  };

  rule broken = rule::none; //!< the rule, none where all is well
  int device = 0;           //!< where it is broken
  int entry = 0;            //!< position in the device's row
  pass what;                //!< the pass that breaks the rule
  pass other;               //!< the pass it is in conflict with, where there is one
  int held = 0;             //!< over_memory: the chunks of activations held

  [[nodiscard]] constexpr explicit operator bool() const noexcept { return broken == rule::none; }
};

//! @brief A pass in the words of its flow: "forward of stage 2, microbatch 5" and, where chunks
//! are in use, ", chunk 1".
[[nodiscard]] inline std::string describe(pass const& what, pipeline_view const& over) {
  std::string text = over.declared->word(what.kind);
  text +=
    " of stage " + std::to_string(what.stage) + ", microbatch " + std::to_string(what.microbatch);
  if (over.extents.chunks > 1)
    text += ", chunk " + std::to_string(what.chunk);
  return text;
}

namespace detail {

//! The sentence of a rule, without the passes. Compile errors use the same words.
[[nodiscard]] constexpr char const* sentence(report::rule broken) noexcept {
  constexpr char const* sentences[] = {
    "the timetable keeps every rule",
    "a device has more passes than its stages can have: each unit has one forward and one "
    "backward, or one forward and the two halves",
    "a pass names a stage, microbatch or chunk that the pipeline does not have",
    "a pass is on a device that does not hold its stage",
    "an overlapped pass does not follow the other half of its pair",
    "a pass stands twice",
    "a pass is missing",
    "the kinds of passes of a unit do not go together: one reads what none makes, or none "
    "frees what one makes",
    "a pass stands where what it needs of its stage is not there: weights that have been "
    "gathered, or memory for its gradients",
    "a pass waits for ever: the order of passes is circular",
    "a pass starts before the pass before it on the same device has ended",
    "a pass starts before a pass that it depends on has ended and arrived",
    "a device holds more activations than the limit allows"};
  static_assert(std::size(sentences) == static_cast<int>(report::rule::over_memory) + 1);
  return sentences[static_cast<int>(broken)];
}
} // namespace detail

//! @brief A verdict as one sentence that names the rule, the device and the passes.
[[nodiscard]] inline std::string describe(report const& verdict, pipeline_view const& over) {
  std::string text = std::string("timetable: ") + detail::sentence(verdict.broken);
  if (verdict)
    return text;
  text += " (device " + std::to_string(verdict.device);
  if (verdict.broken != report::rule::missing_pass)
    text += ", entry " + std::to_string(verdict.entry);
  text += ": " + describe(verdict.what, over);
  bool const two = verdict.broken == report::rule::repeated_pass ||
                   verdict.broken == report::rule::overlaps ||
                   verdict.broken == report::rule::before_dependency;
  if (two)
    text += "; in conflict with " + describe(verdict.other, over);
  if (verdict.broken == report::rule::over_memory)
    text += "; chunks held: " + std::to_string(verdict.held);
  return text + ")";
}

} // namespace pipelining::inline v0_3
