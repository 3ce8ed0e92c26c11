// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief From a timetable to a plan. Header for pipelining::lower.

#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/arena.hpp>
#include <pipe/plan/lower/data_uses.hpp>
#include <pipe/plan/lower/device_plan.hpp>
#include <pipe/plan/lower/device_program.hpp>
#include <pipe/plan/lower/global_order.hpp>
#include <pipe/plan/lower/hooks.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/plan/sizes.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/timetable/verify.hpp>
#include <pipe/timetable/workers.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! The global order of a timetable: entries of its flat arrays, each after all that it waits
//! for.
//! @pre `verify` accepts the timetable.
//! @throws std::invalid_argument when the order of passes that take no time is circular.
//! @complexity O(n log P).
[[nodiscard]] inline std::vector<int> global_order(timetable_view table) {
  std::vector<int> order = order_merge(table).run();
  if (static_cast<int>(order.size()) != table.size())
    throw std::invalid_argument("lower: the order of passes is circular; verify the timetable");
  return order;
}

//! @throws std::invalid_argument for exchanges of more messages than a group may have.
inline void check_exchange_size(pipeline_view const& over) {
  if (2 * (over.extents.devices - 1) > most_group_messages)
    throw std::invalid_argument(
      "plan: an exchange of " + std::to_string(over.extents.devices) +
      " devices may have more messages on one of them than a group, which has " +
      std::to_string(most_group_messages) + " at most; lower with one_communicator");
}

//! @param tied of the stages that share a weight, else of all
//! @throws std::invalid_argument where no pass completes the gradients of a copy of a stage.
inline void check_completed(timetable_view table, bool tied) {
  auto const devices = static_cast<std::size_t>(table.over.extents.devices);
  std::vector<bool> complete(static_cast<std::size_t>(table.over.extents.stages()) * devices,
                             false);
  for (int entry = 0; entry < table.size(); ++entry)
    if (pass const& what = table.passes[entry];
        completes_gradients(*table.over.declared, what.kind))
      complete[what.stage * devices + static_cast<std::size_t>(device_of(table.over, what))] = true;
  for (int stage = 0; stage < table.over.extents.stages(); ++stage)
    for_each_copy(table.over, stage, [&](int device, int) {
      if ((tied && !holds_tied(table.over.extents, stage)) ||
          goes_forward_only(table.over, stage) ||
          complete[static_cast<std::size_t>(stage) * devices + static_cast<std::size_t>(device)])
        return;
      throw std::invalid_argument(
        tied
          ? "plan: tied weights need a pass that completes the gradients of each end, but none "
            "completes those of stage " +
              std::to_string(stage) +
              "; leave tied_bytes out, and add up both gradients after the iteration"
          : "plan: totals_bytes is for a row of every stage once its gradients are complete, but "
            "no pass completes those of stage " +
              std::to_string(stage) + "; leave it out, and add up totals after the iteration");
    });
}

//! The steps after complete gradients that the sizes ask for. An evaluation has totals only, where
//! every stage has one copy.
template <buffer_sizes Sizes>
void choose_hooks(timetable_view const& table, Sizes const& sizes, plan& result) {
  bool const several = table.over.extents.routes() > 1; // copies of stages
  bool const last = result.validation == step_validation::last;
  result.tied_bytes = result.evaluates || last ? 0 : tied_bytes(sizes);
  result.totals_bytes = result.evaluates && several ? 0 : totals_bytes(sizes);
  if (result.tied_bytes < 0 || result.totals_bytes < 0)
    throw std::invalid_argument("plan: tied_bytes and totals_bytes must not be negative");
  if (several && result.validation != step_validation::at_once)
    throw std::invalid_argument(
      "plan: early steps of the optimizer need one copy of every stage, but this placement keeps "
      "several, which add up their gradients first; lower with step_validation::at_once");
  if (result.tied_bytes > 0 && table.over.in_group(0))
    throw std::invalid_argument(
      "plan: the shards of a vocabulary lie on the same device at both ends of the model, so no "
      "gradient of a tied weight travels; leave tied_bytes out, and add the gradients of both "
      "shards in gradients_ready of the first");
  if (result.tied_bytes > 0 && goes_forward_only(table.over, 0))
    throw std::invalid_argument(
      "plan: the first stage is frozen, so no gradient of a tied weight comes of it; leave "
      "tied_bytes out, and add the last stage's own");
  if (result.totals_bytes == 0 && result.validation != step_validation::at_once)
    throw std::invalid_argument(
      "plan: a step of the optimizer is validated by the totals, but the sizes have no "
      "totals_bytes; set them to the bytes of a stage's row");
  if (has_hooks(result) &&
      (adds_copies(result) || (result.totals_bytes > 0 && !result.evaluates && !last)))
    check_completed(table, false);
  if (result.tied_bytes > 0)
    check_completed(table, true);
}

