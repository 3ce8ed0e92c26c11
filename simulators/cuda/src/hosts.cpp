// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <map>
#include <sched.h>

#include "model.hpp"

namespace standin::detail {

namespace {

constexpr auto newcomers_take = std::chrono::seconds(10); // of real time, at most
constexpr nanoseconds never = nanoseconds::max();

thread_local std::unique_lock<std::mutex>* held_lock = nullptr;

} // namespace

thread_place& place() {
  thread_local thread_place here;
  return here;
}

thread_place::~thread_place() {
  model& m = model::instance();
  std::unique_lock held(m.lock);
  if (who && epoch == m.epoch)
    m.end_host();
}

host& model::self() {
  return *place().who;
}

host& model::add_host(int rank, std::shared_ptr<turn_bell> bell, fiber* runs_on) {
  auto fresh = std::make_unique<host>();
  fresh->bell = std::move(bell);
  fresh->runs_on = runs_on;
  fresh->id = static_cast<int>(hosts.size());
  fresh->rank = rank;
  fresh->agent = next_agent++;
  fresh->clock.advance(fresh->agent);
  hosts.push_back(std::move(fresh));
  return *hosts.back();
}

void model::enter(std::unique_lock<std::mutex>& held) {
  held_lock = &held;
  thread_place& here = place();
  if (!here.who || here.epoch != epoch) {
    here.who = &add_host(-1, std::make_shared<turn_bell>(), &fiber::current());
    here.epoch = epoch;
  }
  host& me = *here.who;
  me.wants_turn = true;
  somebody_came_.notify_all();
  while (turn != &me) {
    if (!turn) {
      turn = &me;
      break;
    }
    if (is_here(turn, me)) {
      resume(*turn);
      continue;
    }
    std::uint64_t const before = total_calls;
    bool const came = wait_for_bell(me, config.overtaken_after, [&] {
      return !turn || is_here(turn, me) || total_calls != before;
    });
    if (!came) {
      ++counts.stolen_turns;
      turn = &me;
    }
  }
  me.wants_turn = false;
}

void model::leave() {
  host& me = self();
  if (config.execution == order::random && hosts.size() > 1 && random() % 4 == 0)
    hand_to_someone(me);
}

// Returns when the condition holds, or false when nobody has rung for so long and it still does
// not.
bool model::wait_for_bell(host& me, nanoseconds length, std::function<bool()> const& condition) {
  std::shared_ptr<turn_bell> const bell = me.bell;
  while (!condition()) {
    held_lock->unlock();
    bool const rung = bell->wait_for(length);
    held_lock->lock();
    if (!rung)
      return condition();
  }
  return true;
}

bool model::is_here(host const* who, host const& me) const {
  return who && who->bell == me.bell;
}

// Another one of the same kernel thread runs, until one of them resumes this one.
void model::resume(host& other) {
  std::unique_lock<std::mutex>& held = *held_lock;
  held.unlock();
  other.runs_on->resume();
  held.lock();
}

// A thread that runs the work when it first has the turn.
host& model::start_host(int rank, std::function<void(host&)> work) {
  host& fresh = add_host(rank, self().bell, nullptr);
  fresh.wants_turn = true;
  fresh.own_fiber.reset(&fiber::make([this, &fresh, work = std::move(work)]() -> fiber& {
    {
      std::unique_lock held(lock);
      held_lock = &held;
      place().who = &fresh;
      place().epoch = epoch;
      await_turn(fresh);
    }
    work(fresh);
    std::unique_lock held(lock);
    enter(held);
    end_host();
    while (!is_here(turn, fresh))
      wait_for_bell(fresh, config.overtaken_after, [&] { return is_here(turn, fresh); });
    return *turn->runs_on;
  }));
  fresh.runs_on = fresh.own_fiber.get();
  return fresh;
}

bool model::can_run(host const& h) const {
  switch (h.state) {
  case host_state::running: return h.wants_turn;
  case host_state::ended: return false;
  case host_state::parked: return h.woken;
  case host_state::sleeping: return h.woken || deadlocked || h.abandoned;
  case host_state::waiting: return ((deadlocked || h.abandoned) && !h.joining) || (*h.condition)();
  }
  return false;
}

// Another thread that can go on, or null.
host* model::choose_other(host const& me) {
  std::vector<host*> able;
  for (auto const& h : hosts)
    if (h.get() != &me && can_run(*h))
      able.push_back(h.get());
  if (able.empty())
    return nullptr;
  std::size_t which = 0;
  if (config.execution == order::random) {
    which = static_cast<std::size_t>(choose(able.size()));
  } else {
    // Round robin: the next one, and the first after the last, or two would keep out the others.
    while (which < able.size() && able[which]->id < me.id)
      ++which;
    which %= able.size();
  }
  return able[which];
}

bool model::hand_to_someone(host& me) {
  host* other = choose_other(me);
  if (other != nullptr)
    hand_to(me, *other);
  return other != nullptr;
}

// Returns when the turn has come back, or at once in a thread that has ended.
void model::hand_to(host& me, host& other) {
  turn = &other;
  if (me.state != host_state::ended)
    me.wants_turn = true;
  if (!is_here(&other, me)) {
    std::shared_ptr<turn_bell> const bell = other.bell;
    bell->ring();
  }
  if (me.state != host_state::ended)
    await_turn(me);
}

// Returns when it has the turn. Others of its kernel thread run meanwhile.
void model::await_turn(host& me) {
  while (turn != &me) {
    if (is_here(turn, me)) {
      resume(*turn);
      continue;
    }
    std::uint64_t const before = total_calls + progress;
    if (wait_for_bell(me, config.overtaken_after, [&] { return is_here(turn, me); }))
      continue;
    if (total_calls + progress != before)
      continue;
    ++counts.stolen_turns;
    turn = &me;
  }
  me.wants_turn = false;
}

host* model::earliest_sleeper() {
  host* first = nullptr;
  for (auto const& h : hosts)
    if (h->state == host_state::sleeping && !h->woken && h->wake != never &&
        (!first || h->wake < first->wake))
      first = h.get();
  return first;
}

// Of the threads that can go on, the one that is latest by this time, or null.
host* model::earliest_able_before(nanoseconds when) {
  host* first = nullptr;
  for (auto const& h : hosts)
    if (h->now < when && can_run(*h) && (!first || h->now < first->now))
      first = h.get();
  return first;
}

// A parked thread goes on, to unwind, when nobody is left whom it could disturb.
host* model::releasable() {
  host* first = nullptr;
  for (auto const& h : hosts) {
    if (h->state == host_state::ended || h->joining)
      continue;
    // Nobody can go on, so a helper that is not parked waits for ever, and is disturbed by nobody.
    if (h->helper && h->state != host_state::parked)
      continue;
    if (h->state != host_state::parked)
      return nullptr;
    if (!first && !h->woken)
      first = h.get();
  }
  return first;
}

// A thread that has given up its turn, or lost it because it was busy elsewhere.
bool model::somebody_is_outside(host const& me) const {
  return std::any_of(hosts.begin(), hosts.end(), [&](auto const& h) {
    return h.get() != &me && h->state == host_state::running && !h->wants_turn;
  });
}

bool model::wait_for_newcomer() {
  host const& me = self();
  if (!config.expect_more_threads && !somebody_is_outside(me))
    return false;
  std::size_t const before = hosts.size();
  auto const somebody_wants = [&] {
    return hosts.size() != before || std::any_of(hosts.begin(), hosts.end(), [&](auto const& h) {
             return h.get() != &me && can_run(*h);
           });
  };
  return somebody_came_.wait_for(*held_lock, newcomers_take, somebody_wants);
}

// The caller cannot go on. Something else happens, or the model is found to be stuck.
void model::turn_over(host& me) {
  bool const hosts_first = config.execution == order::lazy || config.execution == order::scripted;
  if (hosts_first && hand_to_someone(me))
    return;
  if (step()) {
    if (config.execution == order::random && random() % 4 == 0)
      hand_to_someone(me);
    return;
  }
  if (hand_to_someone(me))
    return;
  host* next = earliest_sleeper();
  if (!next && wait_for_newcomer())
    return;
  if (!next)
    next = releasable();
  if (!next) {
    declare_deadlock();
    return;
  }
  next->woken = true;
  if (next != &me)
    hand_to(me, *next);
}

bool model::wait(std::string why, std::function<bool()> const& condition, operation_ptr target) {
  host& me = self();
  if (!condition()) {
    me.state = host_state::waiting;
    me.condition = &condition;
    me.why = std::move(why);
    me.target = std::move(target);
    while (!((deadlocked || me.abandoned) && !me.joining) && !condition())
      turn_over(me);
    me.state = host_state::running;
    me.condition = nullptr;
    me.target = nullptr;
  }
  me.fruitless = me.idle = 0;
  return condition();
}

// A query. The first one that fails costs nothing; those that follow force the machine on, then the
// clock.
bool model::poll(std::function<bool()> const& condition) {
  host& me = self();
  bool const scripted = config.execution == order::scripted;
  if (!condition() && !deadlocked) {
    if (config.execution == order::random && random() % 2 == 0)
      step();
    if (config.execution == order::lazy && me.fruitless > 0)
      step();
    // Operations have run as far as they can, but what hosts do together (making a communicator)
    // may have become possible since.
    if (config.execution == order::eager)
      step();
    if (scripted && (me.fruitless > 1 || choose(2) == 1))
      step();
  }
  bool const reached = condition();
  me.seen = mix(me.seen, reached ? 1 : 2);
  remember(mix(static_cast<std::uint64_t>(me.id), me.seen));
  if (reached) {
    me.fruitless = me.idle = 0;
    return true;
  }
  ++me.fruitless;
  if (me.progress_seen != progress)
    me.idle = 0;
  me.progress_seen = progress;
  if (me.fruitless > 1)
    hand_to_someone(me);
  if (me.progress_seen != progress || deadlocked)
    return false;
  // Or this one would come to a deadline while another has hardly begun.
  if (host* const earlier = earliest_able_before(me.now)) {
    hand_to(me, *earlier);
    return false;
  }
  ++me.idle;
  me.now +=
    std::chrono::microseconds(1) * (std::uint64_t{1} << std::min<std::uint64_t>(me.idle, 10));
  host* sleeper = earliest_sleeper();
  if (sleeper && sleeper->wake <= me.now) {
    sleeper->woken = true;
    hand_to(me, *sleeper);
  }
  // Another thread may have found the same while it had the turn.
  if (me.idle > 100'000 && !deadlocked) {
    me.why = "a poll that can never succeed";
    declare_deadlock();
  }
  return false;
}

void model::sleep_until(nanoseconds when) {
  host& me = self();
  if (when <= me.now)
    return;
  me.wake = when;
  me.woken = false;
  me.state = host_state::sleeping;
  me.why = "sleep";
  while (!me.woken && !deadlocked && !me.abandoned)
    turn_over(me);
  me.state = host_state::running;
  if (when != never)
    me.now = when;
}

// For a thread that is not to keep the others from unwinding.
void model::give_up_turn() {
  host& me = self();
  if (turn != &me || hand_to_someone(me))
    return;
  turn = nullptr;
  for (auto const& h : hosts)
    h->bell->ring();
}

// Ends a sleep before its time.
void model::wake(host& sleeper) {
  host& me = self();
  if (sleeper.state != host_state::sleeping)
    return;
  sleeper.woken = true;
  sleeper.now = std::max(sleeper.now, me.now);
  sleeper.wake = sleeper.now;
}

void model::park() {
  host& me = self();
  me.woken = false;
  me.state = host_state::parked;
  while (!me.woken)
    turn_over(me);
  me.state = host_state::running;
}

// A process dies with all its threads: each makes no further call, and goes on only to unwind.
void model::park_if_dead() {
  host& me = self();
  if (!me.dead || me.unwinding)
    return;
  park();
  for (auto const& h : hosts)
    if (h.get() == &me || (me.rank >= 0 && h->rank == me.rank)) {
      h->unwinding = true;
      h->woken = h->woken || h->state == host_state::parked;
    }
}

void model::kill(host& who) {
  who.dead = true;
  for (auto const& h : hosts)
    if (who.rank >= 0 && h->rank == who.rank)
      h->dead = true;
  if (!config.peers_notice_death)
    return;
  for (auto const& [handle, comm] : communicators) {
    if (!comm->by->dead)
      continue;
    for (communicator* other : comm->members->ranks)
      if (other && other != comm.get() && !other->aborted)
        other->state = ncclRemoteError;
  }
}

bool model::all_ranks_ended() const {
  for (auto const& h : hosts)
    if (h->rank >= 0 && !h->helper && h->state != host_state::ended)
      return false;
  return true;
}

bool model::all_helpers_ended() const {
  for (auto const& h : hosts)
    if (h->helper && h->state != host_state::ended)
      return false;
  return true;
}

void model::end_host() {
  host& me = self();
  me.state = host_state::ended;
  ++progress;
  place().who = nullptr;
  if (turn != &me)
    return;
  turn = nullptr;
  while (!turn) {
    if (hand_to_someone(me))
      return;
    host* next = earliest_sleeper();
    bool const anyone = std::any_of(
      hosts.begin(), hosts.end(), [](auto const& h) { return h->state != host_state::ended; });
    if (!anyone)
      return;
    if (!next && step())
      continue;
    if (!next)
      next = releasable();
    if (next) {
      next->woken = true;
      hand_to(me, *next);
      return;
    }
    // One that is outside takes the turn, which is nobody's now, when it comes back.
    if (config.expect_more_threads || somebody_is_outside(me))
      return;
    declare_deadlock();
  }
}

void model::start_ranks(std::vector<host*> const& ranks) {
  host& me = self();
  for (host* rank : ranks) {
    rank->clock.join(me.clock);
    rank->now = me.now;
  }
  me.clock.advance(me.agent);
  me.joining = true;
  wait("run_ranks", [this] { return all_ranks_ended(); });
  // A thread that a rank has abandoned, in a call that never returns, ends with its process.
  for (auto const& h : hosts)
    h->abandoned = h->helper && h->state != host_state::ended;
  wait("the end of all threads of ranks", [this] { return all_helpers_ended(); });
  me.joining = false;
  for (auto const& h : hosts)
    if (h->own_fiber && h->state == host_state::ended && is_here(h.get(), me))
      h->own_fiber.reset();
  for (host* rank : ranks) {
    me.clock.join(rank->clock);
    if (!rank->dead)
      me.now = std::max(me.now, rank->now);
  }
}

} // namespace standin::detail

