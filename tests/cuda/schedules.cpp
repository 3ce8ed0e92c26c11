// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Compiled once for all programs: schedules take long.
#include <pipe/schedule/breadth_first.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/slim_pipe.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_stage_graph.hpp>
#include <pipe/timetable/adapt/with_vocabulary.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tests/cuda/schedules.hpp>
#include <tests/support/stage_graphs.hpp>
#include <utility>
#include <vector>

namespace pp = pipelining;

namespace {

//! Two stages into a third, and a skip from the second to the last.
pp::with_stage_graph<pp::OneFOneB> const crossed{{}, {{0, 2}, {1, 2}, {2, 3}, {1, 3}}};

//! What one device computes on a graph of stages with the numbers of support::arithmetic_stage. A
//! stage hands its k-th neighbour before it a gradient of its own.
support::sequential_result
run_on_graph(support::edge_list const& edges, int stages, int microbatches) {
  using word = std::uint64_t;
  auto const mix = support::arithmetic_stage::mix;
  auto const count = static_cast<std::size_t>(stages);
  auto const all = [mix](std::vector<word> const& of) {
    word value = of[0];
    for (std::size_t i = 1; i < of.size(); ++i)
      value = mix(value, of[i]);
    return value;
  };
  support::sequential_result result{std::vector<word>(count), 0};
  for (int m = 0; m < microbatches; ++m) {
    pp::context where;
    where.microbatch = m;
    std::vector<word> x(count);
    std::vector<word> y(count);
    for (std::size_t s = 0; s < count; ++s) {
      std::vector<word> read;
      for (int const from : support::before(edges, static_cast<int>(s)))
        read.push_back(y[static_cast<std::size_t>(from)]);
      x[s] = read.empty() ? support::arithmetic_stage::unit(where) : all(read);
      y[s] = mix(x[s], word{s} + 3);
    }
    std::vector<word> dx(count);
    for (std::size_t s = count; s-- > 0;) {
      std::vector<word> read;
      for (int const to : support::after(edges, static_cast<int>(s))) {
        auto const beside = support::before(edges, to);
        auto const number =
          std::find(beside.begin(), beside.end(), static_cast<int>(s)) - beside.begin();
        word const whole = dx[static_cast<std::size_t>(to)];
        read.push_back(number == 0 ? whole : mix(whole, static_cast<word>(number)));
      }
      result.losses += read.empty() ? y[s] : 0;
      word const dy = read.empty() ? mix(x[s], 7) : all(read);
      dx[s] = mix(dy, (word{s} + 3) ^ x[s]);
      result.gradients[s] += mix(dy, x[s]);
    }
  }
  return result;
}

//! What one device computes with the same numbers where the vocabulary is in shards.
support::sequential_result run_vocabulary(std::size_t shards, int microbatches, int barriers) {
  using word = std::uint64_t;
  auto const mix = support::arithmetic_stage::mix;
  auto const weight = [](std::size_t stage) { return word{stage} + 3; };
  auto const all = [mix](std::vector<word> const& of) {
    word value = of[0];
    for (std::size_t i = 1; i < of.size(); ++i)
      value = mix(value, of[i]);
    return value;
  };
  support::sequential_result result{std::vector<word>(3 * shards), 0};
  for (int m = 0; m < microbatches; ++m) {
    pp::context where;
    where.microbatch = m;
    word const unit = support::arithmetic_stage::unit(where);
    std::vector<word> rows;
    for (std::size_t shard = 0; shard < shards; ++shard)
      rows.push_back(mix(unit, weight(shard)));
    std::vector<word> x{all(rows)};
    for (std::size_t stage = shards; stage < 2 * shards; ++stage)
      x.push_back(mix(x.back(), weight(stage)));
    std::vector<word> statistics;
    for (std::size_t stage = 2 * shards; stage < 3 * shards; ++stage)
      statistics.push_back(mix(x.back(), weight(stage)));
    std::vector<word> given;
    for (std::size_t shard = 0; shard < shards; ++shard) {
      word const dy = all(statistics);
      result.gradients[2 * shards + shard] += mix(dy, x.back());
      given.push_back(barriers == 1 ? mix(statistics[shard], 1)
                                    : mix(dy, weight(2 * shards + shard) ^ x.back()));
    }
    word dy = all(given);
    for (std::size_t stage = 2 * shards; stage-- > shards;) {
      word const kept = x[stage - shards];
      result.gradients[stage] += mix(dy, kept);
      dy = mix(dy, weight(stage) ^ kept);
    }
    for (std::size_t shard = 0; shard < shards; ++shard)
      result.gradients[shard] += mix(dy, unit);
  }
  return result;
}

//! The plans of a timetable under all policies, for what another model computes.
void add_plans(std::vector<named_plan>& plans,
               std::string const& name,
               pp::dynamic_timetable const& table,
               support::sequential_result const& expected) {
  std::size_t const before = plans.size();
  add_plans(plans, name, table);
  for (std::size_t i = before; i < plans.size(); ++i)
    plans[i].expected = expected;
}

} // namespace

