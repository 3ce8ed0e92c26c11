// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/flow/flow.hpp>
#include <pipe/planner/cut/sequence_partition.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/timetable/adapt/with_stage_graph.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/view/html.hpp>
#include <pipe/view/html/timeline.hpp>

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace pp = pipelining;

namespace {

std::string page(std::vector<pp::html_timeline> const& lines,
                 pp::html_options const& options = {}) {
  std::string text;
  pp::write_html(text, lines, options);
  return text;
}

bool has(std::string const& text, std::string_view part) {
  return text.find(part) != text.npos;
}

} // namespace

// What the page computes and shows is checked in a browser, in tests/examples.
TEST_CASE("a page holds the order of every device and the times of every kind") {
  pp::uniform_cost const cost{2, 3, 1, 0.5};
  auto const table = pp::make_timetable<pp::OneFOneB>({2, 2}, cost);
  std::string const text =
    page({pp::make_html_timeline(table, {"1F1B", cost, {}, {}}, cost)}, {"a title", "ms", false});
  CHECK(has(text, "<title>a title</title>"));
  CHECK(
    has(text,
        "\"sliders\":[{\"key\":\"F\",\"word\":\"F\",\"title\":\"a forward pass\",\"value\":2},"
        "{\"key\":\"I\",\"word\":\"I\",\"title\":\"a backward pass for the input\",\"value\":3},"
        "{\"key\":\"W\",\"word\":\"W\",\"title\":\"a backward pass for the "
        "weights\",\"value\":1},"
        "{\"key\":\"latency\",\"word\":\"message\",\"title\":\"a message\",\"value\":0.5}]"));
  CHECK(has(text,
            "\"times\":[{\"always\":0,\"takes\":{\"F\":1}},"
            "{\"always\":0,\"takes\":{\"I\":1,\"W\":1}}]"));
  CHECK(has(text, "\"heading\":\"1F1B: 2 devices, 2 microbatches, 2 stages\""));
  CHECK(has(text,
            "[0,0,0,0,0,0,0,1,0,0,1,0,0,0,1,1,0,1,0,1],\n"
            "[0,1,0,0,0,1,1,0,0,1,0,1,1,0,0,1,1,1,0,1]]"));
  // Forward on stage 1 waits for that of stage 0; backward on stage 1 for its forward, on stage 0
  // for that on stage 1.
  CHECK(has(text, "\"needs\":[[],[],[5],[7],[0],[4],[1],[6]]"));
}

TEST_CASE("memory is held from one entry to the last of others, sent slots through the next") {
  auto const table = pp::make_timetable<pp::OneFOneB>({2, 1});
  auto const holds = pp::detail::slot_holds(table).all();
  auto const found = [&](pp::slot_class of, int from, bool arrives, std::vector<int> until) {
    for (pp::detail::slot_hold const& each : holds)
      if (each.pool == static_cast<int>(of) && each.from == from && each.arrives == arrives)
        return each.until == until;
    return false;
  };
  // Entries: F and B of device 0, F and B of device 1.
  CHECK(holds.size() == 6);
  CHECK(found(pp::slot_class::activation, 0, false, {1}));
  CHECK(found(pp::slot_class::activation, 2, false, {3}));
  CHECK(found(pp::slot_class::output, 0, false, {1}));
  CHECK(found(pp::slot_class::received_input, 0, true, {2}));
  CHECK(found(pp::slot_class::input_gradient, 3, false, {3}));
  CHECK(found(pp::slot_class::received_gradient, 3, true, {1}));
}

TEST_CASE("a stage that only goes forward holds its activation for its pass") {
  auto const table =
    pp::make_timetable(pp::with_frozen_stages<pp::OneFOneB>{{}, {0}}, pp::pipeline_size{2, 1});
  int found = 0;
  for (pp::detail::slot_hold const& each : pp::detail::slot_holds(table).all())
    if (each.pool == static_cast<int>(pp::slot_class::activation)) {
      ++found;
      CHECK(each.until == std::vector{each.from == 0 ? 0 : 2});
    }
  CHECK(found == 2);
}

TEST_CASE("every part of a pass moves with its slider, and what hides exchanges is told apart") {
  pp::uniform_cost cost{2, 3, 1, 0};
  cost.all_reduce = 0.5;
  auto const table = pp::make_timetable<pp::OneFOneB>({1, 1}, cost);
  CHECK(has(page({pp::make_html_timeline(table, {"1F1B", cost, {}, {}}, cost)}),
            "\"times\":[{\"always\":0,\"takes\":{\"F\":1},\"exchanges\":1},"
            "{\"always\":0,\"takes\":{\"I\":1,\"W\":1},\"exchanges\":1,\"hides\":{\"W\":1}}]"));
}

