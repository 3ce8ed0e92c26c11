// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The part of the proof that looks at messages: do the two ends of each fit together, and
//! does the plan drain when nothing is buffered?

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
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
enum class device_check {
  form,
  exchanges,
  lanes,
  sent_twice,
  sequences,
  ran_twice,
  layout,
  slots,
  none
};

//! The finding of the check that is first in order, on the first device that fails it.
struct device_finding {
  device_check what = device_check::none;
  proof verdict{};
  bool looks_at_ends = false; // of messages: some are of exchanges, or pass on what others made

  constexpr void add(device_finding const& next) noexcept {
    bool const some = looks_at_ends || next.looks_at_ends;
    if (!next.verdict && next.what < what)
      *this = next;
    looks_at_ends = some;
  }
};

//! @brief The most messages of one group. NCCL cuts very large groups into several launches, each
//! rank at another place.
inline constexpr int most_group_messages = 64;

//! A step about something else than a pass is of a plan that has such, runs or is a message as its
//! subject says, has one use, and a number that exists.
[[nodiscard]] inline bool other_exists(plan const& work, item const& step) noexcept {
  shape const& extents = work.over.extents;
  slot_class const of = class_of(step.about);
  std::int64_t const bytes = of == slot_class::copied_gradient ? extents.routes() - 1
                             : of == slot_class::tied_gradient ? work.tied_bytes
                                                               : work.totals_bytes;
  if (bytes <= 0 || step.use_count != 1 || step.work.microbatch >= extents.microbatches ||
      static_cast<int>(step.about) >= subject_count)
    return false;
  if (step.what == operation::run)
    return !relays(step);
  int const number = work.message_of(step).number;
  return number >= 0 && number < work.other_messages &&
         (relays(step) || step.about == subject::copied_gradient ||
          step.about == subject::tied_gradient);
}

//! An exchange is one group of a device, with all messages of it that the device has an end of.
//! @pre check_form has nothing to say.
inline proof check_exchanges(plan const& work, int device) {
  pipeline_view const over = work.over;
  auto const steps = work.program_of(device);
  auto const exchange_at = [&](std::size_t i) {
    return steps[i].what == operation::run ? nothing : work.exchange_at(steps[i]);
  };
  int const count = exchange_indices(over);
  owned<int> last_of(count, nothing); // message of each exchange
  for (std::size_t i = 0; i < steps.size(); ++i) {
    int const exchange = exchange_at(i);
    if (exchange == nothing)
      continue;
    int const index = static_cast<int>(i);
    if (exchange < 0 || exchange >= count ||
        (last_of[exchange] != nothing && !same_group(steps, last_of[exchange], index)))
      return {proof::rule::bad_group, device, index};
    last_of[exchange] = index;
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    item const& step = steps[i];
    if (step.what == operation::run || step.about != subject::pass || exchange_at(i) != nothing)
      continue;
    int const number = work.message_of(step).number;
    int const exchange =
      number < readers(over, step.work) ? exchange_of(over, step.work, number) : nothing;
    if (exchange != nothing && last_of[exchange] != nothing)
      return {proof::rule::bad_group, device, static_cast<int>(i)};
  }
  return {};
}

//! The sizes of the lists of a plan, which items point into.
struct list_sizes {
  std::uint64_t uses, waits, messages;
};

//! True when the parts of the plan's lists that are an item's are there.
[[nodiscard]] constexpr bool lists_exist(list_sizes const& sizes, item const& step) noexcept {
  // A negative number becomes one that is too large.
  auto const end = [](int first, unsigned count) {
    return std::uint64_t{static_cast<unsigned>(first)} + count;
  };
  return end(step.first_use, step.use_count) <= sizes.uses &&
         end(step.first_wait, step.wait_count) <= sizes.waits &&
         (step.what == operation::run || end(step.message, 1) <= sizes.messages);
}

//! The form of a message: one use, a peer that exists, and what all messages of its group share.
//! @param head the first of the group
[[nodiscard]] inline proof::rule misform(plan const& work,
                                         pipeline_view const& over,
                                         int device,
                                         item const& step,
                                         item const& head) noexcept {
  message_end const& end = work.message_of(step);
  message_end const& first = work.message_of(head);
  bool const named =
    step.about != subject::pass || (end.number >= 0 && end.number < graph_width(over));
  if (!named || step.use_count != 1 || end.peer < 0 || end.peer >= over.extents.devices ||
      end.peer == device)
    return proof::rule::unmatched;
  int const exchange = work.exchange_at(step);
  bool const one = exchange == work.exchange_at(head) && step.lane == head.lane &&
                   (exchange != nothing || end.peer == first.peer) &&
                   (work.duplex_groups || step.what == head.what);
  return one ? proof::rule::none : proof::rule::bad_group;
}

