// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief From the program of a device to its part of the plan: lanes, groups, waits, arena, and
//! slots for every buffer, by interval colouring.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/arena.hpp>
#include <pipe/plan/lower/data_uses.hpp>
#include <pipe/plan/lower/device_program.hpp>
#include <pipe/plan/lower/waits.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/sizes.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! @brief The slots of one class: those free again, in the order in which they became free.
//!
//! The slot that has been free the longest is taken first, so that what still leaves it (a message)
//! is likely gone.
struct slot_pool {
  //! [slots][most users], `nothing` where there are none: the item that released it last and, where
  //! several streams can read its content, those that have.
  owned_list<int> users{};
  struct content {
    std::int64_t bytes = 0;
    int next = nothing; //!< of a free slot: the one that became free after it
  };
  owned_list<content> slots{};
  int most_users = 1;
  int first = nothing; //!< of those free, to take next
  int last = nothing;  //!< of those free
  int peak = nothing;  //!< the item that was the first to need all

  //! Begins a device: there are no slots.
  void reset(int most) noexcept {
    users.clear();
    slots.clear();
    most_users = most;
    first = peak = nothing;
  }
  //! The number of slots.
  [[nodiscard]] int count() const noexcept { return static_cast<int>(slots.size()); }
  //! The users of a slot.
  [[nodiscard]] int* users_of(int slot) noexcept { return users.data() + slot * most_users; }
  //! A slot for an item: the one that has been free the longest, or a new one.
  int take(int item_index) {
    if (int const slot = first; slot != nothing) {
      first = slots.data()[slot].next;
      return slot;
    }
    peak = item_index;
    for (int user = 0; user < most_users; ++user)
      users.take_place() = nothing;
    slots.push_back({});
    return count() - 1;
  }
  //! Gives a slot back after an item.
  void release(int slot, int item_index) noexcept {
    (first == nothing ? first : slots.data()[last].next) = slot;
    last = slot;
    slots.data()[slot].next = nothing;
    *users_of(slot) = item_index;
  }
};

//! @brief Gives every item of a device its slots, and its waits for the items whose slots or
//! results it takes over; one device after the other, each in the memory of the one before.
//!
//! A pass takes slots at its start for the data that it makes. At its end it gives back the slots
//! of data that it frees, or reads as the last. The method is greedy interval colouring in program
//! order, which needs exactly as many slots as are in use at once. A slot that is sent stays taken
//! through the next pass of its device, so that the next pass does not wait for the message.
//!
//! The bytes of a slot's content are asked of the size functions by the passes of its own stage and
//! where it arrives; all others are told the same.
//!
//! @complexity O(n L) for n items and L streams.
//! @source Interval graphs are perfect: greedy colouring by start meets the peak overlap
//! (folklore).
template <buffer_sizes Sizes>
class slot_walk {
public:
  //! @param whole the plan: whether it evaluates, so that nothing is kept for backward passes, and
  //! which steps it has that are not about passes
  slot_walk(data_uses const& uses, Sizes const& sizes, plan const& whole)
      : uses_(uses), sizes_(sizes), plan_(whole), over_(uses.over), declared_(*uses.over.declared),
        most_users_(uses.shares_reads() ? uses.most_readers + 1 : 1), rows_(uses.stage_count),
        // The makers of its inputs, and the last users of the slots that it takes or is given.
        waits_(
          uses.over,
          kind_of_pass::most_effects * most_users_ + 3 * uses.width +
            (has_hooks(whole) ? std::max({2, uses.stage_count, most_copies(over_.extents)}) : 0)) {}

  //! @param layouts receive counts of slots and their bytes. @param waits of the devices before,
  //! receives those of the device
  //! @throws std::invalid_argument for a size function that gives a negative number.
  void
  run(program const& work, int device, int streams, slot_layout* layouts, std::vector<int>& waits) {
    work_ = work;
    device_ = device;
    layouts_ = layouts;
    at_ = {};
    begin(number_rows() * uses_.row_size);
    waits_.reset(work.items, work.count, streams, waits);
    walk();
    for (int of = 0; of < slot_classes; ++of) {
      layouts[of].count = pools_[of].count();
      layouts[of].peak_item = pools_[of].peak;
    }
  }

private:
  //! Numbers the rows of the stages whose data the device may hold, side by side: in a chain its
  //! own and their neighbours, in a graph all.
  //! @return how many there are
  int number_rows() noexcept {
    int count = 0;
    for (int stage = 0, next = 0; stage < uses_.stage_count; ++stage)
      if (over_.edges != nullptr || microbatch_on(over_, stage, device_) >= 0)
        for (next = std::max(next, stage - 1); next < std::min(stage + 2, uses_.stage_count);)
          rows_[next++] = count++;
    return count;
  }
  //! @param instances of data that the device may hold
  void begin(int instances) {
    for (slot_pool& pool : pools_)
      pool.reset(most_users_);
    // Where readers are counted, or an order may be looked up, no instance is as a device left it.
    if (over_.edges == nullptr && (!uses_.read_once || declared_.engines > 1))
      held_.get(instances, {});
    else
      held_.get(instances);
    sent_.get(work_.count);
    running_.get(work_.times != nullptr ? work_.count : 0);
  }

