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

#include <cstddef>
#include <vector>

namespace pipelining::inline v0_3::detail {

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

//! Completes the items of one device after the other, each in the memory of the one before.
class device_lowering {
public:
  //! @param hooks whether there are steps that are not about passes
  device_lowering(data_uses const& uses, bool evaluates, bool hooks)
      : uses_(uses), evaluates_(evaluates),
        given_count_(hooks ? given_slots(uses.over.extents) : 0),
        held_(static_cast<std::size_t>(uses.instances())),
        held_readers_(
          uses.shares_reads() ? held_.size() * static_cast<std::size_t>(uses.most_readers) : 0) {
    flow const& declared = *uses.over.declared;
    for (int of = 0; of < declared.data_count; ++of)
      if (declared.data[of].lives != residence::nowhere)
        for (int const pool : {declared.data[of].pool, declared.data[of].arrives_in})
          used_[pool] = true;
  }

  //! @param result receives the layouts, lanes and arenas of the device
  //! @param waits of the devices before, receives those of the device.
  template <communication_policy Policy, buffer_sizes Sizes>
  void lower(program work,
             int device,
             item_times const& times,
             Sizes const& sizes,
             plan& result,
             std::vector<int>& waits) {
    pipeline_view const& over = uses_.over;
    int const lanes = number_messages<Policy>(
      work, device, over.extents.devices, lines_.get(2 * over.extents.devices));
    assign_copy_lanes(work, *over.declared, lanes);
    mark_complete_stages(uses_, work);
    int const per_item = most_needs(uses_);
    wait_list found{work.items,
                    clocks_.get(work.count, lanes + over.declared->engines),
                    needs_.get(work.count * per_item),
                    per_item,
                    need_counts_.get(work.count, 0),
                    waits_.get(work.count * most_waits(over)),
                    static_cast<int>(waits.size())};
    found.clock.reset();
    slot_layout* const layouts = result.layouts.data() + device * slot_classes;
    int const* const carried = give_slots(work, times, layouts, found);
    waits.insert(waits.end(), found.waits, found.waits + found.count);
    auto const at = static_cast<std::size_t>(device);
    arena_sizes const arenas = lay_out(uses_, work, carried, sizes, layouts);
    result.arena_bytes[at] = arenas.device;
    result.host_bytes[at] = arenas.host;
    result.lanes[at] = lanes;
  }

private:
  //! Gives the items their slots and waits.
  //! @return of messages the instances that they carry
  int const*
  give_slots(program& work, item_times const& times, slot_layout* layouts, wait_list& waits) {
    int const room = uses_.most_taken * work.count; // releases of a pool
    int const readers = held_readers_.empty() ? 0 : room * uses_.most_readers;
    slot_state state{uses_,
                     evaluates_,
                     {},
                     held_.data(),
                     sent_.get(work.count),
                     carried_.get(work.count),
                     {writers_.get(given_count_, nothing), readers_.get(given_count_, nothing)},
                     times,
                     readers == 0 ? nullptr : held_readers_.data()};
    for (int of = 0; of < slot_classes; ++of)
      if (used_[of])
        state.pools[of] = {freed_[of].get(room),
                           released_[of].get(room),
                           readers == 0 ? nullptr : slot_readers_[of].get(readers)};
    slot_walk(state, work, waits).run();
    for (int of = 0; of < slot_classes; ++of) {
      layouts[of].count = state.pools[of].count;
      layouts[of].peak_item = state.pools[of].peak;
    }
    return state.carried;
  }

  data_uses const& uses_;
  bool evaluates_;
  int given_count_;
  std::vector<held_datum> held_;  // [instances]
  std::vector<int> held_readers_; // as in slot_state
  bool used_[slot_classes]{};     // pools
  clock_space clocks_;
  reused_scratch<message_line> lines_;
  reused_scratch<int> waits_, needs_, need_counts_, sent_, carried_, writers_, readers_;
  reused_scratch<int> freed_[slot_classes], released_[slot_classes], slot_readers_[slot_classes];
};

} // namespace pipelining::inline v0_3::detail
