// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Plans on threads of the caller: one thread, a thread per device, tasks of a pool, coroutines.
#include <pipe/plan/lower.hpp>
#include <pipe/plan/other_plans.hpp>
#include <pipe/run/called_runner.hpp>
#include <pipe/run/post_validated.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/chimera.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <tests/support/arithmetic_stage.hpp>
#include <tests/support/early_training.hpp>
#include <tests/support/sizes.hpp>
#include <tests/support/text.hpp>
#include <tests/support/training.hpp>
#include <thread>
#include <vector>

namespace pp = pipelining;

namespace {

using model = std::vector<support::arithmetic_stage>;
using support::words;

//! Tasks of some threads, as the pools of engines have them.
class pool {
public:
  explicit pool(int count) {
    for (int i = 0; i < count; ++i)
      threads_.emplace_back([this] { serve(); });
  }
  pool(pool const&) = delete;
  pool& operator=(pool const&) = delete;
  ~pool() {
    {
      std::lock_guard const lock(guard_);
      over_ = true;
    }
    changed_.notify_all();
    for (auto& each : threads_)
      each.join();
  }
  void submit(std::function<void()> task) {
    {
      std::lock_guard const lock(guard_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
  }

private:
  void serve() {
    for (;;) {
      std::unique_lock lock(guard_);
      changed_.wait(lock, [this] { return over_ || !tasks_.empty(); });
      if (tasks_.empty())
        return;
      auto const task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
  }
  std::mutex guard_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
  bool over_ = false;
};

//! A coroutine that gives way wherever its device must wait.
struct device_coroutine {
  struct promise_type {
    device_coroutine get_return_object() {
      return {std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    static std::suspend_always initial_suspend() noexcept { return {}; }
    static std::suspend_always final_suspend() noexcept { return {}; }
    static void return_void() noexcept {}
    static void unhandled_exception() { std::terminate(); }
  };
  std::coroutine_handle<promise_type> handle;
};

template <class Runner>
device_coroutine run_as_coroutine(Runner& runner, int device) {
  while (!runner.poll(device))
    co_await std::suspend_always{};
}

enum class way { one_thread, by_lot, thread_per_device, tasks, coroutines };

//! One step, by one of the ways of a caller.
template <class Runner>
void run_step(
  Runner& runner, int devices, way how, std::mt19937& chance, pp::plan_number which = {}) {
  if (how == way::one_thread)
    return runner.step(which);
  runner.begin_step(which);
  if (how == way::by_lot) {
    std::vector<int> left;
    for (int d = 0; d < devices; ++d)
      left.push_back(d);
    while (!left.empty()) {
      std::size_t const at = chance() % left.size();
      if (runner.poll(left[at]))
        left.erase(left.begin() + static_cast<std::ptrdiff_t>(at));
    }
  } else if (how == way::thread_per_device) {
    std::vector<std::thread> threads;
    for (int d = 0; d < devices; ++d)
      threads.emplace_back([&runner, d] { runner.run_device(d); });
    for (auto& each : threads)
      each.join();
  } else if (how == way::tasks) {
    std::atomic<int> left = devices;
    std::function<void(int)> go; // outlives the tasks
    pool threads(3);
    go = [&](int device) {
      if (runner.poll(device)) {
        --left;
        left.notify_all();
      } else {
        threads.submit([&go, device] { go(device); });
      }
    };
    for (int d = 0; d < devices; ++d)
      threads.submit([&go, d] { go(d); });
    for (int now = left; now != 0; now = left)
      left.wait(now);
  } else {
    std::deque<device_coroutine> ready;
    for (int d = 0; d < devices; ++d)
      ready.push_back(run_as_coroutine(runner, d));
    while (!ready.empty()) {
      auto const next = ready.front();
      ready.pop_front();
      next.handle.resume();
      if (next.handle.done())
        next.handle.destroy();
      else
        ready.push_back(next);
    }
  }
  runner.finish_step();
}

constexpr way all_ways[] = {
  way::one_thread, way::by_lot, way::thread_per_device, way::tasks, way::coroutines};

model make_model(pp::timetable_view table) {
  model stages(static_cast<std::size_t>(table.over.extents.stages()));
  for (std::size_t s = 0; s < stages.size(); ++s) {
    stages[s].weight = s + 3;
    stages[s].chunks = table.over.extents.chunks;
  }
  return stages;
}

template <class Policy>
void check_all_ways(pp::timetable_view table) {
  std::mt19937 chance(3);
  for (way const how : all_ways) {
    CAPTURE(static_cast<int>(how));
    auto blocking = make_model(table), called = make_model(table);
    pp::thread_runner expected(pp::lower<Policy>(table, words), blocking);
    pp::called_runner runner(pp::lower<Policy>(table, words), called, {.guarded = true});
    for (int step = 0; step < 3; ++step) {
      expected.step();
      run_step(runner, table.over.extents.devices, how, chance);
      for (std::size_t s = 0; s < called.size(); ++s) {
        CHECK(called[s].gradient == blocking[s].gradient);
        CHECK(called[s].losses == blocking[s].losses);
        CHECK(called[s].calls == blocking[s].calls);
      }
    }
    CHECK(runner.trace().passes == expected.trace().passes);
  }
}

struct throwing_stage : support::arithmetic_stage {
  int throws_at = -1;
  void forward(pp::context const& where, pp::input in, pp::output out) {
    if (where.microbatch == throws_at)
      throw std::runtime_error("out of luck");
    support::arithmetic_stage::forward(where, in, out);
  }
};

} // namespace

TEST_CASE(
  "one thread, threads, tasks and coroutines of the caller do what the blocking runner does") {
  check_all_ways<pp::communicators::per_pair>(pp::make_timetable<pp::OneFOneB>({4, 6}));
  check_all_ways<pp::communicators::one>(pp::make_timetable<pp::Interleaved<2>>({3, 6}));
  check_all_ways<pp::communicators::per_edge>(pp::make_timetable<pp::VHalf>({4, 5}));
  check_all_ways<pp::communicators::per_pair>(pp::make_timetable<pp::DualPipeV<>>({2, 5}));
  check_all_ways<pp::communicators::per_pair>(pp::make_timetable<pp::Seq1F1B<3>>({3, 4}));
  check_all_ways<pp::communicators::one>(pp::make_timetable<pp::ZeroBubbleH2>({5, 9}));
  check_all_ways<pp::communicators::per_pair>(pp::make_timetable<pp::GPipe>({1, 3}));
}

TEST_CASE("totals, tied weights, clipping, further plans and early steps, too") {
  std::mt19937 chance(4);
  auto const table = pp::make_timetable<pp::ZeroBubbleH2>({4, 6});
  for (way const how : all_ways) {
    CAPTURE(static_cast<int>(how));
    auto expected = support::untrained(4, 64);
    auto stages = support::early_training_model(4);
    auto plans = pp::lower_post_validated(table, support::training_sizes);
    pp::called_runner runner(plans.first, stages);
    auto const numbers = pp::post_validated_steps(runner).add(std::move(plans));
    //! What post_validated_steps asks of a runner.
    struct {
      pp::called_runner<decltype(stages)>& runner;
      way how;
      std::mt19937& chance;
      void step(pp::plan_number which) { run_step(runner, 4, how, chance, which); }
      [[nodiscard]] bool begins_again() const { return runner.begins_again(); }
    } stepped{runner, how, chance};
    pp::post_validated_steps early(stepped);
    for (int step = 0; step < 24; ++step) {
      early.step(numbers);
      support::train_planted(expected, 6, step, 1);
    }
    early.finish();
    for (std::size_t s = 0; s < stages.size(); ++s)
      CHECK(support::same_bits(stages[s].numbers, expected[s]));
    CHECK(early.repeated() > 0);
    CHECK(runner.totals().rows == 4);
  }
}

TEST_CASE("what a stage throws ends the step on all devices, and the next one is whole") {
  auto const table = pp::make_timetable<pp::OneFOneB>({4, 6});
  std::mt19937 chance(5);
  for (way const how : all_ways) {
    CAPTURE(static_cast<int>(how));
    std::vector<throwing_stage> stages(4);
    pp::called_runner runner(pp::lower(table, words), stages);
    stages[2].throws_at = 3;
    CHECK(support::thrown_by([&] { run_step(runner, 4, how, chance); }) ==
          "run: device 2 failed in the forward of stage 2, microbatch 3: out of luck");
    stages[2].throws_at = -1;
    for (auto& stage : stages)
      static_cast<support::arithmetic_stage&>(stage) = {};
    auto blocking = std::vector<support::arithmetic_stage>(4);
    run_step(runner, 4, how, chance);
    pp::run(pp::lower(table, words), blocking);
    for (std::size_t s = 0; s < 4; ++s)
      CHECK(stages[s].gradient == blocking[s].gradient);
  }
}

TEST_CASE("calls out of turn are refused in a sentence") {
  auto const table = pp::make_timetable<pp::OneFOneB>({2, 3});
  model stages(2);
  pp::called_runner runner(pp::lower(table, words), stages);
  CHECK(support::thrown_by([&] { (void)runner.poll(0); }) ==
        "run: no step has begun; call begin_step() before poll()");
  runner.begin_step();
  std::string const open = "run: a step is not finished; call finish_step() first";
  CHECK(support::thrown_by([&] { runner.begin_step(); }) == open);
  CHECK(support::thrown_by([&] { (void)runner.add(pp::lower(table, words)); }) == open);
  CHECK(support::thrown_by([&] { runner.reserve(pp::lower(table, words)); }) == open);
  CHECK(!runner.poll(0));
  CHECK(support::thrown_by([&] { runner.finish_step(); }) ==
        "run: device 0 has not ended its program; poll it until it has");
  CHECK_THROWS_AS((void)runner.poll(2), std::out_of_range);
  while (!runner.poll()) {
  }
  CHECK(runner.poll(1)); // it has ended
  runner.finish_step();
  runner.step();
}

TEST_CASE("two threads at one device are told so") {
  struct slow_stage : support::arithmetic_stage {
    std::atomic<bool>* entered = nullptr;
    std::atomic<bool>* go_on = nullptr;
    void forward(pp::context const& where, pp::input in, pp::output out) {
      entered->store(true);
      entered->notify_all();
      go_on->wait(false);
      support::arithmetic_stage::forward(where, in, out);
    }
  };
  std::atomic<bool> entered = false, go_on = false;
  std::vector<slow_stage> stages(1);
  stages[0].entered = &entered;
  stages[0].go_on = &go_on;
  pp::called_runner runner(pp::lower(pp::make_timetable<pp::GPipe>({1, 2}), words), stages);
  runner.begin_step();
  std::thread first([&] { CHECK(runner.poll(0)); });
  entered.wait(false);
  CHECK(support::thrown_by([&] { (void)runner.poll(0); }) ==
        "run: two threads are at device 0; each device has one at a time");
  go_on.store(true);
  go_on.notify_all();
  first.join();
  runner.finish_step();
}

TEST_CASE("a device that nobody runs ends the wait of the others") {
  model stages(2);
  pp::called_runner runner(pp::lower(pp::make_timetable<pp::OneFOneB>({2, 3}), words),
                           stages,
                           {.deadline = std::chrono::milliseconds(100)});
  runner.begin_step();
  runner.run_device(0);
  std::string const text = support::thrown_by([&] { runner.finish_step(); });
  CHECK(text.starts_with("run: no progress before the deadline; does a thread run every device?\n"
                         "  device 0 waits for device 1: "));
  CHECK(text.ends_with("\n  device 1 could go on, but no thread runs it"));
  runner.step();
}

TEST_CASE("a device that is polled in vain is no progress") {
  model stages(3);
  pp::called_runner runner(pp::lower(pp::make_timetable<pp::OneFOneB>({3, 3}), words),
                           stages,
                           {.deadline = std::chrono::milliseconds(100)});
  runner.begin_step();
  std::atomic<bool> ended = false;
  std::thread waits([&] {
    runner.run_device(1);
    ended = true;
  });
  auto const limit = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (!ended && std::chrono::steady_clock::now() < limit)
    (void)runner.poll(0);
  CHECK(ended);
  while (!ended) {
    (void)runner.poll(0);
    (void)runner.poll(2);
  }
  waits.join();
  CHECK(support::thrown_by([&] {
          runner.finish_step();
        }).starts_with("run: no progress before the deadline; does a thread run every device?\n"));
}
