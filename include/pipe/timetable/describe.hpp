// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Passes and verdicts in words. Header for pipelining::describe.

#include <pipe/flow/pass.hpp>
#include <pipe/timetable/verify.hpp>

#include <string>

namespace pipelining::inline v0_3 {

//! @brief A pass in the words of its flow: "forward of stage 2, microbatch 5" and, where chunks
//! are in use, ", chunk 1".
[[nodiscard]] inline std::string describe(pass const& what, pipeline_view const& over) {
  std::string text = word(*over.declared, what.kind);
  text +=
    " of stage " + std::to_string(what.stage) + ", microbatch " + std::to_string(what.microbatch);
  if (over.extents.chunks > 1)
    text += ", chunk " + std::to_string(what.chunk);
  return text;
}

namespace detail {

//! The sentence of a rule, without the passes. Compile errors use the same words.
[[nodiscard]] constexpr char const* sentence(rule broken) noexcept {
  switch (broken) {
  case rule::none: return "the timetable keeps every rule";
  case rule::unknown_pass:
    return "a pass names a stage, microbatch or chunk that the pipeline does not have";
  case rule::wrong_device: return "a pass is on a device that does not hold its stage";
  case rule::lone_half: return "an overlapped pass does not follow the other half of its pair";
  case rule::repeated_pass: return "a pass stands twice";
  case rule::missing_pass: return "a pass is missing";
  case rule::wrong_kinds:
    return "the kinds of passes of a unit do not go together: one reads what none makes, or none "
           "frees what one makes";
  case rule::not_there:
    return "a pass stands where what it needs of its stage is not there: weights that have been "
           "gathered, or memory for its gradients";
  case rule::waits_for_ever: return "a pass waits for ever: the order of passes is circular";
  case rule::overlaps:
    return "a pass starts before the pass before it on the same device has ended";
  case rule::before_dependency:
    return "a pass starts before a pass that it depends on has ended and arrived";
  case rule::over_memory: return "a device holds more activations than the limit allows";
  }
  return "unknown rule";
}

} // namespace detail

//! @brief A verdict as one sentence that names the rule, the device and the passes.
[[nodiscard]] inline std::string describe(report const& verdict, pipeline_view const& over) {
  std::string text = std::string("timetable: ") + detail::sentence(verdict.broken);
  if (verdict)
    return text;
  text += " (device " + std::to_string(verdict.device);
  if (verdict.broken != rule::missing_pass)
    text += ", entry " + std::to_string(verdict.entry);
  text += ": " + describe(verdict.what, over);
  bool const two = verdict.broken == rule::repeated_pass || verdict.broken == rule::overlaps ||
                   verdict.broken == rule::before_dependency;
  if (two)
    text += "; in conflict with " + describe(verdict.other, over);
  if (verdict.broken == rule::over_memory)
    text += "; chunks held: " + std::to_string(verdict.held);
  return text + ")";
}

} // namespace pipelining::inline v0_3
