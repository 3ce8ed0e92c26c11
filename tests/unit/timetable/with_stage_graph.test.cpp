// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Stages that are no chain: tables of edges, and times against a relaxation that knows nothing of
// the library's rules.
#include <pipe/flow/edge_table.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/stage_graph.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/adapt/with_stage_graph.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <stdexcept>
#include <string>
#include <tests/support/stage_graphs.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

// What `work` waits for, by words of the paper: nothing of links, lines or rows.
std::vector<std::size_t>
needs(pp::timetable_view const& table, support::edge_list const& edges, std::size_t work) {
  pp::pass const what = table.passes[work];
  auto const is_backward = [](pp::pass_kind kind) {
    return kind == pp::pass_kind::backward || kind == pp::pass_kind::backward_input;
  };
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < static_cast<std::size_t>(table.size()); ++i) {
    pp::pass const other = table.passes[i];
    if (other.microbatch != what.microbatch)
      continue;
    bool const forward = other.kind == pp::pass_kind::forward;
    bool const same_stage = other.stage == what.stage;
    bool const same_chunk = other.chunk == what.chunk;
    auto const reads = [&](int from, int to) {
      return std::find(edges.begin(), edges.end(), pp::stage_edge{from, to, pp::of_unit::same}) !=
             edges.end();
    };
    bool needed = false;
    if (what.kind == pp::pass_kind::forward)
      needed = forward && (same_chunk ? reads(other.stage, what.stage)
                                      : same_stage && other.chunk + 1 == what.chunk);
    else if (is_backward(what.kind))
      needed =
        (forward && same_stage && same_chunk) ||
        (is_backward(other.kind) && (same_chunk ? reads(what.stage, other.stage)
                                                : same_stage && other.chunk == what.chunk + 1));
    else
      needed = other.kind == pp::pass_kind::backward_input && same_stage && same_chunk;
    if (needed)
      found.push_back(i);
  }
  return found;
}

void check_times(pp::timetable_view const& table, support::edge_list const& edges, double latency) {
  auto const size = static_cast<std::size_t>(table.size());
  std::vector<int> device(size);
  std::vector<std::vector<std::size_t>> all(size);
  for (int d = 0; d < table.over.extents.devices; ++d)
    for (int i = table.offsets[d]; i < table.offsets[d + 1]; ++i)
      device[static_cast<std::size_t>(i)] = d;
  for (std::size_t i = 0; i < size; ++i)
    all[i] = needs(table, edges, i);
  std::vector<double> start(size);
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t i = 0; i < size; ++i) {
      auto const end = [&](std::size_t j) { return start[j] + table.ends[j] - table.starts[j]; };
      double earliest = i > 0 && device[i - 1] == device[i] ? end(i - 1) : 0;
      for (std::size_t const j : all[i])
        earliest = std::max(earliest, end(j) + (device[j] == device[i] ? 0 : latency));
      changed = changed || earliest != start[i];
      start[i] = earliest;
    }
  }
  for (std::size_t i = 0; i < size; ++i)
    CHECK(table.starts[i] == start[i]);
}

template <class Schedule>
void check_on_graphs(Schedule const& schedule, std::uint32_t seed) {
  std::mt19937 random(seed);
  for (int const devices : {1, 2, 3, 5})
    for (int const microbatches : {2, 6}) {
      pp::uniform_cost const cost{1, 1.25, 0.75, 0.5};
      pp::shape const extents = schedule.arrange(devices, microbatches);
      auto const edges = support::draw_graph(extents.stages(), random);
      pp::with_stage_graph<Schedule> const on_graph{schedule, edges};
      auto const table = pp::make_timetable(on_graph, {devices, microbatches}, cost);
      CHECK(pp::verify(table));
      check_times(table, edges, 0.5);
    }
}

std::string refusal(support::edge_list const& edges, int chunks = 1, bool grouped = false) {
  std::vector<pp::stage_group> groups;
  if (grouped)
    groups.push_back({0, 2});
  try {
    (void)pp::detail::edge_table(edges, 8, groups, {}, chunks);
  } catch (std::invalid_argument const& refused) {
    return refused.what();
  }
  return {};
}

} // namespace

TEST_CASE(
  "a table of edges gives every stage its neighbours, and each its number at the other end") {
  std::mt19937 random(1);
  for (int stages = 1; stages < 12; ++stages) {
    auto const edges = support::draw_graph(stages, random);
    std::vector<int> const table = pp::detail::edge_table(edges, stages);
    CHECK(pp::detail::stage_graph{table.data(), stages}.size() == static_cast<int>(table.size()));
    pp::pipeline_view const over{
      .extents = {.devices = stages}, .holders = nullptr, .edges = table.data()};
    int widest = 1;
    for (int s = 0; s < stages; ++s)
      for (int const step : {-1, 1}) {
        auto const expected = step < 0 ? support::before(edges, s) : support::after(edges, s);
        REQUIRE(over.graph().edges(s, step) == static_cast<int>(expected.size()));
        widest = std::max(widest, static_cast<int>(expected.size()));
        for (int k = 0; k < static_cast<int>(expected.size()); ++k) {
          pp::detail::stage_neighbour const there = over.graph().edge(s, step, k);
          CHECK(there.stage == expected[static_cast<std::size_t>(k)]);
          CHECK(over.graph().edge(there.stage, -step, there.number).stage == s);
          CHECK(over.graph().edge(there.stage, -step, there.number).number == k);
        }
      }
    CHECK(pp::detail::graph_width(over) == widest);
  }
}

