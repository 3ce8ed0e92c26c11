// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/plan/lower.hpp>
#include <pipe/planner/cut/expert_layers.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <tests/support/expert_overlap.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

//! Times of kinds with these letters, whichever flow has them.
struct letter_times {
  std::vector<double> of_layer; // a factor of each stage; empty: 1
  [[nodiscard]] double duration(pp::pass const& what) const {
    double const factor = of_layer.empty() ? 1 : of_layer[what.stage];
    switch (pp::detail::frugal_expert_training[what.kind].letter) {
    case 'A':
    case 'F':
    case 'R':
    case 'X':
    case 'B': return 4 * factor;
    case 'V': return 2 * factor;
    case 'E':
    case 'H':
    case 'T':
    case 'Z':
    case 'M':
    case 'W': return 4 * factor;
    case 'Q': return 0;
    default: return 2 * factor;
    }
  }
  [[nodiscard]] double latency() const { return 1; }
};

//! Times of whole stages, exchanges among them.
pp::uniform_cost whole_times(int layers) {
  return {12.0 * layers, 12.0 * layers, 6.0 * layers, 1};
}

//! y = e (a x), as in lesson 13, whatever the flow calls its kinds.
struct layer {
  double attention_weight, expert_weight;
  pp::flow const* declared = &pp::expert_training;
  double attention_gradient = 0, expert_gradient = 0;

  void perform(pp::pass_kind kind, pp::context const& at, pp::input in, pp::output) {
    using enum pp::detail::expert_datum;
    auto const value = [&](pp::detail::expert_datum of) -> double& {
      return at.buffer_of(*declared, kind, of).as<double>()[0];
    };
    double const given = in.data != nullptr ? in.as<double>()[0] : at.microbatch + 1.0;
    switch ((*declared)[kind].letter) {
    case 'A': value(of_routed) = attention_weight * (value(of_attention_kept) = given); break;
    case 'F': value(of_routed) = attention_weight * given; break;
    case 'X': value(of_routed) = attention_weight * (value(of_leaving_attention) = given); break;
    case 'R': value(of_routed_again) = attention_weight * (value(of_attention_kept) = given); break;
    case 'G': value(of_passing) = value(of_routed); break;
    case 'S': value(of_passing_again) = value(of_routed_again); break;
    case 'H': value(of_mixed) = expert_weight * value(of_passing); break;
    case 'Z':
      value(of_mixed) = expert_weight * (value(of_leaving_experts) = value(of_passing));
      break;
    case 'T': value(of_dispatched) = value(of_passing_again); break;
    case 'D': value(of_dispatched) = value(of_routed); break;
    case 'E': value(of_mixed) = expert_weight * value(of_dispatched); break;
    case 'C':
      if (!at.last_stage())
        value(of_output) = value(of_mixed);
      break;
    case 'K': value(of_mixed_gradient) = at.last_stage() ? 1 : given; break;
    case 'M':
      value(of_dispatched_gradient) =
        expert_weight * (value(of_expert_input) = value(of_mixed_gradient));
      break;
    case 'W': expert_gradient += value(of_dispatched) * value(of_expert_input); break;
    case 'J': value(of_routed_gradient) = value(of_dispatched_gradient); break;
    case 'B':
      value(of_attention_input) = value(of_routed_gradient);
      if (!at.first_stage())
        value(of_gradient) = attention_weight * value(of_attention_input);
      break;
    case 'V': attention_gradient += value(of_attention_kept) * value(of_attention_input); break;
    default: FAIL("a kind that a layer does not have");
    }
  }
};

constexpr pp::uniform_sizes sizes{.message = 8, .activation = 8, .weight_input = 8};

