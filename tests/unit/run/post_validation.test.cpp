// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Optimizer's steps that are taken early and validated in the iteration that follows, on threads.
#include <pipe/plan/lower.hpp>
#include <pipe/plan/other_plans.hpp>
#include <pipe/run/post_validated.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <map>
#include <stdexcept>
#include <tests/support/early_training.hpp>
#include <tests/support/sizes.hpp>
#include <utility>
#include <vector>

namespace pp = pipelining;

namespace {

using support::training_sizes;

struct counts {
  int rolled_back = 0;
  int made_up = 0;
  long repeated = 0;
  int differ = 0; // stages, of those that were looked at
};

//! Trains early and validates, and compares every bit with one device, now and then and at the end.
template <class Policy, class Model>
counts train(pp::timetable_view table, Model& model, int steps, pp::thread_options options = {}) {
  int const stages = table.over.extents.stages();
  auto expected = support::untrained(stages, model[0].numbers.scale);
  auto plans = pp::lower_post_validated<Policy>(table, training_sizes);
  pp::thread_runner runner(plans.first, model, std::move(options));
  pp::post_validated_steps early(runner);
  auto const numbers = early.add(std::move(plans));
  counts all;
  for (int step = 0; step < steps; ++step) {
    early.step(numbers);
    support::train_planted(expected, table.over.extents.microbatches, step, 1);
    if (step % 5 != 3 && step + 1 != steps)
      continue;
    early.finish();
    for (std::size_t s = 0; s < model.size(); ++s)
      all.differ += support::same_bits(model[s].numbers, expected[s]) ? 0 : 1;
  }
  all.repeated = early.repeated();
  for (auto const& stage : model) {
    all.rolled_back += stage.rolled_back;
    all.made_up += stage.made_up;
    CHECK(stage.rolled_back + stage.made_up == early.corrected());
  }
  return all;
}

template <class Policy>
counts check_training(pp::timetable_view table) {
  auto model = support::early_training_model(table.over.extents.stages());
  auto const all = train<Policy>(table, model, 24);
  CHECK(all.differ == 0);
  return all;
}

} // namespace

TEST_CASE("steps that are validated afterwards leave the bits of steps that wait") {
  counts all;
  for (int const devices : {1, 2, 3, 4})
    for (int const microbatches : {1, 6}) {
      CAPTURE(devices);
      CAPTURE(microbatches);
      for (counts const& each : {check_training<pp::communicators::per_pair>(
                                   pp::make_timetable<pp::OneFOneB>({devices, microbatches})),
                                 check_training<pp::communicators::per_edge>(
                                   pp::make_timetable<pp::Interleaved<2>>({devices, microbatches})),
                                 check_training<pp::communicators::one>(
                                   pp::make_timetable<pp::ZeroBubbleH2>({devices, microbatches})),
                                 check_training<pp::communicators::per_edge>(
                                   pp::make_timetable<pp::VHalf>({devices, microbatches}))}) {
        all.rolled_back += each.rolled_back;
        all.made_up += each.made_up;
        all.repeated += each.repeated;
      }
    }
  // Some devices step and must undo it, others know at once, and iterations begin again.
  CHECK(all.rolled_back > 100);
  CHECK(all.made_up > 100);
  CHECK(all.repeated > 50);
}

TEST_CASE("in the checked mode too") {
  auto model = support::early_training_model(3);
  auto const all = train<pp::communicators::per_pair>(
    pp::make_timetable<pp::OneFOneB>({3, 5}), model, 12, {.guarded = true});
  CHECK(all.differ == 0);
  CHECK(all.rolled_back > 0);
}

namespace {

//! A stage that hands on what a forward pass has made before its weights were rolled back.
struct stage_that_runs_nothing_again : support::early_training_stage {
  struct made {
    float kept, out;
  };
  std::map<int, made> before_rollback;
  bool repeats = false;

  void forward(pp::context const& where, pp::input in, pp::output out) {
    auto const found = before_rollback.find(where.microbatch);
    if (repeats && found != before_rollback.end()) {
      where.activation.as<float>()[0] = found->second.kept;
      if (out.slot >= 0)
        out.as<float>()[0] = found->second.out;
      return;
    }
    early_training_stage::forward(where, in, out);
    before_rollback[where.microbatch] = {where.activation.as<float>()[0],
                                         out.slot < 0 ? 0.0F : out.as<float>()[0]};
  }
  void roll_back(pp::context const& where, bool undo) {
    early_training_stage::roll_back(where, undo);
    repeats = true;
  }
  void gradients_ready(pp::context const& where) {
    early_training_stage::gradients_ready(where);
    repeats = false;
    before_rollback.clear();
  }
};

} // namespace

TEST_CASE(
  "a device that does not roll back, or keeps what it made with wrong weights, is found out") {
  auto const table = pp::make_timetable<pp::ZeroBubbleH2>({3, 6});
  auto model = support::early_training_model(3);
  model[1].forgets_to_roll_back = true;
  CHECK(train<pp::communicators::per_pair>(table, model, 14).differ > 0);
  std::vector<stage_that_runs_nothing_again> lazy(3);
  for (std::size_t s = 0; s < lazy.size(); ++s) {
    lazy[s].numbers = support::untrained(3, 64)[s];
    lazy[s].last_stage = 2;
  }
  CHECK(train<pp::communicators::per_pair>(table, lazy, 14).differ > 0);
}

