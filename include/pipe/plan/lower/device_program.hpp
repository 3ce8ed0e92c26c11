// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief From the global order of passes and messages to the programs of devices.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/data_uses.hpp>
#include <pipe/plan/lower/given_slots.hpp>
#include <pipe/plan/lower/message_placement.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! @brief The items of one device with the lists of their plan, in storage of the caller.
struct program {
  item* items = nullptr;           //!< in their order
  int count = 0;                   //!< of items
  use* uses = nullptr;             //!< of the plan
  message_end* messages = nullptr; //!< of the plan

  [[nodiscard]] constexpr std::span<use> uses_of(item const& step) const noexcept {
    return {uses + step.first_use, step.use_count};
  }
  [[nodiscard]] constexpr message_end& message_of(item const& step) const noexcept {
    return messages[step.message];
  }
};

//! @brief Makes a fresh item what an event gives to one of its devices: the pass, or an end of the
//! message.
//! @pre `device` is one of the event's.
constexpr void
make_item(timetable_view const& table, event const& what, int device, item& step) noexcept {
  if (what.about == subject::pass) {
    step.work = table.passes[what.entry];
  } else {
    step.work.stage = static_cast<std::uint16_t>(what.stage);
    step.work.microbatch = static_cast<std::uint16_t>(what.entry);
    step.about = what.about;
  }
  if (what.to == nothing)
    return;
  step.work.overlapped = false;
  step.what = what.device == device ? operation::send : operation::receive;
}

//! The messages that go one way between a device and another.
struct message_line {
  std::int64_t key = 0; //!< of the policy
  int lane = nothing;   //!< `nothing` where there are none
  int count = 0;        //!< so far
};

//! @brief Numbers lanes, and the messages of every direction, which is the order that both ends
//! must agree on. Lanes are numbered on the device in the order of their first message.
//!
//! @param lines scratch, [2 P].
//! @return the number of lanes.
//! @complexity O(n + P + e L) for n items, e directed edges and L lanes.
template <communication_policy Policy>
constexpr int
number_messages(program& work, int device, int devices, message_line* lines) noexcept {
  int lanes = 0;
  for (int i = 0; i < 2 * devices; ++i)
    lines[i] = {};
  for (int i = 0; i < work.count; ++i) {
    item& step = work.items[i];
    if (step.what == operation::run)
      continue; // copies follow once lanes are numbered
    message_end& end = work.message_of(step);
    bool const sends = step.what == operation::send;
    message_line& line = lines[2 * end.peer + (sends ? 0 : 1)];
    end.sequence = line.count++;
    if (line.lane == nothing) {
      line.key = sends ? Policy::key(device, end.peer) : Policy::key(end.peer, device);
      line.lane = lanes;
      for (int k = 0; k < 2 * devices; ++k)
        if (lines[k].lane != nothing && lines[k].key == line.key && &lines[k] != &line)
          line.lane = lines[k].lane;
      lanes += line.lane == lanes ? 1 : 0;
    }
    step.lane = line.lane;
  }
  return lanes;
}

//! @brief Gives the copies of a device the lanes after those of its messages, one for each engine.
constexpr void assign_copy_lanes(program& work, flow const& declared, int lanes) noexcept {
  for (int i = 0; i < work.count && declared.engines > 1; ++i) {
    item& step = work.items[i];
    if (step.what != operation::run || step.about != subject::pass)
      continue;
    int const engine_row = declared.engine_row[static_cast<int>(declared[step.work.kind].on)];
    step.lane = engine_row > 0 ? lanes + engine_row - 1 : nothing;
  }
}

//! @brief When the steps of a device start and end, where the timetable says so: [items], null
//! where copies need not be told apart from other passes.
struct item_times {
  double const* starts = nullptr; //!< of every step
  double const* ends = nullptr;   //!< of every step
};

//! Where the next item of a device goes, and its parts of the lists.
struct next_item {
  int index = 0;        //!< into the plan's items
  int use = 0;          //!< into its uses
  int message = 0;      //!< into its messages
  int twin_before = -2; //!< the other end of the item before; far from all items where it has none
};

//! True when a message is posted together with the one before it on a device.
//!
//! Two messages between the same two devices share a group when nothing stands between them in the
//! program of either end: then the group is the same at both ends. Policies with one lane per
//! direction join one direction only. The message with all totals is made of those before it, so it
//! starts by itself. The messages of an exchange are one group.
//!
//! @param follow whether nothing stands between them at either end
[[nodiscard]] inline bool
joins(plan const& work, int device, item const& before, item const& step, bool follow) {
  message_end const& mine = work.messages[static_cast<std::size_t>(step.message)];
  int const exchange = work.messages[static_cast<std::size_t>(before.message)].exchange;
  if (mine.exchange != nothing || exchange != nothing)
    return mine.exchange == exchange;
  return follow && step.about != subject::spread &&
         (before.what == step.what ||
          (work.duplex_groups && work.key(device, mine.peer) == work.key(mine.peer, device)));
}

