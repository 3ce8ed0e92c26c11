// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Views of slots that stages keep from step to step.
#include <pipe/plan/lower.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <tests/support/arithmetic_stage.hpp>
#include <thread>
#include <vector>

namespace pp = pipelining;

namespace {

//! Keeps the addresses of its activations, as engines do whose tensors look into slots.
struct viewing_stage : support::arithmetic_stage {
  std::set<std::byte*> kept{};
  std::vector<std::array<int, 2>> told{}; // device and stage
  std::set<std::thread::id> by{};
  bool throws = false;
  std::atomic<bool>* go_on = nullptr;

  void forward(pp::context const& where, pp::input in, pp::output out) {
    kept.insert(where.activation.data);
    support::arithmetic_stage::forward(where, in, out);
  }
  void backward(pp::context const& where, pp::input in, pp::output out) {
    by.insert(std::this_thread::get_id());
    support::arithmetic_stage::backward(where, in, out);
  }
  void memory_moved(pp::context const& where) {
    kept.clear();
    told.push_back({where.device, where.stage});
    by.insert(std::this_thread::get_id());
    if (go_on != nullptr)
      go_on->wait(false);
    if (throws)
      throw std::runtime_error("views are pinned");
  }
};

pp::plan plan_of(int microbatches, std::int64_t message = 4096) {
  return pp::lower(pp::make_timetable<pp::GPipe>({2, microbatches}),
                   pp::uniform_sizes{.message = message, .activation = 4096});
}

} // namespace

TEST_CASE("memory that was reserved does not move, and stages are told of nothing") {
  for (bool const by_bytes : {false, true}) {
    std::vector<viewing_stage> model(2);
    pp::thread_runner runner(plan_of(4), model);
    auto const large = plan_of(16);
    if (by_bytes)
      runner.reserve(std::max(large.arena_bytes[0], large.arena_bytes[1]));
    else
      runner.reserve(large);
    runner.step();
    for (auto& stage : model) {
      CHECK(stage.told.size() == 1); // it has moved before the first step
      stage.told.clear();
    }
    auto const before = model[0].kept;
    CHECK(before.size() == 4);
    auto const number = runner.add(large);
    runner.step();
    CHECK(model[0].kept == before);
    runner.step(number);
    CHECK(model[0].told.empty());
    CHECK(model[1].told.empty());
  }
}

TEST_CASE(
  "stages are told once, by the thread of their device, before a step in memory that moved") {
  std::vector<viewing_stage> model(2);
  pp::thread_runner runner(plan_of(4), model);
  runner.step();
  CHECK(model[0].told.empty());
  CHECK(model[1].told.empty());
  auto const before = model[0].kept;
  auto const number = runner.add(plan_of(16));
  runner.step();
  for (std::byte* const each : model[0].kept)
    CHECK(before.count(each) == 0);
  runner.step(number);
  (void)runner.add(plan_of(3));
  runner.step();
  for (int stage = 0; stage < 2; ++stage) {
    auto const& each = model[static_cast<std::size_t>(stage)];
    CHECK(each.told == std::vector<std::array<int, 2>>{{stage, stage}});
    CHECK(each.by.size() == 1);
  }
}

TEST_CASE("a stage that cannot follow its memory ends the step that would use it") {
  std::vector<viewing_stage> model(2);
  pp::thread_runner runner(plan_of(4), model);
  runner.step();
  runner.reserve(plan_of(16));
  model[1].throws = true;
  for (int i = 0; i < 2; ++i)
    CHECK_THROWS_WITH_AS(
      runner.step(), "run: device 1 failed in memory_moved: views are pinned", pp::run_error);
  model[1].throws = false;
  runner.step();
  CHECK(model[1].told.size() == 3);
}

TEST_CASE("a stage that does not come back from memory_moved is named") {
  std::atomic<bool> go_on = false;
  std::vector<viewing_stage> model(2);
  pp::thread_runner runner(plan_of(4), model, {.deadline = std::chrono::milliseconds(100)});
  runner.step();
  runner.reserve(plan_of(16));
  model[1].go_on = &go_on;
  CHECK_THROWS_WITH_AS(
    runner.step(),
    "run: no progress before the deadline: device 1 is not back from memory_moved",
    pp::run_error);
  CHECK_THROWS_WITH_AS(runner.step(),
                       "run: a stage of an earlier step has not returned yet, on device 1; nothing "
                       "can run before it does",
                       pp::run_error);
  go_on = true;
  go_on.notify_all();
  for (bool ended = false; !ended;)
    try {
      runner.step();
      ended = true;
    } catch (pp::run_error const&) { // not back yet
    }
  CHECK(model[1].told.size() == 2);
}
