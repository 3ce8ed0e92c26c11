// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The protocols of rendezvous.hpp, thread_board.hpp and watchdog.hpp, line by line, in every
// interleaving of threads with store buffers. Each has variants with one mistake, which the machine
// must find.
#include <doctest/doctest.h>

#include <cstddef>
#include <tests/support/interleavings.hpp>
#include <utility>
#include <vector>

using enum support::act;
using support::ending;
using support::instruction;
using support::thread_program;

namespace {

enum cell {
  guard,
  asleep,
  come,
  other_come,
  posts,
  data,
  target,
  from,
  to,
  spoken,
  plan_gone,
  owner,
  free_hand
};

ending end_of(std::vector<thread_program> threads) {
  return support::interleavings(std::move(threads)).run();
}

//! Puts instructions after others, whose jumps are among themselves.
void append(thread_program& program, thread_program const& more) {
  int const offset = static_cast<int>(program.size());
  for (instruction each : more) {
    each.to += offset;
    program.push_back(each);
  }
}

//! sleeping_place::wait until `on` is `value`; ends after its last instruction.
thread_program sleep_until(int on, int value) {
  return {{lock, guard},
          {store_now, asleep, 1},
          {jump_if, on, value, 6},
          {doze, guard},
          {lock, guard}, // a condition variable returns with its lock
          {jump, 0, 0, 2},
          {store, asleep, 0},
          {unlock, guard}};
}

//! sleeping_place::open.
thread_program open_door() {
  return {{jump_if, asleep, 0, 4}, {lock, guard}, {unlock, guard}, {wake}};
}

thread_program ended(thread_program program) {
  program.push_back({end});
  return program;
}

thread_program change_and_open(instruction const& change) {
  thread_program program{change};
  append(program, open_door());
  return ended(std::move(program));
}

} // namespace

TEST_CASE("who sleeps is woken by who changes something and opens the door") {
  thread_program const sleeper = ended(sleep_until(come, 1));
  CHECK(end_of({sleeper, change_and_open({store_now, come, 1})}) == ending::always_ends);
  CHECK(end_of({sleeper,
                change_and_open({store_now, come, 1}),
                change_and_open({store_now, other_come, 1})}) == ending::always_ends);
}

TEST_CASE("a wake-up gets lost where one line of a door is another one") {
  thread_program const sleeper = ended(sleep_until(come, 1));
  thread_program const opener = change_and_open({store_now, come, 1});
  // What is looked at changes without sequential consistency.
  CHECK(end_of({sleeper, change_and_open({store, come, 1})}) == ending::may_hang);
  // So does what says that somebody sleeps.
  thread_program says_late = sleeper;
  says_late[1].what = store;
  CHECK(end_of({says_late, opener}) == ending::may_hang);
  // The sleeper looks first, and says so then.
  thread_program looks_first = sleeper;
  looks_first[1] = {jump_if, come, 1, 6};
  looks_first[2] = {store_now, asleep, 1};
  looks_first[5].to = 1;
  CHECK(end_of({looks_first, opener}) == ending::may_hang);
  // The opener does not take the lock.
  CHECK(end_of({sleeper, ended({{store_now, come, 1}, {jump_if, asleep, 0, 3}, {wake}})}) ==
        ending::may_hang);
}

namespace {

//! rendezvous::post and wait of one end: 42 goes from `data` to `target`, and who was first may
//! sleep until it has.
//! @param first, rest what the end does before it posts, and when its message is done
thread_program meet(thread_program first, thread_program const& rest) {
  thread_program copies{{expect, from, 1}, {expect, to, 1}, {copy, target, 0, 0, data}};
  copies.push_back({store_now, posts, 3});
  append(copies, open_door());
  thread_program const waits = sleep_until(posts, 3);
  first.push_back({add, posts});
  int const here = static_cast<int>(first.size());
  // As second, over the wait to the copy; as first, over the copy to the rest.
  first.push_back({jump_last, 0, 1, here + 2 + static_cast<int>(waits.size())});
  append(first, waits);
  first.push_back({jump, 0, 0, here + 2 + static_cast<int>(waits.size() + copies.size())});
  append(first, copies);
  append(first, rest);
  return ended(std::move(first));
}

thread_program sender() {
  return meet({{store, data, 42}, {store, from, 1}}, {{store, data, 7}}); // the slot is free again
}
thread_program receiver() {
  return meet({{store, to, 1}}, {{expect, target, 42}});
}

//! Where a program does this first.
std::size_t place_of(thread_program const& program, support::act what, int at) {
  for (std::size_t i = 0; i < program.size(); ++i)
    if (program[i].what == what && program[i].at == at)
      return i;
  return program.size();
}

} // namespace

