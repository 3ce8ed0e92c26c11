// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Data that the threads of a runner share. Header for pipelining::thread_options and
//! pipelining::detail::thread_board.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/arena.hpp>
#include <pipe/run/between_steps.hpp>
#include <pipe/run/clock.hpp>
#include <pipe/run/error.hpp>
#include <pipe/run/guards.hpp>
#include <pipe/run/host_passes.hpp>
#include <pipe/run/rendezvous.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief Options of a runner on threads.
struct thread_options {
  //! The longest that nothing begins or ends on any device. After that the step fails, and says
  //! which device is not back from which pass, and who waits for whom. Time in which the process
  //! was suspended does not count (countdown). on_start has as long.
  std::chrono::nanoseconds deadline = std::chrono::seconds(60);
  //! The checked mode, for debugging: guard bytes around every slot, poison (not a number) in slots
  //! before their first write, outputs that must be written to their end, and a sentence before an
  //! access through a null buffer ends the process. Costs memory, time and allocations.
  bool guarded = false;
  //! Called once by each thread, with its number and how many there are, before anything else: the
  //! place to give it its cores (`pin_in_turn`), to name it, to set its rounding or its number of
  //! OpenMP threads. The thread touches the memory of its devices after that, so it lies near the
  //! cores. Without `count` it has a thread call it for each device.
  std::function<void(int thread, int threads)> on_start{};
  //! How long a thread looks for a message before it sleeps; waking up takes about as long. Where
  //! the process has fewer cores than threads that run devices, they sleep at once.
  std::chrono::nanoseconds spin = std::chrono::microseconds(50);
  //! How many threads run the devices, neighbours on one; not more than devices. 0: the runner
  //! chooses. It has a thread per device then. Where the process has fewer cores, only one per core
  //! runs while passes are short; a device whose neighbour is in a long pass gets its own. With a
  //! number given, a pass that sleeps or waits for another device holds its neighbours up.
  int count = 0;
};

namespace detail {

using steady = std::chrono::steady_clock;

//! In the hand of nobody: a device that has ended its errand.
inline constexpr int at_home = nothing - 1;

//! A device of a runner.
//!
//! Only the thread that `runs_on` names begins with a device, and only one that has it in hand
//! touches its program. The caller may give a device to another thread at any time: one that still
//! has it in hand wakes the other when it puts it back.
struct device_standing {
  // On a cache line of their own: they change with every pass.
  alignas(cache_line) std::atomic<int> position = 0; // the item that the device is at
  std::atomic<int> waits_on = nothing;               // the item that it waits for, or nothing
  std::atomic<int> in_hand = at_home; // the thread that is in its program now, nothing or at_home
  int next = 0;                       // the item to go on with; of who has it in hand
  // Read by who sends to it.
  alignas(cache_line) std::atomic<int> runs_on = 0;
  int seen = nothing; // its item, if it was in a call at the caller's last look
  host_memory memory{};
  host_memory on_host{}; // of what goes to the host and back
};

//! The door of a thread, where it is called and sleeps, between errands and in a step.
struct alignas(cache_line) thread_standing {
  std::atomic<int> called = 0; // errands that it was sent on
  bool starts = true;          // it has not called on_start; of the thread
  sleeping_place door;
};

//! Thrown inside a device thread to leave its program; the first failure has been noted already.
struct stopped {};

//! A plan of the runner, and the records of its steps.
struct thread_plan {
  plan lowered;
  rendezvous messages;
  std::vector<host_passes> passes{}; // [P]

  explicit thread_plan(plan work) : lowered(std::move(work)), messages(lowered) {
    for (int device = 0; device < lowered.over.extents.devices; ++device)
      passes.emplace_back(lowered, device);
  }
};

//! Reasons to wake the threads.
enum class errand { start, touch, tell, step, end };

//! Data that all threads of a runner share. The board outlives it if a stage never returns.
struct thread_board {
  thread_options options;
  int device_count;
  int thread_count;
  int cores = static_cast<int>(std::thread::hardware_concurrency()); // 0: unknown
  owned<device_standing> devices{device_count};
  owned<thread_standing> threads{thread_count};
  std::atomic<int> active = thread_count; // threads that begin a step; read on their way home
  bool long_passes = false;               // in the last step
  owned_list<std::unique_ptr<thread_plan>> plans{};
  thread_plan* now = nullptr; // the plan of the step
  bool moved = false;         // memory, and stages have not been told yet
  bool again = false;         // the iteration of the step begins again
  carried_totals carried{};   // from step to step
  steady::time_point step_start{};
  std::atomic<errand> what = errand::start; // a thread that is not back may still read it
  // Written at the end of an errand.
  alignas(cache_line) std::atomic<int> running = 0; // calls from which threads are not back
  sleeping_place caller{};