//! The form of an item: it is where the plan's lists are, its waits point to items before its
//! group, its pass and its peer exist, and its group has one lane, and one peer or one exchange.
//! @param first of its group
[[gnu::always_inline]] inline proof check_form(plan const& work,
                                               pipeline_view const& over,
                                               list_sizes const& sizes,
                                               int device,
                                               item const* steps,
                                               int first,
                                               int i) noexcept {
  item const& step = steps[i];
  bool const message = step.what != operation::run;
  if (!lists_exist(sizes, step))
    return {proof::rule::wrong_content, device, i};
  for (int const wait : work.waits_of(step))
    if (wait < 0 || wait >= first)
      return {proof::rule::waits_forward, device, i, device, wait};
  if (step.about == subject::pass ? !over.contains(step.work)
                                  : step.work.stage >= over.extents.stages())
    return {proof::rule::wrong_passes, device, i};
  if (step.about != subject::pass && !other_exists(work, step))
    return {message ? proof::rule::unmatched : proof::rule::wrong_passes, device, i};
  if (!message)
    return {};
  proof::rule const broken = misform(work, over, device, step, steps[first]);
  return {broken, device, i, device, broken == proof::rule::bad_group ? first : nothing};
}

//! The first message of a lane, the key of its communicator, and the peers of the last messages.
struct first_on_lane {
  int message = nothing;
  std::int64_t key = 0;
  int peers[2] = {nothing, nothing}; // of the last one received, of the last one sent
};

//! The item that a message stands on one lane with while they share no communicator, or the other
//! way round; else `nothing`.
//! @param seen [lanes of the device]
[[nodiscard]] inline int misplaced_lane(
  plan const& work, int device, item const& step, int i, first_on_lane* seen) noexcept {
  bool const sends = step.what == operation::send;
  // What is like one before it is as right as that was.
  int const peer = work.message_of(step).peer;
  if (std::exchange(seen[step.lane].peers[sends ? 1 : 0], peer) == peer)
    return nothing;
  std::int64_t const key = sends ? work.key(device, peer) : work.key(peer, device);
  if (seen[step.lane].message == nothing) {
    seen[step.lane].message = i;
    seen[step.lane].key = key;
  }
  for (int lane = 0; lane < work.lanes_of(device); ++lane)
    if (seen[lane].message != nothing && (seen[lane].key == key) != (lane == step.lane))
      return seen[lane].message;
  return nothing;
}

//! The messages of a device, one after the other. Two are on one lane exactly when they share a
//! communicator; those that go one way between two devices are numbered in their order; what a pass
//! of the device makes is sent once. Several devices may enter theirs at the same time.
struct entered_messages {
  plan const& work;
  pipeline_view const& over;
  int device;
  int* sender;         //!< [message_indices], the item of the pass's device that sends each
  first_on_lane* seen; //!< [lanes of the device], fresh
  int* next;           //!< [2 P], 0: the numbers of the next messages from and to every device

  constexpr void enter(item const& step, int i, device_finding& found) noexcept {
    if (step.lane < 0 || step.lane >= work.lanes_of(device))
      return found.add({device_check::lanes, {proof::rule::wrong_lane, device, i}});
    if (int const other = misplaced_lane(work, device, step, i, seen); other != nothing)
      return found.add({device_check::lanes, {proof::rule::wrong_lane, device, i, device, other}});
    message_end const& message = work.message_of(step);
    bool const sends = step.what == operation::send;
    if (sends && step.about == subject::pass) {
      if (device_of(over, step.work) != device)
        found.looks_at_ends = true;
      else if (int const before = std::exchange(sender[message_index(work, over, step)], i);
               before != nothing)
        found.add({device_check::sent_twice, {proof::rule::unmatched, device, i, device, before}});
    }
    if (message.sequence != next[2 * message.peer + (sends ? 1 : 0)]++)
      found.add({device_check::sequences, {proof::rule::fifo_differs, device, i}});
  }
};

//! The place of an end of a message among those of all messages: [2 message_indices].
[[nodiscard]] inline std::ptrdiff_t
end_index(plan const& work, pipeline_view const& over, item const& step, bool sends) noexcept {
  return 2 * std::ptrdiff_t{message_index(work, over, step)} + (sends ? 1 : 0);
}

