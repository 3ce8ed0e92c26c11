// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The part of the proof that looks at items by themselves, and at messages: do the two ends
//! of each fit together, and does the plan drain when nothing is buffered?

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/resolve.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/arena.hpp>
#include <pipe/plan/lower/device_program.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/proof.hpp>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! The checks of a device, in the order in which their findings are told.
enum class device_check { form, exchanges, lanes, sequences, ran_twice, layout, slots, none };

//! The finding of the check that is first in order, on the first device that fails it.
struct device_finding {
  device_check what = device_check::none;
  proof verdict{};

  constexpr void add(device_finding const& next) noexcept {
    if (!next.verdict && next.what < what)
      *this = next;
  }
};

//! @brief The most messages of one group. NCCL cuts very large groups into several launches, each
//! rank at another place.
inline constexpr int most_group_messages = 64;

[[nodiscard]] constexpr int unit_indices(pipeline_view const& over) noexcept {
  return over.extents.stages() * over.units();
}
//! The number of a copy of a stage. @pre the device has one
[[nodiscard]] constexpr int copy_index(pipeline_view const& over, int stage, int device) noexcept {
  return stage * most_copies(over.extents) + copies_below(over, stage, device);
}

//! The steps that devices have run. Each enters its own, so several may be looked at side by side.
struct device_notes {
  pipeline_view over;     //!< of the plan
  owned<flow_set> kinds;  //!< [S units], of the passes that have run
  owned<flow_set> others; //!< [S copies], of the other steps that have, by subject

  explicit device_notes(plan const& work)
      : over(work.over), kinds(unit_indices(over), 0),
        others(over.extents.stages() * most_copies(over.extents), 0) {}
};

//! The items of devices by themselves, of one device after the other, each in the memory of the one
//! before. The checks of an item that follow a failed one are left out: they rely on it, and it is
//! told before them.
struct item_check {
  plan const& work;
  device_notes const& notes;
  pipeline_view over = notes.over;
  std::uint64_t uses = work.uses.size(); //!< in the plan's list, as below
  std::uint64_t waits = work.waits.size();
  std::uint64_t messages = work.messages.size();
  int device = 0;
  item const* items = nullptr; //!< of the device
  device_finding found{};
  owned<message_line> lines{}; //!< [2 P], from and to every device
  owned<int> exchanged{};      //!< [exchanges], the group of each; `nothing` before it goes by

