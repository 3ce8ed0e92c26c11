// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Plans in tasks of oneTBB, whose threads the engine owns.
#include <pipe/plan/lower.hpp>
#include <pipe/plan/other_plans.hpp>
#include <pipe/run/called_runner.hpp>
#include <pipe/run/post_validated.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <functional>
#include <oneapi/tbb/concurrent_queue.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/task_group.h>
#include <tests/support/arithmetic_stage.hpp>
#include <tests/support/early_training.hpp>
#include <tests/support/sizes.hpp>
#include <tests/support/training.hpp>
#include <utility>
#include <vector>

namespace pp = pipelining;

namespace {

//! More threads than cores, too.
tbb::global_control const threads_at_most(tbb::global_control::max_allowed_parallelism, 4);

//! One step. A task polls the device that has waited longest: tbb's own order is last in, first
//! out, and a single thread would poll one device for ever.
template <class Runner>
void run_step(Runner& runner, int devices, tbb::task_arena& arena, pp::plan_number which = {}) {
  runner.begin_step(which);
  tbb::concurrent_queue<int> waiting;
  for (int d = 0; d < devices; ++d)
    waiting.push(d);
  tbb::task_group tasks;
  std::function<void()> const go = [&] {
    int device = 0;
    if (!waiting.try_pop(device) || runner.poll(device))
      return;
    waiting.push(device);
    tasks.run(go);
  };
  arena.execute([&] {
    for (int d = 0; d < devices; ++d)
      tasks.run(go);
    tasks.wait();
  });
  runner.finish_step();
}

void check(pp::timetable_view table) {
  using model = std::vector<support::arithmetic_stage>;
  model first(static_cast<std::size_t>(table.over.extents.stages()));
  for (std::size_t s = 0; s < first.size(); ++s)
    first[s].weight = s + 3;
  for (int const threads : {1, 2, 4}) {
    CAPTURE(threads);
    tbb::task_arena arena(threads);
    model blocking = first, called = first;
    pp::thread_runner expected(pp::lower(table, support::words), blocking);
    pp::called_runner runner(pp::lower(table, support::words), called, {.guarded = true});
    for (int step = 0; step < 3; ++step) {
      expected.step();
      run_step(runner, table.over.extents.devices, arena);
      for (std::size_t s = 0; s < called.size(); ++s) {
        CHECK(called[s].gradient == blocking[s].gradient);
        CHECK(called[s].losses == blocking[s].losses);
        CHECK(called[s].calls == blocking[s].calls);
      }
    }
    CHECK(runner.trace().passes == expected.trace().passes);
  }
}

} // namespace

TEST_CASE("tasks of tbb do what the blocking runner does") {
  check(pp::make_timetable<pp::OneFOneB>({4, 6}));
  check(pp::make_timetable<pp::Interleaved<2>>({3, 6}));
  check(pp::make_timetable<pp::VHalf>({4, 5}));
  check(pp::make_timetable<pp::DualPipeV<>>({2, 5}));
  check(pp::make_timetable<pp::ZeroBubbleH2>({5, 9}));
}

TEST_CASE("tasks of tbb train with totals, clipping and early steps to the same bits") {
  for (int const threads : {1, 3}) {
    CAPTURE(threads);
    tbb::task_arena arena(threads);
    auto expected = support::untrained(4, 64);
    auto stages = support::early_training_model(4);
    auto plans = pp::lower_post_validated(pp::make_timetable<pp::ZeroBubbleH2>({4, 6}),
                                          support::training_sizes);
    pp::called_runner runner(plans.first, stages);
    auto const numbers = pp::post_validated_steps(runner).add(std::move(plans));
    struct {
      pp::called_runner<decltype(stages)>& runner;
      tbb::task_arena& arena;
      void step(pp::plan_number which) { run_step(runner, 4, arena, which); }
      [[nodiscard]] bool begins_again() const { return runner.begins_again(); }
    } stepped{runner, arena};
    pp::post_validated_steps early(stepped);
    for (int step = 0; step < 24; ++step) {
      early.step(numbers);
      support::train_planted(expected, 6, step, 1);
    }
    early.finish();
    for (std::size_t s = 0; s < stages.size(); ++s)
      CHECK(support::same_bits(stages[s].numbers, expected[s]));
    CHECK(early.repeated() > 0);
  }
}