//! Runs a plan on threads and holds its gradients against a plain loop.
void check_gradients(pp::dynamic_timetable const& table) {
  std::vector<layer> model;
  for (int stage = 0; stage < table.over.extents.stages(); ++stage)
    model.push_back({1.0 + stage % 3, 2.0 - stage % 5 / 4.0, &table.over.declared});
  std::vector<layer> alone = model;
  pp::thread_runner runner(pp::lower(table, sizes), model);
  runner.step();
  for (int m = 0; m < table.over.extents.microbatches; ++m) {
    std::vector<double> inputs{m + 1.0};
    for (layer const& one : alone)
      inputs.push_back(one.expert_weight * (one.attention_weight * inputs.back()));
    double slope = 1;
    for (auto i = alone.size(); i-- > 0; slope *= alone[i].attention_weight) {
      alone[i].expert_gradient += alone[i].attention_weight * inputs[i] * slope;
      alone[i].attention_gradient += inputs[i] * (slope *= alone[i].expert_weight);
    }
  }
  for (std::size_t i = 0; i < model.size(); ++i) {
    CAPTURE(i);
    CHECK(model[i].expert_gradient == doctest::Approx(alone[i].expert_gradient));
    CHECK(model[i].attention_gradient == doctest::Approx(alone[i].attention_gradient));
  }
}

//! Simulated under the times of layers; verified.
pp::dynamic_timetable timed(pp::device_orders const& orders, letter_times const& times = {}) {
  pp::dynamic_timetable table = pp::simulate(orders, times);
  CHECK(pp::verify(table));
  return table;
}

} // namespace

TEST_CASE("1F1B with one more microbatch ahead has the rows of Megatron's combined passes") {
  for (int const devices : {2, 4})
    for (int const layers : {1, 2, 3}) {
      CAPTURE(devices);
      CAPTURE(layers);
      int const count = 2 * devices + 1;
      // Where messages take no time and the backward pass waits for nobody, pairs begin at once.
      auto const base = pp::make_timetable(pp::EagerOneFOneB{}, {devices, count}, whole_times(1));
      std::vector<int> const of_stage(static_cast<std::size_t>(devices), layers);
      auto const own = timed(pp::with_experts(base, of_stage));
      auto const plain = timed(pp::with_experts(base, of_stage, false));
      CHECK(pp::makespan(own) < pp::makespan(plain));
      // Work of a device: nothing is left out, nothing done twice.
      for (int device = 0; device < devices; ++device)
        CHECK(pp::busy(own, device) == doctest::Approx(count * layers * (4 + 4 + 4 + 4 + 4 + 2)));
      check_gradients(own);
    }
}

TEST_CASE("On one device the rows are those of the hand-written flow") {
  for (int const layers : {1, 3, 4}) {
    CAPTURE(layers);
    auto const base = pp::make_timetable(pp::OneFOneB{}, {1, 5}, pp::uniform_cost{1, 1, 1});
    auto const own = pp::with_experts(base, std::vector<int>{layers});
    auto const theirs = pp::make_orders(support::overlap::combined{.layers = layers}, {1, 5});
    REQUIRE(own.passes.size() == theirs.passes.size());
    CHECK(own.offsets == theirs.offsets);
    for (std::size_t i = 0; i < own.passes.size(); ++i) {
      CHECK(own.passes[i].kind == theirs.passes[i].kind);
      CHECK(own.passes[i].stage == theirs.passes[i].stage);
      CHECK(own.passes[i].microbatch == theirs.passes[i].microbatch);
    }
  }
}