namespace standin {

using namespace detail;

namespace {

//! Keeps this thread, and those that the kernel switches to, on the processor where it runs. Only
//! one of them runs at any moment, and handing the turn to another processor costs more than most
//! turns.
class one_processor {
public:
  one_processor() {
    cpu_set_t here;
    CPU_ZERO(&here);
    int const now = sched_getcpu();
    if (now < 0 || sched_getaffinity(0, sizeof before_, &before_) != 0)
      return;
    CPU_SET(static_cast<unsigned>(now), &here);
    set_ = sched_setaffinity(0, sizeof here, &here) == 0;
  }
  one_processor(one_processor const&) = delete;
  one_processor& operator=(one_processor const&) = delete;
  ~one_processor() {
    if (set_)
      (void)sched_setaffinity(0, sizeof before_, &before_);
  }

private:
  cpu_set_t before_{};
  bool set_ = false;
};

} // namespace

std::vector<outcome> run_ranks(int ranks, std::function<void(int)> body) {
  std::optional<one_processor> pinned;
  if (!fiber::switch_without_kernel())
    pinned.emplace();
  model& m = model::instance();
  std::unique_lock held(m.lock);
  m.enter(held);
  std::vector<outcome> outcomes(static_cast<std::size_t>(ranks));
  std::vector<host*> members;
  for (int rank = 0; rank < ranks; ++rank)
    members.push_back(&m.start_host(rank, [&](host const& me) {
      outcome& result = outcomes[static_cast<std::size_t>(me.rank)];
      try {
        body(me.rank);
      } catch (std::exception const& problem) {
        result.threw = true;
        result.what = problem.what();
      }
      result.died = me.dead;
    }));
  m.start_ranks(members);
  m.leave();
  return outcomes;
}

bool wait_until(std::function<bool()> condition, std::string why) {
  model& m = model::instance();
  std::unique_lock held(m.lock);
  m.enter(held);
  bool const reached = m.wait(std::move(why), condition);
  m.leave();
  return reached;
}

clock::time_point clock::now() {
  model& m = model::instance();
  std::unique_lock held(m.lock);
  m.enter(held);
  m.park_if_dead();
  m.self().now += std::chrono::nanoseconds(100);
  time_point const result{m.self().now};
  m.leave();
  return result;
}

void clock::sleep_for(duration length) {
  model& m = model::instance();
  std::unique_lock held(m.lock);
  m.enter(held);
  m.park_if_dead();
  m.sleep_until(m.self().now + length);
  m.leave();
}

void clock::sleep_until(time_point when) {
  model& m = model::instance();
  std::unique_lock held(m.lock);
  m.enter(held);
  m.park_if_dead();
  m.sleep_until(when.time_since_epoch());
  m.leave();
}

clock::thread clock::start(std::function<void()> work) {
  model& m = model::instance();
  std::unique_lock held(m.lock);
  m.enter(held);
  m.park_if_dead();
  host& me = m.self();
  host& helper = m.start_host(me.rank, [work = std::move(work)](host const&) { work(); });
  helper.helper = true;
  helper.dead = helper.unwinding = me.dead;
  helper.now = me.now;
  helper.clock.join(me.clock);
  helper.current_device = 0;
  me.clock.advance(me.agent);
  thread made;
  made.host_.reset(&helper);
  m.leave();
  return made;
}

void clock::thread::join() {
  model& m = model::instance();
  std::unique_lock held(m.lock);
  m.enter(held);
  host const& helper = *static_cast<host const*>(host_.release());
  auto const ended = [&] { return helper.state == host_state::ended; };
  if (!m.wait("the end of a thread", ended)) {
    m.self().joining = true; // it unwinds
    m.wait("the end of a thread", ended);
    m.self().joining = false;
  }
  m.leave();
}

namespace {

//! What those who have rung had seen by then, which the next to return from a doorbell sees too.
struct ring_seen {
  std::uint64_t epoch = 0;
  vector_clock clock{};
};
std::map<void const*, ring_seen> seen_before_ringing; // under the lock of the model

} // namespace

void clock::doorbell::wait_until(time_point when) {
  model& m = model::instance();
  std::unique_lock held(m.lock);
  m.enter(held);
  m.park_if_dead();
  host& me = m.self();
  sleeper_ = &me;
  if (!rung_)
    m.sleep_until(when.time_since_epoch());
  if (!rung_ && (m.deadlocked || me.abandoned))
    m.give_up_turn();
  if (auto const seen = seen_before_ringing.find(this); seen != seen_before_ringing.end()) {
    if (seen->second.epoch == m.epoch)
      me.clock.join(seen->second.clock);
    seen_before_ringing.erase(seen);
  }
  rung_ = false;
  sleeper_ = nullptr;
  m.leave();
}

void clock::doorbell::ring() {
  model& m = model::instance();
  std::unique_lock held(m.lock);
  m.enter(held);
  m.park_if_dead();
  rung_ = true;
  host& me = m.self();
  ring_seen& seen = seen_before_ringing[this];
  if (seen.epoch != m.epoch)
    seen = {m.epoch, {}};
  seen.clock.join(me.clock);
  me.clock.advance(me.agent);
  if (sleeper_ != nullptr)
    m.wake(*static_cast<host*>(sleeper_));
  m.leave();
}

} // namespace standin