  std::mutex guard{}; // of the failure
  std::atomic<int> failed_device = nothing;
  std::exception_ptr failure{}; // a run_error

  //! @throws std::invalid_argument for a negative number of threads.
  thread_board(int of_devices, thread_options chosen)
      : options(std::move(chosen)), device_count(of_devices),
        thread_count(options.count == 0 ? of_devices : std::min(options.count, of_devices)) {
    if (options.count < 0)
      throw std::invalid_argument("run: thread_options::count is " + std::to_string(options.count) +
                                  "; give the number of threads, or 0, and the runner chooses");
  }

  //! True where the runner may let devices share threads and may part them again.
  [[nodiscard]] bool chooses() const noexcept {
    return options.count == 0 && !options.on_start && cores > 0 && cores < device_count;
  }
  //! How long a thread looks before it sleeps.
  //! @param others threads that want a core as well
  [[nodiscard]] std::chrono::nanoseconds spin(int others) const noexcept {
    return cores >= active.load(std::memory_order_relaxed) + others ? options.spin
                                                                    : std::chrono::nanoseconds(0);
  }
  //! The thread that has a device in hand, nothing or at_home.
  [[nodiscard]] int hand_of(int device) const noexcept {
    return devices[device].in_hand.load(std::memory_order_seq_cst);
  }
  [[nodiscard]] bool is_home(int device) const noexcept { return hand_of(device) == at_home; }
  [[nodiscard]] int thread_of(int device) const noexcept {
    return devices[device].runs_on.load(std::memory_order_seq_cst);
  }
  //! Calls `visit(device)` for every device of a thread that has not ended, until it says true.
  //! @return whether it has; false where the thread has no such device.
  template <class Visit>
  bool any_of(int thread, Visit visit) const {
    for (int device = 0; device < device_count; ++device)
      if (thread_of(device) == thread && !is_home(device) && visit(device))
        return true;
    return false;
  }
  [[nodiscard]] bool has_any(int thread) const {
    return any_of(thread, [](int) { return true; });
  }

  [[nodiscard]] arena slots(plan const& of, int device) const noexcept {
    device_standing const& its = devices[device];
    return {of, device, its.memory.data(), its.on_host.data(), options.guarded ? guard_bytes : 0};
  }
  //! Makes room on a device. No errand may run.
  void reserve(int device, std::int64_t bytes, std::int64_t host_bytes) {
    moved = devices[device].memory.reserve(bytes) || moved;
    moved = devices[device].on_host.reserve(host_bytes) || moved;
    now = nullptr;
  }
  //! Makes room for a plan on all devices.
  void reserve(plan const& work) {
    for (int device = 0; device < device_count; ++device)
      reserve(device, slots(work, device).bytes(), work.host_bytes_of(device));
  }
  //! Writes all memory of a device, on the thread that runs it.
  void touch(int device) {
    devices[device].memory.touch();
    devices[device].on_host.touch();
  }

  //! Takes a plan, after the others or in the place of one. No errand may run.
  //! @return its number. @throws std::invalid_argument where it does not suit stages or others.
  template <class Stages>
  plan_number put(plan lowered, std::size_t at, Stages& stages) {
    if (!plans.empty())
      check_addition(plans[0]->lowered, lowered);
    check_stages(lowered, stages);
    auto added = std::make_unique<thread_plan>(std::move(lowered));
    reserve(added->lowered);
    if (at == plans.size())
      plans.push_back(std::move(added));
    else
      plans[at] = std::move(added);
    return {static_cast<int>(at)};
  }

  //! The plan of a number. @throws std::invalid_argument where it may not run now.
  [[nodiscard]] thread_plan& choose(plan_number which) {
    check_number(which, plans.size());
    thread_plan& next = *plans[static_cast<std::size_t>(which.index)];
    carried.check(next.lowered);
    return next;
  }

  void begin_step(thread_plan& next) {
    bool const other_before = std::exchange(now, &next) != &next;
    next.messages.reset();
    again = false;
    for (int device = 0; device < device_count; ++device) {
      host_passes& passes = next.passes[static_cast<std::size_t>(device)];
      if (other_before)
        passes.lie_in(slots(next.lowered, device));
      passes.begin();
      devices[device].position.store(0, std::memory_order_relaxed);
      devices[device].next = 0;
    }
    if (chooses())
      active = long_passes ? device_count : cores;
    carried.put(slots(next.lowered, device_count - 1));
    step_start = steady::now();
  }
  //! When the step has come to its end.
  void end_step() {
    for (host_passes const& passes : now->passes)
      again = passes.begins_again() || again;
    now->messages.leave_some(again);
    carried.take(slots(now->lowered, device_count - 1), again);
    if (chooses())
      long_passes = (steady::now() - step_start) * cores >
                    static_cast<int>(now->lowered.items.size()) * std::chrono::microseconds(50);
  }