TEST_CASE("Schedules at random times and cuts are verified, proven and train alike") {
  std::mt19937 random(7);
  auto const check = [&](auto const& schedule, int devices, int microbatches) {
    pp::uniform_cost const cost{1.0 + random() % 4, 1.0 + random() % 4, 1.0 + random() % 4, 0.5};
    auto const base = pp::make_timetable(schedule, {devices, microbatches}, cost);
    std::vector<int> of_stage;
    for (int stage = 0; stage < base.over.extents.stages(); ++stage)
      of_stage.push_back(1 + static_cast<int>(random() % 3));
    letter_times times;
    for (int const count : of_stage)
      for (int i = 0; i < count; ++i)
        times.of_layer.push_back(1.0 + random() % 3);
    auto const both = timed(pp::with_experts(base, of_stage), times);
    auto const plain = timed(pp::with_experts(base, of_stage, false), times);
    CHECK(std::isfinite(pp::makespan(both)));
    CHECK(both.passes.size() == plain.passes.size());
    check_gradients(both);
    check_gradients(plain);
  };
  for (int round = 0; round < 6; ++round) {
    int const devices = 1 + static_cast<int>(random() % 4);
    int const microbatches = devices * (1 + static_cast<int>(random() % 2)) + 2;
    check(pp::OneFOneB{}, devices, microbatches);
    check(pp::EagerOneFOneB{}, devices, microbatches);
    check(pp::ZeroBubbleH1{}, devices, microbatches);
    check(pp::VHalf{}, devices, 2 * devices);
    check(pp::with_recompute<pp::OneFOneB>{}, devices, microbatches);
    check(pp::with_recompute<pp::EagerOneFOneB, pp::recompute::where_it_frees>{},
          devices,
          microbatches);
    check(pp::with_recompute<pp::ZeroBubbleH1, pp::recompute::first_stages>{},
          devices,
          microbatches);
    check(pp::with_offload<pp::OneFOneB, pp::offload::chunks>{{}, {.staying = 0}},
          devices,
          microbatches);
  }
}

TEST_CASE("Layers are computed again one at a time, right before they go back") {
  auto const base =
    pp::make_timetable(pp::with_recompute<pp::OneFOneB>{}, {1, 1}, pp::uniform_cost{1, 1, 1});
  auto const own = timed(pp::with_experts(base, std::vector<int>{2}));
  std::string compute;
  std::string network;
  for (int row = 0; row < 4; ++row)
    for (int i = own.offsets[row]; i < own.offsets[row + 1]; ++i)
      (row == 0 ? compute : network) +=
        std::string{pp::detail::frugal_expert_training[own.passes[i].kind].letter} +
        std::to_string(own.passes[i].stage) + " ";
  CHECK(compute == "F0 H0 F1 H1 R1 T1 M1 W1 B1 V1 R0 T0 M0 W0 B0 V0 ");
  CHECK(network == "G0 C0 G1 C1 S1 K1 J1 S0 K0 J0 ");
  // Forward 4 + 2 + 4 + 2 twice, but nothing waits for the last combine. Each layer again 4 + 2 + 4,
  // which hides its combine back, then back 4 + 4 + 4 + 2, whose expert gradients hide the dispatch.
  CHECK(pp::makespan(own) == doctest::Approx(22 + 2 * (10 + 14)));
}

TEST_CASE("What a layer keeps is copied out and in layer by layer") {
  pp::uniform_cost const cost{1, 1, 1};
  auto const base = pp::make_timetable(
    pp::with_offload<pp::GPipe, pp::offload::chunks>{{}, {.staying = 0}}, {1, 3}, cost);
  auto const own = timed(pp::with_experts(base, std::vector<int>{2}));
  auto const count = [&](char letter) {
    return std::ranges::count_if(own.passes, [letter](pp::pass const& what) {
      return pp::detail::frugal_expert_training[what.kind].letter == letter;
    });
  };
  REQUIRE(count('X') > 0);
  for (char const letter : {'Z', 'O', 'P', 'Q', 'N', 'L'})
    CHECK(count(letter) == count('X'));
  CHECK(count('X') + count('A') == 6);
}

TEST_CASE("Tables without such layers are refused with a reason") {
  auto const base = pp::make_timetable(pp::OneFOneB{}, {2, 4});
  CHECK_THROWS_WITH((void)pp::with_experts(base, std::vector<int>{1, 0}),
                    "with_experts: give at least one layer for every stage");
  CHECK_THROWS_WITH((void)pp::with_experts(base, std::vector<int>{1}),
                    "with_experts: give at least one layer for every stage");
}
