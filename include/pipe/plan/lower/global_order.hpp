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

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
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
      : table_(table), tree_(table.rows()), next_(table.offsets, table.offsets + table.rows()) {
    for (int entry = 0; entry < table.size() && all_take_time_; ++entry)
      all_take_time_ = table.ends[entry] > table.starts[entry];
    if (all_take_time_)
      return;
    emitted_ = std::make_unique<bool[]>(at(table.over.pass_indices()));
    waiting_ = std::make_unique<bool[]>(at(table.rows()));
  }

  //! Entries of all rows, fewer where they are circular.
  [[nodiscard]] std::vector<int> run() {
    std::vector<int> order(at(table_.size()));
    int* last = order.data();
    for (int row = 0; row < table_.rows(); ++row)
      offer(row);
    while (!tree_.empty()) {
      int const row = tree_.first();
      int const end = table_.offsets[row + 1];
      int& next = next_[at(row)];
      // Where others may be offered, this row is out until all that it waits for is known.
      if (!all_take_time_)
        tree_.set(row, earliest_tree::absent);
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
    order.resize(static_cast<std::size_t>(last - order.data()));
    return order;
  }

private:
  [[nodiscard]] static std::size_t at(int number) noexcept {
    return static_cast<std::size_t>(number);
  }
  //! True when an entry, or the other half of its composite pass, waits for a pass that is not in
  //! the order yet: the halves start together, so the first goes once both may.
  [[nodiscard]] bool must_wait(int entry, int end) const noexcept {
    for (int i = entry; i < end && (i == entry || table_.passes[i].overlapped); ++i) {
      dependency_list const needed(table_.over, table_.passes[i]);
      for (int k = 0; k < needed.count; ++k)
        if (!emitted_[at(needed.index(k))])
          return true;
    }
    return false;
  }
  //! Enters a row if all that its next pass waits for is in the order already.
  void offer(int row) noexcept {
    int const entry = next_[at(row)];
    int const end = table_.offsets[row + 1];
    if (entry == end)
      return;
    bool const waits = !all_take_time_ && must_wait(entry, end);
    if (!all_take_time_)
      waiting_[at(row)] = waits;
    if (!waits)
      tree_.set(row, earliest_tree::key_of(table_.ends[entry]));
  }
  //! Notes the data that a pass of a row has made, and offers the rows that waited for it.
  void emit(int row, pass const& what) noexcept {
    pipeline_view const& over = table_.over;
    for (int const made : over.links_of(what).made)
      if (made != kind_links::none)
        emitted_[at(pass_index(over, what, made))] = true;
    int const devices = over.extents.devices;
    auto const offer_waiting = [&](int device) {
      for (int other = device; other < table_.rows(); other += devices)
        if (other != row && waiting_[at(other)])
          offer(other);
    };
    for (int number = 0; number < graph_width(over); ++number)
      if (int const consumer = receiver(over, what, number); consumer != kind_links::none)
        offer_waiting(consumer);
    if (table_.rows() > devices)
      offer_waiting(row % devices);
  }

  timetable_view table_;
  earliest_tree tree_;    // of those whose next pass may follow
  std::vector<int> next_; // [rows]
  // Where every pass takes time, the one that ends first waits for nothing that is not in the order
  // yet.
  bool all_take_time_ = true;
  std::unique_ptr<bool[]> emitted_; // [pass_indices]
  std::unique_ptr<bool[]> waiting_; // [rows], whose next pass waits for one not in the order yet
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

//! The end of the time slot that starts at `begin` of the global order: passes of different devices
//! that end at the same time, so none of them waits for another. Without slots, one pass; the
//! halves of a composite pass stay together.
[[nodiscard]] constexpr int
end_of_slot(timetable_view table, int const* order, int count, int begin, bool slots) noexcept {
  double const slot_end = table.ends[order[begin]];
  int end = begin + 1;
  for (; end < count; ++end) {
    int const entry = order[end];
    bool const joins = slots && table.ends[entry] == slot_end && table.starts[entry] < slot_end &&
                       table.starts[order[begin]] < slot_end;
    if (!joins && !table.passes[entry].overlapped)
      break;
  }
  return end;
}

//! Puts a message, which stands after the messages of its slot, among them, by pairs of devices.
constexpr void insert_message(event* first, event* last) noexcept {
  std::int64_t const pair = communicators::per_pair::key(last->device, last->to);
  auto const belongs = [first, pair](event const* at) {
    return at == first || communicators::per_pair::key(at[-1].device, at[-1].to) <= pair;
  };
  if (belongs(last))
    return;
  event const message = *last;
  for (; !belongs(last); --last)
    *last = last[-1];
  *last = message;
}

//! The device of a pass, its slots, and where its messages are in a table.
struct pass_ends {
  int device = 0; //!< that runs it
  int slots = 0;  //!< that it uses
  int first = 0;  //!< of its messages
  int end = 0;    //!< after them
};

//! The same for many passes, by route, kind and stage; where edges lead to other chunks, looked up
//! anew for every pass.
class pass_table {
public:
  explicit pass_table(data_uses const& uses)
      : uses_(uses), over_(uses.over), stage_count_(over_.extents.stages()),
        kind_count_(over_.declared->kind_count) {
    for (int i = 0; !uses.across && i < over_.extents.routes() * kind_count_ * stage_count_; ++i) {
      int const route = i / (kind_count_ * stage_count_);
      pass const what{static_cast<pass_kind>(i / stage_count_ % kind_count_),
                      false,
                      static_cast<std::uint16_t>(i % stage_count_),
                      static_cast<std::uint16_t>(microbatch_of(over_.extents, route)),
                      0};
      ends_.emplace_back();
      if (!over_.contains(what))
        continue;
      auto const first = static_cast<int>(messages_.size());
      for_each_receiver(what, [&](int number, int to) { messages_.emplace_back(number, to); });
      ends_.back() = {
        device_of(over_, what), uses.slots(what), first, static_cast<int>(messages_.size())};
    }
  }
  [[nodiscard, gnu::always_inline]] pass_ends operator[](pass const& what) const noexcept {
    if (uses_.across)
      return {device_of(over_, what), uses_.slots(what)};
    int const kinds = over_.extents.route_of(what.microbatch) * kind_count_ + index_of(what.kind);
    return ends_[static_cast<std::size_t>(kinds * stage_count_ + what.stage)];
  }
  //! Calls `visit(number, to)` for every message that a pass makes.
  template <class Visit>
  void for_each_message(pass const& maker, pass_ends const& ends, Visit visit) const {
    if (uses_.across)
      return for_each_receiver(maker, visit);
    for (int i = ends.first; i < ends.end; ++i)
      visit(messages_[static_cast<std::size_t>(i)].first,
            messages_[static_cast<std::size_t>(i)].second);
  }

private:
  template <class Visit>
  void for_each_receiver(pass const& maker, Visit visit) const {
    for (int number = 0; number < uses_.width; ++number)
      if (int const to = receiver(over_, maker, number); to != nothing)
        visit(number, to);
  }

  data_uses const& uses_;
  pipeline_view over_;
  int stage_count_;
  int kind_count_;
  std::vector<pass_ends> ends_;
  std::vector<std::pair<int, int>> messages_; // number and receiver
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
  pass_table const& known;
  //! [pass_indices], `nothing`: the entries of passes that are placed; null where exchanges are not
  //! joined.
  int* entries = nullptr;
};

//! Makes the messages of a pass that are part of one exchange, or of none, by `put`.
//! @param wanted the exchange, or `nothing`.
template <class Put>
void place_messages_of(
  message_placement const& work, int entry, pass_ends const& ends, int wanted, Put put) {
  pass const& maker = work.table.passes[entry];
  work.known.for_each_message(maker, ends, [&](int number, int to) {
    int const exchange =
      work.entries == nullptr ? nothing : exchange_of(work.table.over, maker, number);
    if (exchange != wanted)
      return;
    event& message = put(entry, ends.device, to);
    message.number = number;
    message.exchange = exchange;
  });
}

//! Notes that a pass is placed. Where it is the last that makes something for an exchange, hands
//! all messages of the exchange to `put`.
template <class Put>
void place_exchanges(message_placement const& work, int entry, Put put) {
  pipeline_view const over = work.table.over;
  pass const& maker = work.table.passes[entry];
  work.entries[pass_index(over, maker)] = entry;
  bool const grouped = over.in_group(maker.stage);
  int const members = grouped ? over.graph().edges(maker.stage, group_step) : 1;
  auto const entry_of = [&](int member) {
    pass other = maker;
    if (grouped)
      other.stage =
        static_cast<std::uint16_t>(over.graph().edge(maker.stage, group_step, member).stage);
    return work.entries[pass_index(over, other)];
  };
  for (int member = 0; member < members; ++member)
    if (entry_of(member) == nothing)
      return;
  int before = nothing;
  for (int number = 0; number < readers(over, maker); ++number) {
    int const exchange = exchange_of(over, maker, number);
    if (exchange == nothing || exchange == before)
      continue;
    before = exchange;
    for (int member = 0; member < members; ++member) {
      int const made = entry_of(member);
      place_messages_of(work, made, work.known[work.table.passes[made]], exchange, put);
    }
  }
}

//! Hands passes and their messages to `put`, in their order.
//! @param first, end of the passes; no time slot is cut
//! @complexity O(1) per pass where passes of one slot come in the order of their devices, as the
//! merge makes them.
template <class Put>
void place_events(message_placement const& work, int first, int end, Put put) {
  timetable_view const& table = work.table;
  std::vector<event> messages; // of a slot
  auto const add = [&messages](int entry, int from, int to) -> event& {
    event& message = messages.emplace_back(); // in place: a copy would wait for its parts
    message.entry = entry;
    message.device = from;
    message.to = to;
    return message;
  };
  while (first < end) {
    int const next = end_of_slot(table, work.order, end, first, work.slots);
    messages.clear();
    for (int i = first; i < next; ++i) {
      int const entry = work.order[i];
      pass_ends const ends = work.known[table.passes[entry]];
      put(event{.entry = entry, .device = ends.device, .slots = ends.slots});
      std::size_t const before = messages.size();
      place_messages_of(work, entry, ends, nothing, add);
      for (std::size_t k = before; k < messages.size() && work.slots; ++k)
        insert_message(messages.data(), messages.data() + k);
    }
    for (int i = first; i < next && work.entries != nullptr; ++i)
      place_exchanges(work, work.order[i], add);
    for (event const& message : messages)
      put(message);
    first = next;
  }
}

//! Where an order may be cut: no time slot goes on at `at`.
[[nodiscard]] constexpr bool ends_slot(message_placement const& work, int at) noexcept {
  double const* const ends = work.table.ends;
  return at == 0 || at == work.count ||
         (ends[work.order[at]] != ends[work.order[at - 1]] &&
          !work.table.passes[work.order[at]].overlapped);
}

} // namespace pipelining::inline v0_3::detail