TEST_CASE("a program that zeroes gradients before every step has the bits of steps that wait") {
  int corrected_in_part = 0;
  int rolled_back = 0;
  int made_up = 0;
  for (float const clip : {1e6F, 8.0F, 4.0F, 3.0F, 2.0F, 1.0F, 0.25F})
    for (int const devices : {1, 2, 4}) {
      CAPTURE(clip);
      CAPTURE(devices);
      auto const table = pp::make_timetable<pp::ZeroBubbleH2>({devices, 5});
      int const iterations = 6;
      auto expected = support::zeroed_by_the_program(devices, clip);
      pp::thread_runner waits(pp::lower(table, training_sizes), expected);
      auto model = support::zeroed_by_the_program(devices, clip);
      auto plans = pp::lower_post_validated(table, training_sizes);
      pp::thread_runner runner(plans.first, model);
      pp::post_validated_steps early(runner);
      auto const numbers = early.add(std::move(plans));
      for (int iteration = 0; iteration < iterations; ++iteration) {
        for (auto& stage : expected)
          support::zero(stage.numbers);
        waits.step();
        for (auto& stage : model)
          support::zero(stage.numbers);
        early.step(numbers);
      }
      early.finish();
      // The last gradients and loss are still there, for a program that logs them.
      for (std::size_t s = 0; s < model.size(); ++s) {
        CHECK(support::same_bits(model[s].numbers, expected[s].numbers));
        rolled_back += model[s].rolled_back;
        made_up += model[s].made_up;
      }
      corrected_in_part += early.corrected() > 0 && early.corrected() < iterations ? 1 : 0;
    }
  CHECK(corrected_in_part > 0);
  CHECK(rolled_back > 0);
  CHECK(made_up > 0);
}

TEST_CASE("nobody sees weights that are not validated, and rows survive plans that are added") {
  auto const table = pp::make_timetable<pp::OneFOneB>({3, 4});
  auto const more = pp::make_timetable<pp::OneFOneB>({3, 9});
  auto model = support::early_training_model(3);
  auto expected = support::untrained(3, 64);
  auto plans = pp::lower_post_validated(table, training_sizes);
  pp::thread_runner runner(plans.first, model);
  auto const numbers = pp::post_validated_steps(runner).add(std::move(plans));
  auto const evaluation = runner.add(pp::lower_evaluation(table, training_sizes));
  auto const steady_first =
    "run: this plan validates an optimizer's step of the iteration before, but the last step that "
    "came to its end took none early, or has rows of another size; run the plan that was lowered "
    "with step_validation::next";
  CHECK_THROWS_WITH_AS(runner.step(numbers.steady), steady_first, std::invalid_argument);
  pp::post_validated_steps early(runner);
  for (int step = 0; step < 3; ++step) // the third overflows at the last stage
    early.step(numbers);
  auto const not_yet =
    "run: the optimizer's step of the iteration before is not validated yet, and this plan would "
    "not do it; run the plan that was lowered with step_validation::last before it";
  CHECK_THROWS_WITH_AS(runner.step(evaluation), not_yet, std::invalid_argument);
  CHECK_THROWS_WITH_AS(runner.step(numbers.first), not_yet, std::invalid_argument);
  // The rows of the whole model are there, on the device that has them.
  CHECK(runner.totals().row<support::training_row>(2)[0].overflow == 1);
  // Plans of another size follow without a `finish`, though their memory is laid out anew.
  auto larger = pp::lower_post_validated(more, training_sizes);
  auto const first = runner.add(larger.first);
  auto const others = early.add(std::move(larger), first);
  early.step(others);
  CHECK(early.repeated() == 1);
  early.finish();
  early.finish(); // nothing is left to do
  support::train_planted(expected, 4, 0, 3);
  support::train_planted(expected, 9, 3, 1);
  for (std::size_t s = 0; s < model.size(); ++s)
    CHECK(support::same_bits(model[s].numbers, expected[s]));
  CHECK_NOTHROW(runner.step(evaluation));
}

namespace {
struct unforgiving_stage : support::training_stage {};
} // namespace

TEST_CASE("a stage that cannot undo its step is refused, and told what it lacks") {
  auto const table = pp::make_timetable<pp::OneFOneB>({2, 4});
  std::vector<unforgiving_stage> model(2);
  CHECK_THROWS_WITH_AS(
    pp::thread_runner(pp::lower_post_validated(table, training_sizes).first, model),
    "run: the sizes of the plan ask for a hook that stage 0 lacks; give it bool accepts(context "
    "const&, totals const&), roll_back(context const&, bool stepped) and begin_iteration(context "
    "const&) next to optimizer_step, or lower the plan with step_validation::at_once",
    std::invalid_argument);
  static_assert(pp::detail::can_step_early<support::early_training_stage>);
  static_assert(!pp::detail::can_step_early<unforgiving_stage>);
}

TEST_CASE("how it is run") {
  auto const table = pp::make_timetable<pp::ZeroBubbleH2>({3, 6});
  auto stages = support::early_training_model(3);
  int const iterations = 7;
  auto const sizes = training_sizes;
  // [snippet run]
  auto plans = pp::lower_post_validated(table, sizes);
  pp::thread_runner runner(plans.first, stages);
  pp::post_validated_steps steps(runner);
  auto const numbers = steps.add(std::move(plans));
  for (int iteration = 0; iteration < iterations; ++iteration)
    steps.step(numbers);
  steps.finish(); // the weights are those of all steps now
  // [snippet run]
  auto expected = support::untrained(3, 64);
  support::train_planted(expected, 6, 0, iterations);
  for (std::size_t s = 0; s < stages.size(); ++s)
    CHECK(support::same_bits(stages[s].numbers, expected[s]));
}
