// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/plan/lower.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <set>
#include <stdexcept>
#include <string>
#include <tests/support/arithmetic_stage.hpp>
#include <tests/support/sizes.hpp>
#include <thread>
#include <tuple>
#include <vector>

namespace pp = pipelining;

namespace {

using support::words;

std::vector<support::arithmetic_stage> make_model(pp::shape const& extents) {
  std::vector<support::arithmetic_stage> model(static_cast<std::size_t>(extents.stages()));
  for (std::size_t s = 0; s < model.size(); ++s) {
    model[s].weight = s + 3;
    model[s].chunks = extents.chunks;
  }
  return model;
}

template <class Policy>
void check_equal_to_sequential(pp::timetable_view table) {
  auto model = make_model(table.over.extents);
  pp::thread_runner runner(pp::lower<Policy>(table, words), model, {.guarded = true});
  int const steps = 3;
  for (int step = 0; step < steps; ++step)
    runner.step();
  auto const expected = support::run_sequentially(
    table.over.extents.stages(), table.over.extents.microbatches, table.over.extents.chunks);
  for (std::size_t s = 0; s < model.size(); ++s)
    CHECK(model[s].gradient == steps * expected.gradients[s]);
  CHECK(model.back().losses == steps * expected.losses);
  auto const trace = runner.trace();
  CHECK(trace.passes.size() == static_cast<std::size_t>(table.size()));
  CHECK(pp::verify(trace));
}

// Splits the backward pass and turns on the last device: hand-offs on one device, two flows on one
// edge.
struct split_v {
  constexpr pp::shape arrange(int devices, int microbatches) const {
    return {.devices = devices,
            .microbatches = microbatches,
            .stages_per_device = 2,
            .where = pp::placement::wave};
  }
  constexpr void order(pp::shape const& extents, int device, pp::row_writer& out) const {
    int const up = 2 * extents.devices - 1 - device;
    for (int m = 0; m < extents.microbatches; ++m)
      out.forward(device, m);
    for (int m = 0; m < extents.microbatches; ++m)
      out.forward(up, m);
    for (int m = 0; m < extents.microbatches; ++m)
      out.backward_input(up, m);
    for (int m = 0; m < extents.microbatches; ++m)
      out.backward(device, m);
    for (int m = 0; m < extents.microbatches; ++m)
      out.backward_weight(up, m);
  }
};

} // namespace

TEST_CASE("what threads poll and what they write lie on cache lines of their own") {
  constexpr std::uintptr_t line = 64; // bytes that cores of x86-64 and of arm64 servers exchange
  pp::detail::thread_board board(2, {});
  std::set<std::uintptr_t> lines;
  auto const add = [&](auto const& each) {
    return lines.insert(reinterpret_cast<std::uintptr_t>(&each) / line).second;
  };
  CHECK(add(board.running)); // written at the end of an errand
  CHECK(add(board.caller));
  CHECK(add(board.guard));
  for (int i = 0; i < 2; ++i) {
    CHECK(add(board.devices[i].position)); // written with every pass
    CHECK(add(board.threads[i].called));   // polled between errands
    CHECK(add(board.threads[i].door));     // looked at by who sends
  }
  CHECK(sizeof(pp::detail::sleeping_place) % line == 0);
  CHECK(alignof(pp::detail::rendezvous) == line);
}

TEST_CASE("threads compute what one device computes, under every policy") {
  for (int const devices : {1, 2, 3, 5})
    for (int const microbatches : {1, 2, 7}) {
      check_equal_to_sequential<pp::communicators::per_pair>(
        pp::make_timetable<pp::GPipe>({devices, microbatches}));
      check_equal_to_sequential<pp::communicators::per_edge>(
        pp::make_timetable<pp::OneFOneB>({devices, microbatches}));
      check_equal_to_sequential<pp::communicators::one>(
        pp::make_timetable<pp::OneFOneB>({devices, microbatches}));
      check_equal_to_sequential<pp::communicators::per_pair>(
        pp::make_timetable<pp::Seq1F1B<3>>({devices, microbatches}));
      check_equal_to_sequential<pp::communicators::one>(
        pp::make_timetable<split_v>({devices, microbatches}));
      check_equal_to_sequential<pp::communicators::per_pair>(
        pp::make_timetable<split_v>({devices, microbatches}));
    }
}

namespace {

struct failing_stage : support::arithmetic_stage {
  int fails_at = -1;
  void forward(pp::context const& where, pp::input in, pp::output out) {
    if (where.microbatch == fails_at)
      throw std::domain_error("loss is not a number");
    support::arithmetic_stage::forward(where, in, out);
  }
};

} // namespace

TEST_CASE("an exception in a stage ends the run on all devices and reaches the caller with stage "
          "and pass") {
  auto const table = pp::make_timetable<pp::OneFOneB>({4, 6});
  std::vector<failing_stage> model(4);
  model[2].fails_at = 3;
  pp::thread_runner runner(pp::lower(table, words), model);
  for (int attempt = 0; attempt < 3; ++attempt) {
    try {
      runner.step();
      FAIL("the step must throw");
    } catch (pp::run_error const& error) {
      CHECK(std::string(error.what()) ==
            "run: device 2 failed in the forward of stage 2, microbatch 3: loss is not a number");
      CHECK(error.device() == 2);
      CHECK_THROWS_AS(std::rethrow_if_nested(error), std::domain_error);
    }
  }
  model[2].fails_at = -1;
  for (auto& stage : model)
    stage.gradient = 0;
  for (std::size_t s = 0; s < model.size(); ++s)
    model[s].weight = s + 3;
  CHECK_NOTHROW(runner.step());
  CHECK(model[0].gradient == support::run_sequentially(4, 6, 1).gradients[0]);
}

