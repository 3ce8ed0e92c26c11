// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/flow/shades.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/planner/cut/expert_layers.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/breadth_first.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/adapt/with_sharded_weights.hpp>
#include <pipe/timetable/adapt/with_vocabulary.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <tests/support/expert_overlap.hpp>
#include <tests/support/vocabulary_stages.hpp>
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

//! y = e (a x) modulo 2^64, or a shard of the vocabulary. Weights may lie in shards.
struct exact_layer {
  std::uint64_t weights[2]{};
  pp::flow const* declared = nullptr;
  support::vocabulary_stage shard{};
  std::uint64_t gradients[2]{};
  std::uint64_t const* used = nullptr; // null: whole
  std::uint64_t* collected = nullptr;
  int gathers = 0;
  int scatters = 0;

  void perform(pp::pass_kind kind, pp::context const& at, pp::input, pp::output out) {
    using enum pp::detail::expert_datum;
    auto const value = [&](pp::detail::expert_datum of) -> std::uint64_t& {
      return at.buffer_of(*declared, kind, of).as<std::uint64_t>()[0];
    };
    auto const given = [&](std::uint64_t otherwise) {
      return at.inputs.empty() ? otherwise : support::vocabulary_stage::sum(at.inputs);
    };
    std::uint64_t const* const weight = used != nullptr ? used : weights;
    std::uint64_t* const gradient = collected != nullptr ? collected : gradients;
    switch ((*declared)[kind].letter) {
    case 'A':
      value(of_attention_kept) = given(support::vocabulary_stage::data(at));
      value(of_routed) = weight[0] * value(of_attention_kept);
      break;
    case 'D': value(of_dispatched) = value(of_routed); break;
    case 'E': value(of_mixed) = weight[1] * value(of_dispatched); break;
    case 'C':
      if (out.data != nullptr)
        value(of_output) = value(of_mixed);
      break;
    case 'K': value(of_mixed_gradient) = given(1); break;
    case 'M':
      value(of_expert_input) = value(of_mixed_gradient);
      value(of_dispatched_gradient) = weight[1] * value(of_expert_input);
      break;
    case 'W': gradient[1] += value(of_dispatched) * value(of_expert_input); break;
    case 'J': value(of_routed_gradient) = value(of_dispatched_gradient); break;
    case 'B':
      value(of_attention_input) = value(of_routed_gradient);
      if (at.stage > 0)
        value(of_gradient) = weight[0] * value(of_attention_input);
      break;
    case 'V': gradient[0] += value(of_attention_kept) * value(of_attention_input); break;
    default: FAIL("a kind that a layer does not have");
    }
  }
  void forward(pp::context const& where, pp::input in, pp::output out) {
    shard.forward(where, in, out);
  }
  void backward(pp::context const& where, pp::input in, pp::output out) {
    shard.backward(where, in, out);
  }
  void backward_input(pp::context const& where, pp::input in, pp::output out) {
    shard.backward_input(where, in, out);
  }
  void backward_weight(pp::context const& where) { shard.backward_weight(where); }
  void gather_weights(pp::context const&, pp::output out) {
    ++gathers;
    std::copy(weights, weights + 2, out.as<std::uint64_t>().data());
  }
  void use_weights(pp::context const&, pp::input in) { used = in.as<std::uint64_t>().data(); }
  void collect_gradients(pp::context const&, pp::output out) {
    collected = out.as<std::uint64_t>().data();
    collected[0] = collected[1] = 0;
  }
  void scatter_gradients(pp::context const&, pp::input in) {
    ++scatters;
    for (std::size_t i = 0; i < 2; ++i)
      gradients[i] += in.as<std::uint64_t>()[i];
  }
};

constexpr pp::uniform_sizes pairs_of_words{.message = 16, .activation = 16, .weight_input = 16};

//! Times of layers, of shards and of what moves weights.
struct shard_times {
  letter_times layers{};
  double move = 3; // of a layer's weights
  [[nodiscard]] double duration(pp::pass const& what) const {
    int const of_training = pp::detail::index_of(what.kind) - pp::detail::shards_later;
    if (of_training < pp::detail::first_of_shards)
      return layers.duration(what);
    pp::kind_of_pass const& kind =
      pp::detail::kinds_of_training[static_cast<pp::pass_kind>(of_training)];
    return kind.on == pp::engine::network ? move : kind.in_groups ? 1 : 0;
  }
  [[nodiscard]] double latency() const { return 1; }
};

//! So many passes of a kind of training.
int count_of(pp::device_orders const& orders, char const* word) {
  return static_cast<int>(std::ranges::count(
    orders.passes, orders.over.declared.kind_named(pp::flow_word::of(word)), &pp::pass::kind));
}

