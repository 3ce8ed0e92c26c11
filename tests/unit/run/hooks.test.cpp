// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Tied weights, totals and the optimizer's step on threads.
#include <pipe/plan/lower.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/chimera.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <tests/support/placements.hpp>
#include <tests/support/sizes.hpp>
#include <tests/support/training.hpp>
#include <tuple>
#include <vector>

namespace pp = pipelining;

namespace {

using support::training_sizes;

template <class Policy>
void check_training(pp::timetable_view table) {
  int const stages = table.over.extents.stages();
  int const steps = 9;
  auto expected = support::untrained(stages);
  support::train_sequentially(expected, table.over.extents.microbatches, steps);
  auto model = support::training_model(stages);
  pp::thread_runner runner(pp::lower<Policy>(table, training_sizes), model);
  for (int step = 0; step < steps; ++step)
    runner.step();
  for (std::size_t s = 0; s < model.size(); ++s) {
    CAPTURE(s);
    CHECK(support::same_bits(model[s].numbers, expected[s]));
    CHECK(model[s].announced == steps);
    CHECK(model[s].stepped == steps);
    CHECK(model[s].loss == model[0].loss);
  }
  CHECK(pp::verify(runner.trace())); // passes alone
  if (stages > 1)
    CHECK(model.front().numbers.shared == model.back().numbers.shared);
}

} // namespace

TEST_CASE("the reference trains: it overflows, recovers, and clips") {
  auto model = support::untrained(4);
  support::train_sequentially(model, 6, 9);
  CHECK(model[0].skipped > 0);
  CHECK(model[0].skipped < 6);
  for (support::trained const& stage : model) {
    CHECK(stage.skipped == model[0].skipped);
    CHECK(stage.scale == model[0].scale);
    CHECK(support::finite(stage.weight));
  }
  CHECK(model[0].clipped > 0);
  CHECK(model[0].weight != 0.75F);
  CHECK(model[0].shared != 0.875F);
  CHECK(model[0].shared == model[3].shared);
}

TEST_CASE("threads train as one device does, with tied weights, clipping and skipped steps") {
  for (int const devices : {1, 2, 3, 4})
    for (int const microbatches : {1, 6}) {
      CAPTURE(devices);
      CAPTURE(microbatches);
      check_training<pp::communicators::per_pair>(
        pp::make_timetable<pp::OneFOneB>({devices, microbatches}));
      check_training<pp::communicators::per_edge>(
        pp::make_timetable<pp::Interleaved<2>>({devices, microbatches}));
      check_training<pp::communicators::one>(
        pp::make_timetable<pp::ZeroBubbleH1>({devices, microbatches}));
      check_training<pp::communicators::per_edge>(
        pp::make_timetable<pp::VHalf>({devices, microbatches}));
    }
}

namespace {

//! Threads against one device that does the same additions.
template <class Policy>
void check_copies(pp::timetable_view table) {
  auto const stages = static_cast<std::size_t>(table.over.extents.stages());
  auto const devices = static_cast<std::size_t>(table.over.extents.devices);
  int const steps = 9;
  float const scale = 0x1p100F;
  support::trained_copies expected(devices, support::untrained(table.over.extents.stages(), scale));
  support::train_copies(table.over, expected, steps);
  std::vector<support::training_stage_by_device> model(stages);
  auto const fresh = support::training_model(table.over.extents.stages(), scale);
  for (std::size_t s = 0; s < stages; ++s)
    model[s].of.assign(devices, fresh[s]);
  pp::thread_runner runner(pp::lower<Policy>(table, training_sizes), model);
  for (int step = 0; step < steps; ++step)
    runner.step();
  for (std::size_t s = 0; s < stages; ++s) {
    support::training_stage const* first = nullptr;
    for (std::size_t d = 0; d < devices; ++d) {
      CAPTURE(s);
      CAPTURE(d);
      support::training_stage const& each = model[s].of[d];
      CHECK(support::same_bits(each.numbers, expected[d][s]));
      if (each.stepped == 0)
        continue;
      CHECK(each.stepped == steps);
      CHECK(each.announced == steps);
      first = first == nullptr ? &each : first;
      CHECK(support::same_bits(each.numbers, first->numbers)); // copies stay equal
    }
    REQUIRE(first != nullptr);
    CHECK(first->numbers.weight != fresh[s].numbers.weight);
  }
}

} // namespace

TEST_CASE(
  "threads train several copies of every stage as one device does that adds them in order") {
  for (int const devices : {2, 4, 6})
    for (int const microbatches : {2 * devices, 2 * devices + 4}) {
      CAPTURE(devices);
      CAPTURE(microbatches);
      check_copies<pp::communicators::per_pair>(
        pp::make_timetable<pp::DualPipe<>>({devices, microbatches}));
      check_copies<pp::communicators::per_edge>(
        pp::make_timetable<pp::Chimera>({devices, microbatches}));
      check_copies<pp::communicators::one>(
        pp::make_timetable<pp::BitPipe>({devices, microbatches}));
    }
}

