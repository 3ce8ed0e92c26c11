// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief From the program of a device to its part of the plan: lanes, groups, waits, arena, and
//! slots for every buffer, by interval colouring.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/flow.hpp>
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
#include <numeric>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! @brief The slots of one class: those free again, in the order in which they became free.
//!
//! The slot that has been free the longest is taken first, so that what still leaves it (a message)
//! is likely gone.
struct slot_pool {
  owned<int> freed;    //!< [releases], slots in the order of their release
  owned<int> released; //!< by slot: the item that released it last, or `nothing`
  //! [releases][most readers], by slot: the items that have read its content, where several streams
  //! can; else null.
  owned<int> readers;
  int first = 0;      //!< of freed, the slot to take next
  int last = 0;       //!< one after the last of freed
  int count = 0;      //!< slots that exist
  int peak = nothing; //!< the item that was the first to need that many

  //! Begins a device: there are no slots.
  //! @param room for releases. @param read for their readers
  constexpr void reset(int room, int read) {
    freed.get(room);
    released.get(room);
    if (read > 0)
      readers.get(read);
    first = last = count = 0;
    peak = nothing;
  }
  //! A slot for an item: the one that has been free the longest, or a new one.
  constexpr int take(int item_index) noexcept {
    if (first == last) {
      released[count] = nothing;
      peak = item_index;
      ++count;
      return count - 1;
    }
    ++first;
    return freed[first - 1];
  }
  //! Gives a slot back after an item.
  constexpr void release(int index, int item_index) noexcept {
    freed[last] = index;
    released[index] = item_index;
    ++last;
  }
};

//! @brief The rows of the stages whose data a device may hold: in a chain its own and their
//! neighbours, which stay side by side; in a graph all.
class stage_rows {
public:
  explicit stage_rows(pipeline_view const& over)
      : stage_count_(over.extents.stages()), rows_(stage_count_),
        held_(static_cast<std::size_t>(over.edges == nullptr ? over.extents.devices : 0)) {
    std::iota(rows_.data, rows_.data + stage_count_, 0);
    for (int stage = 0; stage < stage_count_ && !held_.empty(); ++stage)
      for (int route = 0; route < over.extents.routes(); ++route) {
        int const device = device_of(over, stage, microbatch_of(over.extents, route));
        held_[static_cast<std::size_t>(device)].push_back(stage);
      }
  }
  //! Numbers the rows of a device from 0.
  //! @return how many there are
  int number(int device) noexcept {
    if (held_.empty())
      return stage_count_;
    int count = 0;
    int next = 0;
    for (int const stage : held_[static_cast<std::size_t>(device)])
      for (next = std::max(next, stage - 1); next < std::min(stage + 2, stage_count_); ++next)
        rows_[next] = count++;
    return count;
  }
  //! The row of a stage of the device.
  [[nodiscard]] int operator[](int stage) const noexcept { return rows_[stage]; }

private:
  int stage_count_;
  owned<int> rows_;                    // [S], those of the device
  std::vector<std::vector<int>> held_; // its stages by device, in ascending order; of chains
};

//! @brief The most items that an item needs: the makers of its inputs, and the last users of the
//! slots that it takes. In a chain an item needs one for each effect. In a graph of width w, and
//! where several engines read the same, all readers leave a slot, and a pass fills one for each
//! neighbour. Steps about something else need one for each slot of their class.
//! @param given slots of a class that no pass uses
[[nodiscard]] constexpr int most_needs(data_uses const& uses, int given) noexcept {
  int const of_passes = uses.shares_reads()
                          ? kind_of_pass::most_effects * (uses.most_readers + 1) + 3 * uses.width
                          : kind_of_pass::most_effects + 2;
  return of_passes + given;
}

