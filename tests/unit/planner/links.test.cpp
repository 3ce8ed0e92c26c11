// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/planner/model/cost_file.hpp>
#include <pipe/planner/model/measured.hpp>
#include <pipe/planner/search/bounds.hpp>
#include <pipe/planner/search/exact.hpp>
#include <pipe/planner/search/order_search.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace pp = pipelining;

namespace {

//! Links of a pipeline whose second half sits in another machine: [P x P].
double link_seconds(int from, int to, int devices, double bytes) {
  bool const far = (from < devices / 2) != (to < devices / 2);
  double const base = from < to ? 0.25 : 0.5;
  return far ? 2 * base + bytes / 100 : base + bytes / 1000;
}

pp::cost_table costs_with_links(pp::shape const& extents, double bytes) {
  pp::cost_table table(extents, {3, 4, 2, 0.25});
  for (int from = 0; from < extents.devices; ++from)
    for (int to = 0; to < extents.devices; ++to)
      if (from != to)
        table.set_link(from, to, link_seconds(from, to, extents.devices, bytes));
  return table;
}

//! Start times by relaxation until nothing moves: written against the definition alone.
std::vector<double> slow_starts(pp::timetable_view table, pp::cost_table const& cost) {
  auto const count = static_cast<std::size_t>(table.size());
  std::vector<double> starts(count);
  std::vector<int> entries(static_cast<std::size_t>(table.over.pass_indices()), -1);
  std::vector<int> devices(count);
  for (int d = 0; d < table.over.extents.devices; ++d)
    for (int i = table.offsets[d]; i < table.offsets[d + 1]; ++i) {
      entries[static_cast<std::size_t>(pp::detail::pass_index(table.over, table.passes[i]))] = i;
      devices[static_cast<std::size_t>(i)] = d;
    }
  auto const end = [&](int i) {
    return starts[static_cast<std::size_t>(i)] + cost.duration(table.passes[i]);
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int i = 0; i < table.size(); ++i) {
      int const d = devices[static_cast<std::size_t>(i)];
      double start = i == table.offsets[d] ? 0 : end(i - 1);
      pp::detail::dependency_list const needed(table.over, table.passes[i]);
      for (int k = 0; k < needed.count; ++k) {
        int const other = entries[static_cast<std::size_t>(needed.index(k))];
        int const from = devices[static_cast<std::size_t>(other)];
        double const message =
          from == d ? 0
                    : cost.links()[static_cast<std::size_t>(from * table.over.extents.devices + d)];
        start = std::max(start, end(other) + message);
      }
      moved = moved || start > starts[static_cast<std::size_t>(i)];
      starts[static_cast<std::size_t>(i)] = start;
    }
  }
  return starts;
}

template <class Schedule>
void check_against_relaxation(Schedule const& schedule, pp::pipeline_size size) {
  pp::shape const extents = schedule.arrange(size.devices, size.microbatches);
  pp::cost_table const cost = costs_with_links(extents, 20);
  pp::dynamic_timetable table = pp::make_timetable(schedule, size, cost);
  CHECK(pp::verify(table));
  std::vector<double> const expected = slow_starts(table, cost);
  for (std::size_t i = 0; i < expected.size(); ++i)
    CHECK(table.starts[i] == doctest::Approx(expected[i]));
  CHECK(pp::least_times({extents}, cost).makespan.least() <= pp::makespan(table) * (1 + 1e-9));
  // A pass that starts before its message has come over its link is too early.
  table.links.assign(table.links.size(), 5);
  CHECK_FALSE(pp::verify(table));
}

TEST_CASE("every message takes the time of its link") {
  check_against_relaxation(pp::OneFOneB{}, {4, 6});
  check_against_relaxation(pp::Interleaved<2>{}, {4, 8});
  check_against_relaxation(pp::Seq1F1B<3>{}, {4, 5});
  check_against_relaxation(pp::detail::SweptVHalf{}, {4, 8});
}