  void walk() {
    for (int i = 0; i < work_.count && !uses_.read_once; ++i)
      if (work_.items[i].about == subject::pass)
        count_readers(work_.items[i]);
    item const* const steps = work_.items;
    for (int first = 0; first < work_.count;) {
      int const end = end_of_group({steps, static_cast<std::size_t>(work_.count)}, first);
      item const& head = work_.items[first];
      waits_.begin(first, end);
      if (head.what == operation::run && head.about == subject::pass && !runs_beside(head))
        compute(first, end);
      else
        for (int i = first; i < end; ++i)
          run_other(work_.items[i], i);
      waits_.end();
      first = end;
    }
  }

  [[nodiscard]] int row_of(pass const& work) const noexcept { return rows_[work.stage]; }
  [[nodiscard]] held_datum&
  held(data_use const& use, pass const& work, pass_place const& place, int number = 0) noexcept {
    return held_[uses_.index(use, work, place, number)];
  }
  //! The instance that a message carries.
  [[nodiscard]] int product_of(item const& step) const noexcept {
    return uses_.product(step.work, row_of(step.work), work_.message_of(step).number);
  }

  //! The content of a slot of a class has so many bytes.
  std::int64_t sized(int of, std::int64_t bytes) {
    if (bytes < 0)
      refuse_size(of, bytes);
    slot_layout& layout = layouts_[of];
    if (bytes > layout.asked) {
      layout.asked = bytes;
      layout.bytes = bytes > most_bytes - slot_alignment
                       ? bytes
                       : (bytes + slot_alignment - 1) / slot_alignment * slot_alignment;
    }
    return bytes;
  }
  [[noreturn]] void refuse_size(int of, std::int64_t bytes) const {
    throw std::invalid_argument("plan: the sizes give " + std::to_string(bytes) +
                                " bytes for class " + word(static_cast<slot_class>(of)) +
                                " on device " + std::to_string(device_) +
                                "; a size must not be negative");
  }
  //! The bytes of a datum of the stage of a pass.
  //! @param copied of a copy, the pool that gives its bytes
  //! @param number of several instances
  [[nodiscard]] std::int64_t
  bytes_of(data_use const& use, pass const& work, int copied, int number) const {
    if (copied != nothing)
      return sizes_.bytes(static_cast<slot_class>(copied), work);
    return bytes_for(sizes_, declared_.data[use.of], work, [&]() -> int {
      return use.reader == 0 ? nothing : neighbour(over_, work, use.reader, number).stage;
    });
  }

  //! The bytes of the content of a slot.
  std::int64_t& bytes_in(held_datum const& what) noexcept {
    return pools_[what.pool].slots.data()[what.slot].bytes;
  }

  //! Uses slots that are given, one after the other. Each user needs the one before it, so that the
  //! last stands for all.
  void use_given(item const& step, int i) {
    use& given = work_.uses[step.first_use];
    bool const totals = given.of == slot_class::totals;
    bool const tied = given.of == slot_class::tied_gradient;
    given.bytes = sized(static_cast<int>(given.of),
                        totals ? plan_.totals_bytes
                        : tied ? plan_.tied_bytes
                               : sizes_.bytes(given.of, step.work));
    // A row of the totals stands at the start of its slot; several rows are several whole slots.
    if (totals && step.about != subject::contribution)
      given.bytes = times(layouts_[static_cast<int>(given.of)].bytes, given.count);
    slot_pool& pool = pools_[static_cast<int>(given.of)];
    int const all = totals ? uses_.stage_count : tied ? 2 : copies_of(over_, step.work.stage);
    while (pool.count() < all)
      pool.take(i);
    for (int slot = given.index; slot < given.index + given.count; ++slot)
      waits_.need(i, std::exchange(*pool.users_of(slot), i));
  }

