// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Where stages may lie, and what they may be.
#include <pipe/plan/lower.hpp>
#include <pipe/plan/other_plans.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/stp.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <tests/support/arithmetic_stage.hpp>
#include <tests/support/paired_weights.hpp>
#include <tests/support/sizes.hpp>
#include <tuple>
#include <type_traits>
#include <vector>

namespace pp = pipelining;

namespace {

using support::arithmetic_stage;
using support::words;

pp::plan work(int microbatches = 4) {
  return pp::lower(pp::make_timetable<pp::OneFOneB>({3, microbatches}), words);
}

template <class Stages, class At>
void check_runs(Stages& stages, At at) {
  for (int s = 0; s < 3; ++s)
    at(s).weight = static_cast<std::uint64_t>(s) + 3;
  pp::run(work(), stages);
  auto const expected = support::run_sequentially(3, 4, 1);
  for (int s = 0; s < 3; ++s)
    CHECK(at(s).gradient == expected.gradients[static_cast<std::size_t>(s)]);
}

} // namespace

TEST_CASE("stages are given by value, by raw or smart pointer, or by a function") {
  std::array<arithmetic_stage, 3> values{};
  check_runs(values,
             [&](int s) -> arithmetic_stage& { return values[static_cast<std::size_t>(s)]; });

  std::vector<std::unique_ptr<arithmetic_stage>> owned;
  for (int s = 0; s < 3; ++s)
    owned.push_back(std::make_unique<arithmetic_stage>());
  check_runs(owned,
             [&](int s) -> arithmetic_stage& { return *owned[static_cast<std::size_t>(s)]; });

  std::array<arithmetic_stage, 3> there{};
  std::vector<arithmetic_stage*> raw{&there[0], &there[1], &there[2]};
  check_runs(raw, [&](int s) -> arithmetic_stage& { return there[static_cast<std::size_t>(s)]; });

  std::tuple<arithmetic_stage, std::shared_ptr<arithmetic_stage>, arithmetic_stage*> mixed{
    arithmetic_stage(), std::make_shared<arithmetic_stage>(), owned[0].get()};
  *owned[0] = {};
  check_runs(mixed, [&](int s) -> arithmetic_stage& {
    return s == 0 ? std::get<0>(mixed) : s == 1 ? *std::get<1>(mixed) : *std::get<2>(mixed);
  });

  std::map<int, arithmetic_stage> named{{0, {}}, {1, {}}, {2, {}}};
  auto const by_number = [&](int s) -> arithmetic_stage& { return named.at(s); };
  check_runs(by_number, by_number);
  std::map<int, arithmetic_stage> more{{0, {}}, {1, {}}, {2, {}}};
  auto const by_pointer = [&](int s) { return &more.at(s); };
  check_runs(by_pointer, [&](int s) -> arithmetic_stage& { return more.at(s); });
}

TEST_CASE("a null pointer to a stage that runs here is refused") {
  std::vector<std::unique_ptr<arithmetic_stage>> model(3);
  model[0] = std::make_unique<arithmetic_stage>();
  CHECK_THROWS_WITH_AS(pp::run(work(), model),
                       "run: stage 1 is a null pointer, but device 1 runs it here; only stages of "
                       "other ranks may be null",
                       std::invalid_argument);
  model[1] = std::make_unique<arithmetic_stage>();
  model.pop_back();
  CHECK_THROWS_WITH_AS(
    pp::run(work(), model), "run: the plan has 3 stages, but 2 were given", std::invalid_argument);
  // A device of another rank is not looked at.
  std::vector<arithmetic_stage*> own{nullptr, model[1].get(), nullptr};
  pp::plan const lowered = work();
  CHECK_NOTHROW(pp::detail::check_stages(lowered, own, 1));
}

namespace {

struct plain {
  void forward(pp::context const&, pp::input, pp::output) {}
  void backward(pp::context const&, pp::input, pp::output) {}
};
struct ties : plain {
  void tied_gradient(pp::context const&, pp::output) {}
  void add_tied(pp::context const&, pp::input, pp::input) {}
};
struct contributes : plain {
  void contribute(pp::context const&, pp::output) {}
};
struct updates : contributes {
  void optimizer_step(pp::context const&, pp::totals const&) {}
};

template <class Stage>
void check_refused(pp::uniform_sizes const& sizes, std::string const& sentence) {
  std::vector<Stage> model(3);
  auto const table = pp::make_timetable<pp::OneFOneB>({3, 2});
  CHECK_THROWS_WITH_AS(pp::run(pp::lower(table), model), sentence.c_str(), std::invalid_argument);
  CHECK_NOTHROW(pp::run(pp::lower(table, sizes), model));
  CHECK_NOTHROW(pp::run(pp::lower_evaluation(table), model)); // an evaluation updates nothing
}

} // namespace

