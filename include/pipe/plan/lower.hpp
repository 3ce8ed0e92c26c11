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

//! The steps after complete gradients that the sizes ask for. An evaluation has totals only, where
//! every stage has one copy.
//! @throws std::invalid_argument where the timetable does not suit them.
template <buffer_sizes Sizes>
void choose_hooks(timetable_view const& table, Sizes const& sizes, plan& result) {
  bool const several = table.over.extents.routes() > 1; // copies of stages
  bool const late = result.validation != step_validation::at_once;
  if constexpr (requires { sizes.tied_bytes; })
    if (!result.evaluates && result.validation != step_validation::last)
      result.tied_bytes = sizes.tied_bytes;
  if constexpr (requires { sizes.totals_bytes; })
    if (!result.evaluates || !several)
      result.totals_bytes = sizes.totals_bytes;
  bool const ties = result.tied_bytes > 0;
  struct {
    bool broken;
    char const* sentence;
  } const rules[] = {
    {result.tied_bytes < 0 || result.totals_bytes < 0,
     "plan: tied_bytes and totals_bytes must not be negative"},
    {several && late,
     "plan: early steps of the optimizer need one copy of every stage, but this placement keeps "
     "several, which add up their gradients first; lower with step_validation::at_once"},
    {ties && table.over.in_group(0),
     "plan: the shards of a vocabulary lie on the same device at both ends of the model, so no "
     "gradient of a tied weight travels; leave tied_bytes out, and add the gradients of both "
     "shards in gradients_ready of the first"},
    {ties && goes_forward_only(table.over, 0),
     "plan: the first stage is frozen, so no gradient of a tied weight comes of it; leave "
     "tied_bytes out, and add the last stage's own"},
    {late && result.totals_bytes == 0,
     "plan: a step of the optimizer is validated by the totals, but the sizes have no "
     "totals_bytes; set them to the bytes of a stage's row"}};
  for (auto const& [broken, sentence] : rules)
    if (broken)
      throw std::invalid_argument(sentence);
}

//! The options of `lower`, next to sizes.
struct lower_options {
  //! The most bytes of the arena of a device.
  std::int64_t memory_limit = 0x7fffffffffffffff;
  //! When stages learn whether the step of the optimizer was right; see `lower_post_validated`.
  step_validation validation = step_validation::at_once;
};

//! @param limit the most bytes of an arena.
//! @throws std::length_error with a sentence for the first device whose arena is larger. It names
//! the class with the most bytes, and the step at which all of its slots are in use.
//! @complexity O(P).
inline void check_budget(plan const& work, std::int64_t limit) {
  for (int device = 0; device < work.over.extents.devices; ++device) {
    std::int64_t const bytes = work.arena_bytes_of(device);
    if (bytes <= std::min(limit, most_bytes - 1))
      continue;
    auto largest = slot_class::activation;
    std::int64_t most = 0;
    for (int of = 0; of < slot_classes; ++of) {
      slot_layout const& layout = work.layout(device, static_cast<slot_class>(of));
      std::int64_t const all = times(layout.bytes, layout.count);
      if (all > most && !lies_on_host(work.over.declared, of)) {
        most = all;
        largest = static_cast<slot_class>(of);
      }
    }
    slot_layout const& layout = work.layout(device, largest);
    item const& peak = work.program_of(device)[static_cast<std::size_t>(layout.peak_item)];
    throw std::length_error("plan: an arena is over the memory limit (device " +
                            std::to_string(device) + ": " + std::to_string(bytes) + " of " +
                            std::to_string(limit) + " bytes; most of it for class " +
                            word(largest) + ", " + std::to_string(layout.count) + " slots of " +
                            std::to_string(layout.bytes) + " bytes, first in use together at the " +
                            describe_subject(peak, work) + ")");
  }
}

