// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Slots for every buffer of a device, by interval colouring.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/data_uses.hpp>
#include <pipe/plan/lower/device_program.hpp>
#include <pipe/plan/lower/given_slots.hpp>

#include <cstddef>

namespace pipelining::inline v0_3::detail {

//! @brief The slots of one class: those free again, in the order in which they became free.
//!
//! The slot that has been free the longest is taken first, so that what still leaves it (a message)
//! is likely gone.
struct slot_pool {
  int* freed = nullptr; //!< [2 items of the device], slots in the order of their release
  int* released =
    nullptr; //!< [2 items of the device], by slot: the item that released it last, or `nothing`
  //! [items of the device][width + 1], by slot: who has read what was in it, where several streams
  //! can; else null.
  int* readers = nullptr;
  int first = 0;      //!< of freed, the slot to take next
  int last = 0;       //!< one behind the last of freed
  int count = 0;      //!< slots that exist
  int peak = nothing; //!< the item that was the first to need that many

  //! A slot for an item: the one that has been free the longest, or a new one.
  [[nodiscard]] constexpr int take(int item_index) noexcept {
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

//! @brief When the steps of a device start and end, where the timetable says so: [items], null
//! where copies need not be told apart from what runs beside them.
struct item_times {
  double const* starts = nullptr; //!< of every step
  double const* ends = nullptr;   //!< of every step
};

//! @brief What `assign_slots` works on: the pools of one device and, for all devices, which slot
//! holds what.
struct slot_state {
  data_uses const& uses;         //!< what its kinds do with data
  bool evaluates = false;        //!< no backward passes: nothing is kept for them
  slot_pool pools[slot_classes]; //!< by class
  held_datum* held;              //!< [data][S units], where each instance is
  int* sent;          //!< [items of the device], sends and copies whose slot is not free yet
  int* carried;       //!< [items of the device], of a message the instance that it carries
  slot_uses others{}; //!< of slots that no pass uses; null where the plan has none
  item_times times{}; //!< when steps start and end
  //! [instances][width + 1], who reads them: sends, then the last pass. Null for chains, where no
  //! two streams read the same.
  int* readers = nullptr;
  further_slots further{}; //!< [2 (width - 1) items], what items use beside `in` and `out`
};

//! @brief The most items that an item needs: the makers of what it reads, and who left the slots
//! that it takes. In a chain that is one for each effect; in a graph of width w, up to w + 2 left
//! each of the seven slots that a pass may take, 3 w those that it fills for readers.
[[nodiscard]] constexpr int most_needs(pipeline_view const& over) noexcept {
  int const width = graph_width(over);
  return 12 * width + (width > 1 ? 24 : 0);
}

//! The walk over the program of one device.
class slot_walk {
public:
  constexpr slot_walk(slot_state& state, program& work, int* needs, int* need_counts) noexcept
      : state_(state), uses_(state.uses), over_(state.uses.over),
        declared_(*state.uses.over.declared), work_(work), needs_(needs),
        most_needs_(most_needs(over_)), need_counts_(need_counts) {}

  constexpr void run() noexcept {
    for (int i = 0; i < work_.count; ++i) {
      need_counts_[i] = 0;
      count_readers(work_.items[i], i);
    }
    for (int i = 0; i < work_.count;) {
      item& step = work_.items[i];
      int const end = end_of_group({work_.items, static_cast<std::size_t>(work_.count)}, i);
      if (step.about != subject::pass) {
        if (step.what == operation::run)
          need(i, last_scatter_);
        assign_given_slots(state_.others,
                           pool(step_class(step)),
                           uses_.stage_count,
                           step,
                           {work_, i, needs_ + i * most_needs_, need_counts_[i]});
        ++i;
      } else if (step.what == operation::send) {
        send(step, i++);
      } else if (step.what == operation::receive) {
        receive(step, i++);
      } else if (runs_beside(step)) {
        if (step.completes_stage)
          last_scatter_ = i;
        copy(step, i++);
      } else {
        compute(i, end);
        i = end;
      }
    }
  }

private:
  [[nodiscard]] constexpr slot_pool& pool(slot_class of) noexcept {
    return state_.pools[static_cast<int>(of)];
  }
  [[nodiscard]] constexpr held_datum&
  held(data_use const& use, pass const& work, int unit, int number = 0) noexcept {
    return state_.held[uses_.index(use, work, unit, number)];
  }
  //! What a message that is sent carries.
  [[nodiscard]] constexpr held_datum& product_of(int message) noexcept {
    return state_.held[state_.carried[message]];
  }

  //! Item `i` must not start before `earlier` is complete; the order of a stream says so itself.
  constexpr void need(int i, int earlier) noexcept {
    if (earlier == nothing || stream_of(work_.items[earlier]) == stream_of(work_.items[i]))
      return;
    needs_[i * most_needs_ + need_counts_[i]] = earlier;
    ++need_counts_[i];
  }

  //! Every read of what may leave a device counts, so that the last one is known.
  constexpr void count_readers(item const& step, int i) noexcept {
    if (step.about != subject::pass || step.what == operation::receive)
      return;
    if (step.what == operation::send) {
      state_.carried[i] = uses_.product(step.work, step.number);
      count_reader(product_of(i));
      return;
    }
    int const unit = unit_of(over_, step.work);
    for (data_use const& use : uses_[step.work]) {
      int const count = use.stage == 0 ? 0 : uses_.count(use, step.work);
      for (int number = 0; number < count; ++number)
        count_reader(held(use, step.work, unit, number));
    }
  }

  constexpr void take(held_datum& into, int pool_number, int i) noexcept {
    slot_pool& from = state_.pools[pool_number];
    into.slot = from.take(i);
    into.pool = pool_number;
    into.maker = i;
    need(i, from.released[into.slot]);
    if (from.readers != nullptr && from.released[into.slot] != nothing)
      for (int k = 0; k <= uses_.width; ++k)
        need(i, from.readers[into.slot * (uses_.width + 1) + k]);
  }
  constexpr void give_back(held_datum const& what, int i) noexcept {
    slot_pool& pool = state_.pools[what.pool];
    pool.release(what.slot, i);
    for (int k = 0; pool.readers != nullptr && k <= uses_.width; ++k)
      pool.readers[what.slot * (uses_.width + 1) + k] = nothing;
  }
  //! One reader less; the last one gives the slot back. Those on other streams may end behind it,
  //! so whoever takes the slot waits for them too.
  constexpr void read_once(held_datum& what, int i) noexcept {
    int* const readers = readers_of(what);
    if (readers != nullptr) {
      int k = uses_.width;
      if (stream_of(work_.items[i]) != 0)
        for (k = 0; readers[k] != nothing; ++k) {
        }
      readers[k] = i;
    }
    --what.reads;
    if (what.reads > 0)
      return;
    give_back(what, i);
    for (int k = 0; readers != nullptr && k <= uses_.width; ++k)
      state_.pools[what.pool].readers[what.slot * (uses_.width + 1) + k] = readers[k];
  }
  [[nodiscard]] constexpr int* readers_of(held_datum const& what) noexcept {
    return state_.readers == nullptr ? nullptr
                                     : state_.readers + (&what - state_.held) * (uses_.width + 1);
  }
  //! One reader more of what may leave a device.
  constexpr void count_reader(held_datum& what) noexcept {
    bool const first = what.maker != made_by_reader;
    what.reads = first ? 1 : what.reads + 1;
    what.maker = made_by_reader;
    if (int* const readers = readers_of(what); readers != nullptr && first)
      for (int k = 0; k <= uses_.width; ++k)
        readers[k] = nothing;
  }

  constexpr void send(item& step, int i) noexcept {
    held_datum const& made = product_of(i);
    step.in = {static_cast<slot_class>(made.pool), made.slot};
    need(i, made.maker);
    state_.sent[sent_count_] = i;
    ++sent_count_;
  }
  constexpr void receive(item& step, int i) noexcept {
    held_datum& arrives = state_.held[uses_.product(step.work, step.number)];
    take(arrives, declared_.data[uses_.datum_of(step.work, step.number)].arrives_in, i);
    step.out = {static_cast<slot_class>(arrives.pool), arrives.slot};
  }

  //! Passes of the compute engine that start together.
  constexpr void compute(int first, int end) noexcept {
    for (; first_sent_ < sent_before_run_; ++first_sent_)
      read_once(product_of(state_.sent[first_sent_]), state_.sent[first_sent_]);
    if (state_.times.starts != nullptr)
      take_for_copies(state_.times.starts[first]);
    release_left(state_.times.starts == nullptr ? 0 : state_.times.starts[first]);
    for (int i = first; i < end; ++i)
      take_slots(work_.items[i], i);
    if (state_.times.ends != nullptr)
      take_for_copies(state_.times.ends[first]);
    for (int i = first; i < end; ++i)
      release_slots(work_.items[i], i);
    sent_before_run_ = sent_count_;
  }

  //! What copies leave stays taken until they have ended: those of one engine end in their order.
  //! They stand at the end of the list of what is sent.
  [[nodiscard]] constexpr int& left_item(int number) noexcept {
    return state_.sent[work_.count - 1 - number];
  }
  constexpr void release_left(double now) noexcept {
    for (int on = 1; on < engine_count && left_count_ > 0; ++on)
      release_left_by(static_cast<engine>(on), now);
  }
  constexpr void release_left_by(engine on, double now) noexcept {
    int& next = first_left_[static_cast<int>(on)];
    for (; next < left_count_; ++next) {
      int const copied = left_item(next);
      if (declared_[work_.items[copied].work.kind].on != on)
        continue;
      if (state_.times.ends != nullptr && state_.times.ends[copied] > now)
        return;
      give_back(source_of(copied), copied);
    }
  }
  [[nodiscard]] constexpr held_datum source_of(int copied) const noexcept {
    slot const& in = work_.items[copied].in;
    return {in.index, static_cast<int>(in.of)};
  }
  //! A copy to the device takes its slot when it starts, which may be before a pass that stands
  //! before it in the program has given one back.
  constexpr void take_for_copies(double before) noexcept {
    for (; next_copy_ < work_.count; ++next_copy_) {
      item& step = work_.items[next_copy_];
      if (!runs_beside(step) || step.about != subject::pass)
        continue;
      if (state_.times.starts[next_copy_] >= before)
        return;
      if (step.out.index != nothing)
        continue;
      release_left(state_.times.starts[next_copy_]);
      take_target(step, next_copy_);
    }
  }
  constexpr void take_target(item& step, int i) noexcept {
    int const unit = unit_of(over_, step.work);
    for (data_use const& use : uses_[step.work])
      if (use.makes && use.lies) {
        held_datum& made = held(use, step.work, unit);
        take(made, use.pool, i);
        step.out = {static_cast<slot_class>(made.pool), made.slot};
      }
  }
  //! Moves a slot.
  constexpr void copy(item& step, int i) noexcept {
    if (step.out.index == nothing) {
      if (state_.times.starts != nullptr)
        release_left(state_.times.starts[i]);
      take_target(step, i);
    }
    int const unit = unit_of(over_, step.work);
    for (data_use const& use : uses_[step.work]) {
      held_datum& source = held(use, step.work, unit);
      if (use.nowhere)
        order_by(source, use, i);
      if (!use.frees || !use.lies)
        continue;
      step.in = {static_cast<slot_class>(source.pool), source.slot};
      need(i, source.maker);
      left_item(left_count_++) = i;
    }
  }

  //! What lies nowhere takes no slot, but whoever reads it runs behind its maker.
  constexpr void order_by(held_datum& what, data_use const& use, int i) noexcept {
    if (use.makes)
      what.maker = i;
    else
      need(i, what.maker);
  }

  //! Takes the slots of what a pass makes, and looks up those that it goes on using.
  constexpr void take_slots(item& step, int i) noexcept {
    pass const& work = step.work;
    int const unit = unit_of(over_, work);
    for (data_use const& use : uses_[work]) {
      if (use.stage != 0)
        continue;
      if (use.nowhere)
        order_by(held(use, work, unit), use, i);
      int const count = use.lies ? uses_.count(use, work) : 0;
      for (int number = 0; number < count; ++number)
        take_slot(step, use, held(use, work, unit, number), number, i);
    }
  }
  constexpr void
  take_slot(item& step, data_use const& use, held_datum& what, int number, int i) noexcept {
    bool const made = uses_.brings(use, step.work);
    if (made)
      take(what, use.pool, i);
    else
      need(i, what.maker);
    if (int* const kept = kept_slot(step, what.pool))
      *kept = what.slot;
    else if (number + use.outputs_before > 0)
      state_.further.push(step.further_outputs, {static_cast<slot_class>(what.pool), what.slot});
    else if (made || !use.works_in)
      (made ? step.out : step.in) = {static_cast<slot_class>(what.pool), what.slot};
  }

  //! Releases what a pass is the last to read. Comes after all that start together have taken: no
  //! pass ever writes over what it, or the other half of a composite pass, reads.
  constexpr void release_slots(item& step, int i) noexcept {
    pass const& work = step.work;
    int const unit = unit_of(over_, work);
    for (data_use const& use : uses_[work]) {
      if (use.stage != 0) {
        int const count = uses_.count(use, work);
        for (int number = 0; number < count; ++number) {
          held_datum& read = held(use, work, unit, number);
          slot const at{static_cast<slot_class>(read.pool), read.slot};
          if (number == 0)
            step.in = at;
          else
            state_.further.push(step.further_inputs, at);
          need(i, read.maker);
          read_once(read, i);
        }
      } else if ((use.frees || (state_.evaluates && use.left_alone)) && use.lies &&
                 (use.whole || uses_.ends_kind(work))) {
        give_back(held(use, work, unit), i);
      }
    }
  }

  slot_state& state_;
  data_uses const& uses_;
  pipeline_view const& over_;
  flow const& declared_;
  program& work_;
  int* needs_;
  int most_needs_;
  int* need_counts_;
  int first_sent_ = 0;
  int sent_count_ = 0;
  int sent_before_run_ = 0; // sends that the pass now in the program has let overlap
  int first_left_[engine_count]{};
  int left_count_ = 0;
  int next_copy_ = 0;
  int last_scatter_ = nothing; // what follows complete gradients runs behind it
};

//! @brief Gives every item of a device its slots, and lists for every item the items whose slots or
//! results it takes
//!        over.
//!
//! What a pass makes takes a slot at its start; what it frees, or reads as the last, is given back
//! at its end. Greedy interval colouring in program order, which needs exactly as many slots as are
//! in use at once. A slot that is sent stays taken through the next pass of its device, so that the
//! next pass does not wait for the message.
//!
//! @param needs [items][most_needs] items of other streams of this device that must be complete
//! first.
//! @param need_counts [items].
//! @complexity O(n) for n items.
//! @source Interval graphs are perfect: greedy colouring by start meets the peak overlap
//! (folklore).
constexpr void
assign_slots(slot_state& state, program& work, int* needs, int* need_counts) noexcept {
  slot_walk(state, work, needs, need_counts).run();
}

} // namespace pipelining::inline v0_3::detail