TEST_CASE("hooks that nobody will call are refused") {
  check_refused<ties>({.tied_bytes = 4},
                      "run: stage 0 has tied_gradient and add_tied, but the plan never calls them: "
                      "its sizes have no tied_bytes; set them to the bytes of the gradient, or "
                      "take the hooks away");
  check_refused<updates>({.totals_bytes = 4},
                         "run: stage 0 has optimizer_step, but the plan never calls it: its sizes "
                         "have no totals_bytes; set them to the bytes of a stage's row, or take "
                         "the hook away");
  std::vector<contributes> model(3);
  CHECK_THROWS_WITH_AS(pp::run(work(), model),
                       "run: stage 0 has contribute, but the plan never calls it: its sizes have "
                       "no totals_bytes; set them to the bytes of a stage's row, or take the hook "
                       "away",
                       std::invalid_argument);
}

TEST_CASE("a stage that does not say that it takes chunks runs whole sequences only") {
  std::vector<plain> model(3);
  char const* const sentence =
    "run: the schedule cuts every sequence into 2 chunks, but stage 0 does not say that its passes "
    "do only the chunk of their context; let them, and declare static constexpr bool takes_chunks "
    "= true, or take a schedule of whole sequences";
  auto const chunked = pp::make_timetable<pp::Seq1F1B<2>>({3, 2});
  CHECK_THROWS_WITH_AS(pp::run(pp::lower(chunked), model), sentence, std::invalid_argument);
  CHECK_THROWS_WITH_AS(
    pp::run(pp::lower_evaluation(chunked), model), sentence, std::invalid_argument);
  CHECK_NOTHROW(pp::run(pp::lower(pp::make_timetable<pp::Seq1F1B<1>>({3, 2})), model));
  struct chunk_by_chunk : arithmetic_stage {}; // which says it
  std::vector<chunk_by_chunk> chunks(3);
  CHECK_NOTHROW(pp::run(pp::lower(chunked, words), chunks));
}

namespace {

//! Its weights stay as they are.
struct frozen_stage : arithmetic_stage {
  static constexpr bool frozen = true;
};
//! What it computes, without the rest.
struct only_frozen {
  static constexpr bool frozen = true;
  arithmetic_stage inner{};
  int halves = 0;
  void forward(pp::context const& where, pp::input in, pp::output out) {
    inner.forward(where, in, out);
  }
  void backward_input(pp::context const& where, pp::input in, pp::output out) {
    std::uint64_t const dy = in.as<std::uint64_t>()[0];
    out.as<std::uint64_t>()[0] =
      arithmetic_stage::mix(dy, inner.weight ^ arithmetic_stage::word(where.activation));
    ++halves;
  }
};
struct not_frozen : arithmetic_stage {
  static constexpr bool frozen = false;
};
static_assert(pp::detail::is_frozen<frozen_stage> && pp::detail::is_frozen<only_frozen>);
static_assert(!pp::detail::is_frozen<not_frozen> && !pp::detail::is_frozen<arithmetic_stage>);
static_assert(pp::stage_functor<only_frozen>);
static_assert(pp::detail::can_run<only_frozen>(pp::stage_call::backward));

} // namespace

TEST_CASE("a frozen stage passes gradients on and gets none") {
  auto const expected = support::run_sequentially(3, 4, 1);
  for (bool const split : {false, true}) {
    auto const table = split ? pp::make_timetable<pp::ZeroBubbleH1>({3, 4})
                             : pp::make_timetable<pp::OneFOneB>({3, 4});
    std::tuple<arithmetic_stage, only_frozen, arithmetic_stage> model;
    std::get<0>(model).weight = 3;
    std::get<1>(model).inner.weight = 4;
    std::get<2>(model).weight = 5;
    pp::uniform_sizes const sizes{.message = 8, .activation = 8, .weight_input = 8};
    pp::run(pp::lower(table, sizes), model, {.guarded = true});
    CHECK(std::get<0>(model).gradient == expected.gradients[0]);
    CHECK(std::get<1>(model).inner.gradient == 0);
    CHECK(std::get<1>(model).halves == 4);
    CHECK(std::get<2>(model).gradient == expected.gradients[2]);
  }
  std::vector<frozen_stage> all(3);
  pp::run(pp::lower(pp::make_timetable<pp::ZeroBubbleH1>({3, 4}), words), all);
  CHECK(all[0].calls == 8); // no halves for weights
}

