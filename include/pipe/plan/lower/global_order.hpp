// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One order of all passes of all devices, and of the messages that they make.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/data_uses.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! @brief The merge of rows into one order: the earliest end first among those whose dependencies
//! are in it, until none may follow.
//!
//! The result is a linear extension of the order of every row and of all dependencies, also where
//! passes take no time. Each device enqueues its part of it; then no wait of any kind can point
//! forward, which is why the plan drains on bounded queues too.
//!
//! @complexity O(log P) per pass.
//! @source own derivation, see docs/explanation/plan.md.
class order_merge {
public:
  explicit order_merge(timetable_view const& table)
      : table_(table), tree_(table.rows()), next_(table.rows()) {
    for (int row = 0; row < table.rows(); ++row)
      next_.data[row] = table.offsets[row];
    for (int entry = 0; entry < table.size() && all_take_time_; ++entry)
      all_take_time_ = table.ends[entry] > table.starts[entry];
    if (all_take_time_)
      return;
    emitted_.get(table.over.pass_indices(), false);
    waiting_.get(table.rows(), false);
  }

  //! Entries of all rows.
  //! @throws std::invalid_argument where they are circular.
  [[nodiscard]] std::vector<int> run() {
    std::vector<int> order(static_cast<std::size_t>(table_.size()));
    int* last = order.data();
    for (int row = 0; row < table_.rows(); ++row)
      offer(row);
    while (!tree_.empty()) {
      int const row = tree_.first();
      int const end = table_.offsets[row + 1];
      int& next = next_[row];
      do { // the halves of a composite pass stay together
        *last++ = next++;
        if (!all_take_time_)
          emit(row, table_.passes[last[-1]]);
      } while (next < end && table_.passes[next].overlapped);
      if (all_take_time_)
        tree_.set(row,
                  next < end ? earliest_tree::key_of(table_.ends[next]) : earliest_tree::absent);
      else
        offer(row);
    }
    if (last != order.data() + order.size())
      throw std::invalid_argument("lower: the order of passes is circular; verify the timetable");
    return order;
  }

private:
  //! True when an entry, or the other half of its composite pass, waits for a pass that is not in
  //! the order yet: the halves start together, so the first goes once both may.
  [[nodiscard]] bool must_wait(int entry, int end) const noexcept {
    for (int i = entry; i < end && (i == entry || table_.passes[i].overlapped); ++i) {
      dependency_list const needed(table_.over, table_.passes[i]);
      for (int k = 0; k < needed.count; ++k)
        if (!emitted_[needed.index(k)])
          return true;
    }
    return false;
  }
  //! Enters a row if it has a next pass, and all that this waits for is in the order already.
  void offer(int row) noexcept {
    int const entry = next_[row];
    int const end = table_.offsets[row + 1];
    bool const waits = entry == end || (!all_take_time_ && must_wait(entry, end));
    if (!all_take_time_)
      waiting_[row] = waits;
    tree_.set(row, waits ? earliest_tree::absent : earliest_tree::key_of(table_.ends[entry]));
  }
  //! Notes the data that a pass of a row has made, and offers the rows that waited for it.
  void emit(int row, pass const& what) noexcept {
    pipeline_view const& over = table_.over;
    for (int const made : over.links_of(what).made)
      if (made != kind_links::none)
        emitted_[pass_index(over, what, made)] = true;
    int const devices = over.extents.devices;
    auto const offer_waiting = [&](int device) {
      for (int other = device; other < table_.rows(); other += devices)
        if (waiting_[other])
          offer(other);
    };
    for (int number = 0; number < graph_width(over); ++number)
      if (int const consumer = receiver(over, what, number); consumer != kind_links::none)
        offer_waiting(consumer);
    if (table_.rows() > devices)
      offer_waiting(row % devices);
  }

  timetable_view table_;
  earliest_tree tree_; // of those whose next pass may follow
  owned<int> next_;    // [rows]
  // Where every pass takes time, the one that ends first waits for nothing that is not in the order
  // yet.
  bool all_take_time_ = true;
  owned<bool> emitted_; // [pass_indices]
  owned<bool> waiting_; // [rows], whose next pass waits for one not in the order yet
};

