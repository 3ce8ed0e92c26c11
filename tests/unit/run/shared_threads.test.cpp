// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Fewer threads than devices.
#include <pipe/plan/lower.hpp>
#include <pipe/run/guards.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <tests/support/arithmetic_stage.hpp>
#include <tests/support/sizes.hpp>
#include <thread>
#include <utility>
#include <vector>

namespace pp = pipelining;

namespace {

//! Notes the threads that call it, and gives way or sleeps by chance.
struct delayed_stage : support::arithmetic_stage {
  std::set<std::thread::id> callers{};
  std::uint64_t chance = 1;
  bool delays = false;

  void pause() {
    callers.insert(std::this_thread::get_id());
    chance = chance * 6364136223846793005U + 1442695040888963407U;
    if (delays && chance >> 62 == 0)
      std::this_thread::yield();
    if (delays && chance >> 59 == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  void forward(pp::context const& where, pp::input in, pp::output out) {
    pause();
    support::arithmetic_stage::forward(where, in, out);
  }
  void backward(pp::context const& where, pp::input in, pp::output out) {
    pause();
    support::arithmetic_stage::backward(where, in, out);
  }
  void backward_input(pp::context const& where, pp::input in, pp::output out) {
    pause();
    support::arithmetic_stage::backward_input(where, in, out);
  }
  void backward_weight(pp::context const& where) {
    pause();
    support::arithmetic_stage::backward_weight(where);
  }
};

template <class Stage>
std::vector<Stage> make_model(pp::shape const& over) {
  std::vector<Stage> model(static_cast<std::size_t>(over.stages()));
  for (std::size_t s = 0; s < model.size(); ++s) {
    model[s].weight = s + 3;
    model[s].chunks = over.chunks;
  }
  return model;
}

template <class Policy>
void check_steps(pp::timetable_view table, int threads, bool delays) {
  pp::shape const& over = table.over.extents;
  auto model = make_model<delayed_stage>(over);
  for (std::size_t s = 0; s < model.size(); ++s) {
    model[s].delays = delays;
    model[s].chance = s;
  }
  pp::thread_runner runner(
    pp::lower<Policy>(table, support::words), model, {.guarded = !delays, .count = threads});
  int const steps = delays ? 8 : 3;
  for (int step = 0; step < steps; ++step) {
    runner.step();
    CHECK(pp::verify(runner.trace()));
  }
  auto const expected = support::run_sequentially(over.stages(), over.microbatches, over.chunks);
  std::set<std::thread::id> all;
  for (std::size_t s = 0; s < model.size(); ++s) {
    CHECK(model[s].gradient == steps * expected.gradients[s]);
    if (threads > 0)
      CHECK(model[s].callers.size() == 1);
    all.insert(model[s].callers.begin(), model[s].callers.end());
  }
  CHECK(model.back().losses == steps * expected.losses);
  if (threads > 0)
    CHECK(all.size() == static_cast<std::size_t>(std::min(threads, over.devices)));
}

template <class Schedule, class Policy = pp::communicators::per_pair>
void check_counts(pp::pipeline_size size) {
  auto const table = pp::make_timetable<Schedule>(size);
  for (int const threads : {0, 1, 2, 3, 100})
    for (bool const delays : {false, true}) {
      CAPTURE(threads);
      CAPTURE(delays);
      check_steps<Policy>(table, threads, delays);
    }
}

} // namespace

TEST_CASE("any number of threads computes what one device computes: one stage per device") {
  for (pp::pipeline_size const size : {pp::pipeline_size{4, 7}, {5, 3}, {8, 16}}) {
    check_counts<pp::GPipe>(size);
    check_counts<pp::OneFOneB>(size);
    check_counts<pp::OneFOneB, pp::communicators::one>(size);
    check_counts<pp::Seq1F1B<3>>(size);
    check_counts<pp::ZeroBubbleH1, pp::communicators::per_edge>(size);
  }
}
TEST_CASE("any number of threads computes what one device computes: several stages per device") {
  check_counts<pp::Interleaved<2>>({4, 8});
  check_counts<pp::VHalf>({4, 6});
  check_counts<pp::VHalf, pp::communicators::one>({5, 7});
}

namespace {

struct failing_shared_stage : support::arithmetic_stage {
  bool fails = false;
  void forward(pp::context const& where, pp::input in, pp::output out) {
    if (fails && where.microbatch == 3)
      throw std::domain_error("loss is not a number");
    support::arithmetic_stage::forward(where, in, out);
  }
};

} // namespace

TEST_CASE("an exception ends the step on all devices, whoever shares a thread with it") {
  auto const table = pp::make_timetable<pp::OneFOneB>({5, 6});
  for (int const threads : {0, 1, 2, 3})
    for (std::size_t culprit = 0; culprit < 5; ++culprit) {
      auto model = make_model<failing_shared_stage>(table.over.extents);
      pp::thread_runner runner(pp::lower(table, support::words), model, {.count = threads});
      for (int attempt = 0; attempt < 2; ++attempt) {
        model[culprit].fails = true;
        std::string const number = std::to_string(culprit);
        std::string const text = "run: device " + number + " failed in the forward of stage " +
                                 number + ", microbatch 3: loss is not a number";
        CHECK_THROWS_WITH_AS(runner.step(), text.c_str(), pp::run_error);
        for (failing_shared_stage& stage : model) {
          stage.gradient = 0;
          stage.fails = false;
        }
        CHECK_NOTHROW(runner.step());
        CHECK(model[0].gradient == support::run_sequentially(5, 6, 1).gradients[0]);
      }
    }
}

TEST_CASE("a stage that hangs is named, and so is a device that it holds up") {
  for (int const threads : {0, 1, 2, 3}) {
    CAPTURE(threads);
    std::atomic<bool> release = false;
    auto model = make_model<support::stalling_stage>({.devices = 5, .microbatches = 4});
    model[1].release = &release;
    pp::thread_runner runner(pp::lower(pp::make_timetable<pp::OneFOneB>({5, 4}), support::words),
                             model,
                             {.deadline = std::chrono::milliseconds(60), .count = threads});
    std::string text;
    try {
      runner.step();
    } catch (pp::run_error const& error) {
      text = error.what();
      CHECK(error.device() == 1);
    }
    CAPTURE(text);
    CHECK(text.starts_with("run: no progress before the deadline: device 1 is not back from the "
                           "forward of stage 1, microbatch 0\n"));
    bool const shares = threads == 1 || threads == 2; // with device 2
    CHECK((text.find("device 2 waits for device 1: receive") != std::string::npos) == !shares);
    CHECK((text.find("device 2 could go on, but its thread runs another one") !=
           std::string::npos) == shares);
    release = true;
    for (bool whole = false; !whole;) {
      try {
        runner.step();
        whole = true;
      } catch (pp::run_error const&) {
        std::this_thread::yield();
      }
    }
  }
}

namespace {

//! Two passes of neighbours that wait until both have begun.
struct meeting_stage : support::arithmetic_stage {
  std::atomic<int>* begun = nullptr;
  int step = 0;
  void forward(pp::context const& where, pp::input in, pp::output out) {
    bool const meets = where.stage + where.microbatch == 1 && where.stage < 2;
    if (meets) {
      ++step;
      begun->fetch_add(1);
      while (begun->load() < 2 * step)
        std::this_thread::yield();
    }
    support::arithmetic_stage::forward(where, in, out);
  }
};

} // namespace

TEST_CASE("passes of neighbours may wait for each other, whatever the number of cores") {
  int const cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  int const devices = cores + 2; // the first two would share a thread
  auto const table = pp::make_timetable<pp::OneFOneB>({devices, 6});
  std::atomic<int> begun = 0;
  auto model = make_model<meeting_stage>(table.over.extents);
  for (meeting_stage& stage : model)
    stage.begun = &begun;
  pp::thread_runner runner(
    pp::lower(table, support::words), model, {.deadline = std::chrono::seconds(20)});
  int const steps = 20;
  for (int step = 0; step < steps; ++step)
    REQUIRE_NOTHROW(runner.step());
  auto const expected = support::run_sequentially(devices, 6, 1);
  CHECK(model[0].gradient == steps * expected.gradients[0]);
  CHECK(begun == 2 * steps);
}

TEST_CASE("a thread that devices share starts once, with its own number") {
  auto const table = pp::make_timetable<pp::OneFOneB>({5, 2});
  for (int const count : {0, 2, 5, 9}) {
    std::mutex lock;
    std::set<std::pair<int, int>> started;
    auto model = make_model<delayed_stage>(table.over.extents);
    pp::thread_runner runner(pp::lower(table, support::words),
                             model,
                             {.on_start =
                                [&](int thread, int threads) {
                                  std::lock_guard const held(lock);
                                  CHECK(started.emplace(thread, threads).second);
                                },
                              .count = count});
    int const threads = count == 2 ? 2 : 5;
    CHECK(started.size() == static_cast<std::size_t>(threads));
    for (int thread = 0; thread < threads; ++thread)
      CHECK(started.contains({thread, threads}));
    runner.step();
    for (delayed_stage const& stage : model)
      CHECK(stage.callers.size() == 1); // whoever prepares a thread keeps it
  }
  std::vector<support::arithmetic_stage> model(5);
  CHECK_THROWS_WITH_AS(
    pp::thread_runner(pp::lower(table, support::words), model, {.count = -1}),
    "run: thread_options::count is -1; give the number of threads, or 0, and the "
    "runner chooses",
    std::invalid_argument);
}