namespace {

//! Counts what it was asked for at once.
struct overlapping_stage : arithmetic_stage {
  int pairs = 0;
  int ready = 0;
  std::uint64_t announced = 0; // gradient
  bool throws = false;
  void forward_backward(pp::composite_half const& forward,
                        pp::composite_half const& backward,
                        overlapping_stage& other) {
    if (throws)
      throw std::domain_error("out of streams");
    other.backward(backward.where, backward.in, backward.out);
    this->forward(forward.where, forward.in, forward.out);
    CHECK(forward.where.stage + backward.where.stage >= 0);
    ++pairs;
  }
  void gradients_ready(pp::context const&) {
    ++ready;
    announced = gradient;
  }
};

//! Runs all pairs at once, those of a forward and a whole backward pass by a call of their own.
struct braiding_stage : overlapping_stage {
  int braids = 0;
  void braid(pp::pass_kind kind,
             pp::composite_half const& half,
             pp::pass_kind other_kind,
             pp::composite_half const& other_half,
             braiding_stage& other) {
    CHECK((kind != pp::pass_kind::forward || other_kind != pp::pass_kind::backward));
    other.run(other_kind, other_half); // neither needs what the other makes
    run(kind, half);
    ++braids;
  }

private:
  void run(pp::pass_kind kind, pp::composite_half const& half) {
    if (kind == pp::pass_kind::forward)
      forward(half.where, half.in, half.out);
    else if (kind == pp::pass_kind::backward_input)
      backward_input(half.where, half.in, half.out);
    else
      backward_weight(half.where);
  }
};

template <class Stage>
void check_pairs(int stages, pp::dynamic_timetable const& table) {
  int pairs = 0;
  for (pp::pass const& what : table.passes)
    pairs += what.overlapped ? 1 : 0;
  REQUIRE(pairs > 0);
  for (bool const guarded : {false, true}) {
    std::vector<Stage> model(static_cast<std::size_t>(stages));
    std::vector<arithmetic_stage> in_turn(static_cast<std::size_t>(stages));
    for (std::size_t s = 0; s < model.size(); ++s)
      in_turn[s].weight = model[s].weight = s + 3;
    pp::thread_runner runner(pp::lower(table, words), model, {.guarded = guarded});
    runner.step();
    pp::run(pp::lower(table, words), in_turn, {.guarded = guarded});
    int ran = 0;
    for (std::size_t s = 0; s < model.size(); ++s) {
      CHECK(model[s].gradient == in_turn[s].gradient);
      CHECK(model[s].calls == in_turn[s].calls);
      ran += model[s].pairs;
      if constexpr (std::is_same_v<Stage, braiding_stage>)
        ran += model[s].braids;
      CHECK(model[s].ready == 1);
      CHECK(model[s].announced == model[s].gradient);
    }
    CHECK(ran == pairs);
    CHECK(pp::verify(runner.trace()));
    auto const trace = runner.trace();
    for (std::size_t i = 0; i < trace.passes.size(); ++i)
      if (trace.passes[i].overlapped) {
        CHECK(trace.starts[i] == trace.starts[i - 1]);
        CHECK(trace.ends[i] == trace.ends[i - 1]);
      }
  }
}

} // namespace

TEST_CASE("a stage that has forward_backward runs composite passes at once") {
  check_pairs<overlapping_stage>(8, pp::make_timetable(pp::DualPipeV<>{}, {4, 10}));
}

TEST_CASE("a stage that has braid runs composite passes of any two kinds at once") {
  check_pairs<braiding_stage>(8, pp::make_timetable(pp::STP<>{}, {4, 13}));
}

TEST_CASE("a stage is told of gradients that a composite pass completes, once and behind it") {
  auto const table = pp::make_timetable(support::paired_weights{}, {2, 3});
  pp::plan const lowered = pp::lower(table, words);
  int completing = 0;
  for (pp::item const& step : lowered.items)
    completing += step.completes_stage && step.work.overlapped ? 1 : 0;
  CHECK(completing == 2);
  check_pairs<braiding_stage>(4, table);
}

TEST_CASE("a composite pass that throws is named") {
  auto const table = pp::make_timetable(pp::DualPipeV<>{}, {2, 6});
  std::vector<overlapping_stage> model(4);
  model[0].throws = true;
  try {
    pp::run(pp::lower(table, words), model);
    FAIL("the step must throw");
  } catch (pp::run_error const& error) {
    CHECK(std::string(error.what()).find("run: device 0 failed in the forward of stage 0") == 0);
    CHECK(std::string(error.what()).find("out of streams") != std::string::npos);
  }
}