//! Runs layers with shards at their ends, or with weights in shards, and holds them against a loop.
//! @param weights of attention and experts of each layer, or of a shard the first
void check_exact(pp::dynamic_timetable const& table,
                 int shards,
                 int barriers,
                 std::mt19937& random) {
  std::vector<exact_layer> model(static_cast<std::size_t>(table.over.extents.stages()));
  std::vector<std::uint64_t> weights;
  auto const is_shard = [&](std::size_t i) {
    return std::cmp_less(i, shards) || std::cmp_greater_equal(i + shards, model.size());
  };
  for (std::size_t i = 0; i < model.size(); ++i) {
    model[i].declared = &table.over.declared;
    model[i].shard.barriers = barriers;
    for (std::uint64_t& each : model[i].weights)
      if (each = random() | 1u; &each == model[i].weights || !is_shard(i))
        weights.push_back(each);
    model[i].shard.weight = model[i].weights[0];
  }
  pp::thread_runner runner(pp::lower(table, pairs_of_words), model, {.guarded = true});
  runner.step();
  auto const expected =
    shards > 0
      ? support::vocabulary_gradients(
          weights, static_cast<std::size_t>(shards), table.over.extents.microbatches, 1, barriers)
      : [&] {
          std::vector<std::uint64_t> result(weights.size());
          for (int m = 0; m < table.over.extents.microbatches; ++m) {
            pp::context where;
            where.microbatch = m;
            std::vector<std::uint64_t> inputs{support::vocabulary_stage::data(where)};
            for (std::uint64_t const weight : weights)
              inputs.push_back(weight * inputs.back());
            std::uint64_t slope = 1;
            for (std::size_t i = weights.size(); i-- > 0; slope *= weights[i])
              result[i] += slope * inputs[i];
          }
          return result;
        }();
  std::size_t next = 0;
  int gathers = 0;
  int scatters = 0;
  for (std::size_t i = 0; i < model.size(); ++i) {
    CAPTURE(i);
    if (is_shard(i)) {
      CHECK(model[i].shard.gradient == expected[next++]);
      continue;
    }
    CHECK(model[i].gradients[0] == expected[next++]);
    CHECK(model[i].gradients[1] == expected[next++]);
    gathers += model[i].gathers;
    scatters += model[i].scatters;
  }
  if (shards == 0) {
    auto const orders = pp::device_orders{table.over, table.passes, table.offsets};
    CHECK(gathers == count_of(orders, "gather_weights") + count_of(orders, "gather_weights_again"));
    CHECK(scatters == count_of(orders, "scatter_gradients"));
  }
}

//! Simulated under the times of layers; verified.
pp::dynamic_timetable timed(pp::device_orders const& orders, pp::cost_model auto const& times) {
  pp::dynamic_timetable table = pp::simulate(orders, times);
  CHECK(pp::verify(table));
  return table;
}

pp::dynamic_timetable timed(pp::device_orders const& orders) {
  return timed(orders, letter_times{});
}

//! The orders of random layers, from a schedule under the times of its stages.
//! @param shards of one end
pp::device_orders
random_layers(pp::dynamic_timetable const& base, int shards, bool pairs, std::mt19937& random) {
  int const stages = base.over.extents.stages();
  std::vector<int> counts;
  for (int stage = 0; stage < stages; ++stage)
    counts.push_back(
      stage < shards || stage >= stages - shards ? 1 : 1 + static_cast<int>(random() % 3));
  return pp::with_experts(base, counts, pairs);
}

