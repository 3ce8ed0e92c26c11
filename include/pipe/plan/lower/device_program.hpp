// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief From the global order of passes and messages to the programs of devices.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/data_uses.hpp>
#include <pipe/plan/lower/global_order.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/timetable/workers.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! When a step of a device starts and ends.
struct item_times {
  double start;
  double end;
};

//! @brief The items of one device with the lists of their plan, in storage of the caller.
struct program {
  item* items = nullptr;             //!< in their order
  int count = 0;                     //!< of items
  use* uses = nullptr;               //!< of the plan
  message_end* messages = nullptr;   //!< of the plan
  item_times const* times = nullptr; //!< [items], where the flow has several engines; else null

  [[nodiscard]] constexpr message_end& message_of(item const& step) const noexcept {
    return messages[step.message];
  }
};

//! The messages that go one way between a device and another, as they go by.
struct message_line {
  std::int64_t key = 0; //!< of the communicator
  int lane = nothing;   //!< `nothing` where there are none
  int first = nothing;  //!< the item of the first
  int count = 0;        //!< so far
};

//! @brief Numbers lanes, and the messages of every direction, which is the order that both ends
//! must agree on. Lanes are numbered on the device in the order of their first message.
//!
//! @param key of the policy.
//! @return the number of lanes.
//! @complexity O(n + P + e L) for n items, e directed edges and L lanes.
constexpr int number_messages(program& work, communicator_key key, int device, int devices) {
  owned<message_line> const lines(2 * devices, message_line{});
  int lanes = 0;
  for (int i = 0; i < work.count; ++i) {
    item& step = work.items[i];
    if (step.what == operation::run)
      continue; // copies follow once lanes are numbered
    message_end& end = work.message_of(step);
    bool const sends = step.what == operation::send;
    message_line& line = lines[2 * end.peer + (sends ? 0 : 1)];
    end.sequence = line.count++;
    if (line.lane == nothing) {
      line.key = sends ? key(device, end.peer) : key(end.peer, device);
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

//! Where the next item of a device goes, and its parts of the lists.
struct next_item {
  int index = 0;          //!< into the plan's items
  int use = 0;            //!< into its uses
  int message = 0;        //!< into its messages
  int event = 0;          //!< that the item before is of; no other device has a negative one
  int exchange = nothing; //!< of the message before
  operation what = operation::run; //!< of the item before
};

//! Writes the programs of all devices. Each is the part of the global order of passes and messages
//! that belongs to the device. An item has room for its uses then, and a message its group.
//!
//! The order is cut into parts, which workers write side by side. Neighbours in a group are of one
//! time slot, since a device runs a pass before it sends what it has made: so no group is cut.
class program_writer {
public:
  program_writer(timetable_view const& table, plan& to) : table_(table), plan_(to) {}

  //! Writes all items and messages.
  //! @param tell calls a function for the devices and slots of all events of a part
  //! @param each calls a function for all events of a part, in their order
  template <worker_group Workers>
  void write(int parts, auto const& tell, auto const& each, Workers const& by) {
    int const devices = table_.over.extents.devices;
    owned<next_item> const next(parts * devices, next_item{});
    by.run(parts, [&](int part) {
      tell(part, [own = next + part * devices](event const& what) {
        for (int const device : {what.device, what.to}) {
          if (device == nothing)
            break;
          own[device].index += 1;
          own[device].use += what.slots;
          own[device].message += what.to == nothing ? 0 : 1;
        }
      });
    });
    give_room(next, parts, devices);
    by.run(parts, [&](int part) {
      each(part, [this, own = next + part * devices, event = 0](event const& what) mutable {
        write_items(what, own, ++event);
      });
    });
  }
  //! The program of a device. @pre `write`
  [[nodiscard]] program of(int device) {
    int const first = plan_.offsets[static_cast<std::size_t>(device)];
    int const end = plan_.offsets[static_cast<std::size_t>(device) + 1];
    return {plan_.items.data() + first,
            end - first,
            plan_.uses.data(),
            plan_.messages.data(),
            times_ == nullptr ? nullptr : times_ + first};
  }

private:
  //! Gives the devices their parts of the lists, one after the other.
  //! @param next [parts][devices], counts; receives where each begins
  void give_room(next_item* next, int parts, int devices) {
    next_item sum;
    plan_.offsets.push_back(0);
    for (int device = 0; device < devices; ++device) {
      for (int part = 0; part < parts; ++part) {
        next_item const own = std::exchange(next[part * devices + device], sum);
        next[part * devices + device].event = -1 - device;
        sum.index += own.index;
        sum.use += own.use;
        sum.message += own.message;
      }
      plan_.offsets.push_back(sum.index);
    }
    plan_.items = std::vector<item>(static_cast<std::size_t>(sum.index));
    plan_.messages = std::vector<message_end>(static_cast<std::size_t>(sum.message));
    plan_.uses = std::vector<use>(static_cast<std::size_t>(sum.use));
    if (table_.over.declared->engines > 1)
      times_.get(plan_.items.size());
  }
  //! Writes what an event gives to its devices: the pass, or the ends of the message.
  void write_items(event const& what, next_item* next, int number) {
    next_item& from = next[what.device];
    if (what.to == nothing) {
      write_item(what, from, operation::run);
      from.event = -1 - what.device;
      from.exchange = nothing;
      return;
    }
    next_item& to = next[what.to];
    bool const follow = from.event == to.event;
    write_end(what, from, operation::send, what.to, follow);
    write_end(what, to, operation::receive, what.device, follow);
    from.event = to.event = number;
  }
  //! An end of a message.
  void write_end(event const& event, next_item& at, operation what, int peer, bool follow) {
    plan_.messages[static_cast<std::size_t>(at.message)] = {peer, nothing, event.number};
    if (event.exchange != nothing) {
      if (plan_.exchanges.empty())
        plan_.exchanges.assign(plan_.messages.size(), nothing);
      plan_.exchanges[static_cast<std::size_t>(at.message)] = event.exchange;
    }
    bool const joins = joins_before(event, at, what, follow);
    item& step = write_item(event, at, what);
    step.message = at.message++;
    step.joins = joins;
    at.exchange = event.exchange;
  }
  //! True when a message is posted together with the one before it on a device.
  //!
  //! Two messages between the same two devices share a group when nothing stands between them in
  //! the program of either end: then the group is the same at both ends. Policies with one lane per
  //! direction join one direction only. The message with all totals is made of those before it, so
  //! it starts by itself. The messages of an exchange are one group.
  //! @param follow whether nothing stands between them at either end
  [[nodiscard]] bool
  joins_before(event const& event, next_item const& at, operation what, bool follow) const {
    if (event.exchange != nothing || at.exchange != nothing)
      return event.exchange == at.exchange;
    return follow && event.about != subject::spread &&
           (at.what == what || (plan_.duplex_groups && plan_.key(event.device, event.to) ==
                                                         plan_.key(event.to, event.device)));
  }
  [[gnu::always_inline]] item& write_item(event const& event, next_item& at, operation what) {
    auto const index = static_cast<std::size_t>(at.index++);
    item& step = plan_.items[index];
    step.what = at.what = what;
    step.first_use = at.use;
    if (event.about == subject::pass) {
      step.work = table_.passes[event.entry];
      step.work.overlapped = step.work.overlapped && what == operation::run;
    } else {
      step.work.stage = static_cast<std::uint16_t>(event.stage);
      step.work.microbatch = static_cast<std::uint16_t>(event.entry);
      step.about = event.about;
      plan_.uses[static_cast<std::size_t>(at.use)] = given_use(table_.over, step, event.rows);
    }
    if (times_ != nullptr)
      times_[index] = {table_.starts[event.entry], table_.ends[event.entry]};
    step.use_count = static_cast<std::uint16_t>(event.slots);
    at.use += event.slots;
    return step;
  }

  timetable_view table_;
  plan& plan_;
  owned<item_times> times_;
};

} // namespace pipelining::inline v0_3::detail
