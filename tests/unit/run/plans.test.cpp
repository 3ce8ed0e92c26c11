// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Several plans on one runner of threads.
#include <pipe/plan/lower.hpp>
#include <pipe/plan/other_plans.hpp>
#include <pipe/run/plan_cache.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <stdexcept>
#include <string>
#include <tests/support/arithmetic_stage.hpp>
#include <tests/support/sizes.hpp>
#include <tests/support/training.hpp>
#include <thread>
#include <utility>
#include <vector>

namespace pp = pipelining;

namespace {

using support::words;
constexpr pp::uniform_sizes wide{
  .message = 4096, .activation = 800, .weight_input = 80, .sequence = 8, .sequence_gradient = 8};

//! Knows its threads, and how often it was asked for what.
struct watched_stage : support::arithmetic_stage {
  std::set<std::thread::id> seen{};
  int evaluated = 0;
  void forward(pp::context const& where, pp::input in, pp::output out) {
    seen.insert(std::this_thread::get_id());
    chunks = where.extents.chunks;
    evaluated += where.evaluating ? 1 : 0;
    support::arithmetic_stage::forward(where, in, out);
  }
};

std::vector<watched_stage> make_model(int stages) {
  std::vector<watched_stage> model(static_cast<std::size_t>(stages));
  for (std::size_t s = 0; s < model.size(); ++s)
    model[s].weight = s + 3;
  return model;
}

//! Checks what has been added since the last look, and looks.
struct expectation {
  std::vector<watched_stage>& model;
  std::vector<std::uint64_t> gradients = std::vector<std::uint64_t>(model.size(), 0);
  std::uint64_t losses = 0;

  void trained(int microbatches, int chunks = 1) {
    auto const one =
      support::run_sequentially(static_cast<int>(model.size()), microbatches, chunks);
    for (std::size_t s = 0; s < model.size(); ++s)
      gradients[s] += one.gradients[s];
    losses += one.losses;
    check();
  }
  void evaluated(int microbatches) {
    losses += support::run_sequentially(static_cast<int>(model.size()), microbatches, 1).losses;
    check();
  }
  void check() const {
    for (std::size_t s = 0; s < model.size(); ++s)
      CHECK(model[s].gradient == gradients[s]);
    CHECK(model.back().losses == losses);
  }
};

} // namespace

TEST_CASE("plans of sizes that come back are run again, and few are kept") {
  auto model = make_model(3);
  int lowered = 0;
  auto const of_size = [&lowered](std::pair<int, int> const& size) {
    ++lowered;
    auto const [microbatches, chunks] = size;
    pp::uniform_sizes const& bytes = microbatches == 7 ? wide : words; // the memory must grow
    return chunks == 1 ? pp::lower(pp::make_timetable<pp::OneFOneB>({3, microbatches}), bytes)
                       : pp::lower(pp::make_timetable<pp::Seq1F1B<3>>({3, microbatches}), bytes);
  };
  pp::thread_runner runner(of_size({2, 1}), model);
  pp::plan_cache<std::pair<int, int>, pp::plan_number> cache(3);
  expectation expected{model};
  auto const step = [&](int microbatches, int chunks) {
    std::pair const size{microbatches, chunks};
    // [snippet sizes]
    // Asked for before each iteration. `instead` is a plan that is no longer kept.
    auto const number = cache.get(size, [&](pp::plan_number const* instead) {
      return instead == nullptr ? runner.add(of_size(size))
                                : runner.replace(*instead, of_size(size));
    });
    runner.step(number);
    // [snippet sizes]
    expected.trained(microbatches, chunks);
    CHECK(runner.trace().over.extents.microbatches == microbatches);
  };
  for (int epoch = 0; epoch < 3; ++epoch) // three sizes: each is made once
    for (int const microbatches : {4, 7, 5})
      step(microbatches, microbatches == 5 ? 3 : 1);
  CHECK(lowered == 1 + 3);
  CHECK(cache.made() == 3);
  CHECK(cache.reused() == 6);
  step(4, 1);
  step(6, 1); // takes the place of 7, which has not been asked for longest
  CHECK(cache.dropped() == 1);
  CHECK(cache.size() == 3);
  step(4, 1);
  step(5, 3);
  CHECK(cache.made() == 4);
  step(7, 1);
  step(6, 1);
  CHECK(lowered == 1 + 6);
  CHECK(cache.dropped() == 3);
  CHECK(runner.replace({0}, of_size({3, 1})) == pp::plan_number{0});
  runner.step();
  expected.trained(3);
  CHECK_THROWS_AS(runner.replace({9}, of_size({3, 1})), std::invalid_argument);
  CHECK_THROWS_WITH_AS((pp::plan_cache<int, int>(0)),
                       "run: a cache of plans needs room for one plan at least",
                       std::invalid_argument);
}