//! Rows in letters, with the layer of each pass.
std::string written(pp::device_orders const& orders, int row) {
  std::string text;
  for (int i = orders.offsets[static_cast<std::size_t>(row)];
       i < orders.offsets[static_cast<std::size_t>(row) + 1];
       ++i) {
    pp::pass const& what = orders.passes[static_cast<std::size_t>(i)];
    text += std::string(pp::detail::sign(orders.over.declared, what.kind).c_str()) +
            std::to_string(what.stage) + " ";
  }
  return text;
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
    check(
      pp::with_recompute<pp::ZeroBubbleH1, pp::recompute::first_stages>{}, devices, microbatches);
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
  // Forward 4 + 2 + 4 + 2 twice, but nothing waits for the last combine. Each layer again 4 + 2 +
  // 4, which hides its combine back, then back 4 + 4 + 4 + 2, whose expert gradients hide the
  // dispatch.
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

TEST_CASE("Layers between the shards of a vocabulary have the gradients of one device") {
  std::mt19937 random(11);
  auto const check =
    [&]<class Schedule, int Barriers>(pp::with_vocabulary<Schedule, Barriers> const& schedule) {
      for (int const devices : {1, 2, 3})
        for (bool const pairs : {false, true}) {
          auto const base = pp::make_timetable(
            schedule, {devices, 2 * devices + (devices == 3 ? 0 : 2)}, pp::uniform_cost{1, 1, 1});
          auto const own = random_layers(base, devices, pairs, random);
          auto const table = timed(own, shard_times{});
          check_exact(table, devices, Barriers, random);
          for (int i = 0; i < static_cast<int>(own.passes.size()); i += 7) { // each is needed
            auto orders = own;
            orders.passes.erase(orders.passes.begin() + i);
            for (int& offset : orders.offsets)
              offset -= offset > i ? 1 : 0;
            pp::dynamic_timetable less{.over = orders.over,
                                       .passes = orders.passes,
                                       .starts = std::vector<double>(orders.passes.size()),
                                       .ends = std::vector<double>(orders.passes.size()),
                                       .offsets = orders.offsets};
            CHECK_FALSE(pp::verify(less));
          }
        }
    };
  check(pp::with_vocabulary<pp::OneFOneB, 1>{});
  check(pp::with_vocabulary<pp::OneFOneB, 2>{});
  check(pp::with_vocabulary<pp::OneFOneB, pp::interlaced>{});
  check(pp::with_vocabulary<pp::GPipe, 1>{});
  check(pp::with_vocabulary<pp::ZeroBubbleH1, 2>{});
  check(pp::with_vocabulary<pp::Interleaved<2>, 1>{});
  check(pp::with_vocabulary<pp::Interleaved<2>, pp::interlaced>{});
}

TEST_CASE("Layers whose weights are gathered have the gradients of one device") {
  std::mt19937 random(12);
  auto const check = [&](auto const& schedule) {
    for (int const devices : {1, 2, 3})
      for (bool const pairs : {false, true}) {
        pp::uniform_cost const cost{.communication = 0.25, .gather = 0.6, .scatter = 0.4};
        auto const base = pp::make_timetable(schedule, {devices, 2 * devices}, cost);
        auto const own = random_layers(base, 0, pairs, random);
        check_exact(timed(own, shard_times{}), 0, 0, random);
      }
  };
  check(pp::with_sharded_weights<pp::OneFOneB>{});
  check(pp::with_sharded_weights<pp::EagerOneFOneB>{{}, {.prefetch = 0, .resident = 1}});
  check(pp::with_sharded_weights<pp::ZeroBubbleH1>{});
  check(pp::with_sharded_weights<pp::Interleaved<3>>{});
  check(pp::with_sharded_weights<pp::Interleaved<3>>{{}, {.prefetch = 2, .resident = 3}});
  check(pp::with_sharded_weights<pp::Interleaved<2>>{{}, {.prefetch = 0, .resident = 1}});
  check(pp::with_sharded_weights<pp::BreadthFirst<2>>{{}, {.scatter_once = true}});
  check(pp::with_sharded_weights<pp::BreadthFirst<2>>{{}, pp::reshard::gathered_once()});
  check(pp::with_sharded_weights<pp::Interleaved<2>, pp::weights_on_host>{});
}

TEST_CASE("Weights of layers are gathered in their order, and waited for one by one") {
  auto const base = pp::make_timetable(
    pp::with_sharded_weights<pp::GPipe>{}, {1, 1}, pp::uniform_cost{.gather = 1, .scatter = 1});
  auto const own = pp::with_experts(base, std::vector<int>{2});
  CHECK(written(own, 0) == "N0 N1 U0 A0 E0 U1 A1 E1 collect_gradients0 collect_gradients1 "
                           "M1 W1 B1 V1 M0 W0 B0 V0 X0 X1 request_scatter0 request_scatter1 ");
  CHECK(written(own, 1) == "gather_weights0 gather_weights1 Z0 Z1 ");
  CHECK(written(own, 2) == "D0 C0 D1 C1 K1 J1 K0 J0 ");
  // The first layer waits for its own weights: 3. Forward 4 + 2 + 4 + 2 twice. Back K 2, M 4, W 4,
  // which hides J, B 4, and V 2, which hides the next K, again M 4, W 4, B 4, V 2. Then scatters.
  CHECK(pp::makespan(timed(own, shard_times{})) == doctest::Approx(3 + 2 * 12 + 14 + 16 + 2 * 3));
}

TEST_CASE("Marks of weights do not part passes that go together") {
  std::vector<int> const layers{2, 2, 2, 2};
  auto const takes = [&](pp::dynamic_timetable const& base, bool pairs) {
    return pp::makespan(timed(pp::with_experts(base, layers, pairs), shard_times{.move = 0}));
  };
  auto const whole = pp::make_timetable(pp::Interleaved<2>{}, {2, 8});
  auto const shards = pp::make_timetable(pp::with_sharded_weights<pp::Interleaved<2>>{}, {2, 8});
  CHECK(takes(shards, true) == takes(whole, true)); // where gathers take no time
  CHECK(takes(shards, false) == takes(whole, false));
  CHECK(takes(whole, true) < 0.95 * takes(whole, false));
}

TEST_CASE("Tables without such layers are refused with a reason") {
  auto const base = pp::make_timetable(pp::OneFOneB{}, {2, 4});
  CHECK_THROWS_WITH((void)pp::with_experts(base, std::vector<int>{1, 0}),
                    "with_experts: give at least one layer for every stage, and 1 for a shard");
  auto const shards = pp::make_timetable(pp::with_vocabulary<pp::OneFOneB>{}, {1, 1});
  CHECK_THROWS_WITH((void)pp::with_experts(shards, std::vector<int>{1, 1, 2}),
                    "with_experts: give at least one layer for every stage, and 1 for a shard");
  CHECK_THROWS_WITH((void)pp::with_experts(base, std::vector<int>{1}),
                    "with_experts: give at least one layer for every stage, and 1 for a shard");
}
