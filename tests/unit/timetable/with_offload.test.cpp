// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/plan/lower.hpp>
#include <pipe/planner/model/peak_bytes.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

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
    // The copies hide under the passes.
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

TEST_CASE("half of the stages' activations stay under the half of PipeOffload") {
  for (int devices = 2; devices <= 8; ++devices) {
    pp::pipeline_size const size{devices, 3 * devices};
    auto const cost = cost_with(2, 4, 0.5);
    auto const plain = pp::make_timetable(pp::OneFOneB{}, size, cost);
    auto const half = pp::make_timetable(
      pp::with_offload<pp::OneFOneB>{{}, pp::offload::in_slots::half()}, size, cost);
    auto const all = pp::make_timetable(pp::with_offload<pp::OneFOneB>{}, size, cost);
    CHECK(pp::makespan(half) == pp::makespan(plain));
    for (int device = 0; device < devices; ++device) {
      int const moved = pp::timetable_view(all).row_size(devices + device);
      CHECK(pp::timetable_view(half).row_size(devices + device) == (moved + 1) / 2);
      CHECK(pp::peak_activation_chunks(all, device) <= pp::peak_activation_chunks(half, device));
      CHECK(pp::peak_activation_chunks(half, device) <= pp::peak_activation_chunks(plain, device));
    }
  }
}

TEST_CASE("interleaved stages move chunk by chunk, in groups of ceil(P / 2) to P microbatches") {
  for (int devices = 2; devices <= 6; ++devices)
    for (int held = 2; held <= 4; ++held)
      for (int const group : {(devices + 1) / 2, devices}) {
        pp::pipeline_size const size{devices, 3 * devices};
        auto const cost = cost_with(2, 4, 0.5);
        pp::Interleaved<> const inner{.stages_per_device = held, .group = group};
        auto const plain = pp::make_timetable(inner, size, cost);
        CAPTURE(devices);
        CAPTURE(held);
        CAPTURE(group);
        int moved = 0;
        int before = pp::peak_activation_chunks(plain, 0);
        for (int stages = 1; stages <= held; ++stages) {
          auto const table = pp::make_timetable(
            pp::with_offload<pp::Interleaved<>>{inner, {.stages = stages}}, size, cost);
          CHECK(pp::makespan(table) == pp::makespan(plain));
          CHECK(pp::prove(pp::lower(table)));
          CHECK(pp::timetable_view(table).row_size(devices) >= moved);
          moved = pp::timetable_view(table).row_size(devices);
          int const peak = pp::peak_activation_chunks(table, 0);
          CHECK(peak <= before);
          before = peak;
          for (pp::pass const& what : table.passes)
            if (what.kind == pp::pass_kind::copy_out)
              CHECK(what.stage < stages * devices);
        }
        CHECK(before < pp::peak_activation_chunks(plain, 0));
        for (int const all : {0, -1, held + 1}) {
          auto const table = pp::make_timetable(
            pp::with_offload<pp::Interleaved<>>{inner, {.stages = all}}, size, cost);
          CHECK(pp::timetable_view(table).row_size(devices) == moved);
        }
      }
}

namespace {

//! Chunks of a sequence whose attention grows, and copies of `copy` each.
struct growing_cost {
  double copy;

  [[nodiscard]] double duration(pp::pass const& what) const {
    double const forward = 2 + what.chunk;
    switch (what.kind) {
    case pp::pass_kind::backward: return 2 * forward;
    case pp::pass_kind::copy_out:
    case pp::pass_kind::copy_in: return copy;
    case pp::pass_kind::copy_request: return 0;
    default: return forward;
    }
  }
  [[nodiscard]] static double latency() { return 0; }
};

} // namespace

