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
#include <pipe/plan/policy.hpp>
#include <pipe/plan/proof.hpp>
#include <pipe/plan/sizes.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! @brief The slots of one class: those free again, in the order in which they became free.
//!
//! The slot that has been free the longest is taken first, so that what still leaves it (a message)
//! is likely gone.
struct slot_pool {
  int* freed = nullptr; //!< [2 items of the device], slots in the order of their release
  int* released =
    nullptr; //!< [2 items of the device], by slot: the item that released it last, or `nothing`
  //! [items of the device][most readers], by slot: the items that have read its content, where
  //! several streams can; else null.
  int* readers = nullptr;
  int first = 0;      //!< of freed, the slot to take next
  int last = 0;       //!< one after the last of freed
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

//! @brief The last users of slots of the classes that no pass uses: tied gradients, then totals,
//! then copied gradients.
struct slot_uses {
  int* writer = nullptr; //!< [slots] items of the device, or `nothing`
  int* reader = nullptr; //!< [slots]
};

//! The most slots of these classes that a device may have.
[[nodiscard]] constexpr int given_slots(shape const& extents) noexcept {
  return 2 + extents.stages() + most_copies(extents);
}

//! @brief The rows of the stages whose data a device may hold: in a chain its own and their
//! neighbours, which stay side by side; in a graph all.
class stage_rows {
public:
  explicit stage_rows(pipeline_view const& over)
      : rows_(static_cast<std::size_t>(over.extents.stages())),
        held_(static_cast<std::size_t>(over.edges == nullptr ? over.extents.devices : 0)) {
    int const stages = over.extents.stages();
    std::iota(rows_.begin(), rows_.end(), 0);
    for (int stage = 0; stage < stages && !held_.empty(); ++stage)
      for (int route = 0; route < over.extents.routes(); ++route) {
        int const line = route * over.declared->rows * stages + stage;
        std::vector<int>& held = held_[static_cast<std::size_t>(holder_of(over, line))];
        for (int next = std::max(stage - 1, 0); next < std::min(stage + 2, stages); ++next)
          if (held.empty() || next > held.back())
            held.push_back(next);
      }
  }
  //! Numbers the rows of a device from 0.
  //! @return how many there are
  int number(int device) noexcept {
    if (held_.empty())
      return static_cast<int>(rows_.size());
    int count = 0;
    for (int const stage : held_[static_cast<std::size_t>(device)])
      rows_[static_cast<std::size_t>(stage)] = count++;
    return count;
  }
  //! [S], those of the device.
  [[nodiscard]] int const* rows() const noexcept { return rows_.data(); }

private:
  std::vector<int> rows_;
  std::vector<std::vector<int>> held_; // stages by device, in ascending order; of chains
};

//! @brief The state of a `slot_walk`: the pools of one device and the slots of the instances that
//! it may hold.
struct slot_state {
  data_uses const& uses;         //!< what its kinds do with data
  bool evaluates = false;        //!< no backward passes: nothing is kept for them
  slot_pool pools[slot_classes]; //!< by class
  held_datum* held;              //!< [rows of the device][data][units], where each instance is
  int const* rows;               //!< [S], as in `stage_rows`
  int* sent;          //!< [items of the device], sends and copies whose slot is not free yet
  int* carried;       //!< [items of the device], of a message the instance that it carries
  slot_uses others{}; //!< of slots that no pass uses; null where the plan has none
  item_times times{}; //!< when steps start and end
  //! [instances][most readers], who reads them: sends, then the last pass of each engine. Null
  //! where no two streams read the same.
  int* readers = nullptr;
};

//! @brief The most items that an item needs: the makers of its inputs, and the last users of the
//! slots that it takes. In a chain an item needs one for each effect. In a graph of width w, and
//! where several engines read the same, all readers leave a slot, and a pass fills one for each
//! neighbour.
[[nodiscard]] constexpr int most_needs(data_uses const& uses) noexcept {
  int const of_passes = uses.shares_reads()
                          ? kind_of_pass::most_effects * (uses.most_readers + 1) + 3 * uses.width
                          : kind_of_pass::most_effects + 2;
  int const of_copies = 2 * most_copies(uses.over.extents);
  return of_passes > of_copies ? of_passes : of_copies;
}

//! @brief Gives every item of a device its slots, and its waits for the items whose slots or
//! results it takes over.
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
  constexpr slot_walk(slot_state& state, program& work, wait_list& waits) noexcept
      : state_(state), uses_(state.uses), over_(state.uses.over),
        declared_(*state.uses.over.declared), work_(work), waits_(waits) {}

