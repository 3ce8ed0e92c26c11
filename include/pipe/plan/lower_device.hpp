// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief From the program of a device to its part of the plan: lanes, groups, slots, waits, arena.

#include <pipe/core/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/memory.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/plan/program.hpp>
#include <pipe/plan/proof.hpp>
#include <pipe/plan/scratch.hpp>
#include <pipe/plan/sizes.hpp>
#include <pipe/plan/slots.hpp>
#include <pipe/plan/waits.hpp>

#include <cstdint>

namespace pipelining::inline v0_1 {
namespace detail {

//! What the devices of a plan share while they are lowered, on arrays of the caller.
struct lowering {
  shape extents;
  bool evaluates = false;
  int* held;          // [pass_slot_classes][pass_indices]
  int* made;          // [pass_indices]
  int first_wait;     // waits of the devices before
  bool hooks = false; // steps that are not about passes
};

struct lowered_device {
  int lanes = 0;
  int waits = 0;
  std::int64_t arena_bytes = 0;
};

//! Gives the items of a device their slots, and lists what they need.
constexpr void
lower_slots(lowering const& shared, program& work, slot_layout* layouts, int* needs, int* counts) {
  scratch<int> freed(pass_slot_classes * work.count);
  scratch<int> released(pass_slot_classes * work.count);
  scratch<int> sent(work.count);
  int const others = shared.hooks ? 2 + stages(shared.extents) : 0;
  scratch<int> writer(others, nothing);
  scratch<int> reader(others, nothing);
  slot_state state{shared.extents, shared.evaluates, {}, {}, sent.data, {writer.data, reader.data}};
  for (int of = 0; of < pass_slot_classes; ++of) {
    state.pools[of] = {freed.data + of * work.count, released.data + of * work.count};
    state.held[of] = shared.held + of * pass_indices(shared.extents);
  }
  assign_slots(state, work, needs, counts, shared.made);
  for (int of = 0; of < slot_classes; ++of) {
    layouts[of].count = state.pools[of].count;
    layouts[of].peak_item = state.pools[of].peak;
  }
}

//! Marks the last pass of every stage that adds to its weight gradients.
constexpr void mark_complete_stages(shape const& extents, program& work) noexcept {
  scratch<bool> seen(stages(extents), false);
  for (int i = work.count - 1; i >= 0; --i) {
    item& step = work.items[i];
    if (step.what != operation::run || step.about != subject::pass ||
        !frees_activation(step.work.kind))
      continue;
    step.completes_stage = !seen.data[step.work.stage];
    seen.data[step.work.stage] = true;
  }
}

//! Completes the items of one device.
//! @param position_at_peer [items], where each message stands in its peer's program.
//! @param layouts receives [slot_classes]. @param waits receives at most most_waits per item.
template <communication_policy Policy, buffer_sizes Sizes>
constexpr lowered_device lower_device(lowering const& shared,
                                      program& work,
                                      int device,
                                      int const* position_at_peer,
                                      Sizes const& sizes,
                                      slot_layout* layouts,
                                      int* waits) {
  scratch<std::int64_t> keys(work.count + 1);
  int const lanes = assign_lanes<Policy>(work, device, keys.data);
  scratch<int> counters(2 * shared.extents.devices);
  number_messages(work, shared.extents.devices, counters.data);
  assign_groups(work, position_at_peer, Policy::duplex_groups);
  mark_complete_stages(shared.extents, work);
  scratch<int> needs(work.count * most_needs);
  scratch<int> need_counts(work.count);
  lower_slots(shared, work, layouts, needs.data, need_counts.data);
  scratch<int> clocks(work.count * (lanes + 1));
  scratch<int> tail(lanes + 1);
  int const written = assign_waits(
    work, lanes, needs.data, need_counts.data, waits, shared.first_wait, clocks.data, tail.data);
  return {lanes, written, lay_out(work, sizes, layouts)};
}

} // namespace detail
} // namespace pipelining::inline v0_1