TEST_CASE("equal links are a latency") {
  pp::shape const extents = pp::OneFOneB{}.arrange(4, 6);
  pp::cost_table links(extents, {3, 4, 2, 0});
  for (int from = 0; from < 4; ++from)
    for (int to = 0; to < 4; ++to)
      if (from != to)
        links.set_link(from, to, 0.75);
  pp::uniform_cost const plain{3, 4, 2, 0.75};
  CHECK(pp::make_timetable<pp::OneFOneB>({4, 6}, links).starts ==
        pp::make_timetable<pp::OneFOneB>({4, 6}, plain).starts);
  CHECK(pp::least_times({extents}, links).makespan.least() ==
        pp::least_times({extents}, plain).makespan.least());
}

TEST_CASE("the exact search and the search for large pipelines know slow links") {
  pp::shape const extents{.devices = 3, .microbatches = 4};
  pp::cost_table const cost = costs_with_links(extents, 100);
  pp::exact_order const best = pp::shortest_order(extents, cost, {.memory_limit = 3});
  pp::dynamic_timetable const timed = pp::simulate(best.passes(extents), cost);
  CHECK(pp::makespan(timed) == doctest::Approx(best.makespan));
  std::vector<pp::device_orders> const starts{
    pp::make_orders(pp::OneFOneB{}, pp::pipeline_size{3, 4}, cost)};
  pp::found_order const found = pp::search_order(
    std::span<pp::device_orders const>(starts), cost, {.memory_limit = 3, .most_moves = 20000});
  CHECK(found.time == doctest::Approx(pp::makespan(found.table)));
  CHECK(found.time >= best.makespan - 1e-9);
  CHECK(found.time <= best.makespan * 1.02);
  CHECK(found.bound <= best.makespan + 1e-9);
}

TEST_CASE("latency and time per byte come back for every edge, late messages or not") {
  pp::pipeline_size const size{4, 9};
  std::vector<pp::dynamic_timetable> steps;
  double const bytes[] = {10, 40, 90};
  std::vector<pp::message_sample> samples;
  for (double const each : bytes) {
    pp::shape const extents = pp::OneFOneB{}.arrange(4, 9);
    pp::dynamic_timetable step =
      pp::make_timetable<pp::OneFOneB>(size, costs_with_links(extents, each));
    std::vector<pp::timetable_view> const views{step};
    std::vector<pp::message_sample> const seen =
      pp::message_samples(views, [&](pp::pass const&) { return each; });
    for (int repeat = 0; repeat < 3; ++repeat)
      samples.insert(samples.end(), seen.begin(), seen.end());
    for (std::size_t i = 0; i < seen.size(); ++i) // one step of three, in which all were late
      samples[samples.size() - 1 - i].seconds += 30;
  }
  std::vector<pp::detail::measured_link> const links = pp::fit_links(samples);
  REQUIRE(links.size() == 6); // to the neighbours, there and back
  for (pp::detail::measured_link const& link : links) {
    CHECK((link.to == link.from + 1 || link.to == link.from - 1));
    CHECK(link.latency == doctest::Approx(link_seconds(link.from, link.to, 4, 0)));
    CHECK(link.seconds(1000) == doctest::Approx(link_seconds(link.from, link.to, 4, 1000)));
  }
}