TEST_CASE("times that no slider has stay as they are") {
  struct own_times {
    [[nodiscard]] double duration(pp::pass const&) const { return 7; }
    [[nodiscard]] double latency() const { return 0; }
  };
  auto const table = pp::make_timetable<pp::OneFOneB>({1, 1});
  pp::uniform_cost mean{0, 1, 1};
  CHECK(has(page({pp::make_html_timeline(table, {"1F1B", mean, {}, {}}, own_times{})}),
            "\"times\":[{\"always\":7},{\"always\":0,\"takes\":{\"I\":7,\"W\":7}}]"));
}

TEST_CASE("unequal chunks keep their ratio to the mean") {
  auto const table = pp::make_timetable<pp::Seq1F1B<2>>({1, 1});
  std::vector<int> const lengths{3, 1};
  pp::uniform_cost const mean;
  auto const cost = pp::chunk_costs(table.over.extents, lengths, pp::sequence_work{}, mean);
  CHECK(has(page({pp::make_html_timeline(table, {"Seq1F1B", mean, {}, lengths}, cost)}),
            "\"times\":[{\"always\":0,\"takes\":{\"F\":1.5}},{\"always\":0,\"takes\":{\"F\":0.5}},"
            "{\"always\":0,\"takes\":{\"I\":0.5,\"W\":0.5}},"
            "{\"always\":0,\"takes\":{\"I\":1.5,\"W\":1.5}}]"));
}

TEST_CASE("a second schedule keeps its ratio to the costs of the first") {
  pp::uniform_cost const cost{2, 3, 1, 0.5};
  pp::uniform_cost const half{1, 1.5, 0.5, 0.5};
  auto const one = pp::make_timetable<pp::OneFOneB>({2, 2}, cost);
  auto const other = pp::make_timetable<pp::OneFOneB>({2, 2}, half);
  CHECK(has(page({pp::make_html_timeline(one, {"1F1B", cost, {}, {}}, cost),
                  pp::make_html_timeline(other, {"1F1B", half, {}, {}}, half)}),
            "\"times\":[{\"always\":0,\"takes\":{\"F\":0.5}},"
            "{\"always\":0,\"takes\":{\"I\":0.5,\"W\":0.5}}]"));
}

TEST_CASE("what would end the data is escaped") {
  auto const table = pp::make_timetable<pp::OneFOneB>({1, 1});
  std::string const text = page(
    {pp::make_html_timeline(table, {"</script>\"&", {}, {}, {}}, pp::uniform_cost{})}, {"<b>&"});
  CHECK(has(text, "<title>&lt;b>&amp;</title>"));
  CHECK(has(text, "\"name\":\"\\u003c/script>\\\"&\""));
  CHECK_FALSE(has(text, "</script>\""));
}

TEST_CASE("measured passes stand in the order of the table, from 0 on") {
  auto const table = pp::make_timetable<pp::OneFOneB>({1, 1});
  auto line = pp::make_html_timeline(table, {"1F1B", {}, {}, {}}, pp::uniform_cost{});
  pp::measured_pass const ran[] = {{0, table.passes[1], 2.5, 3.5}, {0, table.passes[0], 0.5, 1.25}};
  line.measured = ran;
  line.measured_unit = 10;
  CHECK(has(page({line}), "\"measured\":{\"starts\":[0,20],\"ends\":[7.5,30]}"));
  line.measured = std::span(ran, 1);
  CHECK_THROWS_WITH_AS(page({line}),
                       "write_html: a pass of the timetable was not measured: forward of stage 0, "
                       "microbatch 0",
                       std::invalid_argument);
  pp::measured_pass const foreign[] = {{0, {pp::pass_kind::forward, false, 7, 0, 0}, 0, 1}};
  line.measured = foreign;
  CHECK_THROWS_AS(page({line}), std::invalid_argument);
}

TEST_CASE("a page without schedules, or with too few sizes, is refused") {
  CHECK_THROWS_AS(page({}), std::invalid_argument);
  auto const table = pp::make_timetable<pp::OneFOneB>({1, 1});
  auto line = pp::make_html_timeline(table, {"1F1B", {}, {}, {}}, pp::uniform_cost{});
  line.slot_sizes = {1, 2};
  CHECK_THROWS_AS(page({line}), std::invalid_argument);
}
