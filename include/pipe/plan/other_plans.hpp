// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Plans of evaluations, and of training whose optimizer steps early, and whether one may
//! follow another. Header for pipelining::lower_evaluation and pipelining::lower_post_validated.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training_flows.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/lower/global_order.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/plan/proof.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/plan/sizes.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/timetable/verify.hpp>
#include <pipe/timetable/workers.hpp>

#include <stdexcept>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief Lowers the forward passes of a timetable only: the same pipeline, evaluated. No buffer
//! lives on for a backward pass (`activation` is memory to work in), and there are no gradients
//! that steps could follow. Where the sizes have `totals_bytes`, stages contribute rows of totals
//! after their passes, and every device gets them all (but for placements that keep several
//! copies of stages).
//!
//! Such a plan may follow a plan for training, and the other way round, without a barrier:
//! see `prove(first, next)`.
//!
//! @throws as `lower` does, and std::invalid_argument for flows that have no evaluation: with
//! statistics between stages, weights that are gathered, or stages that go one way.
//! @complexity as `lower`.
template <communication_policy Policy = communicators::per_pair,
          buffer_sizes Sizes = detail::no_sizes,
          detail::worker_group Workers = detail::one_worker>
[[nodiscard]] plan lower_evaluation(timetable_view table,
                                    Sizes const& sizes = {},
                                    detail::lower_options const& options = {},
                                    Workers const& by = {}) {
  if (report const verdict = verify(table, detail::unlimited, by); !verdict)
    throw std::invalid_argument(describe(verdict, table.over));
  if (table.over.declared->reads_in_groups)
    throw std::invalid_argument(
      "plan: an evaluation of a flow whose stages exchange statistics has nobody who reads them; "
      "evaluate with a plan of the whole timetable, and leave its gradients alone");
  if (detail::stages_go_one_way(*table.over.declared))
    throw std::invalid_argument(
      "plan: an evaluation takes all stages forward, but in this flow some go back alone, with the "
      "forward pass of their layers inside; evaluate with a plan of the whole timetable and leave "
      "its gradients alone, or with a schedule whose stages go both ways");
  if (table.over.declared->has_needs)
    throw std::invalid_argument(
      "plan: an evaluation has no visits in which sharded weights are gathered; evaluate with a "
      "plan of the schedule that with_sharded_weights adapts, on stages that hold whole weights, "
      "or train with a plan of the whole timetable and leave its gradients alone");
  std::vector<int> order;
  for (int const entry : detail::order_merge(table).run())
    if ((*table.over.declared)[table.passes[entry].kind].calls == stage_call::forward)
      order.push_back(entry);
  return detail::lower_order<Policy>(table, std::move(order), true, sizes, options, by);
}

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
template <communication_policy Policy = communicators::per_pair,
          buffer_sizes Sizes,
          detail::worker_group Workers = detail::one_worker>
[[nodiscard]] detail::post_validated_plans lower_post_validated(timetable_view table,
                                                                Sizes const& sizes,
                                                                detail::lower_options options = {},
                                                                Workers const& by = {}) {
  auto const lowered = [&](step_validation when) {
    options.validation = when;
    return lower<Policy>(table, sizes, options, by);
  };
  return {
    lowered(step_validation::next), lowered(step_validation::both), lowered(step_validation::last)};
}

namespace detail {

//! @brief True when two pipelines have the same devices, each with the same stages.
//! @complexity O(S).
[[nodiscard]] inline bool same_stages(plan const& one, plan const& other) noexcept {
  shape const& mine = one.over.extents;
  bool const both_ways = mine.where == placement::bidirectional;
  if (mine.devices != other.over.extents.devices || mine.stages() != other.over.extents.stages() ||
      mine.routes() != other.over.extents.routes() ||
      both_ways != (other.over.extents.where == placement::bidirectional))
    return false;
  for (int i = 0; i < mine.stages() * mine.routes() && !both_ways; ++i) {
    int const stage = i % mine.stages();
    int const microbatch = microbatch_of(mine, i / mine.stages());
    if (device_of(one, stage, microbatch) != device_of(other, stage, microbatch))
      return false;
  }
  return true;
}

} // namespace detail

//! @brief Proves that one plan may follow another, in turn with it, without a barrier between
//! devices: train, evaluate, train.
//!
//! Both are proven by themselves; both are for the same devices and stages, and share
//! communicators. Each device runs its program of the second plan after the whole of its program of
//! the first. Both leave every edge empty, so the second meets the same as by itself. Where the
//! first takes early steps of the optimizer, the second validates them, and else it must not.
//!
//! @return the verdict on `first`, on `next`, or the rule `seam` with the first device concerned.
//! @complexity as the two proofs.
//! @source own derivation, see docs/explanation/plan.md
[[nodiscard]] inline proof prove(plan const& first, plan const& next) {
  proof verdict = prove(first);
  if (verdict)
    verdict = prove(next);
  if (!verdict)
    return verdict;
  int const devices = first.over.extents.devices;
  if (next.duplex_groups != first.duplex_groups || !detail::same_stages(first, next))
    return {proof::rule::seam};
  if (detail::steps_early(first.validation) != detail::validates(next.validation) ||
      (detail::validates(next.validation) && first.totals_bytes != next.totals_bytes))
    return {proof::rule::not_validated};
  for (int from = 0; from < devices; ++from)
    for (int to = 0; to < devices; ++to)
      if (from != to && first.key(from, to) != next.key(from, to))
        return {proof::rule::seam, from, nothing, to};
  return {};
}

} // namespace pipelining::inline v0_3
