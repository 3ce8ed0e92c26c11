// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The part of the proof that looks at what runs: every pass, and every step that follows
//! complete gradients, once, on the device of its stage.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/resolve.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/hooks.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/proof.hpp>

#include <cstddef>
#include <cstdint>

namespace pipelining::inline v0_3::detail {

//! True when these kinds together make every wanted row of a unit once, and no row twice.
[[nodiscard]] constexpr bool makes_rows_once(flow const& declared, flow_set kinds) noexcept {
  for (int row = 0; row < declared.rows; ++row) {
    flow_set const makers = declared.makers[row] & kinds;
    if (makers == 0 ? declared.wanted[row] : (makers & (makers - 1)) != 0)
      return false;
  }
  return true;
}

//! The subjects of steps that are not passes.
inline constexpr subject other_steps[] = {subject::copied_gradient,
                                          subject::add_copies,
                                          subject::tied_gradient,
                                          subject::add_tied,
                                          subject::contribution,
                                          subject::update,
                                          subject::early_update,
                                          subject::validation};
inline constexpr int other_step_count = 8;

//! True when a copy of a stage has a step about `about`. The copy of the first microbatch
//! contributes.
[[nodiscard]] constexpr bool
wants_other(plan_view const& work, subject about, int stage, int device) noexcept {
  if (class_of(about) == slot_class::copied_gradient)
    return work.tied_bytes + work.totals_bytes > 0 && copies_of(work.over, stage) > 1 &&
           !goes_forward_only(work.over, stage);
  if (class_of(about) == slot_class::tied_gradient)
    return work.tied_bytes > 0 && holds_tied(work.over.extents, stage);
  if (work.totals_bytes <= 0)
    return false;
  if (about == subject::validation)
    return validates(work.validation);
  if (about == subject::early_update)
    return steps_early(work.validation);
  if (about == subject::update)
    return !work.evaluates && work.validation == step_validation::at_once;
  return work.validation != step_validation::last && device_of(work, stage) == device;
}

//! The steps that have run: the kinds of passes of every unit of every stage, and the other steps
//! of every copy of a stage.
struct steps_run {
  flow_set* kinds;       // [S units]
  unsigned char* others; // [other_indices]
};

[[nodiscard]] constexpr int other_indices(shape const& extents) noexcept {
  return other_step_count * extents.stages() * most_copies(extents);
}

[[nodiscard]] constexpr int unit_indices(pipeline_view const& over) noexcept {
  return over.extents.stages() * over.units();
}

//! The number of a step that is no pass. @pre the device has a copy of the stage
[[nodiscard]] constexpr int
other_index(plan_view const& work, subject about, int stage, int device) noexcept {
  int kind = 0;
  while (kind + 1 < other_step_count && other_steps[kind] != about)
    ++kind;
  return (kind * work.over.extents.stages() + stage) * most_copies(work.over.extents) +
         copies_below(work.over, stage, device);
}

//! The lane of a copy, `nothing` for a pass of the compute engine.
[[nodiscard]] constexpr int
lane_of_engine(plan_view const& work, int device, pass const& what) noexcept {
  int const row =
    work.over.declared->engine_row[static_cast<int>((*work.over.declared)[what.kind].on)];
  return row > 0 ? work.lanes[device] + row - 1 : nothing;
}

//! Enters a step that a device runs: on the device of its stage and on its engine, none twice.
constexpr proof::rule
enter_step(plan_view const& work, int device, item const& step, steps_run const& ran) noexcept {
  pipeline_view const& over = work.over;
  if (device_of(over, step.work) != device)
    return proof::rule::wrong_passes;
  bool entered = false;
  if (step.about == subject::pass) {
    flow_set& kinds = ran.kinds[step.work.stage * over.units() + over.unit_of(step.work)];
    entered = holds(kinds, index_of(step.work.kind));
    kinds |= only(index_of(step.work.kind));
  } else {
    unsigned char& other = ran.others[other_index(work, step.about, step.work.stage, device)];
    entered = other != 0;
    other = 1;
  }
  if (entered)
    return proof::rule::wrong_passes;
  int const lane = step.about == subject::pass ? lane_of_engine(work, device, step.work) : nothing;
  return step.lane == lane ? proof::rule::none : proof::rule::wrong_lane;
}

//! Finds a step other than a pass that no device runs, or that none should.
constexpr proof find_missing_other(plan_view const& work, steps_run const& ran) noexcept {
  proof verdict;
  if (work.tied_bytes + work.totals_bytes == 0)
    return verdict; // and check_form knows no such step
  for (int stage = 0; stage < work.over.extents.stages(); ++stage)
    for_each_copy(work.over, stage, [&](int device, int) {
      for (subject const about : other_steps) {
        bool const runs = ran.others[other_index(work, about, stage, device)] != 0;
        if (!verdict || runs == wants_other(work, about, stage, device))
          continue;
        verdict = {proof::rule::wrong_passes, device};
        verdict.what.stage = static_cast<std::uint16_t>(stage);
        verdict.about = about;
      }
    });
  return verdict;
}

//! True when a unit has all passes that it needs. An evaluation needs one forward pass, and so does
//! a stage that only goes forward.
[[nodiscard]] constexpr bool
suffices(plan_view const& work, flow_set kinds, bool forward_only) noexcept {
  flow const& declared = *work.over.declared;
  if (!forward_only)
    return makes_rows_once(declared, kinds) && uses_all_data(data_users(declared), kinds);
  int forwards = 0;
  int others = 0;
  for (int kind = 0; kind < declared.kind_count; ++kind)
    if (holds(kinds, kind))
      ++(declared.kinds[kind].calls == stage_call::forward ? forwards : others);
  return forwards == 1 && others == 0;
}

//! The first row of data in a unit that has too few or too many makers.
[[nodiscard]] constexpr int
find_wrong_row(plan_view const& work, flow_set kinds, bool forward_only) noexcept {
  for (int row = 0; row < work.over.declared->rows; ++row) {
    flow_set const makers = work.over.declared->makers[row] & kinds;
    bool const wanted = forward_only ? row == 0 : work.over.declared->wanted[row];
    bool const once = makers != 0 && (makers & (makers - 1)) == 0;
    if (wanted ? !once : forward_only ? makers != 0 && row > 0 : makers != 0 && !once)
      return row;
  }
  return 0;
}

//! Finds a pass that no device runs, or that none should, once all devices have entered theirs.
constexpr proof find_missing(plan_view const& work, steps_run const& ran) noexcept {
  pipeline_view const over = work.over;
  flow_set good = 0; // the last that was found to suffice
  for (int unit = 0; unit < unit_indices(over); ++unit) {
    flow_set const kinds = ran.kinds[unit];
    bool const still = goes_forward_only(over, unit / over.units());
    if (kinds == good && good != 0 && !still)
      continue;
    bool const only = work.evaluates || still;
    if (work.validation == step_validation::last ? kinds == 0 : suffices(work, kinds, only)) {
      good = still ? good : kinds;
      continue;
    }
    pass const what = pass_at(over, find_wrong_row(work, kinds, only) * unit_indices(over) + unit);
    return {proof::rule::wrong_passes, device_of(over, what), nothing, nothing, nothing, what, {}};
  }
  return find_missing_other(work, ran);
}

} // namespace pipelining::inline v0_3::detail
