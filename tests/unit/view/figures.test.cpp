// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/view/figures.hpp>

#include <doctest/doctest.h>

#include <string>

namespace pp = pipelining;

TEST_CASE("ZB-H2 has no bubble on the span, but its last device starts late") {
  auto const table = pp::make_timetable<pp::ZeroBubbleH2>({4, 12});
  auto const found = pp::figures_of(table, {"ZB-H2", {}, {}, {}});
  CHECK(found.bubble_rate == 0);
  CHECK(found.span == 36);
  CHECK(found.makespan == 36 + 3); // (P - 1) F
  CHECK(found.makespan_bubble_rate == doctest::Approx(3.0 / 39));
}

TEST_CASE("what waits for the weights counts from the start of I to the end of W") {
  // Device d of ZB-H1 runs the weights d microbatches late.
  auto const table = pp::make_timetable<pp::ZeroBubbleH1>({4, 8});
  pp::timetable_caption const about{"ZB-H1", {}, {}, {}};
  for (int device = 0; device < 4; ++device)
    CHECK(pp::peak_weight_inputs(table, device, about) == device + 1);
  CHECK(pp::figures_of(table, about).peak_weight_inputs == 4);
  CHECK(pp::figures_of(pp::make_timetable<pp::OneFOneB>({4, 8}), about).peak_weight_inputs == 0);
}

TEST_CASE("the formulas of weight inputs in docs/schedules.md hold") {
  pp::timetable_caption const about{"", {}, {}, {}};
  auto const least = [](int a, int b) { return static_cast<double>(a < b ? a : b); };
  for (int devices = 1; devices <= 7; ++devices)
    for (int microbatches = 1; microbatches <= 16; ++microbatches) {
      CAPTURE(devices);
      CAPTURE(microbatches);
      auto const h1 = pp::make_timetable<pp::ZeroBubbleH1>({devices, microbatches});
      auto const h2 = pp::make_timetable<pp::ZeroBubbleH2>({devices, microbatches});
      auto const chunked =
        pp::make_timetable(pp::Seq1F1BZeroBubbleH1<>{.chunks = 3}, {devices, microbatches});
      auto const eager =
        pp::make_timetable(pp::Seq1F1BZeroBubbleH2<>{.chunks = 3}, {devices, microbatches});
      for (int device = 0; device < devices; ++device) {
        CHECK(pp::peak_weight_inputs(h1, device, about) == least(device + 1, microbatches));
        CHECK(pp::peak_weight_inputs(h2, device, about) == least(2 * device + 1, microbatches));
        CHECK(pp::peak_weight_inputs(chunked, device, about) ==
              least(device + 1, 3 * microbatches) / 3);
        CHECK(pp::peak_weight_inputs(eager, device, about) ==
              least(2 * device + 1, 3 * microbatches) / 3);
      }
    }
}

TEST_CASE("chunks count their share, and both halves of a pair are held at once") {
  double const shares[] = {0.75, 0.25};
  // One device: F0 F1 I1 I0 W1 W0 of one sequence in two chunks.
  pp::dynamic_timetable table{.over = {.extents = {.devices = 1, .chunks = 2}}, .offsets = {0, 6}};
  auto const add = [&](pp::pass_kind kind, int chunk, bool overlapped, double start) {
    table.passes.push_back({kind, overlapped, 0, 0, static_cast<std::uint16_t>(chunk)});
    table.starts.push_back(start);
    table.ends.push_back(start + 1);
  };
  add(pp::pass_kind::forward, 0, false, 0);
  add(pp::pass_kind::forward, 1, false, 1);
  add(pp::pass_kind::backward_input, 1, false, 2);
  SUBCASE("one after the other") {
    add(pp::pass_kind::backward_weight, 1, false, 3);
    add(pp::pass_kind::backward_input, 0, false, 4);
    add(pp::pass_kind::backward_weight, 0, false, 5);
    CHECK(pp::peak_weight_inputs(table, 0, {"", {}, shares, {}}) == 0.75);
    CHECK(pp::peak_weight_inputs(table, 0, {"", {}, {}, {}}) == 0.5);
  }
  SUBCASE("the weights of one beside the input of the other") {
    add(pp::pass_kind::backward_weight, 1, false, 3);
    add(pp::pass_kind::backward_input, 0, true, 3);
    add(pp::pass_kind::backward_weight, 0, false, 4);
    CHECK(pp::peak_weight_inputs(table, 0, {"", {}, shares, {}}) == 1);
  }
}

TEST_CASE("a timetable without any time has no bubble") {
  auto const table = pp::make_timetable<pp::OneFOneB>({2, 2}, pp::uniform_cost{0, 0, 0, 0});
  CHECK(pp::makespan_bubble_rate(table) == 0);
}