//! @brief One entry of the global order of passes and messages: a pass that runs, or the message
//! that it makes, both named by the pass's entry in the timetable.
struct event {
  int entry = 0;                 //!< of the timetable; else a microbatch of the copy
  int device = 0;                //!< runs the pass, or sends the message
  int to = nothing;              //!< receives the message; `nothing` for a pass
  int slots = 1;                 //!< that each of its items uses
  subject about = subject::pass; //!< what it is about
  int stage = 0;                 //!< of other steps: the stage, or that of the first row
  int rows = 0;                  //!< of totals
  int number = 0;                //!< of the message, as that of an item
  int exchange = nothing;        //!< that the message is part of, as that of an item
};

//! Puts a message, which stands after the messages of its slot, among them, by pairs of devices.
constexpr void insert_message(event* first, event* last) noexcept {
  auto const pair = [](event const& what) {
    return communicators::per_pair::key(what.device, what.to);
  };
  auto const own = pair(*last);
  event* at = last;
  while (at != first && pair(at[-1]) > own)
    --at;
  if (at == last) // as mostly
    return;
  event const added = *last;
  for (event* to = last; to != at; --to)
    *to = to[-1];
  *at = added;
}

//! A message that a pass makes: its number among those of the pass, and its receiver.
struct pass_message {
  int number;
  int to;
};

//! The device of a pass, its slots, and where its messages are in a table.
struct pass_ends {
  int device = 0; //!< that runs it
  int slots = 0;  //!< that it uses
  int first = 0;  //!< of its messages
  int end = 0;    //!< after them
};

//! The same for all kinds of passes on all stages, by route, kind and stage; where edges lead to
//! other chunks, by unit in place of route.
class pass_table {
public:
  //! @throws std::invalid_argument where a pass uses more slots than an item can name.
  explicit pass_table(data_uses const& uses)
      : over_(uses.over), by_unit_(uses.across), kind_count_(over_.declared->kind_count),
        stage_count_(over_.extents.stages()) {
    shape const& extents = over_.extents;
    ends_.get((by_unit_ ? over_.units() : extents.routes()) * kind_count_ * stage_count_);
    for (int i = 0; i < (by_unit_ ? extents.microbatches : extents.routes()); ++i)
      for (int chunk = 0; chunk < (by_unit_ ? over_.chunks_of(i) : 1); ++chunk)
        for (int kind = 0; kind < kind_count_; ++kind)
          for (int stage = 0; stage < stage_count_; ++stage)
            enter(uses,
                  {static_cast<pass_kind>(kind),
                   false,
                   static_cast<std::uint16_t>(stage),
                   static_cast<std::uint16_t>(by_unit_ ? i : microbatch_of(extents, i)),
                   static_cast<std::uint16_t>(chunk)});
  }
  [[nodiscard, gnu::always_inline]] pass_ends operator[](pass const& what) const noexcept {
    int const way = by_unit_ ? over_.unit_of(what) : over_.extents.route_of(what.microbatch);
    int const kinds = way * kind_count_ + index_of(what.kind);
    return ends_[kinds * stage_count_ + what.stage];
  }
  //! A message that a pass makes. @param at from `pass_ends::first` to its `end`
  [[nodiscard]] pass_message const& message(int at) const noexcept { return messages_.data()[at]; }

private:
  void enter(data_uses const& uses, pass const& what) {
    auto const first = static_cast<int>(messages_.size());
    for (int number = 0; number < uses.width; ++number)
      if (int const to = receiver(over_, what, number); to != nothing)
        messages_.push_back({number, to});
    int const slots = uses.slots(what);
    if (slots > 65535)
      throw std::invalid_argument("plan: a pass uses " + std::to_string(slots) +
                                  " slots; 65535 at most are supported");
    ends_[count_++] = {device_of(over_, what), slots, first, static_cast<int>(messages_.size())};
  }

  pipeline_view over_;
  bool by_unit_;
  int kind_count_;
  int stage_count_;
  owned<pass_ends> ends_; // as operator[] numbers them
  int count_ = 0;         // of them
  owned_list<pass_message> messages_;
};