//! Writes the programs of all devices. Workers make events as they need them. Exchanges and hooks
//! look back, so there they are made once.
//! @param joins whether the messages of an exchange are one step
template <worker_group Workers>
void write_programs(timetable_view const& table,
                    std::vector<int> const& order,
                    data_uses const& uses,
                    bool joins,
                    program_writer& writer,
                    plan& result,
                    Workers const& by) {
  auto const count = static_cast<int>(order.size());
  message_placement placement{table, order.data(), count, result.duplex_groups, pass_table(uses)};
  if (joins)
    placement.placed.get(table.over.pass_indices(), nothing);
  if (joins || has_hooks(result)) {
    std::vector<event> events;
    events.reserve(2 * order.size());
    placement.place(0, count, [&](event const& what) { events.push_back(what); });
    if (has_hooks(result))
      events = hook_placement(table, result, events).run();
    auto const each = [&](int, auto visit) { std::for_each(events.begin(), events.end(), visit); };
    return writer.write(1, each, each, by);
  }
  worker_parts const parts(count, by.count());
  auto const cut = [&](int part) { return placement.next_cut(parts.first(part)); };
  auto const tell = [&](int part, auto visit) {
    for (int i = cut(part), end = cut(part + 1); i < end; ++i) {
      pass_ends const ends = placement.known[table.passes[order[static_cast<std::size_t>(i)]]];
      visit({.device = ends.device, .slots = ends.slots});
      for (int at = ends.first; at < ends.end; ++at)
        visit({.device = ends.device, .to = placement.known.message(at).to});
    }
  };
  auto const each = [&](int part, auto visit) { placement.place(cut(part), cut(part + 1), visit); };
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
  int const devices = result.over.extents.devices;
  result.layouts = std::vector<slot_layout>(at(devices * slot_classes));
  result.arena_bytes = std::vector<std::int64_t>(at(devices));
  result.host_bytes = std::vector<std::int64_t>(at(devices));
  result.lanes = std::vector<int>(at(devices));
  worker_parts const parts(devices, by.count());
  std::vector<std::vector<int>> waits(at(parts.count));
  by.run(parts.count, [&](int part) {
    int const end = parts.first(part + 1);
    slot_walk<Sizes> slots(uses, sizes, result);
    std::vector<int>& own = waits[at(part)];
    own.reserve(at(result.offsets[at(end)] - result.offsets[at(parts.first(part))]));
    for (int device = parts.first(part); device < end; ++device) {
      program work = writer.of(device);
      int const lanes = number_messages(work, result.key, device, devices);
      complete_passes(uses, work, lanes);
      slot_layout* const layouts = result.layouts.data() + device * slot_classes;
      slots.run(work, device, lanes + uses.over.declared->engines, layouts, own);
      result.lanes[at(device)] = lanes;
      lay_out(*uses.over.declared,
              layouts,
              result.arena_bytes[at(device)],
              result.host_bytes[at(device)]);
    }
  });
  result.waits = std::move(waits.front());
  for (int part = 1; part < parts.count; ++part) {
    auto const before = static_cast<int>(result.waits.size());
    std::vector<int> const& own = waits[at(part)];
    result.waits.resize(at(before) + own.size());
    std::copy_n(own.data(), own.size(), result.waits.data() + before);
    for (int i = result.offsets[at(parts.first(part))];
         i < result.offsets[at(parts.first(part + 1))];
         ++i)
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
  data_uses const uses(result.over);
  program_writer writer(table, result);
  bool const joins = joins_exchanges<Policy>() && graph_width(over) > 1;
  if (joins && 2 * (over.extents.devices - 1) > most_group_messages)
    throw std::invalid_argument(
      "plan: an exchange of " + std::to_string(over.extents.devices) +
      " devices may have more messages on one of them than a group, which has " +
      std::to_string(most_group_messages) + " at most; lower with one_communicator");
  write_programs(table, order, uses, joins, writer, result, by);
  order = {};
  complete_programs(writer, uses, sizes, result, by);
  if (proof const verdict = find_broken(result, uses, by); !verdict)
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
    order = detail::order_merge(table).run();
  return detail::lower_order<Policy>(table, std::move(order), false, sizes, options, by);
}

} // namespace pipelining::inline v0_3