TEST_CASE("ends on one device and a stage on two in turn train as one device does") {
  for (int const microbatches : {3, 6, 8}) {
    CAPTURE(microbatches);
    auto const together = pp::make_timetable<support::ends_together>({3, microbatches});
    check_training<pp::communicators::per_pair>(together);
    for (int const devices : {2, 3, 4})
      check_copies<pp::communicators::per_pair>(
        pp::make_timetable<support::second_in_turn>({devices, microbatches}));
    pp::plan const work = pp::lower(together, training_sizes);
    for (pp::item const& step : work.items)
      CHECK((step.what == pp::operation::run || step.about != pp::detail::subject::tied_gradient));
  }
}

TEST_CASE("one device hands the tied gradients over without a message") {
  auto const work =
    pp::lower(pp::make_timetable<pp::VHalf>({3, 4}), pp::uniform_sizes{.tied_bytes = 64});
  CHECK(work.other_messages == 0);
  CHECK(work.layout(0, pp::slot_class::tied_gradient).count == 2);
  CHECK(work.layout(1, pp::slot_class::tied_gradient).count == 0);
}

namespace {

struct no_hooks {
  void forward(pp::context const&, pp::input, pp::output) {}
  void backward(pp::context const&, pp::input, pp::output) {}
};
struct only_contributes : no_hooks {
  void contribute(pp::context const&, pp::output) {}
};
static_assert(pp::detail::can_tie<support::training_stage>);
static_assert(pp::detail::can_contribute<support::training_stage>);
static_assert(pp::detail::can_update<support::training_stage>);
static_assert(!pp::detail::can_tie<no_hooks> && !pp::detail::can_contribute<no_hooks> &&
              !pp::detail::can_update<no_hooks>);

} // namespace

TEST_CASE("a stage without a hook that the sizes ask for is refused, and told what it lacks") {
  auto const table = pp::make_timetable<pp::OneFOneB>({3, 2});
  std::vector<no_hooks> model(3);
  CHECK_NOTHROW(pp::run(pp::lower(table), model));
  CHECK_THROWS_WITH_AS(
    pp::run(pp::lower(table, pp::uniform_sizes{.tied_bytes = 8}), model),
    "run: the sizes of the plan ask for a hook that stage 0 lacks; give it tied_gradient(context "
    "const&, output) and add_tied(context const&, input first, input last), or leave tied_bytes "
    "at 0",
    std::invalid_argument);
  CHECK_THROWS_WITH_AS(
    pp::run(pp::lower(table, pp::uniform_sizes{.totals_bytes = 8}), model),
    "run: the sizes of the plan ask for a hook that stage 0 lacks; give it contribute(context "
    "const&, output), or leave totals_bytes at 0",
    std::invalid_argument);
  std::vector<only_contributes> half(3);
  CHECK_THROWS_WITH_AS(
    pp::run(pp::lower(table, pp::uniform_sizes{.totals_bytes = 8}), half),
    "run: the sizes of the plan ask for a hook that stage 0 lacks; give it optimizer_step(context "
    "const&, totals const&), or leave totals_bytes at 0",
    std::invalid_argument);
}

namespace {

//! Only the last stage has a loss, only the ends have the tied weight: stages of three types.
struct inner_stage : no_hooks {
  int steps = 0;
  float loss = 0;
  void contribute(pp::context const&, pp::output row) const { row.as<float>()[0] = 0; }
  void optimizer_step(pp::context const& where, pp::totals const& all) {
    ++steps;
    loss = all.row<float>(all.rows - 1)[0];
    CHECK(all.row<float>(where.stage)[0] == (where.stage + 1 == all.rows ? 7.5F : 0.0F));
  }
};
struct end_stage : inner_stage {
  int added = 0;
  void tied_gradient(pp::context const& where, pp::output out) const {
    out.as<float>()[0] = static_cast<float>(where.stage) + 1;
  }
  void add_tied(pp::context const&, pp::input first, pp::input last) {
    added += first.as<float>()[0] == 1 && last.as<float>()[0] == 3 ? 1 : 100;
  }
};
struct loss_stage : end_stage {
  void contribute(pp::context const&, pp::output row) const { row.as<float>()[0] = 7.5F; }
};

struct failing_optimizer : inner_stage {
  void optimizer_step(pp::context const& where, pp::totals const&) const {
    if (where.stage == 1)
      throw std::domain_error("no more memory for moments");
  }
};

} // namespace

TEST_CASE("the loss is where it is made, and the totals bring it to all stages") {
  std::tuple<end_stage, inner_stage, loss_stage> model;
  pp::thread_runner runner(pp::lower(pp::make_timetable<pp::OneFOneB>({3, 2}),
                                     pp::uniform_sizes{.tied_bytes = 4, .totals_bytes = 4}),
                           model);
  runner.step();
  runner.step();
  CHECK(std::get<0>(model).loss == 7.5F);
  CHECK(std::get<1>(model).loss == 7.5F);
  CHECK(std::get<2>(model).loss == 7.5F);
  CHECK(std::get<0>(model).added == 2);
  CHECK(std::get<2>(model).added == 2);
  CHECK(std::get<1>(model).steps == 2);
}

TEST_CASE("a hook that throws ends the step on all devices, by its name") {
  std::vector<failing_optimizer> model(3);
  pp::thread_runner runner(
    pp::lower(pp::make_timetable<pp::OneFOneB>({3, 2}), pp::uniform_sizes{.totals_bytes = 4}),
    model);
  CHECK_THROWS_WITH_AS(
    runner.step(),
    "run: device 1 failed in the optimizer step of stage 1: no more memory for moments",
    pp::run_error);
}
