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
#include <vector>

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
[[nodiscard]] constexpr int unit_indices(pipeline_view const& over) noexcept {
  return over.extents.stages() * over.units();
}
//! The number of a copy of a stage. @pre the device has one
[[nodiscard]] constexpr int copy_index(pipeline_view const& over, int stage, int device) noexcept {
  return stage * most_copies(over.extents) + copies_below(over, stage, device);
}
//! The lane of a copy, `nothing` for a pass of the compute engine.
[[nodiscard]] inline int lane_of_engine(plan const& work, int device, pass const& what) noexcept {
  int const row = work.over.declared.engine_row[static_cast<int>(work.over.declared[what.kind].on)];
  return row > 0 ? work.lanes_of(device) + row - 1 : nothing;
}

//! Notes of all devices. Each writes parts of its own, so several may be looked at side by side.
struct device_notes {
  pipeline_view over;     //!< of the plan
  owned<int> sender;      //!< [message_indices], as in entered_messages
  owned<flow_set> kinds;  //!< [S units], of the passes that have run
  owned<flow_set> others; //!< [S copies], of the other steps that have, by subject

  explicit device_notes(plan const& work)
      : over(work.over), sender(message_indices(work), nothing), kinds(unit_indices(over), 0),
        others(over.extents.stages() * most_copies(over.extents), 0) {}
};

//! Enters a step that a device runs: on the device of its stage and on its engine, none twice.
inline proof::rule
enter_step(plan const& work, int device, item const& step, device_notes const& ran) noexcept {
  pipeline_view const& over = ran.over;
  if (device_of(over, step.work) != device)
    return proof::rule::wrong_passes;
  int const stage = step.work.stage;
  bool const is_pass = step.about == subject::pass;
  flow_set& entered = is_pass ? ran.kinds[stage * over.units() + over.unit_of(step.work)]
                              : ran.others[copy_index(over, stage, device)];
  int const number = is_pass ? index_of(step.work.kind) : static_cast<int>(step.about);
  if (holds(entered, number))
    return proof::rule::wrong_passes;
  entered |= only(number);
  int const lane = is_pass ? lane_of_engine(work, device, step.work) : nothing;
  return step.lane == lane ? proof::rule::none : proof::rule::wrong_lane;
}