//! @brief Gives every item of a device its slots, and its waits for the items whose slots or
//! results it takes over; one device after the other, each in the memory of the one before.
//!
//! A pass takes slots at its start for the data that it makes. At its end it gives back the slots
//! of data that it frees, or reads as the last. The method is greedy interval colouring in program
//! order, which needs exactly as many slots as are in use at once. A slot that is sent stays taken
//! through the next pass of its device, so that the next pass does not wait for the message.
//!
//! @complexity O(n L) for n items and L streams.
//! @source Interval graphs are perfect: greedy colouring by start meets the peak overlap
//! (folklore).
class slot_walk {
public:
  //! @param evaluates no backward passes: nothing is kept for them
  //! @param hooks whether there are steps that are not about passes
  slot_walk(data_uses const& uses, bool evaluates, bool hooks)
      : uses_(uses), over_(uses.over), declared_(*uses.over.declared), evaluates_(evaluates),
        given_(hooks ? std::max({2, uses.stage_count, most_copies(uses.over.extents)}) : 0),
        rows_(uses.over), waits_(uses.over, most_needs(uses, given_)) {
    for (int line = 0; line < uses.lines; ++line)
      if (datum const& of = declared_.data[uses.datum_on[line]]; of.lives != residence::nowhere)
        used_[of.pool] = used_[of.arrives_in] = true;
  }

  //! @param layouts receive counts of slots. @param waits of the devices before, receives those of
  //! the device
  //! @return of messages the instances that they carry
  int const*
  run(program const& work, int device, int streams, slot_layout* layouts, std::vector<int>& waits) {
    work_ = work;
    at_ = {};
    begin(rows_.number(device) * uses_.row_size);
    waits_.reset(work.items, work.count, streams, waits);
    walk();
    for (int of = 0; of < slot_classes; ++of) {
      layouts[of].count = pools_[of].count;
      layouts[of].peak_item = pools_[of].peak;
    }
    return carried_;
  }

private:
  //! @param instances of data that the device may hold
  void begin(int instances) {
    int const room = uses_.most_taken * work_.count; // releases of a pool
    int const read = uses_.shares_reads() ? room * uses_.most_readers : 0;
    for (int of = 0; of < slot_classes; ++of)
      pools_[of].reset(used_[of] ? room : given_, used_[of] ? read : 0);
    // Where readers are counted, or an order may be looked up, no instance is as a device left it.
    if (over_.edges == nullptr && (!uses_.read_once || declared_.engines > 1))
      held_.get(instances, {});
    else
      held_.get(instances);
    sent_.get(work_.count);
    running_.get(work_.times != nullptr ? work_.count : 0);
    carried_.get(work_.count);
  }