//! The options of `lower`, next to sizes.
struct lower_options {
  //! The most bytes of the arena of a device.
  std::int64_t memory_limit = 0x7fffffffffffffff;
  //! When stages learn whether the step of the optimizer was right; see `lower_post_validated`.
  step_validation validation = step_validation::at_once;
};

//! @throws std::invalid_argument for a size function that gives a negative number.
inline void check_layouts(plan const& work) {
  for (std::size_t i = 0; i < work.layouts.size(); ++i)
    if (work.layouts[i].bytes < 0)
      throw std::invalid_argument(
        "plan: the sizes give " + std::to_string(work.layouts[i].bytes) + " bytes for class " +
        word(static_cast<slot_class>(i % slot_classes)) + " on device " +
        std::to_string(i / slot_classes) + "; a size must not be negative");
}

//! @param limit the most bytes of an arena.
//! @throws std::length_error with a sentence for the first device whose arena is larger. It names
//! the class with the most bytes, and the step at which all of its slots are in use.
//! @complexity O(P).
inline void check_budget(plan const& work, std::int64_t limit) {
  for (int device = 0; device < work.over.extents.devices; ++device) {
    bool const counted = work.arena_bytes_of(device) < most_bytes;
    if (counted && work.arena_bytes_of(device) <= limit)
      continue;
    auto largest = slot_class::activation;
    auto const bytes_of = [&](slot_class of) {
      slot_layout const& layout = work.layout(device, of);
      return lies_on_host(work.over.declared, static_cast<int>(of))
               ? 0
               : times(layout.bytes, layout.count);
    };
    for (int of = 0; of < slot_classes; ++of)
      if (auto const other = static_cast<slot_class>(of); bytes_of(other) > bytes_of(largest))
        largest = other;
    slot_layout const& layout = work.layout(device, largest);
    item const& peak = work.program_of(device)[static_cast<std::size_t>(layout.peak_item)];
    throw std::length_error(
      "plan: an arena is over the memory limit (device " + std::to_string(device) + ": " +
      std::to_string(work.arena_bytes_of(device)) + " of " + std::to_string(limit) +
      " bytes; most of it for class " + word(largest) + ", " + std::to_string(layout.count) +
      " slots of " + std::to_string(layout.bytes) + " bytes, first in use together at the " +
      describe_subject(peak, work.over) + ")");
  }
}

//! The kinds of the passes of a timetable.
[[nodiscard]] inline flow_set kinds_of(timetable_view const& table) {
  flow_set kinds = 0;
  for (int entry = 0; entry < table.size(); ++entry)
    kinds |= only(index_of(table.passes[entry].kind));
  return kinds;
}

//! Passes, messages, and the steps that follow complete gradients, in their order.
[[nodiscard]] inline std::vector<event> list_events(message_placement const& placement,
                                                    plan& result) {
  std::vector<event> events;
  events.reserve(2 * static_cast<std::size_t>(placement.count));
  place_events(placement, 0, placement.count, [&](event const& what) { events.push_back(what); });
  if (!has_hooks(result))
    return events;
  hook_placement work{placement.table, result, std::move(events)};
  place_hooks(work);
  return std::move(work.placed);
}

//! Writes the programs of all devices. Workers make events as they need them. Exchanges and hooks
//! look back, and edges to other chunks take long, so there they are made once.
//! @param joins whether the messages of an exchange are one step
template <worker_group Workers>
void write_programs(timetable_view const& table,
                    std::vector<int> const& order,
                    data_uses const& uses,
                    bool joins,
                    program_writer& writer,
                    plan& result,
                    Workers const& by) {
  if (joins)
    check_exchange_size(table.over);
  std::vector<int> entries(joins ? static_cast<std::size_t>(table.over.pass_indices()) : 0,
                           nothing);
  pass_table const known(uses);
  message_placement const placement{table,
                                    order.data(),
                                    static_cast<int>(order.size()),
                                    result.duplex_groups,
                                    known,
                                    joins ? entries.data() : nullptr};
  if (joins || uses.across || has_hooks(result)) {
    std::vector<event> const events = list_events(placement, result);
    auto const each = [&](int, auto visit) {
      for (event const& what : events)
        visit(what);
    };
    writer.write(1, each, each, by);
    return;
  }
  worker_parts const parts(placement.count, by.count());
  auto const cut = [&](int part) {
    int at = parts.first(part);
    while (!ends_slot(placement, at))
      ++at;
    return at;
  };
  auto const tell = [&](int part, auto visit) {
    for (int i = cut(part), end = cut(part + 1); i < end; ++i) {
      pass const& what = table.passes[order[static_cast<std::size_t>(i)]];
      pass_ends const ends = known[what];
      visit({.device = ends.device, .slots = ends.slots});
      known.for_each_message(
        what, ends, [&](int, int to) { visit({.device = ends.device, .to = to}); });
    }
  };
  auto const each = [&](int part, auto visit) {
    place_events(placement, cut(part), cut(part + 1), visit);
  };
  writer.write(parts.count, tell, each, by);
}