//! Writes the programs of all devices. Each is the part of the global order of passes and messages
//! that belongs to the device. An item has room for its uses then, and a message its group.
class program_writer {
public:
  program_writer(timetable_view const& table, data_uses const& uses, plan& to)
      : table_(table), uses_(uses), plan_(to),
        next_(static_cast<std::size_t>(table.over.extents.devices)) {}

  //! Writes all items and messages; there is room for the uses once the events are gone.
  //! @throws std::invalid_argument where a pass uses more slots than an item can name.
  void write(std::vector<event> events) {
    int most = 0;
    for (event& what : events)
      most = std::max(most, count(what));
    if (most > 65535)
      throw std::invalid_argument("plan: a pass uses " + std::to_string(most) +
                                  " slots; 65535 at most are supported");
    int const all = give_room();
    for (event const& what : events)
      write_items(what);
    events = std::vector<event>();
    plan_.uses.resize(static_cast<std::size_t>(all));
    for (auto const& [at, given] : given_)
      plan_.uses[static_cast<std::size_t>(at)] = given;
  }
  //! The program of a device. @pre `write`
  [[nodiscard]] program of(int device) {
    int const first = plan_.offsets[static_cast<std::size_t>(device)];
    int const end = plan_.offsets[static_cast<std::size_t>(device) + 1];
    return {plan_.items.data() + first, end - first, plan_.uses.data(), plan_.messages.data()};
  }
  //! When the items of a device start and end, where the flow has several engines.
  [[nodiscard]] item_times times(int device) const noexcept {
    int const first = plan_.offsets[static_cast<std::size_t>(device)];
    return starts_.empty() ? item_times{}
                           : item_times{starts_.data() + first, ends_.data() + first};
  }

private:
  [[nodiscard]] next_item& next(int device) { return next_[static_cast<std::size_t>(device)]; }

  //! Counts an event for its devices, and notes the slots that its items use.
  //! @return their number
  int count(event& what) {
    bool const runs = what.to == nothing && what.about == subject::pass;
    int const used = runs ? uses_.slots(table_.passes[what.entry]) : 1;
    what.slots = static_cast<std::uint16_t>(used);
    next(what.device).index += 1;
    next(what.device).use += used;
    if (what.to != nothing) {
      next(what.device).message += 1;
      next(what.to).index += 1;
      next(what.to).use += 1;
      next(what.to).message += 1;
    }
    return used;
  }
  //! Gives the devices their parts of the lists, one after the other.
  //! @return the uses of all
  int give_room() {
    next_item sum;
    plan_.offsets.push_back(0);
    for (next_item& part : next_) {
      next_item const own = std::exchange(part, sum);
      sum.index += own.index;
      sum.use += own.use;
      sum.message += own.message;
      plan_.offsets.push_back(sum.index);
    }
    plan_.items.resize(static_cast<std::size_t>(sum.index));
    plan_.messages.resize(static_cast<std::size_t>(sum.message));
    if (table_.over.declared->engines > 1) {
      starts_.resize(plan_.items.size());
      ends_.resize(plan_.items.size());
    }
    return sum.use;
  }
  void write_items(event const& what) {
    next_item& from = next(what.device);
    if (what.to == nothing) {
      (void)write_item(what, what.device, from);
      from.twin_before = next_item{}.twin_before;
      return;
    }
    next_item& to = next(what.to);
    bool const follow = from.twin_before + 1 == to.index && to.twin_before + 1 == from.index;
    int const twins[2] = {to.index, from.index};
    for (int const device : {what.device, what.to}) {
      bool const sends = device == what.device;
      next_item& at = sends ? from : to;
      item& step = write_item(what, device, at);
      step.message = at.message++;
      plan_.messages[static_cast<std::size_t>(step.message)] = {
        sends ? what.to : what.device, nothing, what.number, what.exchange};
      step.joins = at.twin_before >= 0 && joins(plan_, device, (&step)[-1], step, follow);
      at.twin_before = twins[sends ? 0 : 1];
    }
  }
  [[nodiscard, gnu::always_inline]] item& write_item(event const& what, int device, next_item& at) {
    auto const index = static_cast<std::size_t>(at.index++);
    item& step = plan_.items[index];
    make_item(table_, what, device, step);
    if (!starts_.empty()) {
      starts_[index] = table_.starts[what.entry];
      ends_[index] = table_.ends[what.entry];
    }
    std::uint16_t const used = what.slots;
    step.first_use = at.use;
    step.use_count = used;
    if (what.about != subject::pass)
      given_.emplace_back(at.use, given_use(table_.over, step, what.rows));
    at.use += used;
    return step;
  }

  timetable_view table_;
  data_uses const& uses_;
  plan& plan_;
  std::vector<next_item> next_;            // [P]
  std::vector<std::pair<int, use>> given_; // where each goes
  std::vector<double> starts_;
  std::vector<double> ends_;
};

} // namespace pipelining::inline v0_3::detail