TEST_CASE("a plan that cannot be made leaves the others in the cache") {
  pp::plan_cache<int, int> cache(2);
  auto const same = [](int number) { return [number](int const*) { return number; }; };
  auto const failing = [](int const*) -> int { throw std::runtime_error("no"); };
  CHECK(cache.get(1, same(11)) == 11);
  CHECK_THROWS_AS(cache.get(2, failing), std::runtime_error);
  CHECK(cache.get(2, same(12)) == 12);
  CHECK_THROWS_AS(cache.get(3, failing), std::runtime_error); // in the place of 1
  CHECK(cache.get(2, failing) == 12);
  CHECK(cache.size() == 1);
  CHECK(cache.get(1, same(13)) == 13);
}

TEST_CASE("training, evaluation and other numbers of microbatches share threads and memory") {
  for (bool const guarded : {false, true})
    for (int const devices : {1, 2, 3}) {
      CAPTURE(devices);
      auto model = make_model(devices);
      auto const lowered = [&](int microbatches, pp::uniform_sizes const& sizes) {
        return pp::lower(pp::make_timetable<pp::OneFOneB>({devices, microbatches}), sizes);
      };
      pp::thread_runner runner(lowered(4, words), model, {.guarded = guarded, .count = devices});
      pp::plan_number const rest = runner.add(lowered(3, wide)); // the memory must grow
      pp::plan_number const evaluation =
        runner.add(pp::lower_evaluation(pp::make_timetable<pp::OneFOneB>({devices, 5}), words));
      pp::plan_number const halves =
        runner.add(pp::lower(pp::make_timetable<pp::ZeroBubbleH1>({devices, 6}), words));
      pp::plan_number const chunks =
        runner.add(pp::lower(pp::make_timetable<pp::Seq1F1B<3>>({devices, 2}), words));
      CHECK(rest.index == 1);
      expectation expected{model};
      for (int epoch = 0; epoch < 3; ++epoch) {
        runner.step();
        expected.trained(4);
        runner.step();
        expected.trained(4);
        runner.step(rest);
        expected.trained(3);
        CHECK(runner.trace().over.extents.microbatches == 3);
        CHECK(pp::verify(runner.trace()));
        runner.step(evaluation);
        expected.evaluated(5);
        runner.step(halves);
        expected.trained(6);
        runner.step(chunks);
        expected.trained(2, 3);
      }
      std::set<std::thread::id> all;
      for (watched_stage const& stage : model) {
        CHECK(stage.seen.size() == 1);
        all.insert(stage.seen.begin(), stage.seen.end());
        CHECK(stage.evaluated == 3 * 5);
      }
      CHECK(all.size() == model.size());
      CHECK(all.count(std::this_thread::get_id()) == 0);
    }
}

TEST_CASE("a plan may place the stages elsewhere") {
  auto model = make_model(4);
  pp::thread_runner runner(pp::lower(pp::make_timetable<pp::Interleaved<2>>({2, 4}), words), model);
  pp::plan_number const v = runner.add(pp::lower(pp::make_timetable<pp::VHalf>({2, 3}), words));
  expectation expected{model};
  runner.step();
  expected.trained(4);
  runner.step(v);
  expected.trained(3);
  runner.step();
  expected.trained(4);
}

namespace {

struct failing_evaluation_stage : watched_stage {
  int fails_at = -1;
  void forward(pp::context const& where, pp::input in, pp::output out) {
    if (where.evaluating && where.microbatch == fails_at)
      throw std::domain_error("no such word");
    watched_stage::forward(where, in, out);
  }
};

} // namespace