  //! The rows of the totals of the last step, if any.
  [[nodiscard]] totals last_totals() const noexcept {
    if (now == nullptr)
      return {};
    plan const& ran = now->lowered;
    return slots(ran, steps_early(ran.validation) ? device_count - 1 : 0).all_totals();
  }
  //! The times of the passes of the last step.
  [[nodiscard]] dynamic_timetable last_trace() const {
    thread_plan const& ran = now != nullptr ? *now : *plans[0];
    return trace_of(ran.lowered, [&](int device, std::size_t item, bool end) {
      return ran.passes[static_cast<std::size_t>(device)].time(item, end);
    });
  }

  //! Gives all devices to the first threads, neighbours to one, and sends these on an errand.
  //! @pre all threads are back.
  void send(errand why, int count) {
    failed_device.store(nothing, std::memory_order_relaxed);
    failure = nullptr;
    what.store(why, std::memory_order_relaxed);
    for (int device = 0; device < device_count; ++device) {
      devices[device].runs_on.store(device * count / device_count, std::memory_order_relaxed);
      devices[device].in_hand.store(nothing, std::memory_order_relaxed);
      devices[device].seen = nothing;
    }
    running.store(count, std::memory_order_relaxed);
    for (int thread = 0; thread < count; ++thread)
      call(thread);
  }
  //! Releases everything that the caller has done to a thread that looks, or wakes it.
  void call(int thread) {
    threads[thread].called.fetch_add(1, std::memory_order_seq_cst);
    threads[thread].door.open();
  }
  //! The end of a call. The last one hands all that devices have done to the caller.
  void go_home() {
    if (running.fetch_sub(1, std::memory_order_seq_cst) == 1)
      caller.open();
  }

  //! Waits until all are back. Where nothing moves for a deadline the errand fails, and those who
  //! only wait for others have a moment to come back. What calls nobody ends; large memory takes
  //! its time.
  //! @throws run_error where the errand has failed; what a stage has thrown is nested.
  void gather() {
    auto const back = [this] { return running.load(std::memory_order_seq_cst) == 0; };
    bool const calls = what.load(std::memory_order_relaxed) != errand::touch;
    auto const longest = calls ? options.deadline : std::chrono::nanoseconds::max();
    bool const spreads = chooses() && active < device_count;
    constexpr std::chrono::nanoseconds soon = std::chrono::milliseconds(1);
    countdown<steady> still(longest);
    std::uint64_t seen = 0;
    while (!caller.wait_for(spreads ? std::min(still.slice(), soon) : still.slice(), back)) {
      if (spreads)
        spread();
      std::uint64_t const now_seen = whereabouts();
      if (now_seen != std::exchange(seen, now_seen)) {
        still = countdown<steady>(longest);
      } else if (still.is_over()) {
        int const culprit = unreturned();
        int hanging = 0;
        for (int device = 0; device < device_count; ++device)
          hanging += is_in_call(device) ? 1 : 0;
        stop(culprit, "run: no progress before the deadline" + standing(culprit));
        countdown<steady> moment(std::chrono::milliseconds(400));
        while (running.load(std::memory_order_seq_cst) > hanging && !moment.is_over())
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        break;
      }
    }
    raise_failure();
  }
  //! After an errand or a step. @throws run_error where it has failed.
  void raise_failure() {
    if (failed_device.load(std::memory_order_acquire) == nothing)
      return;
    std::lock_guard const lock(guard);
    std::rethrow_exception(failure);
  }
  //! Notes the first failure and ends the step on all devices.
  void fail(int device, std::exception_ptr why) {
    {
      std::lock_guard const lock(guard);
      if (failed_device.load(std::memory_order_relaxed) != nothing)
        return;
      failure = std::move(why);
      failed_device.store(device, std::memory_order_seq_cst);
    }
    if (now == nullptr)
      return;
    now->messages.abort();
    for (int thread = 0; thread < thread_count; ++thread)
      threads[thread].door.open();
  }

  //! The same for a reason of the runner's own.
  void stop(int device, std::string const& sentence) {
    fail(device, std::make_exception_ptr(run_error(sentence, device)));
  }
  //! The same for what a call for a device has thrown. @pre called from a handler.
  void note(int device) {
    try {
      std::throw_with_nested(run_error("run: device " + std::to_string(device) + " failed in " +
                                         call_of(device) + ": " + words_of_exception(),
                                       device));
    } catch (...) {
      fail(device, std::current_exception());
    }
  }