  void add(device_check what, proof::rule broken, int i, int other = nothing) noexcept {
    found.add({what, {broken, device, i, device, other}});
  }
  //! True when the parts of the plan's lists that are an item's are there.
  [[nodiscard]] bool lists_exist(item const& step) const noexcept {
    // A negative number becomes one that is too large.
    auto const end = [](int first, unsigned count) {
      return std::uint64_t{static_cast<unsigned>(first)} + count;
    };
    return end(step.first_use, step.use_count) <= uses &&
           end(step.first_wait, step.wait_count) <= waits &&
           (step.what == operation::run || end(step.message, 1) <= messages);
  }
  //! A step about something else than a pass is of a plan that has such, runs or is a message as
  //! its subject says, has one use, and a number that exists.
  [[nodiscard]] bool other_exists(item const& step) const noexcept {
    slot_class const of = class_of(step.about);
    std::int64_t const bytes = of == slot_class::copied_gradient ? over.extents.routes() - 1
                               : of == slot_class::tied_gradient ? work.tied_bytes
                                                                 : work.totals_bytes;
    if (bytes <= 0 || step.use_count != 1 || step.work.microbatch >= over.extents.microbatches ||
        static_cast<int>(step.about) >= subject_count)
      return false;
    if (step.what == operation::run)
      return !relays(step);
    int const number = work.message_of(step).number;
    return number >= 0 && number < work.other_messages &&
           (relays(step) || step.about == subject::copied_gradient ||
            step.about == subject::tied_gradient);
  }
  //! An item is where the plan's lists are, its waits point to items before its group, its pass and
  //! its peer exist, and its group has one lane, and one peer or one exchange.
  //! @param first of its group
  [[nodiscard, gnu::always_inline]] bool has_form(int first, int i) noexcept {
    item const& step = items[i];
    bool const runs = step.what == operation::run;
    bool const is_pass = step.about == subject::pass;
    auto const refuse = [&](proof::rule broken, int other = nothing) {
      add(device_check::form, broken, i, other);
      return false;
    };
    if (!lists_exist(step))
      return refuse(proof::rule::wrong_content);
    for (int const wait : work.waits_of(step))
      if (wait < 0 || wait >= first)
        return refuse(proof::rule::waits_forward, wait);
    if (is_pass ? !over.contains(step.work) : step.work.stage >= over.extents.stages())
      return refuse(proof::rule::wrong_passes);
    if (!is_pass && !other_exists(step))
      return refuse(runs ? proof::rule::wrong_passes : proof::rule::unmatched);
    if (runs)
      return true;
    item const& head = items[first];
    message_end const& end = work.message_of(step);
    if ((is_pass && (end.number < 0 || end.number >= graph_width(over))) || step.use_count != 1 ||
        end.peer < 0 || end.peer >= over.extents.devices || end.peer == device)
      return refuse(proof::rule::unmatched);
    int const exchange = work.exchange_at(step);
    bool const one = exchange == work.exchange_at(head) && step.lane == head.lane &&
                     (exchange != nothing || end.peer == work.message_of(head).peer) &&
                     (work.duplex_groups || step.what == head.what);
    return one || refuse(proof::rule::bad_group, first);
  }
  //! A step that a device runs: on the device of its stage and on its engine, none twice.
  [[nodiscard, gnu::always_inline]] proof::rule enter_step(item const& step) noexcept {
    if (device_of(over, step.work) != device)
      return proof::rule::wrong_passes;
    pass const& what = step.work;
    bool const is_pass = step.about == subject::pass;
    flow_set& entered = is_pass ? notes.kinds[what.stage * over.units() + over.unit_of(what)]
                                : notes.others[copy_index(over, what.stage, device)];
    int const number = is_pass ? index_of(what.kind) : static_cast<int>(step.about);
    if (holds(entered, number))
      return proof::rule::wrong_passes;
    entered |= only(number);
    flow const& declared = *over.declared;
    int const row = is_pass ? declared.engine_row[static_cast<int>(declared[what.kind].on)] : 0;
    int const lane = row > 0 ? work.lanes_of(device) + row - 1 : nothing;
    return step.lane == lane ? proof::rule::none : proof::rule::wrong_lane;
  }
  //! A message. Two are on one lane exactly when they share a communicator. Those that go one way
  //! between two devices are numbered in their order.
  [[gnu::always_inline]] void enter_message(int first, int i) noexcept {
    item const& step = items[i];
    if (!work.exchanges.empty() && !fits_exchange(step, first))
      add(device_check::exchanges, proof::rule::bad_group, i);
    if (step.lane < 0 || step.lane >= work.lanes_of(device))
      return add(device_check::lanes, proof::rule::wrong_lane, i);
    message_end const& end = work.message_of(step);
    bool const sends = step.what == operation::send;
    message_line& line = lines[2 * end.peer + (sends ? 1 : 0)];
    if (line.lane == nothing)
      line = {sends ? work.key(device, end.peer) : work.key(end.peer, device), step.lane, i};
    if (int const other = misplaced(line, step.lane); other != nothing)
      return add(device_check::lanes, proof::rule::wrong_lane, i, other);
    if (end.sequence != line.count++)
      add(device_check::sequences, proof::rule::fifo_differs, i);
  }
  //! True when the messages of an exchange that the device has an end of are one group so far, or
  //! none of them is told to be part of it.
  [[nodiscard]] bool fits_exchange(item const& step, int group) noexcept {
    constexpr int no_group = nothing - 1;
    int const told = work.exchange_at(step);
    int const number = work.message_of(step).number;
    bool const known = step.about == subject::pass && number < readers(over, step.work);
    int const exchange = told == nothing && known ? exchange_of(over, step.work, number) : told;
    if (exchange < 0 || exchange >= exchange_indices(over))
      return exchange == nothing;
    int const own = told == nothing ? no_group : group;
    int const before = std::exchange(exchanged[exchange], own);
    return before == nothing || before == own;
  }
  //! An item that shares the lane or the communicator of a message, but not both; else `nothing`.
  [[nodiscard]] int misplaced(message_line const& line, int lane) const noexcept {
    if (line.lane != lane || line.count > 0) // the others are compared with the first of a line
      return line.lane != lane ? line.first : nothing;
    for (int k = 0; k < 2 * over.extents.devices; ++k)
      if (lines[k].lane != nothing && (lines[k].key == line.key) != (lines[k].lane == lane))
        return lines[k].first;
    return nothing;
  }
  //! True when every slot that a step uses has room for its content.
  //! @param layouts of the device
  [[nodiscard]] bool has_room(slot_layout const* layouts, item const& step) const noexcept {
    for (use const& used : work.uses_of(step)) {
      std::int64_t const room = layouts[static_cast<int>(used.of)].bytes;
      if (used.bytes < 0 ||
          used.bytes > (used.of == slot_class::totals ? times(room, used.count) : room))
        return false;
    }
    return true;
  }
  //! The classes of slots lie one after the other in the arena.
  [[nodiscard]] proof check_layout() const noexcept {
    std::int64_t ends[2]{}; // on the device, on the host
    for (int of = 0; of < slot_classes; ++of) {
      slot_layout const& layout = work.layout(device, static_cast<slot_class>(of));
      std::int64_t& end = ends[lies_on_host(work.over.declared, of) ? 1 : 0];
      if (layout.offset < end || layout.bytes < 0 || layout.count < 0)
        return {proof::rule::slots_overlap, device, layout.peak_item};
      end = plus(layout.offset, times(layout.bytes, layout.count));
    }
    bool const fits =
      work.arena_bytes_of(device) >= ends[0] && work.host_bytes_of(device) >= ends[1];
    return {fits ? proof::rule::none : proof::rule::slots_overlap, device};
  }