TEST_CASE("edges say which chunk of a stage another one reads") {
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    int const stages = 1 + static_cast<int>(random() % 5);
    int const chunks = 1 + static_cast<int>(random() % 4);
    support::edge_list const edges = support::draw_units(stages, random);
    std::vector<int> const table = pp::detail::edge_table(edges, stages, {}, {}, chunks);
    CHECK(pp::detail::stage_graph{table.data(), stages}.size() == static_cast<int>(table.size()));
    pp::pipeline_view const over{
      .extents = {.devices = stages, .chunks = chunks}, .holders = nullptr, .edges = table.data()};
    int widest = 1;
    for (int s = 0; s < stages; ++s)
      for (int c = 0; c < chunks; ++c)
        for (int const step : {-1, 1}) {
          pp::pass const what = pp::row_writer::make(pp::pass_kind::forward, s, 0, c);
          auto const expected = support::units_beside(edges, {s, c}, step, chunks);
          REQUIRE(pp::detail::neighbours(over, what, step) == static_cast<int>(expected.size()));
          widest = std::max(widest, static_cast<int>(expected.size()));
          for (int k = 0; k < static_cast<int>(expected.size()); ++k) {
            pp::detail::stage_neighbour const there = pp::detail::neighbour(over, what, step, k);
            support::stage_and_chunk const unit{there.stage, there.chunk};
            CHECK(unit == expected[static_cast<std::size_t>(k)]);
            auto const back = support::units_beside(edges, unit, -step, chunks);
            REQUIRE(there.number < static_cast<int>(back.size()));
            CHECK(back[static_cast<std::size_t>(there.number)] == support::stage_and_chunk{s, c});
          }
        }
    CHECK(pp::detail::graph_width(over) >= widest);
  }
}

TEST_CASE("a frozen stage has its gradients where an edge leads back to it from a trained one") {
  using enum pp::of_unit;
  auto const goes_forward_only = [](support::edge_list const& edges,
                                    std::vector<int> const& frozen) {
    std::vector<int> const table = pp::detail::edge_table(edges, 3, {}, frozen, 2);
    pp::pipeline_view const over{
      .extents = {.devices = 3, .chunks = 2}, .holders = nullptr, .edges = table.data()};
    std::vector<int> result;
    for (int stage = 0; stage < 3; ++stage)
      if (pp::detail::goes_forward_only(over, stage))
        result.push_back(stage);
    return result;
  };
  CHECK(goes_forward_only({{0, 1, same}, {1, 2, same}}, {0, 1}) == std::vector{0, 1});
  CHECK(goes_forward_only({{0, 1, same}, {1, 2, same}, {1, 0, previous}}, {0, 1}) ==
        std::vector{0, 1});
  CHECK(goes_forward_only({{0, 1, same}, {1, 2, same}, {2, 0, previous}}, {0, 1}).empty());
  CHECK(goes_forward_only({{1, 0, previous}, {2, 1, previous}}, {0, 1}).empty());
  CHECK(goes_forward_only({{0, 1, all}, {1, 2, next}}, {0}) == std::vector{0});
}

TEST_CASE("edges that cannot mean what their stages need are refused with a sentence") {
  using enum pp::of_unit;
  CHECK(refusal({{0, 1}}).empty());
  CHECK(refusal({{0, 1}}, 2) ==
        "stage graph: the edge from stage 0 to stage 1 does not say which chunk is read, and "
        "sequences are cut into several; write of_unit::same, previous, next or all as its third "
        "member");
  for (pp::of_unit const unit : {same, previous, next, all})
    CHECK(refusal({{0, 1, unit}}, 2).empty());
  CHECK(refusal({{7, 0, previous}}, 2).empty());
  CHECK(refusal({{3, 3, previous}}, 2).empty());
  for (pp::of_unit const unit : {unsaid, same, next, all})
    CHECK(refusal({{7, 0, unit}}).find("leads back; number stages") != std::string::npos);
  for (pp::of_unit const unit : {next, all})
    CHECK(refusal({{1, 2, unit}, {7, 0, previous}}, 2)
            .find("reads a later chunk, and another edge leads back") != std::string::npos);
  CHECK(refusal({{1, 2, previous}}, 2, true).find("groups share out the work of one") !=
        std::string::npos);
  CHECK(refusal({{1, 2, same}}, 2, true).empty());
  CHECK(refusal({{1, 2, static_cast<pp::of_unit>(9)}}).find("a unit that is none") !=
        std::string::npos);
  CHECK(refusal({{0, -1, previous}}).find("names a stage that does not exist") !=
        std::string::npos);
}