TEST_CASE("SPPO's copies hide behind the next chunk, whatever the link to the host") {
  using share = pp::detail::hidden_share<growing_cost>;
  for (int devices = 1; devices <= 6; ++devices)
    for (int chunks = 1; chunks <= 6; ++chunks)
      for (double const copy : {0.5, 2.5, 4.0, 100.0}) {
        pp::pipeline_size const size{devices, devices + 2};
        growing_cost const whole{copy};
        pp::detail::partial_cost<growing_cost, share> const cost{whole, {whole, chunks}};
        pp::Seq1F1B<> const inner{.chunks = chunks};
        auto const plain = pp::make_timetable(inner, size, cost);
        auto const table = pp::make_timetable(
          pp::with_offload<pp::Seq1F1B<>, pp::offload::chunks>{.of = inner}, size, cost);
        CAPTURE(devices);
        CAPTURE(chunks);
        CAPTURE(copy);
        CHECK(pp::makespan(table) == pp::makespan(plain));
        CHECK(pp::prove(pp::lower(table)));
        auto const bytes = [&](pp::pass const& what) {
          return pp::unit_bytes{64, 64, 64 * cost.share(what)};
        };
        for (pp::pass const& what : table.passes)
          if (what.kind == pp::pass_kind::copy_out) {
            CHECK(what.chunk + 1 < chunks); // the last one stays
            CHECK(cost.duration(what) == doctest::Approx(std::min(copy, 3.0 + what.chunk)));
          }
        for (int device = 0; device < devices; ++device) {
          double const held = 64.0 * pp::peak_activation_chunks(plain, device);
          CHECK(pp::peak_device_bytes(plain, device, bytes) == held);
          CHECK(pp::peak_device_bytes(table, device, bytes) <= held);
        }
        // On the first device a sequence waits for all others.
        if (devices > 2 && chunks > 2)
          CHECK(pp::peak_device_bytes(table, 0, bytes) < pp::peak_device_bytes(plain, 0, bytes));
      }
  CHECK(share{{100}, 4}(pp::row_writer::make(pp::pass_kind::copy_out, 0, 0, 1)) == 0.04);
  CHECK(share{{1}, 4}(pp::row_writer::make(pp::pass_kind::copy_in, 0, 0, 1)) == 1);
}

namespace {

//! Chunks of equal work, of which later ones have fewer tokens, and so take fewer bytes to copy.
struct balanced_cost {
  std::vector<double> bytes; // of a chunk's activation, at one byte in a unit of time

  [[nodiscard]] double duration(pp::pass const& what) const {
    switch (what.kind) {
    case pp::pass_kind::backward: return 16;
    case pp::pass_kind::copy_out:
    case pp::pass_kind::copy_in: return bytes[what.chunk];
    case pp::pass_kind::copy_request: return 0;
    default: return 8;
    }
  }
  [[nodiscard]] static double latency() { return 0; }
};

} // namespace

TEST_CASE("memory in SPPO's forward passes follows its recurrence") {
  balanced_cost const whole{{20, 16, 12, 9, 7, 6}};
  int const chunks = static_cast<int>(whole.bytes.size());
  pp::detail::partial_cost<balanced_cost, pp::detail::hidden_share<balanced_cost>> const cost{
    whole, {whole, chunks}};
  auto const table = pp::make_timetable(
    pp::with_offload<pp::Seq1F1B<>, pp::offload::chunks>{.of = {.chunks = chunks}}, {1, 1}, cost);
  double held = 0;    // M(i) = M(i - 1) + A(i) - share(i - 1) A(i - 1)
  double leaving = 0; // share(i - 1) A(i - 1)
  int moved = 0;
  // The one before the last would not be back in time, and stays.
  for (int chunk = 0; chunk + 1 < chunks; ++chunk) {
    double const end = 8.0 * (chunk + 1);
    double gone = 0;
    double all = 0;
    for (std::size_t i = 0; i < table.passes.size(); ++i) {
      pp::pass const& what = table.passes[i];
      bool const makes =
        what.kind == pp::pass_kind::forward || what.kind == pp::pass_kind::offloaded_forward;
      all += makes && table.ends[i] <= end ? whole.bytes[what.chunk] : 0;
      gone +=
        what.kind == pp::pass_kind::copy_out && table.ends[i] <= end ? cost.duration(what) : 0;
      moved += what.kind == pp::pass_kind::copy_out && table.ends[i] == end ? 1 : 0;
    }
    held += whole.bytes[static_cast<std::size_t>(chunk)] - leaving;
    leaving = std::min(8.0, whole.bytes[static_cast<std::size_t>(chunk)]);
    CHECK(all - gone == doctest::Approx(held));
  }
  CHECK(moved == 4); // those that take as long as the next chunk; a shorter one ends before
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
    CHECK(pp::verify(broken).broken == pp::report::rule::before_dependency);
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

TEST_CASE("only activations of the stages that are given move") {
  static constexpr int given[] = {0, 3};
  pp::uniform_cost const cost{.copy_out = 0.25, .copy_in = 0.25};
  pp::pipeline_size const size{4, 16};
  auto const all = pp::make_timetable(pp::with_offload<pp::Interleaved<2>>{}, size, cost);
  auto const some =
    pp::make_timetable(pp::with_offload<pp::Interleaved<2>>{{}, {.only = given}}, size, cost);
  CHECK(pp::verify(some));
  int moved = 0;
  int elsewhere = 0;
  for (pp::pass const& each : some.passes)
    if (each.kind == pp::pass_kind::copy_out) {
      ++moved;
      CHECK((each.stage == 0 || each.stage == 3));
    }
  for (pp::pass const& each : all.passes)
    elsewhere += each.kind == pp::pass_kind::copy_out && each.stage != 0 && each.stage != 3;
  CHECK(moved > 0);
  CHECK(elsewhere > 0);
}