  void walk() noexcept {
    for (int i = 0; i < work_.count; ++i)
      if (item const& step = work_.items[i]; step.about == subject::pass) {
        if (step.what != operation::run)
          carried_[i] = uses_.product(step.work, row_of(step.work), work_.message_of(step).number);
        if (!uses_.read_once)
          count_readers(step, i);
      }
    for (int first = 0; first < work_.count;) {
      int const end = end_of_group({work_.items, static_cast<std::size_t>(work_.count)}, first);
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
  [[nodiscard]] held_datum& product_of(int message) noexcept { return held_[carried_[message]]; }

  //! Uses slots that are given, one after the other. Each user needs the one before it, so that the
  //! last stands for all.
  void use_given(int i, use const& given) noexcept {
    int const all = given.of == slot_class::totals ? uses_.stage_count
                    : given.of == slot_class::tied_gradient
                      ? 2
                      : copies_of(over_, work_.items[i].work.stage);
    slot_pool& pool = pools_[static_cast<int>(given.of)];
    while (pool.count < all)
      pool.take(i);
    for (int slot = given.index; slot < given.index + given.count; ++slot)
      waits_.need(i, std::exchange(pool.released[slot], i));
  }

  //! Every read of what may leave a device counts, so that the last one is known.
  void count_readers(item const& step, int i) noexcept {
    if (step.what == operation::send)
      count_reader(product_of(i));
    if (step.what != operation::run)
      return;
    pass_place const place = uses_.place_of(step.work, row_of(step.work));
    for (data_use const& use : uses_[step.work]) {
      int const count = use.stage == 0 ? 0 : uses_.count(use, step.work);
      for (int number = 0; number < count; ++number)
        count_reader(held(use, step.work, place, number));
    }
  }

  void take(held_datum& into, int pool_number, int i) noexcept {
    slot_pool& from = pools_[pool_number];
    into.slot = from.take(i);
    into.pool = static_cast<std::uint16_t>(pool_number);
    into.maker = i;
    waits_.need(i, from.released[into.slot]);
    for (int k = 0; from.readers != nullptr && k < uses_.most_readers; ++k) {
      int& reader = from.readers[into.slot * uses_.most_readers + k];
      if (from.released[into.slot] != nothing)
        waits_.need(i, reader);
      reader = nothing;
    }
  }
  void give_back(held_datum const& what, int i) noexcept {
    pools_[what.pool].release(what.slot, i);
  }
  //! One reader less; the last one gives the slot back. Readers on other streams may end after it,
  //! so the next user of the slot waits for them too.
  void read_once(held_datum& what, int i) noexcept {
    if (slot_pool const& pool = pools_[what.pool]; pool.readers != nullptr) {
      item const& step = work_.items[i];
      int* reader = pool.readers + what.slot * uses_.most_readers;
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
  void run_other(item const& step, int i) noexcept {
    if (step.about != subject::pass) {
      if (step.what == operation::run)
        waits_.need(i, at_.last_scatter);
      use_given(i, work_.uses[step.first_use]);
    } else if (step.what == operation::send) {
      held_datum const& made = product_of(i);
      work_.uses[step.first_use] = in_slot(made, slot_place::inputs);
      waits_.need(i, made.maker);
      sent_[at_.sent_count] = i;
      ++at_.sent_count;
    } else if (step.what == operation::receive) {
      held_datum& arrives = product_of(i);
      take(arrives, declared_.data[uses_.datum_of(carried_[i])].arrives_in, i);
      work_.uses[step.first_use] = in_slot(arrives, slot_place::outputs);
    } else {
      at_.last_scatter = step.completes_stage ? i : at_.last_scatter;
      run_beside(i);
    }
  }

  //! Passes of the compute engine that start together. All take before any gives back: no pass ever
  //! writes over what it, or the other half of a composite pass, reads.
  void compute(int first, int end) noexcept {
    for (; at_.first_sent < at_.sent_before_run; ++at_.first_sent)
      read_once(product_of(sent_[at_.first_sent]), sent_[at_.first_sent]);
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
  void run_beside(int i) noexcept {
    if (i >= at_.next_beside) {
      end_beside(work_.times[i].start);
      hand_slots<true, false>(i);
      at_.next_beside = i + 1;
    }
    hand_slots<false, true>(i);
    running_[at_.running_count++] = i;
  }
  //! Takes the slots of passes of other engines that start before a time.
  void take_beside(double before) noexcept {
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
  void hand_slots(int i) noexcept {
    item const& step = work_.items[i];
    pass const& work = step.work;
    pass_place const place = uses_.place_of(work, row_of(work));
    use* next = work_.uses + step.first_use;
    for (data_use const& use : uses_[work]) {
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
      if (!uses_.gives_back(use, work, evaluates_))
        continue;
      if (use.stage == 0)
        give_back(held(use, work, place), i);
      for (int number = 0, count = use.stage == 0 ? 0 : uses_.count(use, work); number < count;
           ++number)
        read_once(held(use, work, place, number), i);
    }
  }
  //! How an item uses the slot of a datum.
  [[nodiscard]] static constexpr use in_slot(held_datum const& what, slot_place place) noexcept {
    return {static_cast<slot_class>(what.pool), place, 1, what.slot, 0};
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
  pipeline_view const& over_;
  flow const& declared_;
  bool evaluates_;
  int given_;                 // slots of a class that no pass uses, at most
  bool used_[slot_classes]{}; // pools
  stage_rows rows_;
  program work_{};
  position at_{};
  wait_list waits_;
  slot_pool pools_[slot_classes]; // by class
  owned<held_datum> held_;        // [rows of the device][data][units], where each instance is
  owned<int> sent_;               // [items of the device], sends whose slot is not free yet
  owned<int> running_;            // [items of the device], passes of other engines
  owned<int> carried_; // [items of the device], of a message the instance that it carries
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