//! Enters the messages of a device: none is sent or received twice.
//! @param ends the item at each end, on its device
inline proof enter_messages(plan const& work, int device, int* ends) noexcept {
  pipeline_view const over = work.over;
  auto const steps = work.program_of(device);
  for (std::size_t at = 0; at < steps.size(); ++at) {
    if (steps[at].what == operation::run)
      continue;
    int const i = static_cast<int>(at);
    int& end = ends[end_index(work, over, steps[at], steps[at].what == operation::send)];
    if (end != nothing)
      return {proof::rule::unmatched, device, i, device, end};
    end = i;
  }
  return {};
}

//! The rule by which two items of two devices are not the ends of one message; none where they are.
//! Both ends have the same size, place in the line of their edge, and exchange.
[[nodiscard]] inline proof::rule
misfit(plan const& work, item const& step, int device, item const& other, int peer) noexcept {
  message_end const& mine = work.message_of(step);
  message_end const& theirs = work.message_of(other);
  bool const sends = step.what == operation::send;
  if (mine.peer != peer || theirs.peer != device ||
      other.what != (sends ? operation::receive : operation::send) ||
      mine.number != theirs.number || step.about != other.about ||
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

//! Finds a fault in the messages of a device. Each has its other end at the peer, with the same
//! bytes and the same place in the line of its edge. The groups of both ends hold the same
//! messages.
//! @param ends the item at each end, on its device
inline proof check_messages(plan const& work, int device, int const* ends) noexcept {
  pipeline_view const over = work.over;
  auto const steps = work.program_of(device);
  int before_twin = nothing; // of the item before, where both are of one group
  for (std::size_t i = 0; i < steps.size(); ++i) {
    item const& step = steps[i];
    int const index = static_cast<int>(i);
    if (step.what == operation::run)
      continue;
    int const twin = ends[end_index(work, over, step, step.what != operation::send)];
    int const peer = work.message_of(step).peer;
    auto const theirs = work.program_of(peer);
    if (twin == nothing || static_cast<std::size_t>(twin) >= theirs.size())
      return {proof::rule::unmatched, device, index};
    item const& other = theirs[static_cast<std::size_t>(twin)];
    proof::rule const broken = misfit(work, step, device, other, peer);
    if (broken == proof::rule::unmatched)
      return {broken, device, index};
    if (broken != proof::rule::none)
      return {broken, device, index, peer, twin};
    if (step.joins && work.message_of(steps[i - 1]).peer == peer &&
        !same_group(theirs, before_twin, twin))
      return {proof::rule::bad_group, device, index, peer, twin};
    before_twin = twin;
  }
  return {};
}

//! The items of a device that start together.
struct item_group {
  std::span<item const> steps; // of the device
  int first;
  int end;

  item_group(plan const& work, int device, int at) noexcept
      : steps(work.program_of(device)), first(at),
        end(static_cast<std::size_t>(at) < steps.size() ? end_of_group(steps, at) : at) {}
  [[nodiscard]] constexpr item const& operator[](int at) const noexcept {
    return steps[static_cast<std::size_t>(at)];
  }
};

//! True when the groups that two devices stand at are the two ends of the same messages. The
//! messages of one direction stand in the same order.
[[nodiscard]] inline bool groups_meet(plan const& work,
                                      int device,
                                      item_group const& mine,
                                      int peer,
                                      item_group const& theirs) noexcept {
  if (mine.end - mine.first != theirs.end - theirs.first)
    return false;
  // Where the next one that the peer sends may be, and the next that it receives.
  int sent = theirs.first;
  int received = theirs.first;
  for (int i = mine.first; i < mine.end; ++i) {
    auto const wanted = mine[i].what == operation::send ? operation::receive : operation::send;
    int& next = wanted == operation::send ? sent : received;
    while (next < theirs.end && theirs[next].what != wanted)
      ++next;
    if (next == theirs.end ||
        misfit(work, mine[i], device, theirs[next], peer) != proof::rule::none)
      return false;
    ++next;
  }
  return true;
}

//! True when a device stands at an exchange.
[[nodiscard]] inline bool
is_at_exchange(plan const& work, int const* at, int device, int exchange) noexcept {
  auto const steps = work.program_of(device);
  auto const index = static_cast<std::size_t>(at[device]);
  return index < steps.size() && steps[index].what != operation::run &&
         work.exchange_at(steps[index]) == exchange;
}

//! A device that others at an exchange wait for, or `nothing` where all have come.
[[nodiscard]] inline int
missing_at_exchange(plan const& work, int const* at, int exchange) noexcept {
  for (int device = 0; device < work.over.extents.devices; ++device) {
    if (!is_at_exchange(work, at, device, exchange))
      continue;
    item_group const group(work, device, at[device]);
    for (int i = group.first; i < group.end; ++i)
      if (int const peer = work.message_of(group[i]).peer;
          !is_at_exchange(work, at, peer, exchange))
        return peer;
  }
  return nothing;
}

//! Where all ends of the messages that a device stands at have come, takes the devices at them
//! on: two, or all that take part in an exchange.
//! @param at [P], the items that devices stand at. @param moved called with each of the others.
//! @return whether they have.
template <class Moved>
inline bool meet_at_messages(plan const& work, int* at, int device, Moved moved) {
  item_group const mine(work, device, at[device]);
  item const& head = mine[mine.first];
  int const exchange = work.exchange_at(head);
  auto const move = [&](int other, item_group const& theirs) {
    at[other] = theirs.end;
    moved(other);
  };
  if (exchange == nothing) {
    int const peer = work.message_of(head).peer;
    item_group const theirs(work, peer, at[peer]);
    if (!groups_meet(work, device, mine, peer, theirs))
      return false;
    move(peer, theirs);
  } else {
    if (missing_at_exchange(work, at, exchange) != nothing)
      return false;
    for (int other = 0; other < work.over.extents.devices; ++other)
      if (other != device && is_at_exchange(work, at, other, exchange))
        move(other, item_group(work, other, at[other]));
  }
  at[device] = mine.end;
  return true;
}

//! @brief An execution of a plan under rendezvous without any buffer: every device goes through its
//! program in order and stands at a group of messages until its peer stands at the same group, at
//! an exchange until all that take part do.
//!
//! No executor may impose a stricter order: the one line per device is also one line per
//! communicator, per stream and per queue. A plan that drains here drains on every transport. The
//! graph with all ends of a message or of an exchange contracted to one node has a cycle exactly
//! when this stops early.
class plan_drain {
public:
  //! Runs every device from the start of its program until nothing moves.
  //! @complexity O(1) per item, times the messages of a group.
  explicit plan_drain(plan const& work) : work_(work), at_(work.over.extents.devices, 0) {
    int const devices = work.over.extents.devices;
    std::vector<int> stack(static_cast<std::size_t>(devices)); // devices that may go on
    owned<bool> const queued(devices, true);
    std::iota(stack.begin(), stack.end(), 0);
    while (!stack.empty()) {
      int const device = stack.back();
      stack.pop_back();
      queued[device] = false;
      auto const moved = [&](int other) {
        if (!std::exchange(queued[other], true))
          stack.push_back(other);
      };
      auto const steps = work.program_of(device);
      int& at = at_[device];
      while (static_cast<std::size_t>(at) < steps.size()) {
        if (steps[static_cast<std::size_t>(at)].what == operation::run)
          at = end_of_group(steps, at);
        else if (!meet_at_messages(work, at_, device, moved))
          break;
      }
    }
  }
  //! The item that a device stands at, or after the last.
  [[nodiscard]] int at(int device) const noexcept { return at_[device]; }
  //! True when a device is after its last item.
  [[nodiscard]] bool ended(int device) const noexcept {
    return static_cast<std::size_t>(at(device)) == work_.program_of(device).size();
  }
  //! The devices of the circle of a plan that has stopped early, each waiting for the next and the
  //! last for the first; or the devices of a chain to a device that has ended. None when the plan
  //! has drained.
  [[nodiscard]] std::vector<int> circle() const {
    int device = 0;
    while (device < work_.over.extents.devices && ended(device))
      ++device;
    if (device == work_.over.extents.devices)
      return {};
    // Every device that stands still waits for its peer: following peers leads into the circle, or
    // to a device that has ended.
    for (int step = 0; step < work_.over.extents.devices && !ended(waits_for(device)); ++step)
      device = waits_for(device);
    std::vector<int> result{device};
    while (!ended(device) && (device = waits_for(device)) != result.front())
      result.push_back(device);
    return result;
  }

private:
  [[nodiscard]] int waits_for(int from) const noexcept {
    item const& step = work_.program_of(from)[static_cast<std::size_t>(at(from))];
    int const exchange = work_.exchange_at(step);
    return exchange == nothing ? work_.message_of(step).peer
                               : missing_at_exchange(work_, at_, exchange);
  }

  plan const& work_;
  owned<int> at_; // [P]
};

} // namespace pipelining::inline v0_3::detail