TEST_CASE("edges that cannot be are refused with a sentence") {
  CHECK(refusal({{0, 8}}) ==
        "stage graph: the edge from stage 0 to stage 8 names a stage that does not "
        "exist; stages are 0 to S - 1");
  CHECK(refusal({{-1, 2}}).find("names a stage that does not exist") != std::string::npos);
  CHECK(refusal({{3, 3}}).find("leads back; number stages so that each reads of lower ones") !=
        std::string::npos);
  CHECK(refusal({{4, 3}}).find("leads back") != std::string::npos);
  CHECK(refusal({{1, 3}, {1, 3}}).find("is there twice") != std::string::npos);
  CHECK(refusal({{0, 7}, {1, 7}, {2, 7}, {3, 7}, {4, 7}, {5, 7}, {6, 7}}).empty());
}

TEST_CASE("groups of stages that cannot be are refused with a sentence") {
  auto const refused = [](std::vector<pp::stage_group> const& groups) -> std::string {
    try {
      (void)pp::detail::edge_table({}, 6, groups);
    } catch (std::invalid_argument const& error) {
      return error.what();
    }
    return {};
  };
  CHECK(refused({{0, 2}, {2, 4}}).empty());
  CHECK(refused({{3, 4}}) == "stage graph: a group of 4 stages from stage 3 on has stages that do "
                             "not exist, none, or those of another");
  CHECK(refused({{0, 3}, {2, 2}}).find("those of another") != std::string::npos);
  CHECK(refused({{-1, 2}}).find("do not exist") != std::string::npos);
  CHECK(refused({{1, 0}}).find("none") != std::string::npos);
  CHECK(refused({{1, 0x7fffffff}}).find("do not exist") != std::string::npos);
}

TEST_CASE_TEMPLATE("passes start as soon as the edges allow, under every schedule",
                   Schedule,
                   pp::GPipe,
                   pp::OneFOneB,
                   pp::Seq1F1B<2>,
                   pp::ZeroBubbleH1,
                   pp::detail::SweptVHalf) {
  check_on_graphs(Schedule{}, 1);
}

TEST_CASE("a graph that is a chain has the times of the chain") {
  auto const chain = pp::make_timetable(pp::OneFOneB{}, {4, 6}, pp::uniform_cost{1, 1, 1, 0.25});
  pp::with_stage_graph<pp::OneFOneB> const graph{{}, {{0, 1}, {1, 2}, {2, 3}}};
  auto const same = pp::make_timetable(graph, {4, 6}, pp::uniform_cost{1, 1, 1, 0.25});
  CHECK(same.starts == chain.starts);
  CHECK(same.ends == chain.ends);
}

TEST_CASE("an adapter around a graph keeps its edges, and one inside it its kinds") {
  support::edge_list const edges{{0, 2}, {1, 2}, {2, 3}, {1, 3}};
  pp::with_recompute<pp::with_stage_graph<pp::OneFOneB>> const outside{{{}, edges}, {}};
  pp::with_stage_graph<pp::with_recompute<pp::OneFOneB>> const inside{{}, edges};
  auto const one = pp::make_timetable(outside, {4, 5});
  auto const other = pp::make_timetable(inside, {4, 5});
  CHECK(one.over.edges == other.over.edges);
  CHECK(one.passes == other.passes);
  CHECK(one.starts == other.starts);
  CHECK(!one.over.edges.empty());
}

namespace {
struct slow_encoder {
  int stage;
  [[nodiscard]] double duration(pp::pass const& what) const { return what.stage == stage ? 2 : 1; }
  [[nodiscard]] double latency() const { return 0.5; }
};
} // namespace

TEST_CASE("a pass that starts before one of its inputs has arrived is named with that input") {
  pp::with_stage_graph<pp::OneFOneB> const graph{{}, {{0, 2}, {1, 2}, {2, 3}, {1, 3}}};
  for (int const slow : {0, 1}) {
    auto table = pp::make_timetable(graph, {4, 2}, slow_encoder{slow});
    auto const decoder = static_cast<std::size_t>(table.offsets[2]);
    REQUIRE(table.starts[decoder] == 2.5);
    table.starts[decoder] = 1.5; // the other encoder is there by then
    pp::report const found = pp::verify(table);
    CHECK(found.broken == pp::report::rule::before_dependency);
    CHECK(found.what.stage == 2);
    CHECK(found.other.stage == slow);
  }
}

TEST_CASE("a frozen stage before a pass that waits for ever is timed, and the wait is told") {
  pp::device_orders orders = pp::make_orders(pp::with_frozen_stages<pp::OneFOneB>{{}, {0}},
                                             {.devices = 2, .microbatches = 3});
  std::swap(orders.passes[static_cast<std::size_t>(orders.offsets[1])],
            orders.passes[static_cast<std::size_t>(orders.offsets[1]) + 1]); // back before forward
  pp::dynamic_timetable const table = pp::simulate(orders, pp::uniform_cost{1, 1, 1, 0.25});
  pp::report const verdict = pp::verify(table);
  CHECK(!verdict);
  CHECK(verdict.broken == pp::report::rule::waits_for_ever);
}
