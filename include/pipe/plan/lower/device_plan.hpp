// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief From the program of a device to its part of the plan: lanes, groups, slots, waits, arena.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/arena.hpp>
#include <pipe/plan/lower/data_uses.hpp>
#include <pipe/plan/lower/device_program.hpp>
#include <pipe/plan/lower/slots.hpp>
#include <pipe/plan/lower/waits.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/plan/proof.hpp>
#include <pipe/plan/sizes.hpp>

#include <cstdint>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! The state that the devices of a plan share while they are lowered, on arrays of the caller.
struct lowering {
  data_uses const& uses;
  bool evaluates = false;
  held_datum* held;       // [instance_indices]
  bool hooks = false;     // steps that are not about passes
  int* readers = nullptr; // as in slot_state
};

//! Memory for the lowering of one device. The next device uses it again.
struct lowering_space {
  reused_scratch<message_line> lines;
  reused_scratch<int> waits;
  reused_scratch<int> needs;
  reused_scratch<int> need_counts;
  clock_space clocks;
  reused_scratch<int> freed;
  reused_scratch<int> released;
  reused_scratch<int> readers;
  reused_scratch<int> sent;
  reused_scratch<int> carried;
  reused_scratch<int> other_writers;
  reused_scratch<int> other_readers;
};

struct lowered_device {
  int lanes = 0;
  arena_sizes arenas{};
};

//! Gives the items of a device their slots and waits.
constexpr void lower_slots(lowering const& shared,
                           program& work,
                           item_times const& times,
                           lowering_space& space,
                           slot_layout* layouts,
                           wait_list& waits) {
  bool used[slot_classes]{};
  pipeline_view const& over = shared.uses.over;
  flow const& declared = *over.declared;
  int pools = 0;
  for (int of = 0; of < declared.data_count; ++of)
    if (declared.data[of].lives != residence::nowhere)
      for (int const pool : {declared.data[of].pool, declared.data[of].arrives_in}) {
        pools += used[pool] ? 0 : 1;
        used[pool] = true;
      }
  int const room = shared.uses.most_taken * work.count; // releases of a pool
  int* const freed = space.freed.get(pools * room);
  int* const released = space.released.get(pools * room);
  int const others = shared.hooks ? given_slots(over.extents) : 0;
  slot_state state{
    shared.uses,
    shared.evaluates,
    {},
    shared.held,
    space.sent.get(work.count),
    space.carried.get(work.count),
    {space.other_writers.get(others, nothing), space.other_readers.get(others, nothing)},
    times,
    shared.readers};
  int const beside = shared.readers == nullptr ? 0 : room * shared.uses.most_readers;
  int* const readers = beside == 0 ? nullptr : space.readers.get(pools * beside);
  int at = 0;
  for (int of = 0; of < slot_classes; ++of)
    if (used[of]) {
      state.pools[of] = {freed + at * room,
                         released + at * room,
                         readers == nullptr ? nullptr : readers + at * beside};
      ++at;
    }
  slot_walk(state, work, waits).run();
  for (int of = 0; of < slot_classes; ++of) {
    layouts[of].count = state.pools[of].count;
    layouts[of].peak_item = state.pools[of].peak;
  }
}

//! Marks the pass of every stage after which its weight gradients are complete.
constexpr void mark_complete_stages(data_uses const& uses, program& work) noexcept {
  owned<bool> seen(uses.stage_count, false);
  for (int i = work.count - 1; i >= 0; --i) {
    item& step = work.items[i];
    if (step.what != operation::run || step.about != subject::pass ||
        !uses.completes[index_of(step.work.kind)])
      continue;
    step.completes_stage = !seen[step.work.stage];
    seen[step.work.stage] = true;
  }
}

//! Completes the items of one device.
//! @param times of the items.
//! @param layouts receives [slot_classes]. @param waits of the devices before, receives those of
//! the device.
template <communication_policy Policy, buffer_sizes Sizes>
constexpr lowered_device lower_device(lowering const& shared,
                                      program& work,
                                      int device,
                                      item_times const& times,
                                      lowering_space& space,
                                      Sizes const& sizes,
                                      slot_layout* layouts,
                                      std::vector<int>& waits) {
  pipeline_view const& over = shared.uses.over;
  int const lanes = number_messages<Policy>(
    work, device, over.extents.devices, space.lines.get(2 * over.extents.devices));
  assign_copy_lanes(work, *over.declared, lanes);
  mark_complete_stages(shared.uses, work);
  int const per_item = most_needs(shared.uses);
  wait_list found{work.items,
                  space.clocks.get(work.count, lanes + over.declared->engines),
                  space.needs.get(work.count * per_item),
                  per_item,
                  space.need_counts.get(work.count, 0),
                  space.waits.get(work.count * most_waits(over)),
                  static_cast<int>(waits.size())};
  found.clock.reset();
  lower_slots(shared, work, times, space, layouts, found);
  waits.insert(waits.end(), found.waits, found.waits + found.count);
  int const* const carried = space.carried.get(work.count); // as lower_slots has left it
  return {lanes, lay_out(shared.uses, work, carried, sizes, layouts)};
}

} // namespace pipelining::inline v0_3::detail