  //! Every read of what may leave a device counts, so that the last one is known.
  void count_readers(item const& step) noexcept {
    if (step.what == operation::send)
      count_reader(held_[product_of(step)]);
    if (step.what != operation::run)
      return;
    pass_place const place = uses_.place_of(step.work, row_of(step.work));
    for (data_use const& use : uses_[step.work]) {
      int const count = use.stage == 0 ? 0 : uses_.count(use, step.work);
      for (int number = 0; number < count; ++number)
        count_reader(held(use, step.work, place, number));
    }
  }

  void take(held_datum& into, int pool_number, int i) {
    slot_pool& from = pools_[pool_number];
    into.slot = from.take(i);
    into.pool = static_cast<std::uint16_t>(pool_number);
    into.maker = i;
    int* const users = from.users_of(into.slot);
    for (int k = 0; k < most_users_; ++k)
      waits_.need(i, std::exchange(users[k], nothing));
  }
  void give_back(held_datum const& what, int i) noexcept {
    pools_[what.pool].release(what.slot, i);
  }
  //! One reader less; the last one gives the slot back. Readers on other streams may end after it,
  //! so the next user of the slot waits for them too.
  void read_once(held_datum& what, int i) noexcept {
    if (most_users_ > 1) {
      item const& step = work_.items[i];
      int* reader = pools_[what.pool].users_of(what.slot) + 1;
      if (step.what == operation::run)
        reader += uses_.width + engine_of(step);
      else
        while (*reader != nothing)
          ++reader;
      *reader = i;
    }
    if (uses_.read_once || --what.reads == 0)
      give_back(what, i);
  }
  //! The row of a device that the engine of a pass is.
  [[nodiscard]] int engine_of(item const& step) const noexcept {
    return declared_.engine_row[static_cast<int>(declared_[step.work.kind].on)];
  }
  //! One reader more of what may leave a device.
  void count_reader(held_datum& what) noexcept {
    bool const first = what.maker != made_by_reader;
    what.reads = static_cast<std::uint16_t>(first ? 1 : what.reads + 1);
    what.maker = made_by_reader;
  }

  //! A step that is no pass of the compute engine.
  void run_other(item const& step, int i) {
    if (step.about != subject::pass) {
      if (step.what == operation::run)
        waits_.need(i, at_.last_scatter);
      use_given(step, i);
    } else if (step.what == operation::send) {
      held_datum const& made = held_[product_of(step)];
      work_.uses[step.first_use] = in_slot(made, slot_place::inputs);
      waits_.need(i, made.maker);
      sent_[at_.sent_count++] = i;
    } else if (step.what == operation::receive) {
      int const product = product_of(step);
      held_datum& arrives = held_[product];
      datum const& of = uses_.datum_of(product);
      take(arrives, of.arrives_in, i);
      bytes_in(arrives) =
        sized(of.arrives_in, bytes_for(sizes_, of, step.work, [&] {
                return reader_of(over_, step.work, work_.message_of(step).number).stage;
              }));
      work_.uses[step.first_use] = in_slot(arrives, slot_place::outputs);
    } else {
      at_.last_scatter = step.completes_stage ? i : at_.last_scatter;
      run_beside(i);
    }
  }

  //! Passes of the compute engine that start together. All take before any gives back: no pass ever
  //! writes over what it, or the other half of a composite pass, reads.
  void compute(int first, int end) {
    for (; at_.first_sent < at_.sent_before_run; ++at_.first_sent)
      read_once(held_[product_of(work_.items[sent_[at_.first_sent]])], sent_[at_.first_sent]);
    if (work_.times != nullptr) {
      take_beside(work_.times[first].start);
      end_beside(work_.times[first].start);
    }
    for (int i = first; i < end; ++i)
      hand_slots<true, true>(i);
    if (work_.times != nullptr)
      take_beside(work_.times[first].end);
    for (int i = first; i < end; ++i)
      give_back_after(i);
    at_.sent_before_run = at_.sent_count;
  }

  //! A pass of another engine holds its slots from its start to its end, whatever stands between
  //! them in the program. It has started before its turn where a pass of the compute engine runs
  //! longer.
  void run_beside(int i) {
    if (i >= at_.next_beside) {
      end_beside(work_.times[i].start);
      hand_slots<true, false>(i);
      at_.next_beside = i + 1;
    }
    hand_slots<false, true>(i);
    running_[at_.running_count++] = i;
  }
  //! Takes the slots of passes of other engines that start before a time.
  void take_beside(double before) {
    for (; at_.next_beside < work_.count; ++at_.next_beside) {
      item const& step = work_.items[at_.next_beside];
      if (!runs_beside(step) || step.about != subject::pass)
        continue;
      double const start = work_.times[at_.next_beside].start;
      if (start >= before)
        return;
      end_beside(start);
      hand_slots<true, false>(at_.next_beside);
    }
  }
  //! Gives back after passes that have ended; the passes of one engine end in their order.
  void end_beside(double now) noexcept {
    for (int on = 1; on < flow::engine_count; ++on)
      for (int& next = at_.first_running[on]; next < at_.running_count; ++next) {
        int const i = running_[next];
        if (declared_[work_.items[i].work.kind].on != static_cast<engine>(on))
          continue;
        if (work_.times[i].end > now)
          break;
        give_back_after(i);
      }
  }