  //! @return whether this thread has the device in hand now, which has not ended.
  [[nodiscard]] bool take(int device, int thread) {
    int none = nothing;
    return thread_of(device) == thread &&
           devices[device].in_hand.compare_exchange_strong(none, thread, std::memory_order_seq_cst);
  }
  //! @param ended whether it has ended its errand.
  void put_back(int device, int thread, bool ended) {
    devices[device].in_hand.store(ended ? at_home : nothing, std::memory_order_seq_cst);
    if (int const other = thread_of(device); other != thread)
      threads[other].door.open();
  }
  //! Gives devices whose thread has been in one call of another device since the last look to
  //! threads that have none. So nobody waits for a device whose stage sleeps, but its neighbours.
  void spread() {
    for (int device = 0; device < device_count; ++device) {
      device_standing& its = devices[device];
      int const busy = hand_of(device);
      int const item = busy < 0 ? nothing : its.position.load(std::memory_order_relaxed);
      int const before = std::exchange(its.seen, item);
      if (item == nothing || item != before)
        continue;
      if (thread_of(device) != busy)
        give(device, busy);
      (void)any_of(busy, [&](int other) {
        if (other != device)
          give(other, idle());
        return false;
      });
    }
  }
  //! A thread that has no device to run, or nothing.
  [[nodiscard]] int idle() const {
    for (int thread = 0; thread < thread_count; ++thread)
      if (!has_any(thread))
        return thread;
    return nothing;
  }
  void give(int device, int thread) {
    int away = thread == nothing ? 0 : running.load();
    while (away != 0 && !running.compare_exchange_weak(away, away + 1)) {
    }
    if (away == 0)
      return; // there is none, or the errand is over
    devices[device].runs_on.store(thread, std::memory_order_seq_cst);
    call(thread);
  }

  [[nodiscard]] bool can_go_on(int device) const {
    if (hand_of(device) != nothing)
      return false;
    int const missing = devices[device].waits_on.load(std::memory_order_relaxed);
    return missing == nothing || now->messages.aborted() ||
           now->messages.done(item_of(device, missing));
  }
  [[nodiscard]] item const& item_of(int device, int index) const {
    return now->lowered.program_of(device)[static_cast<std::size_t>(index)];
  }

  //! A number that changes when a device begins an item, waits for another one or ends its errand.
  //! One that is only looked at, and cannot go on, changes nothing.
  [[nodiscard]] std::uint64_t whereabouts() const noexcept {
    std::uint64_t all = 1;
    for (int device = 0; device < device_count; ++device)
      for (device_standing const& its = devices[device];
           int const part : {its.position.load(std::memory_order_relaxed),
                             its.waits_on.load(std::memory_order_relaxed),
                             is_home(device) ? 1 : 0})
        all = all * 0x9e3779b97f4a7c15U + static_cast<std::uint64_t>(part);
    return all;
  }
  //! A device that has not ended the errand; one in a call, if there is one.
  [[nodiscard]] int unreturned() const noexcept {
    int found = 0;
    for (int device = device_count - 1; device >= 0; --device)
      if (!is_home(device) && (is_in_call(device) || !is_in_call(found)))
        found = device;
    return found;
  }
  //! True for a device that is in a call of the user's, or between two.
  [[nodiscard]] bool is_in_call(int device) const noexcept { return hand_of(device) >= 0; }

  //! The call of the user's that a device is in.
  [[nodiscard]] std::string call_of(int device) const {
    errand const why = what.load(std::memory_order_relaxed);
    if (why != errand::step)
      return why == errand::start ? "thread_options::on_start" : "memory_moved";
    int const at = devices[device].position.load(std::memory_order_relaxed);
    return "the " + describe_subject(item_of(device, at), now->lowered);
  }
  //! Says where the culprit is, if it waits for no other; then where each device is, one line each.
  [[nodiscard]] std::string standing(int culprit) const {
    std::string text;
    if (is_in_call(culprit))
      text = ": device " + std::to_string(culprit) + " is not back from " + call_of(culprit);
    if (what.load(std::memory_order_relaxed) != errand::step)
      return text;
    plan const& work = now->lowered;
    for (int device = 0; device < device_count; ++device) {
      int const at = devices[device].position.load(std::memory_order_relaxed);
      int const waited = devices[device].waits_on.load(std::memory_order_relaxed);
      text += "\n  device " + std::to_string(device);
      if (is_home(device))
        text += " has ended its program";
      else if (can_go_on(device))
        text += running.load() == 0 ? " could go on, but no thread runs it"
                                    : " could go on, but its thread runs another one";
      else if (waited != nothing)
        text += " waits for device " +
                std::to_string(work.message_of(item_of(device, waited)).peer) + ": " +
                describe(item_of(device, waited), work);
      else
        text += " is at item " + std::to_string(at) + ": " + describe(item_of(device, at), work);
    }
    return text;
  }
};

} // namespace detail
} // namespace pipelining::inline v0_3
