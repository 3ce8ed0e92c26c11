// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The part of the proof that looks at what runs: every pass, and every step that follows
//! complete gradients, once, on the device of its stage.

#include <pipe/core/pass.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/plan/hooks.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/proof.hpp>

#include <cstddef>
#include <cstdint>

namespace pipelining::inline v0_1 {
namespace detail {

//! The subjects of steps that run beside passes.
inline constexpr subject other_steps[] = {
  subject::tied_gradient, subject::add_tied, subject::contribution, subject::update};

//! The number of values of `step_index`.
[[nodiscard]] constexpr int step_indices(shape const& extents) noexcept {
  return pass_indices(extents) + 4 * stages(extents);
}

//! A dense number for what a step runs.
[[nodiscard]] constexpr int step_index(shape const& extents, item const& step) noexcept {
  if (step.about == subject::pass)
    return pass_index(extents, step.work);
  int kind = 0;
  while (kind < 3 && other_steps[kind] != step.about)
    ++kind;
  return pass_indices(extents) + kind * stages(extents) + step.work.stage;
}

//! Enters what a device runs: each on the device of its stage, none twice.
//! @param ran [step_indices], receives kind + 1 of the pass that runs; starts out 0.
constexpr proof enter_passes(plan_view work, int device, unsigned char* ran) noexcept {
  auto const steps = work.program_of(device);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    item const& step = steps[i];
    if (step.what != operation::run)
      continue;
    unsigned char& entry = ran[step_index(work.extents, step)];
    if (entry != 0 || device_of(work.extents, step.work) != device)
      return {plan_rule::wrong_passes, device, static_cast<int>(i)};
    entry = static_cast<unsigned char>(static_cast<int>(step.work.kind) + 1);
  }
  return {};
}

//! Finds a step beside passes that no device runs, or that none should.
constexpr proof find_missing_other(plan_view work, unsigned char const* ran) noexcept {
  shape const& extents = work.extents;
  for (int stage = 0; stage < stages(extents); ++stage)
    for (subject const about : other_steps) {
      bool const tied = about == subject::tied_gradient || about == subject::add_tied;
      bool const wanted =
        tied ? work.tied_bytes > 0 && holds_tied(extents, stage) : work.totals_bytes > 0;
      item step;
      step.about = about;
      step.work.stage = static_cast<std::uint16_t>(stage);
      if ((ran[step_index(extents, step)] != 0) == wanted)
        continue;
      proof verdict{plan_rule::wrong_passes, device_of(extents, stage)};
      verdict.what = step.work;
      verdict.about = about;
      return verdict;
    }
  return {};
}

//! Finds a pass that no device runs, or that none should, once all devices have entered theirs.
constexpr proof find_missing(plan_view work, unsigned char const* ran) noexcept {
  shape const& extents = work.extents;
  int const per_class = stages(extents) * units(extents);
  auto const is = [ran](int index, pass_kind kind) {
    return ran[index] == static_cast<int>(kind) + 1;
  };
  for (int unit = 0; unit < per_class; ++unit) {
    int const gradient = unit + per_class;
    int const weight = gradient + per_class;
    int wrong = nothing;
    if (!is(unit, pass_kind::forward))
      wrong = unit;
    else if ((ran[gradient] != 0) == work.evaluates)
      wrong = gradient;
    else if ((ran[weight] != 0) != is(gradient, pass_kind::backward_input))
      wrong = weight;
    if (wrong == nothing)
      continue;
    pass const what = pass_at(extents, wrong);
    return {plan_rule::wrong_passes, device_of(extents, what), nothing, nothing, nothing, what, {}};
  }
  return find_missing_other(work, ran);
}

} // namespace detail
} // namespace pipelining::inline v0_1