//! Completes the programs of all devices.
template <buffer_sizes Sizes, worker_group Workers>
void complete_programs(program_writer& writer,
                       data_uses const& uses,
                       Sizes const& sizes,
                       plan& result,
                       Workers const& by) {
  auto const at = [](int number) { return static_cast<std::size_t>(number); };
  std::size_t const devices = at(result.over.extents.devices);
  result.layouts.resize(devices * slot_classes);
  result.arena_bytes.resize(devices);
  result.host_bytes.resize(devices);
  result.lanes.resize(devices);
  worker_parts const parts(result.over.extents.devices, by.count());
  std::vector<std::vector<int>> waits(at(parts.count));
  by.run(parts.count, [&](int part) {
    device_lowering space(uses, result.evaluates, has_hooks(result));
    std::vector<int> own;
    own.reserve(
      at(result.offsets[at(parts.first(part + 1))] - result.offsets[at(parts.first(part))]));
    for (int device = parts.first(part); device < parts.first(part + 1); ++device)
      space.lower(writer.of(device), device, writer.times(device), sizes, result, own);
    waits[at(part)] = std::move(own);
  });
  result.waits = std::move(waits.front());
  for (int part = 1; part < parts.count; ++part) {
    auto const before = static_cast<int>(result.waits.size());
    result.waits.insert(result.waits.end(), waits[at(part)].begin(), waits[at(part)].end());
    for (int device = parts.first(part); device < parts.first(part + 1); ++device)
      for (int i = result.offsets[at(device)]; i < result.offsets[at(device + 1)]; ++i)
        result.items[at(i)].first_wait += before;
  }
}

//! Lowers the passes that are in a global order.
template <communication_policy Policy, buffer_sizes Sizes, worker_group Workers>
[[nodiscard]] plan lower_order(timetable_view table,
                               std::vector<int> order,
                               bool evaluates,
                               Sizes const& sizes,
                               lower_options const& options,
                               Workers const& by) {
  pipeline_view const over = table.over;
  plan result{.over = with_holders(over),
              .policy = Policy::name,
              .key = &Policy::key,
              .duplex_groups = Policy::duplex_groups,
              .evaluates = evaluates,
              .validation = evaluates ? step_validation::at_once : options.validation};
  table.over = result.over;
  choose_hooks(table, sizes, result);
  data_uses const uses(over, kinds_of(table));
  program_writer writer(table, result);
  bool const joins = joins_exchanges<Policy>() && graph_width(over) > 1;
  write_programs(table, order, uses, joins, writer, result, by);
  order = {};
  complete_programs(writer, uses, sizes, result, by);
  check_layouts(result);
  if (proof const verdict = prove(result, by); !verdict)
    throw std::logic_error(describe(verdict, result));
  check_budget(result, options.memory_limit);
  return result;
}

} // namespace detail

//! @brief Lowers a timetable to a plan: messages, lanes, groups, slots, waits and arenas, all
//! decided here; with them the steps that follow complete gradients, where the sizes ask for any.
//!
//! @tparam Policy which messages share a communicator.
//! @param table a timetable that `verify` accepts.
//! @param sizes the user's size functions.
//! @param by who does it, device by device; see `thread_workers`. The plan is the same.
//! @return a plan that `prove` accepts.
//! @throws std::invalid_argument when the timetable breaks a rule, or its placement does not suit
//! the hooks of the sizes. std::length_error when an arena would be larger than the limit.
//! std::logic_error when the plan cannot be proven, which no verified timetable leads to.
//! @complexity O(n (log P + L)) for n passes and L lanes per device.
template <communication_policy Policy = communicators::per_pair,
          buffer_sizes Sizes = detail::no_sizes,
          detail::worker_group Workers = detail::one_worker>
[[nodiscard]] plan lower(timetable_view table,
                         Sizes const& sizes = {},
                         detail::lower_options const& options = {},
                         Workers const& by = {}) {
  if (report const verdict = verify(table, detail::unlimited, by); !verdict)
    throw std::invalid_argument(describe(verdict, table.over));
  std::vector<int> order;
  if (options.validation != step_validation::last)
    order = detail::global_order(table);
  return detail::lower_order<Policy>(table, std::move(order), false, sizes, options, by);
}

} // namespace pipelining::inline v0_3
