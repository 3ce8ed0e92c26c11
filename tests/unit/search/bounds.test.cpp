// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/breadth_first.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/grouped.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/seq1f1b_interleaved.hpp>
#include <pipe/schedule/v_one_f_one_b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/schedule/zero_bubble_auto.hpp>
#include <pipe/schedule/zero_bubble_interleaved.hpp>
#include <pipe/schedule/zero_bubble_v.hpp>
#include <pipe/search/bounds.hpp>
#include <pipe/search/sequence_partition.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <sstream>
#include <string>
#include <tests/support/golden_lines.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

//! Times that differ by kind, stage, chunk and microbatch.
struct rough_cost {
  std::vector<double> factors;
  double message = 0.5;

  explicit rough_cost(unsigned seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 997; ++i)
      factors.push_back(0.5 + static_cast<double>(random() % 1000) / 500);
  }
  [[nodiscard]] double duration(pp::pass const& what) const {
    if (what.kind == pp::pass_kind::backward) {
      pp::pass half = what;
      half.kind = pp::pass_kind::backward_input;
      double const input = duration(half);
      half.kind = pp::pass_kind::backward_weight;
      return input + duration(half);
    }
    auto const number = (static_cast<unsigned>(what.kind) * 31u + what.stage) * 17u +
                        what.chunk * 7u + what.microbatch / 3u * 101u;
    return factors[number % factors.size()];
  }
  [[nodiscard]] double latency() const { return message; }
};

template <class Cost>
void check_table(pp::dynamic_timetable const& table,
                 Cost const& cost,
                 bool pairs = false,
                 std::vector<double> const& shares = {}) {
  double peak = 0;
  for (int device = 0; device < table.extents.devices; ++device)
    peak = std::max(peak,
                    shares.empty() ? pp::to_double(pp::peak_activations(table, device))
                                   : pp::peak_activations(table, device, shares));
  for (bool const limited : {false, true}) {
    pp::bound_options options{.chunk_shares = shares, .pairs = pairs};
    if (limited)
      options.memory_limit = peak + 1e-9;
    pp::time_bounds const bounds = pp::least_times(table.over(), cost, options);
    CHECK(bounds.span.least() <= pp::span_of(table) * (1 + 1e-12));
    CHECK(bounds.makespan.least() <= pp::makespan(table) * (1 + 1e-12));
    CHECK(bounds.span.least() <= bounds.makespan.least() * (1 + 1e-12));
    CHECK(bounds.span.work > 0);
  }
}

template <class Cost>
void check_all(int devices, int microbatches, Cost const& cost) {
  pp::pipeline_size const size{devices, microbatches};
  auto const check = [&](char const* name, auto const& schedule) {
    CAPTURE(name);
    check_table(pp::make_timetable(schedule, size, cost), cost);
  };
  check("gpipe", pp::GPipe{});
  check("1f1b", pp::OneFOneB{});
  check("eager", pp::EagerOneFOneB{});
  check("grouped", pp::Grouped<2>{});
  check("interleaved", pp::Interleaved<2>{});
  check("breadth-first", pp::BreadthFirst<3>{});
  check("seq1f1b", pp::Seq1F1B<3>{});
  check("seq1f1b-interleaved", pp::Seq1F1BInterleaved<>{.stages_per_device = 2, .chunks = 2});
  check("zb-h1", pp::ZeroBubbleH1{});
  check("zb-h2", pp::ZeroBubbleH2{});
  check("zb-interleaved", pp::ZeroBubbleInterleaved<2>{});
  check("zb-auto", pp::ZeroBubbleAuto<>{.memory_limit = devices});
  check("v-min", pp::VMin{});
  check("v-half", pp::VHalf{});
  check("v-zb", pp::VZeroBubble{});
  check("v-1f1b", pp::OneFOneBV{});
  check("zb-v", pp::ZeroBubbleV{});
  if (microbatches % 2 == 0 && devices % 2 == 0 && microbatches >= 2 * devices) {
    check("dualpipe", pp::DualPipe<pp::pairs::in_turn>{});
    check("dualpipe-v", pp::DualPipeV<pp::pairs::in_turn>{});
  }
}

} // namespace

TEST_CASE("no schedule beats the bounds") {
  for (int devices : {1, 3, 4})
    for (int microbatches : {1, 3, 8}) {
      CAPTURE(devices);
      CAPTURE(microbatches);
      check_all(devices, microbatches, pp::uniform_cost{1, 1, 1, 0});
      check_all(devices, microbatches, pp::uniform_cost{10, 12, 8, 3});
      check_all(devices, microbatches, pp::uniform_cost{1, 3, 0, 0.25});
      check_all(devices, microbatches, rough_cost(7u + static_cast<unsigned>(devices)));
    }
}