std::vector<named_plan> test_plans() {
  std::vector<named_plan> plans;
  add_plans<pp::GPipe>(plans, "GPipe", 3, 4);
  add_plans<pp::OneFOneB>(plans, "1F1B", 2, 3);
  add_plans<pp::OneFOneB>(plans, "1F1B", 4, 6);
  add_plans<pp::Seq1F1B<2>>(plans, "Seq1F1B", 3, 4);
  add_plans<pp::VHalf>(plans, "V-Half", 3, 5);
  add_plans<pp::VMin>(plans, "V-Min", 3, 5);
  add_plans<pp::ZeroBubbleH1>(plans, "ZB-H1", 4, 6);
  add_plans<pp::Interleaved<2>>(plans, "Interleaved", 2, 4);
  add_plans<pp::Interleaved<2>>(plans, "Interleaved", 4, 4);
  add_plans<pp::Seq1F1BInterleaved<2, 2>>(plans, "interleaved Seq1F1B", 2, 4);
  add_plans<pp::ZeroBubbleV>(plans, "ZB-V", 3, 6);
  add_plans<pp::DualPipeV<>>(plans, "DualPipeV", 2, 5);
  add_plans(plans,
            "1F1B on a graph",
            pp::make_timetable(crossed, {4, 5}),
            run_on_graph(crossed.edges, 4, 5));
  add_offloaded<pp::OneFOneB>(plans, "1F1B", 4, 6);
  add_offloaded<pp::Seq1F1B<2>>(plans, "Seq1F1B", 3, 4);
  add_offloaded<pp::Interleaved<2>>(plans, "Interleaved", 2, 4);
  add_offloaded<pp::VHalf>(plans, "V-Half", 3, 5);
  add_offloaded<pp::ZeroBubbleH1>(plans, "ZB-H1", 4, 6);
  add_sharded<pp::BreadthFirst<3>>(plans, "BreadthFirst", 2, 4); // one of three stages comes again
  add_sharded<pp::Interleaved<3>>(plans, "Interleaved", 2, 4);
  add_sharded<pp::ZeroBubbleV>(plans, "ZB-V", 2, 4);
  auto trained = support::run_sequentially(4, 6, 1);
  trained.gradients[0] = trained.gradients[1] = 0; // frozen: no backward pass is called
  add_plans(plans,
            "1F1B with two frozen stages",
            pp::make_timetable(pp::with_frozen_stages<pp::OneFOneB>{{}, {0, 1}}, {4, 6}),
            trained);
  return plans;
}

std::vector<named_plan> plans_with_shards() {
  std::vector<named_plan> plans = test_plans();
  auto const add =
    [&plans](std::string const& name, pp::dynamic_timetable const& table, int barriers) {
      auto const expected =
        run_vocabulary(table.over.extents.devices, table.over.extents.microbatches, barriers);
      add_plans(plans, name, table, expected);
      add_plan<pp::communicators::exchanges_at_once>(plans, name, table);
      plans.back().expected = expected;
    };
  add("1F1B with a vocabulary in shards",
      pp::make_timetable<pp::with_vocabulary<pp::OneFOneB, 2>>({3, 4}),
      2);
  add("1F1B with a vocabulary in shards, one barrier",
      pp::make_timetable<pp::with_vocabulary<pp::OneFOneB, 1>>({3, 4}),
      1);
  add("1F1B with a vocabulary in shards, interlaced",
      pp::make_timetable<pp::with_vocabulary<pp::OneFOneB, pp::interlaced>>({3, 4}),
      pp::interlaced);
  // Devices attend for each other: queries and old keys go to a peer and come back inside passes.
  pp::SlimPipeExchange<4> const exchanged;
  auto const table = pp::make_timetable(exchanged, {2, 2});
  int const stages = table.over.extents.stages();
  int taken = 0;
  for (int stage = 0; stage < stages; ++stage)
    taken += exchanged.stage_at(table.over.extents, stage).taken;
  REQUIRE(taken > 0);
  add_plan<pp::communicators::per_pair>(plans, "SlimPipe with its exchange of attention", table);
  plans.back().expected = run_on_graph(exchanged.edges_of(table.over.extents), stages, 2);
  return plans;
}

std::vector<named_plan> large_plans(int devices, int microbatches, int words) {
  std::vector<named_plan> plans;
  auto const add = [&]<class Schedule>(std::string const& name, Schedule const&) {
    auto const table = pp::make_timetable<Schedule>({devices, microbatches});
    pp::uniform_sizes sizes = message_words;
    sizes.message = 8 * words;
    pp::plan work = pp::lower<pp::communicators::per_pair>(table, sizes);
    REQUIRE(pp::prove(work));
    auto const extents = work.over.extents;
    plans.push_back(
      {name,
       std::move(work),
       support::run_sequentially(extents.stages(), extents.microbatches, extents.chunks)});
  };
  add("1F1B", pp::OneFOneB{});
  add("Seq1F1B", pp::Seq1F1B<2>{});
  add("V-Half", pp::VHalf{});
  add("ZB-H1", pp::ZeroBubbleH1{});
  add("Interleaved", pp::Interleaved<2>{});
  add("DualPipeV", pp::DualPipeV<>{});
  return plans;
}