//! Finds a step other than a pass that no device runs, or that none should.
inline proof find_missing_other(plan const& work, device_notes const& ran) noexcept {
  proof verdict;
  if (!has_hooks(work))
    return verdict; // and check_form knows no such step
  for (int stage = 0; stage < work.over.extents.stages(); ++stage)
    for_each_copy(work.over, stage, [&](int device, int) {
      flow_set const wrong =
        ran.others[copy_index(work.over, stage, device)] ^ wanted_others(work, stage, device);
      if (!verdict || wrong == 0)
        return;
      verdict = {proof::rule::wrong_passes, device};
      verdict.what.stage = static_cast<std::uint16_t>(stage);
      verdict.about = static_cast<subject>(std::countr_zero(wrong));
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

//! Memory for the checks of a device. The next device uses it again.
struct device_space {
  owned<first_on_lane> lanes{};
  owned<int> next_messages{};
};

//! Looks at the items of a device by themselves. The checks of an item that follow a failed one are
//! left out: they rely on it, and it is told before them.
inline void check_items(plan const& work,
                        int device,
                        device_notes const& notes,
                        device_space& space,
                        device_finding& found) {
  auto const steps = work.program_of(device);
  entered_messages messages{work,
                            notes.over,
                            device,
                            notes.sender,
                            space.lanes.get(work.lanes_of(device), {}),
                            space.next_messages.get(2 * work.over.extents.devices, 0)};
  list_sizes const sizes{work.uses.size(), work.waits.size(), work.messages.size()};
  slot_layout const* const layouts = &work.layout(device, slot_class{});
  for (int first = 0, count = static_cast<int>(steps.size()); first < count;) {
    int const end = end_of_group(steps, first);
    item const& head = steps[static_cast<std::size_t>(first)];
    if (head.joins || (head.what != operation::run && end - first > most_group_messages))
      return found.add({device_check::form, {proof::rule::bad_group, device, first}});
    for (int i = first; i < end; ++i) {
      if (proof const formed = check_form(work, notes.over, sizes, device, steps.data(), first, i);
          !formed)
        return found.add({device_check::form, formed});
      item const& step = steps[static_cast<std::size_t>(i)];
      if (step.what == operation::run) {
        if (auto const broken = enter_step(work, device, step, notes); broken != proof::rule::none)
          found.add({device_check::ran_twice, {broken, device, i}});
      } else {
        messages.enter(step, i, found);
      }
      if (!has_room(work, layouts, step))
        found.add({device_check::layout, {proof::rule::slots_overlap, device, i}});
    }
    first = end;
  }
}

//! Looks at one device, but not at its slots.
inline device_finding
check_steps(plan const& work, int device, device_notes const& notes, device_space& space) {
  device_finding found;
  found.add({device_check::layout, check_layout(work, device)});
  check_items(work, device, notes, space, found);
  if (!work.exchanges.empty() && found.what != device_check::form) {
    found.looks_at_ends = true;
    found.add({device_check::exchanges, check_exchanges(work, device)});
  }
  return found;
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

//! The two ends of all messages.
inline proof check_all_messages(plan const& work) {
  owned<int> const ends(2 * std::ptrdiff_t{message_indices(work)}, nothing);
  proof verdict;
  for (int device = 0; device < work.over.extents.devices && verdict; ++device)
    verdict = enter_messages(work, device, ends);
  for (int device = 0; device < work.over.extents.devices && verdict; ++device)
    verdict = check_messages(work, device, ends);
  return verdict;
}

//! Zero buffering.
inline proof prove_drain(plan const& work) {
  plan_drain const run(work);
  std::vector<int> const circle = run.circle();
  return circle.empty() ? proof{} : proof{proof::rule::circular, circle[0], run.at(circle[0])};
}

//! The first rule that does not hold, in the order of the rules: first the checks of single
//! devices, then the checks of all devices together, then again checks of single devices.
class plan_checks {
public:
  explicit plan_checks(plan const& work)
      : work_(work), uses_(work.over), notes_(work), found_(work.over.extents.devices, {}) {}

  template <worker_group Workers>
  proof find_broken(Workers const& by) {
    int const devices = work_.over.extents.devices;
    worker_parts const parts(devices, by.count());
    bool const alone = parts.count == 1;
    by.run(parts.count, [&](int part) {
      device_space space;
      slot_check slots{work_, uses_};
      for (int device = parts.first(part); device < parts.first(part + 1); ++device) {
        found_[device] = check_steps(work_, device, notes_, space);
        if (alone) // while the program is in the caches
          add_slots(device, slots);
      }
    });
    if (device_finding const found = first(); found.what <= device_check::sent_twice)
      return found.verdict;
    // What drains without exchanges has met at both ends of every message, sent once by its pass.
    // Only one of the workers can look at that, so the others look at slots meanwhile.
    proof drains;
    std::atomic<int> next = -1;
    by.run(parts.count, [&](int) {
      slot_check slots{work_, uses_};
      for (int device = next++; device < devices; device = next++)
        if (device < 0)
          drains = prove_drain(work_);
        else if (!alone)
          add_slots(device, slots);
    });
    return find_broken(drains, first());
  }

private:
  void add_slots(int device, slot_check& slots) {
    if (found_[device].what == device_check::none)
      found_[device].add({device_check::slots, slots.check(device)});
  }
  [[nodiscard]] device_finding first() const {
    device_finding found;
    for (int device = 0; device < work_.over.extents.devices; ++device)
      found.add(found_[device]);
    return found;
  }
  [[nodiscard]] proof find_broken(proof const& drains, device_finding const& found) const {
    if (!drains || found.what == device_check::sequences || found.looks_at_ends ||
        work_.other_messages > 0)
      if (proof const fits = check_all_messages(work_); !fits)
        return fits;
    if (found.what == device_check::sequences)
      return found.verdict;
    if (!drains || found.what == device_check::ran_twice)
      return drains ? found.verdict : drains;
    if (proof const missing = find_missing(work_, notes_); !missing)
      return missing;
    return found.verdict ? check_validation(work_) : found.verdict;
  }

  plan const& work_;
  data_uses uses_;
  device_notes notes_;
  owned<device_finding> found_; // [P]
};

} // namespace detail

//! @brief Proves what execution needs of a plan, and returns the first thing that does not hold.
//!
//! Waits point back. Messages are in the line of the communicator that the plan's policy gives
//! them. Every message is sent once and received once, of the same size, and both ends of an edge
//! agree on its order. Groups are the same at both ends, exchanges at all of theirs. The plan
//! drains with no buffering at all (see `plan_drain`). Every pass runs once, on the device of its
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
  return detail::plan_checks(work).find_broken(by);
}

namespace detail {

//! Where a plan that does not drain stands: the devices of the circle, each with what it
//! waits for.
//! @return one line per device, empty for a plan that drains.
[[nodiscard]] inline std::string describe_circle(plan const& work) {
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
      return words + ": " + detail::describe_subject(missing, work.over);
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
