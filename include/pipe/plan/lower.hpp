// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief From a timetable to a plan. Header for pipelining::lower.

#include <pipe/core/shape.hpp>
#include <pipe/plan/describe.hpp>
#include <pipe/plan/global_order.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/memory.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/plan/program.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/plan/sizes.hpp>
#include <pipe/plan/slots.hpp>
#include <pipe/plan/waits.hpp>
#include <pipe/timetable/describe.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/timetable/verify.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

namespace pipelining::inline v0_1 {

//! @brief The global order of a timetable: entries of its flat arrays, each after all that it waits
//! for.
//! @throws std::invalid_argument when the order of passes is circular.
//! @complexity O(n log P).
[[nodiscard]] inline std::vector<int> global_order(timetable_view table) {
  auto const size = static_cast<std::size_t>(table.size());
  auto const devices = static_cast<std::size_t>(table.extents.devices);
  std::vector<int> order(size);
  std::vector<int> next(devices);
  std::vector<int> heap(devices);
  std::vector<double> key(devices);
  auto const indices = static_cast<std::size_t>(pass_indices(table.extents));
  auto const emitted = std::make_unique<bool[]>(indices);
  auto const waiting = std::make_unique<bool[]>(devices);
  order_merge merge{
    table, order.data(), emitted.get(), next.data(), key.data(), heap.data(), waiting.get()};
  begin(merge);
  if (advance(merge, table.size() + 1) != table.size())
    throw std::invalid_argument("lower: the order of passes is circular; verify the timetable");
  return order;
}

namespace detail {

//! Writes the programs of all devices in one walk over the global order.
inline std::vector<std::vector<item>> write_programs(timetable_view table,
                                                     std::vector<int> const& order) {
  std::vector<std::vector<item>> programs(static_cast<std::size_t>(table.extents.devices));
  for (std::size_t begin = 0; begin < order.size();) {
    std::size_t end = begin + 1;
    while (end < order.size() && table.passes[order[end]].overlapped)
      ++end;
    write_step(table,
               order.data() + begin,
               static_cast<int>(end - begin),
               [&](int device, item const& step) {
                 programs[static_cast<std::size_t>(device)].push_back(step);
               });
    begin = end;
  }
  return programs;
}

//! Where each message of every device stands in its peer's program.
inline std::vector<std::vector<int>> positions_at_peers(shape const& extents,
                                                        std::vector<std::vector<item>>& programs) {
  auto const indices = static_cast<std::size_t>(pass_indices(extents));
  std::vector<int> sent(indices, nothing);
  std::vector<int> received(indices, nothing);
  for (auto const& steps : programs)
    for (std::size_t i = 0; i < steps.size(); ++i) {
      auto const maker = static_cast<std::size_t>(pass_index(extents, steps[i].work));
      if (steps[i].what == operation::send)
        sent[maker] = static_cast<int>(i);
      if (steps[i].what == operation::receive)
        received[maker] = static_cast<int>(i);
    }
  std::vector<std::vector<int>> positions(programs.size());
  for (std::size_t device = 0; device < programs.size(); ++device)
    for (item const& step : programs[device]) {
      auto const maker = static_cast<std::size_t>(pass_index(extents, step.work));
      positions[device].push_back(step.what == operation::send ? received[maker] : sent[maker]);
    }
  return positions;
}

} // namespace detail

//! @brief Lowers a timetable to a plan: messages, lanes, groups, slots, waits and arenas, all
//! decided here.
//!
//! @tparam Policy which messages share a communicator.
//! @param table a timetable that `verify` accepts.
//! @param sizes the user's size functions.
//! @return a plan that `prove` accepts.
//! @throws std::invalid_argument when the timetable breaks a rule, std::logic_error when the plan
//! cannot be proven to
//!         drain (which no verified timetable leads to).
//! @complexity O(n (log P + L)) for n passes and L lanes per device.
template <communication_policy Policy = communicator_per_pair, buffer_sizes Sizes = no_sizes>
[[nodiscard]] plan lower(timetable_view table, Sizes const& sizes = {}) {
  shape const& extents = table.extents;
  if (report const verdict = verify(table); !verdict)
    throw std::invalid_argument(describe(verdict, extents.chunks > 1));
  auto const devices = static_cast<std::size_t>(extents.devices);
  auto programs = detail::write_programs(table, global_order(table));
  auto const positions = detail::positions_at_peers(extents, programs);

  plan result{extents, Policy::name, Policy::duplex_groups, {}, {0}, {}, {}, {}, {}, {}};
  if (extents.where == placement::custom)
    result.custom_devices.assign(extents.custom_devices, extents.custom_devices + stages(extents));
  result.layouts.resize(devices * slot_classes);
  auto const indices = static_cast<std::size_t>(pass_indices(extents));
  std::vector<std::vector<int>> held(slot_classes, std::vector<int>(indices, nothing));
  std::vector<int> made(indices, nothing);
  for (std::size_t device = 0; device < devices; ++device) {
    std::vector<item>& steps = programs[device];
    std::size_t const count = steps.size();
    program work{steps.data(), static_cast<int>(count)};
    std::vector<std::int64_t> keys(count + 1);
    int const lanes = assign_lanes<Policy>(work, static_cast<int>(device), keys.data());
    std::vector<int> counters(2 * devices);
    number_messages(work, extents.devices, counters.data());
    assign_groups(work, positions[device].data(), Policy::duplex_groups);

    std::vector<std::vector<int>> freed(slot_classes, std::vector<int>(count));
    std::vector<std::vector<int>> released(slot_classes, std::vector<int>(count));
    std::vector<int> sent(count);
    slot_state state{extents, {}, {}, sent.data()};
    for (std::size_t of = 0; of < slot_classes; ++of) {
      state.pools[of] = {freed[of].data(), released[of].data()};
      state.held[of] = held[of].data();
    }
    std::vector<int> needs(count * most_needs);
    std::vector<int> need_counts(count);
    assign_slots(state, work, needs.data(), need_counts.data(), made.data());
    slot_layout* const layouts = result.layouts.data() + device * slot_classes;
    for (std::size_t of = 0; of < slot_classes; ++of)
      layouts[of].count = state.pools[of].count;

    std::vector<int> clocks(count * static_cast<std::size_t>(lanes + 1));
    std::vector<int> tail(static_cast<std::size_t>(lanes + 1));
    std::vector<int> waits(count * most_needs);
    int const written = assign_waits(work,
                                     lanes,
                                     needs.data(),
                                     need_counts.data(),
                                     waits.data(),
                                     static_cast<int>(result.waits.size()),
                                     clocks.data(),
                                     tail.data());
    result.arena_bytes.push_back(lay_out(work, sizes, layouts));
    result.lanes.push_back(lanes);
    result.waits.insert(result.waits.end(), waits.begin(), waits.begin() + written);
    result.items.insert(result.items.end(), steps.begin(), steps.end());
    result.offsets.push_back(static_cast<int>(result.items.size()));
  }
  if (proof const verdict = prove(result); !verdict)
    throw std::logic_error(describe(verdict, result));
  return result;
}

} // namespace pipelining::inline v0_1
