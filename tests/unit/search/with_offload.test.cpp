// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/plan/lower.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/search/with_offload.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <fstream>
#include <sstream>
#include <string>

namespace pp = pipelining;

namespace {

pp::uniform_cost cost_with(double f, double b, double copy) {
  return {.forward = f,
          .backward_input = b / 2,
          .backward_weight = b / 2,
          .copy_out = copy,
          .copy_in = copy};
}

} // namespace

TEST_CASE("PipeOffload's rule on 1F1B moves what the golden file moves, and holds no more") {
  std::ifstream golden("golden/families/offload_slots.txt");
  REQUIRE(golden);
  int lines = 0;
  for (std::string text; std::getline(golden, text);) {
    if (text.empty() || text[0] == '#')
      continue;
    CAPTURE(text);
    ++lines;
    std::istringstream line(text);
    pp::pipeline_size size;
    double f = 0;
    double b = 0;
    double copy = 0;
    line >> size.devices >> size.microbatches >> f >> b >> copy;
    auto const cost = cost_with(f, b, copy);
    auto const table = pp::make_timetable(pp::with_offload<pp::OneFOneB>{}, size, cost);
    pp::timetable_view const view = table;
    for (int device = 0; device < size.devices; ++device) {
      int peak = 0;
      int moved = 0;
      line >> peak >> moved;
      CHECK(view.row_size(size.devices + device) == moved);
      CHECK(view.row_size(2 * size.devices + device) == moved);
      // The golden lane carries copies out and in by turns; ours has an engine for each.
      CHECK(pp::peak_activation_chunks(table, device) <= peak);
      if (copy <= 1)
        CHECK(pp::peak_activation_chunks(table, device) == peak);
    }
    // The copies hide behind the passes.
    CHECK(pp::makespan(table) == pp::makespan(pp::make_timetable(pp::OneFOneB{}, size, cost)));
    CHECK(pp::prove(pp::lower(table)));
  }
  CHECK(lines == 8);
}

TEST_CASE("a share of the activations can be moved, and those that idle longest go first") {
  auto const cost = cost_with(2, 4, 0.5);
  auto const moved = [&cost](double share) {
    auto const table = pp::make_timetable(pp::with_offload<pp::GPipe>{{}, {share}}, {4, 8}, cost);
    return pp::timetable_view(table).row_size(4);
  };
  CHECK(moved(0) == 0);
  CHECK(moved(0.5) > 0);
  CHECK(moved(0.5) <= (moved(1) + 1) / 2);
}

TEST_CASE("copies that are too slow move what fits, down to nothing") {
  int before = 1 << 20;
  for (double copy = 0.5; copy < 200; copy *= 2) {
    auto const table =
      pp::make_timetable(pp::with_offload<pp::ZeroBubbleH2>{}, {4, 8}, cost_with(2, 4, copy));
    int const moved = pp::timetable_view(table).row_size(4);
    CHECK(moved <= before);
    before = moved;
  }
  CHECK(before == 0);
}

TEST_CASE("a copy back before its copy out, or without a request, is found") {
  auto const table =
    pp::make_timetable(pp::with_offload<pp::OneFOneB>{}, {4, 8}, cost_with(2, 4, 0.5));
  REQUIRE(pp::verify(table));
  pp::timetable_view const view = table;
  int const copies_in = view.offsets[8];
  SUBCASE("before its copy out") {
    auto broken = table;
    broken.starts[static_cast<std::size_t>(copies_in)] = 0;
    broken.ends[static_cast<std::size_t>(copies_in)] = 0.5;
    CHECK(pp::verify(broken).broken == pp::rule::before_dependency);
  }
  SUBCASE("what was to stay is copied") {
    auto broken = table;
    for (pp::pass& what : broken.passes)
      if (what.kind == pp::pass_kind::offloaded_forward) {
        what.kind = pp::pass_kind::forward;
        break;
      }
    CHECK_FALSE(pp::verify(broken));
  }
}