  //! Takes the slots of data that a pass brings to life, and looks up the data that it goes on
  //! using or reads. Data without a slot say which pass runs first.
  template <bool Takes, bool LooksUp>
  void hand_slots(int i) {
    item const& step = work_.items[i];
    pass const& work = step.work;
    pass_place const place = uses_.place_of(work, row_of(work));
    use* next = work_.uses + step.first_use;
    data_uses::list const& all = uses_[work];
    for (data_use const& use : all) {
      if (LooksUp && use.orders && use.what == does::makes)
        held(use, work, place).maker = i;
      else if (LooksUp && use.orders)
        waits_.need(i, held(use, work, place).maker);
      if (!use.takes_part)
        continue;
      bool const brings = use.stage == 0 && uses_.brings(use, work);
      int const count = uses_.count(use, work);
      for (int number = 0; number < count && (brings ? Takes : LooksUp); ++number) {
        held_datum& datum = held(use, work, place, number);
        if (brings)
          take(datum, use.pool, i);
        else
          waits_.need(i, datum.maker);
        if (use.stage == 0)
          bytes_in(datum) = sized(use.pool, bytes_of(use, work, all.copied, number));
        if (use.stage == 0 && !use.whole) // chunks change it, so all that use it do so in turn
          datum.maker = i;
        next[number] = in_slot(datum, use.at);
      }
      next += count;
    }
  }
  //! Gives back data of which a pass is the last user.
  void give_back_after(int i) noexcept {
    pass const& work = work_.items[i].work;
    pass_place const place = uses_.place_of(work, row_of(work));
    for (data_use const& use : uses_[work]) {
      if (!uses_.gives_back(use, work, plan_.evaluates))
        continue;
      if (use.stage == 0)
        give_back(held(use, work, place), i);
      for (int number = 0, count = use.stage == 0 ? 0 : uses_.count(use, work); number < count;
           ++number)
        read_once(held(use, work, place, number), i);
    }
  }
  //! How an item uses the slot of a datum.
  [[nodiscard]] use in_slot(held_datum const& what, slot_place place) noexcept {
    return {static_cast<slot_class>(what.pool), place, 1, what.slot, bytes_in(what)};
  }

  //! Where a walk is in its device.
  struct position {
    int first_sent = 0;
    int sent_count = 0;
    int sent_before_run = 0; // sends that the pass now in the program has let overlap
    int first_running[flow::engine_count]{}; // of each engine's passes that run, or have ended
    int running_count = 0;
    int next_beside = 0;        // the next pass of another engine that has not taken its slots
    int last_scatter = nothing; // what follows complete gradients runs after it
  };

  data_uses const& uses_;
  Sizes const& sizes_;
  plan const& plan_;
  pipeline_view const& over_;
  flow const& declared_;
  int most_users_;  // of a slot
  owned<int> rows_; // [S], those of the device
  program work_{};
  int device_ = 0;
  slot_layout* layouts_ = nullptr; // of the device
  position at_{};
  wait_list waits_;
  slot_pool pools_[slot_classes]; // by class
  owned<held_datum> held_;        // [rows of the device][data][units], where each instance is
  owned<int> sent_;               // [items of the device], sends whose slot is not free yet
  owned<int> running_;            // [items of the device], passes of other engines
};

//! Marks the pass of every stage after which its weight gradients are complete. Passes of other
//! engines than compute get the lanes after those of messages, one for each engine.
constexpr void complete_passes(data_uses const& uses, program& work, int lanes) noexcept {
  flow const& declared = *uses.over.declared;
  owned<bool> const seen(uses.stage_count, false);
  for (int i = work.count - 1; i >= 0; --i) {
    item& step = work.items[i];
    if (step.what != operation::run || step.about != subject::pass)
      continue;
    if (declared.engines > 1) {
      int const engine_row = declared.engine_row[static_cast<int>(declared[step.work.kind].on)];
      step.lane = engine_row > 0 ? lanes + engine_row - 1 : nothing;
    }
    if (uses.completes[index_of(step.work.kind)])
      step.completes_stage = !std::exchange(seen[step.work.stage], true);
  }
}

} // namespace pipelining::inline v0_3::detail