  //! Checks one device, but what its slots hold.
  device_finding const& check(int number) {
    device = number;
    auto const steps = work.program_of(device);
    items = steps.data();
    found = {};
    found.add({device_check::layout, check_layout()});
    lines.get(2 * over.extents.devices, {});
    exchanged.get(work.exchanges.empty() ? 0 : exchange_indices(over), nothing);
    slot_layout const* const layouts = &work.layout(device, slot_class{});
    for (int first = 0, count = static_cast<int>(steps.size()); first < count;) {
      int const end = end_of_group(steps, first);
      bool const runs = items[first].what == operation::run;
      if (items[first].joins || (!runs && end - first > most_group_messages)) {
        add(device_check::form, proof::rule::bad_group, first);
        return found;
      }
      for (int i = first; i < end; ++i) {
        if (!has_form(first, i))
          return found;
        item const& step = items[i];
        if (!runs)
          enter_message(first, i);
        else if (auto const broken = enter_step(step); broken != proof::rule::none)
          add(device_check::ran_twice, broken, i);
        if (!has_room(layouts, step))
          add(device_check::layout, proof::rule::slots_overlap, i);
      }
      first = end;
    }
    return found;
  }
};

//! The rule by which an item of a device and one of the peer of its message are not the ends of one
//! message; none where they are.
//! Both ends have the same size, place in the line of their edge, and exchange.
[[nodiscard]] inline proof::rule
misfit(plan const& work, item const& step, int device, item const& other) noexcept {
  message_end const& mine = work.message_of(step);
  message_end const& theirs = work.message_of(other);
  bool const sends = step.what == operation::send;
  if (other.what != (sends ? operation::receive : operation::send) || // a pass has no message
      theirs.peer != device || theirs.number != mine.number || step.about != other.about ||
      (step.about == subject::pass && step.work != other.work))
    return proof::rule::unmatched;
  if (work.uses.data()[step.first_use].bytes != work.uses.data()[other.first_use].bytes)
    return proof::rule::sizes_differ;
  if (theirs.sequence != mine.sequence)
    return proof::rule::fifo_differs;
  return work.exchanges.empty() || work.exchange_at(other) == work.exchange_at(step)
           ? proof::rule::none
           : proof::rule::bad_group;
}