TEST_CASE("a failure in one plan leaves the others as they are") {
  std::vector<failing_evaluation_stage> model(3);
  for (std::size_t s = 0; s < model.size(); ++s)
    model[s].weight = s + 3;
  model[1].fails_at = 2;
  auto const table = pp::make_timetable<pp::OneFOneB>({3, 4});
  pp::thread_runner runner(pp::lower(table, words), model);
  pp::plan_number const evaluation = runner.add(pp::lower_evaluation(table, words));
  auto const once = support::run_sequentially(3, 4, 1);
  for (unsigned step = 1; step < 4; ++step) {
    runner.step();
    for (std::size_t s = 0; s < model.size(); ++s)
      CHECK(model[s].gradient == step * once.gradients[s]);
    CHECK_THROWS_WITH_AS(
      runner.step(evaluation),
      "run: device 1 failed in the forward of stage 1, microbatch 2: no such word",
      pp::run_error);
  }
  model[1].fails_at = -1;
  auto const before = model.back().losses;
  runner.step(evaluation);
  CHECK(model.back().losses == before + once.losses);
}

TEST_CASE("plans for other devices or stages are refused, and so are numbers of no plan") {
  auto model = make_model(4);
  pp::thread_runner runner(pp::lower(pp::make_timetable<pp::OneFOneB>({4, 4}), words), model);
  CHECK_THROWS_WITH_AS(runner.add(pp::lower(pp::make_timetable<pp::OneFOneB>({3, 4}))),
                       "run: the plans of a runner have the same devices and stages, but this one "
                       "has 3 devices instead of 4; make another runner for it",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(runner.add(pp::lower(pp::make_timetable<pp::VHalf>({4, 4}))),
                       "run: the plans of a runner have the same devices and stages, but this one "
                       "has 8 stages instead of 4; make another runner for it",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(runner.step({1}),
                       "run: this runner has no plan 1; it has 1, and add gives the numbers of "
                       "those after the first",
                       std::invalid_argument);
  CHECK_NOTHROW(runner.step());
}

TEST_CASE("an evaluation has totals, and the caller reads them") {
  for (int const devices : {1, 2, 3}) {
    auto const table = pp::make_timetable<pp::VHalf>({devices, 6});
    int const stages = table.over.extents.stages();
    auto model = support::training_model(stages);
    pp::thread_runner runner(pp::lower(table, support::training_sizes), model, {.guarded = true});
    CHECK(runner.totals().rows == 0); // nothing has run
    pp::plan_number const evaluation =
      runner.add(pp::lower_evaluation(table, support::training_sizes));
    pp::plan_number const silent =
      runner.add(pp::lower_evaluation(table, pp::uniform_sizes{.message = 4, .activation = 4}));
    runner.step(evaluation);
    REQUIRE(runner.totals().rows == stages);
    float loss = 0;
    for (int s = 0; s < stages; ++s)
      loss += runner.totals().row<support::training_row>(s)[0].loss;
    CHECK(loss == model.back().numbers.loss);
    CHECK(loss > 0);
    CHECK(model.front().stepped == 0); // the optimizer is asked for in training alone
    for (auto& stage : model)
      stage.numbers.loss = 0;
    runner.step();
    CHECK(runner.totals().row<support::training_row>(stages - 1)[0].loss == loss);
    CHECK(model.front().stepped == 1);
    runner.step(silent);
    CHECK(runner.totals().rows == 0);
  }
}

TEST_CASE(
  "threads begin with the caller's function, each for its device, and its failure is told") {
  std::vector<std::thread::id> started(3);
  auto model = make_model(3);
  pp::thread_runner runner(pp::lower(pp::make_timetable<pp::OneFOneB>({3, 2}), words),
                           model,
                           {.on_start = [&](int device, int) {
                             started[static_cast<std::size_t>(device)] = std::this_thread::get_id();
                           }});
  runner.step();
  for (std::size_t d = 0; d < 3; ++d)
    CHECK(model[d].seen == std::set<std::thread::id>{started[d]});
  auto const fail = [&] {
    pp::thread_runner refused(pp::lower(pp::make_timetable<pp::OneFOneB>({3, 2}), words),
                              model,
                              {.on_start = [](int device, int) {
                                if (device == 1)
                                  throw std::domain_error("no such core");
                              }});
  };
  CHECK_THROWS_WITH_AS(
    fail(), "run: device 1 failed in thread_options::on_start: no such core", pp::run_error);
}

TEST_CASE("threads that look for messages, and threads that sleep at once, come to the same") {
  for (auto const spin : {std::chrono::nanoseconds(0), std::chrono::nanoseconds(2000000)}) {
    auto model = make_model(2);
    pp::thread_runner runner(
      pp::lower(pp::make_timetable<pp::OneFOneB>({2, 8}), words), model, {.spin = spin});
    expectation expected{model};
    for (int step = 0; step < 20; ++step) {
      runner.step();
      expected.trained(8);
    }
  }
}
