// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Plans without a barrier at the step of the optimizer. Header for
//! pipelining::lower_post_validated.

#include <pipe/plan/lower.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/plan/sizes.hpp>
#include <pipe/plan/step_validation.hpp>
#include <pipe/timetable/timetable.hpp>

namespace pipelining::inline v0_3 {

namespace detail {

//! The plans of a training loop whose optimizer's steps are validated in the iteration that
//! follows.
struct post_validated_plans {
  plan first;  //!< of the first iteration, of one after `last`, and of one that begins again
  plan steady; //!< of an iteration that validates the step of the one before
  plan last;   //!< validates the last step, and has no passes
};

} // namespace detail

//! @brief Lowers a timetable of any schedule to plans that take the step of the optimizer early and
//! validate it in the next iteration, as `step_validation` says.
//!
//! Stages need `accepts`, `roll_back` and `begin_iteration` next to `contribute` and
//! `optimizer_step`: see `can_step_early`. Their weights are, bit for bit, those of the plan that
//! `lower` makes with the same sizes. Run them with `post_validated_steps`.
//!
//! @throws as `lower` does; std::invalid_argument where the sizes have no `totals_bytes`.
//! @complexity as `lower`.
template <communication_policy Policy = communicators::per_pair, buffer_sizes Sizes>
[[nodiscard]] detail::post_validated_plans
lower_post_validated(timetable_view table, Sizes const& sizes, detail::lower_options options = {}) {
  auto const lowered = [&](step_validation when) {
    options.validation = when;
    return lower<Policy>(table, sizes, options);
  };
  return {
    lowered(step_validation::next), lowered(step_validation::both), lowered(step_validation::last)};
}

} // namespace pipelining::inline v0_3