//! Finds the first message, device after device, that is not sent once and received once. Else the
//! first whose two ends do not fit together, or stand in groups that hold other messages.
inline proof find_mismatch(plan const& work) {
  pipeline_view const over = work.over;
  owned<int> const ends(2 * std::ptrdiff_t{message_indices(work)}, nothing);
  auto const end = [&](item const& step, bool sends) -> int& {
    return ends[2 * std::ptrdiff_t{message_index(work, over, step)} + (sends ? 1 : 0)];
  };
  auto const twin_of = [&](item const& step) { return end(step, step.what != operation::send); };
  proof verdict;
  auto const look_at_all = [&](auto check) {
    for (int device = 0; device < over.extents.devices; ++device) {
      item const* const steps = work.program_of(device).data();
      int const count = static_cast<int>(work.program_of(device).size());
      for (int i = 0; i < count && verdict; ++i)
        if (steps[i].what != operation::run)
          check(device, steps, i);
    }
  };
  look_at_all([&](int device, item const* steps, int i) {
    int const before = std::exchange(end(steps[i], steps[i].what == operation::send), i);
    if (before != nothing)
      verdict = {proof::rule::unmatched, device, i, device, before};
  });
  look_at_all([&](int device, item const* steps, int i) {
    int const peer = work.message_of(steps[i]).peer;
    int const twin = twin_of(steps[i]);
    auto const theirs = work.program_of(peer);
    auto broken = proof::rule::unmatched;
    if (static_cast<std::size_t>(twin) < theirs.size()) // which `nothing` is not
      broken = misfit(work, steps[i], device, theirs[static_cast<std::size_t>(twin)]);
    if (broken == proof::rule::none && steps[i].joins &&
        work.message_of(steps[i - 1]).peer == peer &&
        first_of_group(theirs, twin_of(steps[i - 1])) != first_of_group(theirs, twin))
      broken = proof::rule::bad_group;
    verdict = broken == proof::rule::unmatched ? proof{broken, device, i}
                                               : proof{broken, device, i, peer, twin};
  });
  return verdict;
}

//! @brief An execution of a plan under rendezvous without any buffer: every device goes through its
//! program in order and stands at a group of messages until its peer stands at the same group, at
//! an exchange until all that take part do.
//!
//! No executor may impose a stricter order: the one line per device is also one line per
//! communicator, per stream and per queue. A plan that drains here drains on every transport. The
//! graph with all ends of a message or of an exchange contracted to one node has a cycle exactly
//! when this stops early.
class plan_walk {
public:
  //! All devices stand at their first item.
  explicit plan_walk(plan const& work) : work_(work), at_(work.over.extents.devices, 0) {}

