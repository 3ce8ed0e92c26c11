// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Items, cycles and proofs in words. Header for pipelining::describe of plans.

#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/proof.hpp>
#include <pipe/plan/prove/drain.hpp>
#include <pipe/timetable/report.hpp>

#include <cstddef>
#include <string>

namespace pipelining::inline v0_3 {

namespace detail {

//! The subject of a step in words: "forward of stage 1, microbatch 0" or "totals of stage 2".
//! @param rows of totals that it is about
[[nodiscard]] inline std::string
describe_subject(item const& step, pipeline_view const& over, int rows = 1) {
  std::string const stage = " stage " + std::to_string(step.work.stage);
  switch (step.about) {
  case subject::pass: return describe(step.work, over);
  case subject::copied_gradient: return "gradient of a copy of" + stage;
  case subject::add_copies: return "addition of the gradients of all copies of" + stage;
  case subject::tied_gradient: return "tied gradient of" + stage;
  case subject::add_tied: return "addition of the tied gradients on" + stage;
  case subject::contribution: return "totals of" + stage;
  case subject::gather:
    return rows == 1 ? "totals of" + stage
                     : "totals of stages " + std::to_string(step.work.stage) + " to " +
                         std::to_string(step.work.stage + rows - 1);
  case subject::spread: return "totals of all stages";
  case subject::update: return "optimizer step of" + stage;
  case subject::early_update: return "early optimizer step of" + stage;
  case subject::validation: return "validation of the optimizer step of" + stage;
  }
  return "unknown step";
}

//! The same of a step of a plan.
[[nodiscard]] inline std::string describe_subject(item const& step, plan_view const& work) {
  return describe_subject(step, work.over, rows_of(work, step));
}

} // namespace detail

//! @brief A step in words: "send what comes of the forward of stage 1, microbatch 0 to device 2".
[[nodiscard]] inline std::string describe(item const& step, plan_view const& work) {
  bool const runs = step.what == operation::run;
  std::string text = detail::word(step.what);
  text += runs || step.about != detail::subject::pass ? " " : " what comes of ";
  text += "the " + detail::describe_subject(step, work);
  if (!runs)
    text += (step.what == operation::send ? " to device " : " from device ") +
            std::to_string(work.message_of(step).peer);
  return text;
}

namespace detail {

//! Where a plan that does not drain stands: the devices of the circle, each with what it
//! waits for.
//! @return one line per device, empty for a plan that drains.
[[nodiscard]] inline std::string describe_circle(plan_view work) {
  plan_drain const run(work);
  std::string text;
  for (int const device : run.circle()) {
    text += "  device " + std::to_string(device);
    if (run.ended(device)) {
      text += " has ended\n";
      continue;
    }
    int const index = run.at(device);
    auto const steps = work.program_of(device);
    int const end = end_of_group(steps, index);
    for (int i = index; i < end; ++i)
      text += (i == index ? ", item " + std::to_string(index) + ": " : " and ") +
              describe(steps[static_cast<std::size_t>(i)], work);
    text += "\n";
  }
  return text;
}

} // namespace detail

//! @brief A proof's verdict as a sentence that names the devices and items, with the circle where
//! there is one.
[[nodiscard]] inline std::string describe(proof const& verdict, plan_view work) {
  std::string text = std::string("plan: ") + detail::sentence(verdict.broken);
  if (verdict)
    return text;
  if (verdict.broken == proof::rule::circular)
    return text + ":\n" + detail::describe_circle(work);
  if (verdict.broken == proof::rule::seam)
    return text + " (device " + std::to_string(verdict.device) + ")";
  auto const name = [&](int device, int index, pass const& what) {
    pipeline_view const& over = work.over;
    std::string words = "device " + std::to_string(device);
    if (index == nothing) {
      item missing;
      missing.work = what;
      missing.about = verdict.about;
      return words + ": " + detail::describe_subject(missing, over);
    }
    auto const steps = work.program_of(device);
    auto const at = static_cast<std::size_t>(index);
    return words + ", item " + std::to_string(index) +
           (at < steps.size() ? ": " + describe(steps[at], work) : ", which does not exist");
  };
  text += " (" + name(verdict.device, verdict.item_index, verdict.what);
  if (verdict.other_item >= 0 && verdict.other_device >= 0)
    text += "; with " + name(verdict.other_device, verdict.other_item, verdict.other);
  return text + ")";
}

} // namespace pipelining::inline v0_3
