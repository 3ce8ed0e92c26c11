// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The proof that a plan drains and mixes up no data, and its verdict in words. Header for
//! pipelining::prove.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/resolve.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/hooks.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/proof.hpp>
#include <pipe/plan/prove/messages.hpp>
#include <pipe/plan/prove/slots.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/workers.hpp>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

namespace pipelining::inline v0_3 {

namespace detail {

//! The steps that are no passes of a copy of a stage, by their subjects. The copy of the first
//! microbatch contributes.
[[nodiscard]] inline flow_set wanted_others(plan const& work, int stage, int device) noexcept {
  bool const copied =
    has_hooks(work) && copies_of(work.over, stage) > 1 && !goes_forward_only(work.over, stage);
  bool const tied = work.tied_bytes > 0 && holds_tied(work.over.extents, stage);
  bool const totals = work.totals_bytes > 0;
  bool const last = work.validation == step_validation::last;
  bool const at_once = work.validation == step_validation::at_once;
  flow_set wanted = 0;
  auto const want = [&wanted](subject about, bool wants) {
    wanted |= wants ? only(static_cast<int>(about)) : 0;
  };
  want(subject::copied_gradient, copied);
  want(subject::add_copies, copied);
  want(subject::tied_gradient, tied);
  want(subject::add_tied, tied);
  want(subject::contribution, totals && !last && device_of(work, stage) == device);
  want(subject::update, totals && at_once && !work.evaluates);
  want(subject::early_update, totals && steps_early(work.validation));
  want(subject::validation, totals && validates(work.validation));
  return wanted;
}

//! Finds a step other than a pass that no device runs, or that none should.
inline proof find_missing_other(plan const& work, device_notes const& ran) noexcept {
  proof verdict;
  pass of_stage;
  // nvcc 13 takes `.stage <` for a template, by the order of what is included.
  for (; work.over.extents.stages() > of_stage.stage; ++of_stage.stage)
    for_each_copy(work.over, of_stage.stage, [&](int device, int) {
      flow_set const wrong = ran.others[copy_index(work.over, of_stage.stage, device)] ^
                             wanted_others(work, of_stage.stage, device);
      if (verdict && wrong != 0)
        verdict = {.broken = proof::rule::wrong_passes,
                   .device = device,
                   .what = of_stage,
                   .about = static_cast<subject>(std::countr_zero(wrong))};
    });
  return verdict;
}

//! The first row of data in a unit that too few or too many of its kinds make, or `nothing`.
[[nodiscard]] constexpr int
find_wrong_row(flow const& declared, flow_set kinds, bool forward_only = false) noexcept {
  for (int row = 0; row < declared.rows; ++row) {
    int const makers = std::popcount(declared.makers[row] & kinds);
    bool const wanted = forward_only ? row == 0 : declared.wanted[row];
    if (wanted ? makers != 1 : makers > (forward_only ? 0 : 1))
      return row;
  }
  return nothing;
}

//! True when a unit has all passes that it needs. An evaluation needs one forward pass, and so does
//! a stage that only goes forward.
[[nodiscard]] constexpr bool
suffices(flow const& declared, flow_set kinds, bool forward_only) noexcept {
  return forward_only ? std::has_single_bit(kinds) &&
                          declared.kinds[std::countr_zero(kinds)].calls == stage_call::forward
                      : find_wrong_row(declared, kinds) == nothing &&
                          uses_all_data(data_users(declared), kinds);
}

//! Finds a pass that no device runs, or that none should, once all devices have entered theirs.
inline proof find_missing(plan const& work, device_notes const& ran) noexcept {
  pipeline_view const& over = ran.over;
  flow_set good = 0; // the last that was found to suffice
  for (int unit = 0; unit < unit_indices(over); ++unit) {
    flow_set const kinds = ran.kinds[unit];
    bool const still = goes_forward_only(over, unit / over.units());
    if (kinds == good && good != 0 && !still)
      continue;
    bool const only = work.evaluates || still;
    flow const& declared = *over.declared;
    if (work.validation == step_validation::last ? kinds == 0 : suffices(declared, kinds, only)) {
      good = still ? good : kinds;
      continue;
    }
    int const row = std::max(find_wrong_row(declared, kinds, only), 0);
    pass const what = pass_at(over, row * unit_indices(over) + unit);
    return {proof::rule::wrong_passes, device_of(over, what), nothing, nothing, nothing, what};
  }
  return find_missing_other(work, ran);
}

//! Before a device validates, it runs only forward passes that can run again. It waits only for
//! messages that come even where the iteration begins again.
//! @complexity O(n) for n items where the messages that a device receives before it validates come
//! from one device after the other, as those to its lowest stage do.
inline proof check_validation(plan const& work) noexcept {
  for (int device = 0; device < work.over.extents.devices; ++device) {
    int const end = behind_validation(work, device);
    auto const steps = work.program_of(device);
    int sender = device; // of the message before
    int early = 0;       // messages that come from there
    for (int i = 0; i < end; ++i) {
      item const& step = steps[static_cast<std::size_t>(i)];
      bool const receives = step.what == operation::receive;
      if (receives && work.message_of(step).peer != sender) {
        sender = work.message_of(step).peer;
        early = sent_early(work, sender, device);
      }
      bool const runs = step.what == operation::run && step.about != subject::validation;
      if ((runs && (step.about != subject::pass || !may_run_again(work.over, device, step.work))) ||
          (receives && work.message_of(step).sequence >= early))
        return {proof::rule::not_validated, device, i};
    }
  }
  return {};
}

//! The two ends of every message fit together, and the plan drains with zero buffering.
inline proof check_meetings(plan const& work) {
  plan_walk walk(work);
  bool const drained = walk.drain();
  // Without exchanges it has met at both ends of every message.
  if (drained && work.exchanges.empty() && sends_once(work))
    return {};
  if (proof const found = find_mismatch(work); !found || drained)
    return found;
  int const device = walk.first_of_circle();
  return {proof::rule::circular, device, walk.at(device)};
}

//! The first rule that does not hold, in the order of the rules: first the checks of single
//! devices, then the checks of all devices together, then again checks of single devices.
//! @param uses of the pipeline of the plan
template <worker_group Workers>
proof find_broken(plan const& work, data_uses const& uses, Workers const& by) {
  int const devices = work.over.extents.devices;
  device_notes const notes(work);
  owned<device_finding> const found(devices, {});
  auto const first_finding = [&] {
    device_finding first;
    for (int device = 0; device < devices; ++device)
      first.add(found[device]);
    return first;
  };
  worker_parts const parts(devices, by.count());
  by.run(parts.count, [&](int part) {
    item_check items{work, notes};
    for (int device = parts.first(part); device < parts.first(part + 1); ++device)
      found[device] = items.check(device);
  });
  if (device_finding const early = first_finding(); early.what <= device_check::lanes)
    return early.verdict;
  // Only one of the workers can look at how devices meet, so the others look at slots meanwhile.
  proof meet;
  std::atomic<int> next = -1;
  by.run(parts.count, [&](int) {
    slot_check slots{work, uses};
    for (int device = next++; device < devices; device = next++)
      if (device < 0)
        meet = check_meetings(work);
      else if (found[device].what == device_check::none)
        found[device].add({device_check::slots, slots.check(device)});
  });
  device_finding const last = first_finding();
  if (last.what == device_check::sequences && (meet || meet.broken == proof::rule::circular))
    return last.verdict;
  if (!meet || last.what == device_check::ran_twice)
    return meet ? last.verdict : meet;
  proof const missing = find_missing(work, notes);
  if (!missing || !last.verdict)
    return missing ? last.verdict : missing;
  return check_validation(work);
}

} // namespace detail

//! @brief Proves what execution needs of a plan, and returns the first thing that does not hold.
//!
//! Waits point back. Messages are in the line of the communicator that the plan's policy gives
//! them. Every message is sent once and received once, of the same size, and both ends of an edge
//! agree on its order. Groups are the same at both ends, exchanges at all of theirs. The plan
//! drains with no buffering at all (see `plan_walk`). Every pass runs once, on the device of its
//! stage. No slot is written while it may still be read, and every pass reads the data made for it,
//! by the plan's waits and the order of streams only. The work that follows complete gradients runs
//! once for each stage concerned, after the last pass that adds to them. Where the step of the plan
//! before is validated, devices have run nothing before that could not run again.
//! A plan that is proven may follow itself without a barrier between devices: it leaves no message,
//! so the next iteration starts on empty edges.
//!
//! @param by who does it; see `thread_workers`.
//! @complexity O(n L) time and memory for n items and L lanes per device.
//! @source own derivation, see docs/explanation/plan.md
template <detail::worker_group Workers = detail::one_worker>
[[nodiscard]] proof prove(plan const& work, Workers const& by = {}) {
  return detail::find_broken(work, detail::data_uses(work.over), by);
}

namespace detail {

//! Where a plan that does not drain stands: the devices of the circle, each with what it
//! waits for.
//! @return one line per device.
[[nodiscard]] inline std::string describe_circle(plan const& work) {
  plan_walk walk(work);
  (void)walk.drain();
  int const start = walk.first_of_circle();
  std::string text;
  for (int device = start; device != nothing;) {
    text += "  device " + std::to_string(device);
    if (walk.ended(device))
      return text + " has ended\n";
    auto const steps = work.program_of(device);
    int const first = walk.at(device);
    for (int i = first; i < end_of_group(steps, first); ++i)
      text += (i == first ? ", item " + std::to_string(first) + ": " : " and ") +
              describe(steps[static_cast<std::size_t>(i)], work);
    text += "\n";
    int const next = walk.waits_for(device);
    device = next == start ? nothing : next;
  }
  return text;
}

} // namespace detail

//! @brief A proof's verdict as a sentence that names the devices and items, with the circle where
//! there is one.
[[nodiscard]] inline std::string describe(proof const& verdict, plan const& work) {
  std::string text = std::string("plan: ") + detail::sentence(verdict.broken);
  if (verdict)
    return text;
  if (verdict.broken == proof::rule::circular)
    return text + ":\n" + detail::describe_circle(work);
  if (verdict.broken == proof::rule::seam)
    return text + " (device " + std::to_string(verdict.device) + ")";
  auto const name = [&](int device, int index) {
    std::string words = "device " + std::to_string(device);
    if (index == nothing) {
      item missing;
      missing.work = verdict.what;
      missing.about = verdict.about;
      return words + ": " + detail::describe_subject(missing, work);
    }
    auto const steps = work.program_of(device);
    auto const at = static_cast<std::size_t>(index);
    return words + ", item " + std::to_string(index) +
           (at < steps.size() ? ": " + describe(steps[at], work) : ", which does not exist");
  };
  text += " (" + name(verdict.device, verdict.item_index);
  if (verdict.other_item >= 0 && verdict.other_device >= 0)
    text += "; with " + name(verdict.other_device, verdict.other_item);
  return text + ")";
}

} // namespace pipelining::inline v0_3