TEST_CASE("clocks that differ are brought together, and edges measured again") {
  pp::shape const extents = pp::OneFOneB{}.arrange(4, 9);
  pp::cost_table cost(extents, {3, 4, 2, 0});
  double const seconds[] = {0.5, 1.5, 0.25}; // of neighbours, there and back
  for (int from = 0; from < 3; ++from) {
    cost.set_link(from, from + 1, seconds[from]);
    cost.set_link(from + 1, from, seconds[from]);
  }
  pp::dynamic_timetable const step = pp::make_timetable<pp::OneFOneB>({4, 9}, cost);
  double const ahead[] = {7, -3, 100, 0};
  pp::dynamic_timetable skewed = step;
  for (std::size_t i = 0; i < skewed.passes.size(); ++i) {
    double const by = ahead[pp::device_of(skewed, skewed.passes[i])];
    skewed.starts[i] += by;
    skewed.ends[i] += by;
  }
  pp::dynamic_timetable const mended = pp::on_one_clock(skewed);
  for (std::size_t i = 0; i < step.passes.size(); ++i) {
    CHECK(mended.starts[i] == doctest::Approx(step.starts[i]));
    CHECK(mended.ends[i] == doctest::Approx(step.ends[i]));
  }
  std::vector<pp::timetable_view> const steps{mended};
  for (pp::detail::measured_link const& link :
       pp::fit_links(pp::message_samples(steps, [](pp::pass const&) { return 0; })))
    CHECK(link.latency == doctest::Approx(seconds[std::min(link.from, link.to)]));
}

TEST_CASE("messages of one size have a latency alone, and nothing is negative") {
  std::vector<pp::message_sample> samples{{0, 1, 8, 3}, {0, 1, 8, 5}, {0, 1, 8, 4}};
  CHECK(pp::fit_links(samples) == std::vector<pp::detail::measured_link>{{0, 1, 4, 0}});
  samples = {{1, 0, 8, 3}, {1, 0, 16, 2}}; // larger ones were faster
  std::vector<pp::detail::measured_link> const links = pp::fit_links(samples);
  CHECK(links.front().seconds_per_byte == 0);
  CHECK(links.front().latency >= 2);
  samples = {{1, 0, 100, 1}, {1, 0, 200, 3}}; // nothing left for an empty message
  CHECK(pp::fit_links(samples).front().latency == 0);
  CHECK(pp::fit_links({}).empty());
}

TEST_CASE("what a pass waits for on its own device is no message") {
  pp::dynamic_timetable const step =
    pp::make_timetable<pp::Seq1F1B<2>>({2, 2}, pp::uniform_cost{2, 2, 2, 1});
  std::vector<pp::timetable_view> const views{step};
  for (pp::message_sample const& each :
       pp::message_samples(views, [](pp::pass const&) { return 1; }))
    CHECK(each.seconds == doctest::Approx(1));
}

// Two runs, of 2 and of 8 chunks per sequence; a message of a chunk has so many bytes.
std::string with_links(pp::timetable_view two_chunks, pp::timetable_view eight, double bytes) {
  std::vector<pp::timetable_view> const runs[] = {{two_chunks}, {eight}};
  std::vector<pp::message_sample> samples;
  for (auto const& run : runs) {
    double const each = bytes / run.front().over.extents.chunks;
    auto const seen = pp::message_samples(run, [&](pp::pass const&) { return each; });
    samples.insert(samples.end(), seen.begin(), seen.end());
  }
  return pp::write_costs(
    two_chunks.over.extents, pp::costs_of(runs[0]), pp::fit_links(samples), bytes / 2);
}

TEST_CASE("a file of two runs predicts a third with messages of another size") {
  auto const step = [](int chunks) {
    pp::Seq1F1B<pp::dynamic> const schedule{.chunks = chunks};
    pp::shape const extents = schedule.arrange(4, 6);
    return pp::make_timetable(schedule, {4, 6}, costs_with_links(extents, 800.0 / chunks));
  };
  pp::dynamic_timetable const two = step(2);
  pp::dynamic_timetable const eight = step(8);
  pp::cut_costs const read = pp::read_costs(with_links(two, eight, 800));
  for (pp::detail::measured_link const& link : read.links)
    CHECK(link.seconds(200) == doctest::Approx(link_seconds(link.from, link.to, 4, 200)));
  CHECK(read.links.size() == 6);
  pp::cost_table const four = pp::costs_for(read, pp::Seq1F1B<4>{}.arrange(4, 6));
  CHECK(four.links()[1] == doctest::Approx(link_seconds(0, 1, 4, 200)));
}