TEST_CASE("no schedule beats the bounds with pairs or with uneven chunks") {
  for (double const pair : {3.0, 2.0, 1.5, 0.5}) {
    pp::uniform_cost cost{1, 1, 1, 0.25};
    cost.overlapped_pair = pair;
    CAPTURE(pair);
    check_table(pp::make_timetable<pp::DualPipe<>>({4, 12}, cost), cost, true);
    check_table(pp::make_timetable<pp::DualPipeV<>>({4, 12}, cost), cost, true);
  }
  pp::sequence_work const work = pp::work_of_attention_ratio(2, 1000);
  for (bool const even : {false, true}) {
    std::vector<int> const lengths =
      even ? pp::even_partition(1000, 4) : pp::balanced_partition(1000, 4, work);
    std::vector<double> const shares = pp::token_shares(lengths);
    pp::shape const extents{.devices = 4, .microbatches = 8, .chunks = 4};
    pp::cost_table const cost = pp::chunk_costs(extents, lengths, work, 0.1);
    check_table(pp::make_timetable<pp::Seq1F1B<4>>({4, 8}, cost), cost, false, shares);
    check_table(pp::make_timetable<pp::Seq1F1BZeroBubbleH2<4>>({4, 8}, cost), cost, false, shares);
  }
}

TEST_CASE("bounds are met where theory says so") {
  for (int devices : {2, 4, 8})
    for (int microbatches : {8, 16, 40}) {
      CAPTURE(devices);
      CAPTURE(microbatches);
      pp::uniform_cost const unit;
      // Zero bubble: nothing but work on the busiest device, and its way there for the makespan.
      pp::dynamic_timetable const h2 =
        pp::make_timetable<pp::ZeroBubbleH2>({devices, std::max(microbatches, 2 * devices)}, unit);
      pp::time_bounds const free = pp::least_times(h2.extents, unit);
      CHECK(free.span.least() == pp::span_of(h2));
      CHECK(free.makespan.work == 3.0 * h2.extents.microbatches + devices - 1);
      // One microbatch alone is a path.
      pp::shape one{.devices = devices, .microbatches = 1};
      CHECK(pp::least_times(one, unit).makespan.least() == 2.0 * devices + 1);
      // One activation at a time: one microbatch after the other, on the first device.
      pp::shape const all{.devices = devices, .microbatches = microbatches};
      pp::time_bounds const tight = pp::least_times(all, unit, {.memory_limit = 1});
      CHECK(tight.makespan.memory == microbatches * (2.0 * devices + 1));
      CHECK(std::string(tight.makespan.reason()) == "memory");
    }
}

TEST_CASE("bounds are below proven optima and near them") {
  int met = 0;
  int all = 0;
  for (std::string const& line : support::golden_lines("golden/search/optimal_offload.txt")) {
    std::istringstream in(line);
    pp::shape extents;
    pp::uniform_cost cost;
    double cap = 0;
    std::string copy;
    char mark = 0;
    double makespan = 0;
    in >> extents.devices >> extents.microbatches >> cost.forward >> mark >> cost.backward_input >>
      mark >> cost.backward_weight >> cap >> copy >> mark >> makespan;
    REQUIRE(!in.fail());
    CAPTURE(line);
    // Copies free memory, so with them only the bounds without a limit hold.
    pp::time_bounds const bounds = copy == "-"
                                     ? pp::least_times(extents, cost, {.memory_limit = cap})
                                     : pp::least_times(extents, cost);
    CHECK(bounds.makespan.least() <= makespan);
    met += bounds.makespan.least() == makespan ? 1 : 0;
    ++all;
  }
  CHECK(met >= all * 2 / 3);
}

TEST_CASE("bounds refuse what cannot be") {
  pp::shape const extents{.devices = 2, .microbatches = 2, .chunks = 2};
  std::vector<double> const one_share{1.0};
  CHECK_THROWS_WITH(pp::least_times(extents, pp::uniform_cost{}, {.memory_limit = 0.25}),
                    doctest::Contains("nothing runs"));
  CHECK_THROWS_WITH(pp::least_times(extents, pp::uniform_cost{}, {.memory_limit = 0}),
                    doctest::Contains("above 0"));
  CHECK_THROWS_WITH(pp::least_times(extents, pp::uniform_cost{}, {.chunk_shares = one_share}),
                    doctest::Contains("one share per chunk"));
  CHECK_THROWS_AS(pp::least_times({.devices = 0}, pp::uniform_cost{}), std::invalid_argument);
}