  constexpr void run() noexcept {
    for (int i = 0; i < work_.count; ++i)
      if (item const& step = work_.items[i]; step.about == subject::pass) {
        if (step.what != operation::run)
          state_.carried[i] =
            uses_.product(step.work, row_of(step.work), work_.message_of(step).number);
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

private:
  [[nodiscard]] constexpr slot_pool& pool(slot_class of) noexcept {
    return state_.pools[static_cast<int>(of)];
  }
  [[nodiscard]] constexpr int row_of(pass const& work) const noexcept {
    return state_.rows[work.stage];
  }
  [[nodiscard]] constexpr held_datum&
  held(data_use const& use, pass const& work, pass_place const& place, int number = 0) noexcept {
    return state_.held[uses_.index(use, work, place, number)];
  }
  //! The instance that a message carries.
  [[nodiscard]] constexpr held_datum& product_of(int message) noexcept {
    return state_.held[state_.carried[message]];
  }

  //! Uses slots that are given, one after the other, to read or to write. A reader needs the one
  //! before it, so that the last stands for all.
  constexpr void use_given(int i, use const& given) noexcept {
    int const stage_count = over_.extents.stages();
    bool const of_totals = given.of == slot_class::totals;
    bool const tied = given.of == slot_class::tied_gradient;
    int const slots = of_totals ? stage_count
                      : tied    ? 2
                                : copies_of(over_, work_.items[i].work.stage);
    if (slot_pool& from = pool(given.of); from.count < slots) {
      from.count = slots;
      from.peak = i;
    }
    int const first = given.index + (of_totals ? 2 : tied ? 0 : 2 + stage_count);
    bool const writes = given.at == slot_place::outputs;
    for (int key = first; key < first + given.count; ++key) {
      waits_.need_latest(i, state_.others.writer[key]);
      waits_.need_latest(i, state_.others.reader[key]);
      (writes ? state_.others.writer : state_.others.reader)[key] = i;
      if (writes)
        state_.others.reader[key] = nothing;
    }
  }

  //! Every read of what may leave a device counts, so that the last one is known.
  constexpr void count_readers(item const& step, int i) noexcept {
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

  constexpr void take(held_datum& into, int pool_number, int i) noexcept {
    slot_pool& from = state_.pools[pool_number];
    into.slot = from.take(i);
    into.pool = static_cast<std::uint16_t>(pool_number);
    into.maker = i;
    waits_.need(i, from.released[into.slot]);
    if (from.readers != nullptr && from.released[into.slot] != nothing)
      for (int k = 0; k < uses_.most_readers; ++k)
        waits_.need(i, from.readers[into.slot * uses_.most_readers + k]);
  }
  constexpr void give_back(held_datum const& what, int i) noexcept {
    slot_pool& pool = state_.pools[what.pool];
    pool.release(what.slot, i);
    for (int k = 0; pool.readers != nullptr && k < uses_.most_readers; ++k)
      pool.readers[what.slot * uses_.most_readers + k] = nothing;
  }
  //! One reader less; the last one gives the slot back. Readers on other streams may end after it,
  //! so the next user of the slot waits for them too.
  constexpr void read_once(held_datum& what, int i) noexcept {
    int* const readers = readers_of(what);
    if (readers != nullptr) {
      item const& step = work_.items[i];
      int k = uses_.width + (step.what == operation::run ? engine_of(step) : 0);
      if (step.what != operation::run)
        for (k = 0; readers[k] != nothing; ++k) {
        }
      readers[k] = i;
    }
    if (!uses_.read_once && --what.reads > 0)
      return;
    give_back(what, i);
    for (int k = 0; readers != nullptr && k < uses_.most_readers; ++k)
      state_.pools[what.pool].readers[what.slot * uses_.most_readers + k] = readers[k];
  }
  //! The row of a device that the engine of a pass is.
  [[nodiscard]] constexpr int engine_of(item const& step) const noexcept {
    return declared_.engine_row[static_cast<int>(declared_[step.work.kind].on)];
  }
  [[nodiscard]] constexpr int* readers_of(held_datum const& what) noexcept {
    return state_.readers == nullptr ? nullptr
                                     : state_.readers + (&what - state_.held) * uses_.most_readers;
  }
  //! One reader more of what may leave a device.
  constexpr void count_reader(held_datum& what) noexcept {
    bool const first = what.maker != made_by_reader;
    what.reads = static_cast<std::uint16_t>(first ? 1 : what.reads + 1);
    what.maker = made_by_reader;
    if (int* const readers = readers_of(what); readers != nullptr && first)
      for (int k = 0; k < uses_.most_readers; ++k)
        readers[k] = nothing;
  }

  //! A step that is no pass of the compute engine.
  constexpr void run_other(item const& step, int i) noexcept {
    if (step.about != subject::pass) {
      if (step.what == operation::run)
        waits_.need(i, last_scatter_);
      use_given(i, work_.uses_of(step)[0]);
    } else if (step.what == operation::send) {
      held_datum const& made = product_of(i);
      work_.uses[step.first_use] = in_slot(made, slot_place::inputs);
      waits_.need(i, made.maker);
      state_.sent[sent_count_] = i;
      ++sent_count_;
    } else if (step.what == operation::receive) {
      held_datum& arrives = product_of(i);
      take(arrives, declared_.data[uses_.datum_of(state_.carried[i])].arrives_in, i);
      work_.uses[step.first_use] = in_slot(arrives, slot_place::outputs);
    } else {
      last_scatter_ = step.completes_stage ? i : last_scatter_;
      run_beside(i);
    }
  }

  //! Passes of the compute engine that start together. All take before any gives back: no pass ever
  //! writes over what it, or the other half of a composite pass, reads.
  constexpr void compute(int first, int end) noexcept {
    for (; first_sent_ < sent_before_run_; ++first_sent_)
      read_once(product_of(state_.sent[first_sent_]), state_.sent[first_sent_]);
    if (state_.times.starts != nullptr)
      take_beside(state_.times.starts[first]);
    if (running_count_ > 0)
      end_beside(state_.times.starts == nullptr ? 0 : state_.times.starts[first]);
    for (int i = first; i < end; ++i)
      hand_slots<true, true>(i);
    if (state_.times.ends != nullptr)
      take_beside(state_.times.ends[first]);
    for (int i = first; i < end; ++i)
      give_back_after(i);
    sent_before_run_ = sent_count_;
  }

  //! A pass of another engine holds its slots from its start to its end, whatever stands between
  //! them in the program. It has started before its turn where a pass of the compute engine runs
  //! longer.
  constexpr void run_beside(int i) noexcept {
    if (i >= next_beside_) {
      if (state_.times.starts != nullptr)
        end_beside(state_.times.starts[i]);
      hand_slots<true, false>(i);
      next_beside_ = i + 1;
    }
    hand_slots<false, true>(i);
    running_item(running_count_++) = i;
  }
  //! Takes the slots of passes of other engines that start before a time.
  constexpr void take_beside(double before) noexcept {
    for (; next_beside_ < work_.count; ++next_beside_) {
      item const& step = work_.items[next_beside_];
      if (!runs_beside(step) || step.about != subject::pass)
        continue;
      if (state_.times.starts[next_beside_] >= before)
        return;
      end_beside(state_.times.starts[next_beside_]);
      hand_slots<true, false>(next_beside_);
    }
  }
  //! The `number`-th pass of another engine. These stand at the end of the list of sends.
  [[nodiscard]] constexpr int& running_item(int number) noexcept {
    return state_.sent[work_.count - 1 - number];
  }
  //! Gives back after passes that have ended; the passes of one engine end in their order.
  constexpr void end_beside(double now) noexcept {
    for (int on = 1; on < flow::engine_count; ++on)
      for (int& next = first_running_[on]; next < running_count_; ++next) {
        int const i = running_item(next);
        if (declared_[work_.items[i].work.kind].on != static_cast<engine>(on))
          continue;
        if (state_.times.ends != nullptr && state_.times.ends[i] > now)
          break;
        give_back_after(i);
      }
  }

  //! Takes the slots of data that a pass brings to life, and looks up the data that it goes on
  //! using or reads. Data without a slot say which pass runs first.
  template <bool Takes, bool LooksUp>
  constexpr void hand_slots(int i) noexcept {
    item const& step = work_.items[i];
    pass const& work = step.work;
    pass_place const place = uses_.place_of(work, row_of(work));
    use* next = work_.uses + step.first_use;
    for (data_use const& use : uses_[work]) {
      if (LooksUp && use.orders && use.makes)
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
  constexpr void give_back_after(int i) noexcept {
    pass const& work = work_.items[i].work;
    pass_place const place = uses_.place_of(work, row_of(work));
    for (data_use const& use : uses_[work]) {
      if (!uses_.gives_back(use, work, state_.evaluates))
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

  slot_state& state_;
  data_uses const& uses_;
  pipeline_view const& over_;
  flow const& declared_;
  program& work_;
  wait_list& waits_;
  int first_sent_ = 0;
  int sent_count_ = 0;
  int sent_before_run_ = 0; // sends that the pass now in the program has let overlap
  int first_running_[flow::engine_count]{}; // of the passes of each engine that run, or have ended
  int running_count_ = 0;
  int next_beside_ = 0;        // the next pass of another engine that has not taken its slots
  int last_scatter_ = nothing; // what follows complete gradients runs after it
};

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
        given_count_(hooks ? given_slots(uses.over.extents) : 0), rows_(uses.over) {
    for (int line = 0; line < uses.lines; ++line)
      if (datum const& of = uses.over.declared->data[uses.datum_on[line]];
          of.lives != residence::nowhere)
        used_[of.pool] = used_[of.arrives_in] = true;
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
    bool const ahead = over.declared->engines > 1;
    int const waiting = ahead ? work.count : 1;
    wait_list found{work.items,
                    clocks_.get(work.count, lanes + over.declared->engines),
                    ahead,
                    needs_.get(waiting * per_item),
                    per_item,
                    need_counts_.get(waiting, 0),
                    waits_.get(work.count * most_waits(over)),
                    static_cast<int>(waits.size())};
    found.clock.reset();
    slot_layout* const layouts = result.layouts.data() + device * slot_classes;
    int const* const carried = give_slots(work, device, times, layouts, found);
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
  int const* give_slots(
    program& work, int device, item_times const& times, slot_layout* layouts, wait_list& waits) {
    int const room = uses_.most_taken * work.count; // releases of a pool
    int const readers = uses_.shares_reads() ? room * uses_.most_readers : 0;
    int const instances = rows_.number(device) * uses_.row_size;
    // Where readers are counted, or an order may be looked up, no instance is as a device left it.
    bool const anew =
      uses_.over.edges == nullptr && (!uses_.read_once || uses_.over.declared->engines > 1);
    slot_state state{uses_,
                     evaluates_,
                     {},
                     anew ? held_.get(instances, {}) : held_.get(instances),
                     rows_.rows(),
                     sent_.get(work.count),
                     carried_.get(work.count),
                     {writers_.get(given_count_, nothing), readers_.get(given_count_, nothing)},
                     times,
                     readers == 0 ? nullptr : held_readers_.get(instances * uses_.most_readers)};
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
  stage_rows rows_;
  bool used_[slot_classes]{}; // pools
  reused_scratch<held_datum> held_;
  clock_space clocks_;
  reused_scratch<message_line> lines_;
  reused_scratch<int> waits_, needs_, need_counts_, sent_, carried_, writers_, readers_,
    held_readers_;
  reused_scratch<int> freed_[slot_classes], released_[slot_classes], slot_readers_[slot_classes];
};

} // namespace pipelining::inline v0_3::detail