TEST_CASE("two ends meet: one copies what was sent, and both go on") {
  CHECK(end_of({sender(), receiver()}) == ending::always_ends);
}

TEST_CASE("a message is torn or hangs where one line of a meeting is another one") {
  // The message is done before it was copied.
  thread_program early = sender();
  std::size_t const copied = place_of(early, copy, target);
  std::swap(early[copied], early[copied + 1]);
  CHECK(end_of({early, receiver()}) == ending::may_be_wrong);
  // Done without sequential consistency: a sleeper is not seen.
  thread_program late = sender();
  late[place_of(late, store_now, posts)].what = store;
  CHECK(end_of({late, receiver()}) == ending::may_hang);
  // The first end copies, too.
  thread_program both = receiver();
  both[place_of(both, jump_last, 0)].value = 0;
  CHECK(end_of({sender(), both}) != ending::always_ends);
}

namespace {

//! The door of the new owner, opened by whoever finds it there after a change.
thread_program change_and_tell(instruction const& change) {
  thread_program program{change, {jump_if, owner, 1, 3}, {end}};
  append(program, open_door());
  return ended(std::move(program));
}

//! A device changes its thread: thread_board::give by the caller, put_back by who has it in hand,
//! thread_device::post by a sender, and the sleep of the new owner in run_devices.
struct change_of_hands {
  thread_program gives = change_and_open({store_now, owner, 1});
  thread_program puts_back = change_and_tell({store_now, free_hand, 1});
  thread_program sends = change_and_tell({store_now, posts, 1});
  thread_program sleeps{{lock, guard},
                        {store_now, asleep, 1},
                        {jump_if, owner, 1, 4},
                        {jump, 0, 0, 7},
                        {jump_if, free_hand, 1, 6},
                        {jump, 0, 0, 7},
                        {jump_if, posts, 1, 10},
                        {doze, guard},
                        {lock, guard},
                        {jump, 0, 0, 2},
                        {store, asleep, 0},
                        {unlock, guard},
                        {end}};

  [[nodiscard]] ending run() const { return end_of({gives, puts_back, sends, sleeps}); }
};

} // namespace

TEST_CASE("a device that changes its thread is run, whoever has it in hand and sends to it") {
  CHECK(change_of_hands{}.run() == ending::always_ends);
}

TEST_CASE("a device that changes its thread is forgotten where one line is another one") {
  change_of_hands change;
  change.gives[0].what = store;
  CHECK(change.run() == ending::may_hang);
  change = {};
  change.puts_back[0].what = store;
  CHECK(change.run() == ending::may_hang);
  change = {};
  change.sends[0].what = store;
  CHECK(change.run() == ending::may_hang);
  change = {}; // looks for the owner, and puts the device back then
  change.puts_back = {{jump_if, owner, 1, 3}, {store_now, free_hand, 1}, {end}};
  append(change.puts_back, change_and_open({store_now, free_hand, 1}));
  CHECK(change.run() == ending::may_hang);
  change = {}; // the caller tells nobody
  change.gives = {{store_now, owner, 1}, {end}};
  CHECK(change.run() == ending::may_hang);
}

TEST_CASE("a step ends while the watchdog speaks of its plan only after that") {
  // watchdog::serve: in_step (0) becomes spoken_of (1), the plan is read, and it is in_step again.
  thread_program const watchdog{
    {exchange, spoken, 0, 3, 1}, {expect, plan_gone, 0}, {store_now, spoken, 0}, {end}};
  // ~watch: in_step becomes away (2), as soon as it can; then the plan may go.
  thread_program const step{{exchange, spoken, 0, 0, 2}, {store, plan_gone, 1}, {end}};
  CHECK(end_of({watchdog, step}) == ending::always_ends);
  // A step that does not wait for the watchdog.
  thread_program const hasty{{store_now, spoken, 2}, {store, plan_gone, 1}, {end}};
  CHECK(end_of({watchdog, hasty}) == ending::may_be_wrong);
}