  //! The item that a device stands at, or after the last.
  [[nodiscard]] int at(int device) const noexcept { return at_[device]; }
  //! Takes a device to an item, the first of a group.
  void move_to(int device, int first) noexcept { at_[device] = first; }
  //! True when a device is after its last item.
  [[nodiscard]] bool ended(int device) const noexcept {
    return static_cast<std::size_t>(at_[device]) == work_.program_of(device).size();
  }
  //! The first device that has not ended, or `nothing`.
  [[nodiscard]] int first_standing() const noexcept {
    int device = 0;
    while (device < work_.over.extents.devices && ended(device))
      ++device;
    return device < work_.over.extents.devices ? device : nothing;
  }
  //! Takes a device past its passes. @return whether it stands at messages then.
  bool pass_by(int device) noexcept {
    auto const steps = work_.program_of(device);
    auto at = static_cast<std::size_t>(at_[device]);
    while (at < steps.size() && steps[at].what == operation::run)
      ++at;
    at_[device] = static_cast<int>(at);
    return at < steps.size();
  }
  //! Takes a device past the messages that it stands at, and with it all that stand at the other
  //! ends: two devices, or all that take part in an exchange.
  //! @param moved is called with each of them, the asked one first.
  //! @return false where some have not come.
  template <class Moved>
  bool go_on(int device, Moved moved) {
    auto const move = [&](int each, group const& done) {
      at_[each] = done.end;
      moved(each);
    };
    group const mine = group_of(device);
    item const& head = mine.steps[mine.first];
    int const exchange = work_.exchange_at(head);
    if (exchange == nothing) {
      int const peer = work_.message_of(head).peer;
      group const theirs = group_of(peer);
      if (!groups_meet(device, mine, theirs))
        return false;
      move(device, mine);
      move(peer, theirs);
      return true;
    }
    if (missing_at(exchange) != nothing)
      return false;
    move(device, mine);
    for (int other = 0; other < work_.over.extents.devices; ++other)
      if (is_at(other, exchange)) // of which a device has one group
        move(other, group_of(other));
    return true;
  }
  //! Takes every device on until nothing moves.
  //! @return true when all have ended.
  //! @complexity O(1) per item, times the messages of a group.
  bool drain() {
    std::vector<int> ready(static_cast<std::size_t>(work_.over.extents.devices)); // may go on
    std::iota(ready.begin(), ready.end(), 0);
    while (!ready.empty()) {
      int const device = ready.back();
      ready.pop_back();
      auto const moved = [&ready, device](int each) {
        if (each != device)
          ready.push_back(each);
      };
      while (pass_by(device) && go_on(device, moved)) {
      }
    }
    return first_standing() == nothing;
  }
  //! The device that one which stands at messages waits for: a peer, or one that has not come to
  //! the exchange.
  [[nodiscard]] int waits_for(int device) const noexcept {
    item const& step = work_.program_of(device)[static_cast<std::size_t>(at_[device])];
    int const exchange = work_.exchange_at(step);
    return exchange == nothing ? work_.message_of(step).peer : missing_at(exchange);
  }
  //! A device of the circle of a plan that has stopped early: each waits for the next and the last
  //! for the first. Or one that waits for a device that has ended. `nothing` where all have ended.
  [[nodiscard]] int first_of_circle() const noexcept {
    int device = first_standing();
    for (int step = 0; step < work_.over.extents.devices && device != nothing; ++step)
      if (int const next = waits_for(device); !ended(next))
        device = next;
    return device;
  }

private:
  // The items of a device that start together.
  struct group {
    item const* steps; // of the device
    int first;
    int end;
  };

  [[nodiscard, gnu::always_inline]] group group_of(int device) const noexcept {
    auto const steps = work_.program_of(device);
    int const first = at_[device];
    bool const some = static_cast<std::size_t>(first) < steps.size();
    return {steps.data(), first, some ? end_of_group(steps, first) : first};
  }
  //! True when the groups that two devices stand at are the two ends of the same messages. The
  //! messages of one direction stand in the same order.
  [[nodiscard]] bool
  groups_meet(int device, group const& mine, group const& theirs) const noexcept {
    if (mine.end - mine.first != theirs.end - theirs.first)
      return false;
    // Where the next one that the peer sends may be, and the next that it receives.
    int sent = theirs.first;
    int received = theirs.first;
    for (int i = mine.first; i < mine.end; ++i) {
      bool const sends = mine.steps[i].what == operation::send;
      auto const wanted = sends ? operation::receive : operation::send;
      int& next = sends ? received : sent;
      while (next < theirs.end && theirs.steps[next].what != wanted)
        ++next;
      if (next == theirs.end ||
          misfit(work_, mine.steps[i], device, theirs.steps[next]) != proof::rule::none)
        return false;
      ++next;
    }
    return true;
  }
  [[nodiscard]] bool is_at(int device, int exchange) const noexcept {
    auto const steps = work_.program_of(device);
    auto const at = static_cast<std::size_t>(at_[device]);
    return at < steps.size() && steps[at].what != operation::run &&
           work_.exchange_at(steps[at]) == exchange;
  }
  //! A device that others at an exchange wait for, or `nothing` where all have come.
  [[nodiscard]] int missing_at(int exchange) const noexcept {
    for (int device = 0; device < work_.over.extents.devices; ++device) {
      group const own = group_of(device);
      for (int i = own.first; i < own.end && is_at(device, exchange); ++i)
        if (int const peer = work_.message_of(own.steps[i]).peer; !is_at(peer, exchange))
          return peer;
    }
    return nothing;
  }

  plan const& work_;
  owned<int> at_; // [P]
};

//! True when no message is sent twice.
inline bool sends_once(plan const& work) {
  pipeline_view const over = work.over;
  owned<bool> const sent(message_indices(work), false);
  for (item const& step : work.items)
    if (step.what == operation::send && std::exchange(sent[message_index(work, over, step)], true))
      return false;
  return true;
}

} // namespace pipelining::inline v0_3::detail