TEST_CASE("a stall becomes an error that says who waits for whom") {
  std::atomic<bool> release = false;
  std::vector<support::stalling_stage> model(3);
  model[1].release = &release;
  pp::thread_runner runner(pp::lower(pp::make_timetable<pp::OneFOneB>({3, 2}), words),
                           model,
                           {.deadline = std::chrono::milliseconds(50)});
  try {
    runner.step();
    FAIL("the step must throw");
  } catch (pp::run_error const& error) {
    std::string const text = error.what();
    CHECK(text.find("run: no progress before the deadline") == 0);
    CHECK(text.find("device 1 is at item") != std::string::npos);
    CHECK(text.find("run the forward of stage 1, microbatch 0") != std::string::npos);
    CHECK(text.find("device 2 waits for device 1: receive what comes of the forward of stage 1, "
                    "microbatch 0 from device 1") != std::string::npos);
  }
  CHECK_THROWS_WITH_AS(runner.step(),
                       "run: a stage of an earlier step has not returned yet, on device 1; nothing "
                       "can run before it does",
                       pp::run_error);
  release = true;
  // The stage returns some time after its release; from then on the runner is whole again.
  bool whole = false;
  while (!whole) {
    try {
      runner.step();
      whole = true;
    } catch (pp::run_error const&) {
      std::this_thread::yield();
    }
  }
  CHECK(model[1].calls >= 4);
}

namespace {

struct announcing_stage : support::arithmetic_stage {
  int announced = 0;
  std::uint64_t at_announcement = 0;
  void gradients_ready(pp::context const& where) {
    ++announced;
    at_announcement = gradient;
    stage = where.stage;
  }
  int stage = -1;
};
static_assert(pp::detail::can_announce_gradients<announcing_stage>);
static_assert(!pp::detail::can_announce_gradients<support::arithmetic_stage>);

} // namespace

TEST_CASE("every stage is told once when its weight gradients are complete") {
  for (pp::dynamic_timetable const& table : {pp::make_timetable<split_v>({3, 5}),
                                             pp::make_timetable<pp::GPipe>({3, 5}),
                                             pp::make_timetable<pp::Seq1F1B<2>>({3, 4})}) {
    std::vector<announcing_stage> model(static_cast<std::size_t>(table.over.extents.stages()));
    for (auto& stage : model)
      stage.chunks = table.over.extents.chunks;
    pp::run(pp::lower(table, words), model);
    for (std::size_t s = 0; s < model.size(); ++s) {
      CHECK(model[s].announced == 1);
      CHECK(model[s].stage == static_cast<int>(s));
      CHECK(model[s].at_announcement == model[s].gradient); // nothing is added after it
    }
  }
}

namespace {

struct fused_only {
  void forward(pp::context const&, pp::input, pp::output) {}
  void backward(pp::context const&, pp::input, pp::output) {}
};
struct split_only {
  void forward(pp::context const&, pp::input, pp::output) {}
  void backward_input(pp::context const&, pp::input, pp::output) { ++inputs; }
  void backward_weight(pp::context const&) { ++weights; }
  int inputs = 0;
  int weights = 0;
};
static_assert(pp::stage_functor<fused_only>);
static_assert(pp::stage_functor<split_only>);
static_assert(!pp::detail::can_run<split_only>(pp::stage_call::backward));
static_assert(pp::detail::can_run<split_only>(pp::stage_call::backward_weight));
static_assert(!pp::detail::can_run<fused_only>(pp::stage_call::backward_weight));
static_assert(!pp::stage_functor<int>);

} // namespace

TEST_CASE("stages of different types are a tuple") {
  std::tuple<split_only, split_only> model;
  pp::run(pp::lower(pp::make_timetable<pp::ZeroBubbleH1>({2, 5})), model);
  CHECK(std::get<1>(model).inputs == 5);
  CHECK(std::get<1>(model).weights == 5);
}

TEST_CASE("a model that does not suit the plan is refused before anything runs") {
  std::vector<fused_only> model(4);
  CHECK_THROWS_WITH_AS(
    pp::run(pp::lower(pp::make_timetable<split_v>({2, 3})), model),
    "run: the schedule splits the backward pass, but stage 3 has only the fused backward; give it "
    "backward_input and backward_weight",
    std::invalid_argument);
  // The halves pass something on that a fused pass has no slot for.
  std::tuple<fused_only, split_only> halves;
  CHECK_THROWS_WITH_AS(
    pp::run(pp::lower(pp::make_timetable<pp::OneFOneB>({2, 3})), halves),
    "run: the schedule has fused backward passes, but stage 1 has only the two halves, and what "
    "the first keeps for the second has no slot (weight_input) in a fused pass; give it "
    "backward(context const&, input, output)",
    std::invalid_argument);
  CHECK_THROWS_WITH_AS(pp::run(pp::lower(pp::make_timetable<pp::OneFOneB>({2, 3})), model),
                       "run: the plan has 2 stages, but 4 were given",
                       std::invalid_argument);
}