TEST_CASE("links come back from a file, scaled to the chunks of another cut") {
  pp::shape const extents = pp::Seq1F1B<2>{}.arrange(3, 4);
  pp::cost_table const costs(extents, {1, 2, 3, 0.5});
  std::vector<pp::detail::measured_link> const links{{0, 1, 0.125, 1e-9}, {1, 0, 0.3, 0}};
  pp::cut_costs const read = pp::read_costs(pp::write_costs(extents, costs, links, 1e6));
  CHECK(read.links == links);
  CHECK(read.message_bytes == 1e6);
  pp::cost_table const same = pp::costs_for(read, extents);
  CHECK(same.links()[1] == doctest::Approx(0.125 + 1e-3));
  CHECK(same.links()[3] == doctest::Approx(0.3));
  CHECK(same.links()[2] == 0.5); // not measured
  pp::cost_table const finer = pp::costs_for(read, pp::Seq1F1B<8>{}.arrange(3, 4));
  CHECK(finer.links()[1] == doctest::Approx(0.125 + 0.25e-3));
  // Fewer devices: only the links among them.
  CHECK(pp::costs_for(read, pp::OneFOneB{}.arrange(2, 4)).links().size() == 4);
  // The links of a table are written as they are.
  CHECK(pp::read_costs(pp::write_costs(extents, same)).links.size() == 6);
}

std::string refusal_of(std::string const& links) {
  try {
    (void)pp::read_costs("{\"pipelining_costs\": 1, \"communication\": 0, \"forward\": [[1]], "
                         "\"backward_input\": [[1]], \"backward_weight\": [[1]],\n" +
                         links + "}");
  } catch (std::invalid_argument const& error) {
    return error.what();
  }
  return "it was read";
}

TEST_CASE("links that cannot be are refused with their line") {
  std::string const wanted =
    "costs, line 2: 'links' needs of every link two different devices, the seconds of an empty "
    "message (0 or between 1e-12 and 1e12) and those of a byte (0 or between 1e-24 and 1); link 0 "
    "has others";
  for (char const* bad : {"[[0, 0, 1, 1]]",
                          "[[0, 1, 1]]",
                          "[[0, 1.5, 1, 1]]",
                          "[[-1, 1, 1, 1]]",
                          "[[0, 1, -1, 1]]",
                          "[[0, 1, 1, -1]]",
                          "[[0, 1e300, 1, 1]]"})
    CHECK(refusal_of(std::string("\"links\": ") + bad) == wanted);
  CHECK(refusal_of("\"links\": [[0, 1, 1, 1]]") ==
        "costs: 'message_bytes' is missing; write the file anew by write_costs");
  CHECK(refusal_of("\"message_bytes\": 8, \"links\": [[0, 1, 1, 1]]") == "it was read");
}

TEST_CASE("times of links that cannot be are refused") {
  pp::shape const extents{.devices = 2, .microbatches = 2};
  pp::cost_table table(extents, {});
  CHECK_THROWS_AS(table.set_link(0, 0, 1), std::out_of_range);
  CHECK_THROWS_AS(table.set_link(0, 2, 1), std::out_of_range);
  CHECK_THROWS_AS(table.set_link(-1, 0, 1), std::out_of_range);
  CHECK_THROWS_AS(table.set_link(0, 1, -1), std::invalid_argument);
  CHECK_THROWS_AS(table.set_link(0, 1, std::numeric_limits<double>::quiet_NaN()),
                  std::invalid_argument);
  table.set_link(0, 1, 2);
  CHECK_THROWS_WITH_AS((void)pp::make_timetable<pp::OneFOneB>({3, 3}, table),
                       "cost model: links need one time for each pair of devices",
                       std::invalid_argument);
}

} // namespace