//! @brief The one global order of passes and messages: every message after the pass that makes it.
//!
//! With time slots, the messages of passes that end together come after all of these passes, by
//! pairs of devices: then the two directions of a pair stand side by side at both ends and can be
//! one group. Without, each message follows its pass at once. Where exchanges are joined, all
//! messages of one come after the last of the passes that make them.
struct message_placement {
  timetable_view table; //!< what the order is of
  int const* order;     //!< [count], a global order
  int count;            //!< of passes
  bool slots;           //!< with time slots, for groups of both directions
  pass_table known;     //!< of the pipeline
  //! [pass_indices], `nothing`: the entries of passes that are placed; null where exchanges are not
  //! joined.
  owned<int> placed{};

  //! Hands passes and their messages to `put`, in their order.
  //! @param first, end of the passes; no time slot is cut
  //! @complexity O(1) per pass where passes of one slot come in the order of their devices, as the
  //! merge makes them.
  template <class Put>
  void place(int first, int end, Put put) const {
    std::vector<event> messages; // of a slot
    while (first < end) {
      int const next = end_of_slot(first);
      messages.clear();
      for (int i = first; i < next; ++i) {
        int const entry = order[i];
        pass_ends const ends = known[table.passes[entry]];
        put(event{.entry = entry, .device = ends.device, .slots = ends.slots});
        std::size_t const before = messages.size();
        add_messages(entry, ends, nothing, messages);
        for (std::size_t k = before; k < messages.size() && slots; ++k)
          insert_message(messages.data(), messages.data() + k);
      }
      for (int i = first; i < next && placed != nullptr; ++i)
        add_exchanges(order[i], messages);
      for (event const& message : messages)
        put(message);
      first = next;
    }
  }
  //! The place from `at` on where the order may be cut, since no time slot goes on there.
  [[nodiscard]] int next_cut(int at) const noexcept {
    while (
      at > 0 && at < count &&
      (table.ends[order[at]] == table.ends[order[at - 1]] || table.passes[order[at]].overlapped))
      ++at;
    return at;
  }

  //! The end of the time slot that starts at `begin`: passes of different devices that end at the
  //! same time, so none of them waits for another. Without slots, one pass; the halves of a
  //! composite pass stay together.
  [[nodiscard]] int end_of_slot(int begin) const noexcept {
    double const slot_end = table.ends[order[begin]];
    bool const joinable = slots && table.starts[order[begin]] < slot_end;
    int end = begin + 1;
    for (; end < count; ++end) {
      int const entry = order[end];
      bool const joins =
        joinable && table.ends[entry] == slot_end && table.starts[entry] < slot_end;
      if (!joins && !table.passes[entry].overlapped)
        break;
    }
    return end;
  }
  //! Adds the messages of a pass that are part of one exchange, or of none.
  //! @param wanted the exchange, or `nothing`.
  void
  add_messages(int entry, pass_ends const& ends, int wanted, std::vector<event>& messages) const {
    for (int at = ends.first; at < ends.end; ++at) {
      auto const [number, to] = known.message(at);
      int const exchange =
        placed == nullptr ? nothing : exchange_of(table.over, table.passes[entry], number);
      if (exchange != wanted)
        continue;
      event& message = messages.emplace_back(); // in place: a copy would wait for its parts
      message.entry = entry;
      message.device = ends.device;
      message.to = to;
      message.number = number;
      message.exchange = exchange;
    }
  }
  //! Notes that a pass is placed. Where it is the last that makes something for an exchange, adds
  //! all messages of the exchange.
  void add_exchanges(int entry, std::vector<event>& messages) const {
    pipeline_view const& over = table.over;
    pass const& maker = table.passes[entry];
    placed[pass_index(over, maker)] = entry;
    std::vector<int> makers; // one, or all of its group
    int const members = over.graph().edges(maker.stage, group_step);
    for (int k = 0; k < std::max(members, 1); ++k) {
      pass other = maker;
      if (members > 0)
        other.stage =
          static_cast<std::uint16_t>(over.graph().edge(maker.stage, group_step, k).stage);
      makers.push_back(placed[pass_index(over, other)]);
      if (makers.back() == nothing)
        return;
    }
    int before = nothing;
    for (int number = 0; number < readers(over, maker); ++number) {
      int const exchange = exchange_of(over, maker, number);
      if (exchange == nothing || exchange == before)
        continue;
      before = exchange;
      for (int const made : makers)
        add_messages(made, known[table.passes[made]], exchange, messages);
    }
  }
};

} // namespace pipelining::inline v0_3::detail
