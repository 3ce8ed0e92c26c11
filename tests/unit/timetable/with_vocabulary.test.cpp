// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_vocabulary.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <sstream>
#include <string>
#include <tests/support/golden_lines.hpp>
#include <tools/timetable/reproduce/published_vocabulary.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

template <class Schedule>
pp::dynamic_timetable
timed(Schedule const& inner, int barriers, pp::pipeline_size size, pp::uniform_cost const& cost) {
  if (barriers == pp::interlaced)
    return pp::make_timetable(pp::with_vocabulary<Schedule, pp::interlaced>{inner}, size, cost);
  if (barriers == 1)
    return pp::make_timetable(pp::with_vocabulary<Schedule, 1>{inner}, size, cost);
  return pp::make_timetable(pp::with_vocabulary<Schedule, 2>{inner}, size, cost);
}

//! What stands in front of every line of the golden files.
struct golden_row {
  pp::pipeline_size size;
  int barriers = 0;
  pp::uniform_cost cost;
};
std::istringstream& operator>>(std::istringstream& in, golden_row& at) {
  double backward = 0;
  in >> at.size.devices >> at.size.microbatches >> at.barriers >> at.cost.forward >> backward >>
    at.cost.logits >> at.cost.logits_gradient >> at.cost.embed >> at.cost.embed_gradient >>
    at.cost.broadcast >> at.cost.reduce;
  at.cost.backward_input = at.cost.backward_weight = backward / 2;
  return in;
}

double sum_of_work(pp::dynamic_timetable const& table) {
  double most = 0;
  for (int device = 0; device < table.over.extents.devices; ++device)
    most = std::max(most, pp::busy(table, device));
  return most;
}

} // namespace

TEST_CASE("1F1B with a vocabulary in shards has the figures of the golden file") {
  for (std::string const& line : support::golden_lines("golden/families/vocabulary.txt")) {
    CAPTURE(line);
    std::istringstream in(line);
    golden_row at;
    double makespan = 0;
    double span = 0;
    in >> at >> makespan >> span;
    auto const table = timed(pp::OneFOneB{}, at.barriers, at.size, at.cost);
    CHECK(pp::makespan(table) == makespan);
    CHECK(pp::span_of(table) == span);
    for (int device = 0; device < at.size.devices; ++device) {
      int peak = 0;
      in >> peak;
      CHECK(pp::peak_activation_chunks(table, device) == peak);
      CHECK(pp::detail::peak_chunks(table, device, pp::slot_class::logits) == 1);
    }
  }
}

TEST_CASE("1F1B with a vocabulary in shards has the orders and starts of the golden file") {
  for (std::string const& line : support::golden_lines("golden/families/vocabulary_orders.txt")) {
    std::istringstream in(line);
    golden_row at;
    int device = 0;
    in >> at >> device;
    auto const table = timed(pp::OneFOneB{}, at.barriers, at.size, at.cost);
    std::ostringstream row;
    for (int i = table.offsets[static_cast<std::size_t>(device)];
         i < table.offsets[static_cast<std::size_t>(device) + 1];
         ++i) {
      auto const entry = static_cast<std::size_t>(i);
      row << ' ' << table.over.declared.letter(table.passes[entry].kind)
          << table.passes[entry].microbatch << '@' << table.starts[entry];
    }
    CHECK(row.str() == line.substr(line.find(": ") + 1));
  }
}

namespace {

using interlaced_1f1b = pp::with_vocabulary<pp::OneFOneB, pp::interlaced>;

//! Where the passes of shards are logits and their gradients, which take `step` together.
pp::uniform_cost interlaced_cost(double forward, double backward, double step) {
  pp::uniform_cost cost{forward, backward / 2, backward / 2};
  cost.logits = cost.logits_gradient = step / 2;
  cost.embed = cost.embed_gradient = cost.broadcast = cost.reduce = 0;
  return cost;
}

//! What stands in front of every line of the golden files of the interlaced pipeline.
struct interlaced_case {
  pp::pipeline_size size;
  double forward = 0;
  double backward = 0;
  double step = 0;

  [[nodiscard]] pp::uniform_cost cost() const { return interlaced_cost(forward, backward, step); }
};
std::istringstream& operator>>(std::istringstream& in, interlaced_case& at) {
  in >> at.size.devices >> at.size.microbatches >> at.forward >> at.backward >> at.step;
  return in;
}

//! On every device gradients of logits stand right after their logits, and those of a microbatch
//! start at the same time on all devices, or a message apart.
bool takes_steps_at_once(pp::dynamic_timetable const& table) {
  bool good = true;
  std::vector<double> starts(static_cast<std::size_t>(table.view().over.units()), -1);
  for (std::size_t i = 0; i < table.passes.size(); ++i) {
    pp::pass const& what = table.passes[i];
    if (what.kind != pp::pass_kind::logits_gradient)
      continue;
    pp::pass logits = what;
    logits.kind = pp::pass_kind::logits;
    good = good && table.passes[i - 1] == logits;
    double& start = starts[static_cast<std::size_t>(table.view().over.unit_of(what))];
    if (start < 0)
      start = table.starts[i];
    good = good && std::abs(table.starts[i] - start) <= table.latency;
  }
  return good;
}

} // namespace

TEST_CASE("the interlaced pipeline has the figures of the golden file") {
  for (std::string const& line : support::golden_lines("golden/families/interlaced.txt")) {
    CAPTURE(line);
    std::istringstream in(line);
    interlaced_case at;
    double makespan = 0;
    double span = 0;
    in >> at >> makespan >> span;
    auto const table = pp::make_timetable<interlaced_1f1b>(at.size, at.cost());
    CHECK(pp::makespan(table) == makespan);
    CHECK(pp::span_of(table) == span);
    for (int device = 0; device < at.size.devices; ++device) {
      int peak = 0;
      in >> peak;
      CHECK(pp::peak_activation_chunks(table, device) == peak);
    }
  }
}

TEST_CASE("the interlaced pipeline has the orders and starts of the golden file") {
  for (std::string const& line : support::golden_lines("golden/families/interlaced_orders.txt")) {
    std::istringstream in(line);
    interlaced_case at;
    int device = 0;
    in >> at >> device;
    auto const table = pp::make_timetable<interlaced_1f1b>(at.size, at.cost());
    std::ostringstream row;
    for (int i = table.offsets[static_cast<std::size_t>(device)];
         i < table.offsets[static_cast<std::size_t>(device) + 1];
         ++i) {
      auto const entry = static_cast<std::size_t>(i);
      switch (pp::pass const& what = table.passes[entry]; what.kind) {
      case pp::pass_kind::logits_gradient: // the step has begun half of it before, at once
        row << " S" << what.microbatch << '@' << table.starts[entry] - at.step / 2;
        break;
      case pp::pass_kind::forward:
      case pp::pass_kind::backward:
        row << ' ' << table.over.declared.letter(what.kind) << what.microbatch << '@'
            << table.starts[entry];
        break;
      default: break;
      }
    }
    CHECK(row.str() == line.substr(line.find(": ") + 1));
  }
}

TEST_CASE("peaks and bubbles of the interlaced pipeline follow their laws") {
  std::mt19937 random(2024);
  for (int devices = 1; devices <= 13; ++devices)
    for (int trial = 0; trial < 12; ++trial) {
      int const microbatches = std::max(devices * 3 / 2 - 1, 1) + static_cast<int>(random() % 30);
      double const forward = static_cast<double>(4 + random() % 16) / 8; // sums are exact
      double const backward = forward + static_cast<double>(random() % 64) / 8;
      double const step = static_cast<double>(random() % 32) / 8;
      CAPTURE(devices);
      CAPTURE(microbatches);
      auto const table = pp::make_timetable<interlaced_1f1b>(
        {devices, microbatches}, interlaced_cost(forward, backward, step));
      CHECK(pp::makespan(table) ==
            microbatches * (forward + backward + step) + (devices - 1) * (forward + backward));
      for (int device = 0; device < devices; ++device)
        CHECK(pp::peak_activation_chunks(table, device) ==
              std::min(devices * 3 / 2 - device, microbatches));
      CHECK(takes_steps_at_once(table));
    }
}

TEST_CASE("where all passes take the same time, interlaced steps cost ZB-H1 and V-Half nothing but "
          "themselves") {
  auto const check = [](auto const& schedule) {
    for (int devices = 1; devices <= 9; ++devices)
      for (int const microbatches : {1, devices, 3 * devices + 1}) {
        CAPTURE(devices);
        CAPTURE(microbatches);
        pp::pipeline_size const size{devices, microbatches};
        auto const cost = interlaced_cost(2, 4, 3);
        auto const without = pp::make_timetable(schedule, size, cost);
        auto const with = timed(schedule, pp::interlaced, size, cost);
        CHECK(pp::makespan(with) == pp::makespan(without) + 3 * microbatches);
        for (int device = 0; device < devices; ++device)
          CHECK(pp::peak_activation_chunks(with, device) ==
                pp::peak_activation_chunks(without, device));
        CHECK(takes_steps_at_once(with));
      }
  };
  check(pp::ZeroBubbleH1{});
  check(pp::VHalf{});
}

TEST_CASE("published times of passes give the published times of iterations") {
  REQUIRE(examples::published_runs.size() == 20);
  double largest = 0;
  for (examples::published_run const& run : examples::published_runs) {
    CAPTURE(run.of.barriers);
    CAPTURE(run.of.layers);
    CAPTURE(run.of.milliseconds);
    auto const table = examples::timetable_of(run);
    double const distance = std::abs(pp::makespan(table) / 1000 / run.of.milliseconds - 1);
    CHECK(distance < 0.025);
    largest = std::max(largest, distance);
    CHECK(pp::makespan(table) > sum_of_work(table)); // no time is lost that the work takes
  }
  CHECK(largest > 0.001); // they were looked at
}

TEST_CASE("peaks and bubbles of 1F1B with a vocabulary in shards follow their laws") {
  std::mt19937 random(20241108);
  for (int devices = 1; devices <= 13; ++devices)
    for (int barriers = 1; barriers <= 2; ++barriers)
      for (int trial = 0; trial < 12; ++trial) {
        int const microbatches = devices + static_cast<int>(random() % 40);
        double const forward = static_cast<double>(4 + random() % 16) / 8;
        // At least as long as a forward pass, in eighths, whose sums are exact.
        double const backward = trial % 3 == 0 ? (1 + trial % 2) * forward
                                               : forward + static_cast<double>(random() % 64) / 8;
        pp::uniform_cost cost{forward, backward / 2, backward / 2};
        cost.logits = cost.logits_gradient = cost.embed = cost.embed_gradient = 0;
        cost.broadcast = cost.reduce = 0;
        auto const table = timed(pp::OneFOneB{}, barriers, {devices, microbatches}, cost);
        CAPTURE(devices);
        CAPTURE(microbatches);
        CAPTURE(barriers);
        CAPTURE(forward);
        CAPTURE(backward);
        double const bubble =
          pp::makespan(table) - microbatches * (forward + backward); // passes of shards take none
        double const law = (devices - 1) * (forward + backward);
        bool const exact = barriers == 1 || backward == forward || backward == 2 * forward;
        CHECK(bubble >= law);
        CHECK(bubble <= law + (exact ? 0 : forward));
        for (int device = 0; device < devices; ++device)
          CHECK(pp::peak_activation_chunks(table, device) ==
                std::min(devices - device + barriers, microbatches));
      }
}

TEST_CASE("V-Half with a vocabulary in shards takes no longer than published, nor more memory") {
  for (std::string const& line : support::golden_lines("golden/families/vocabulary_v_half.txt")) {
    CAPTURE(line);
    std::istringstream in(line);
    pp::pipeline_size size;
    int barriers = 0;
    double makespan = 0;
    in >> size.devices >> size.microbatches >> barriers >> makespan;
    auto const table = timed(pp::VHalf{}, barriers, size, {});
    CHECK(pp::makespan(table) <= makespan);
    for (int device = 0; device < size.devices; ++device) {
      int peak = 0;
      in >> peak;
      CHECK(pp::peak_activation_chunks(table, device) <= peak);
    }
  }
}

namespace {

//! At most V more activations for every barrier, one set of logits, and an order that waits for
//! nothing for ever, whatever passes and messages take.
template <class Schedule>
void check_around(Schedule const& inner) {
  int const stages_per_device = inner.arrange(1, 1).stages_per_device;
  std::mt19937 random(7);
  auto const draw = [&] { return static_cast<double>(random() % 9) / 4; };
  for (int devices = 1; devices <= 9; ++devices)
    for (int barriers = 0; barriers <= 2; ++barriers)
      for (int trial = 0; trial < 3; ++trial) {
        pp::pipeline_size const size{devices, 1 + static_cast<int>(random() % 24)};
        pp::uniform_cost cost{draw(), draw(), draw(), draw()};
        cost.logits = draw();
        cost.logits_gradient = draw();
        cost.embed = draw();
        cost.embed_gradient = draw();
        cost.broadcast = draw() - 0.5;
        cost.reduce = draw() - 0.5;
        CAPTURE(devices);
        CAPTURE(size.microbatches);
        CAPTURE(barriers);
        auto const table = timed(inner, barriers, size, cost);
        CHECK(pp::verify(table));
        for (int device = 0; device < devices; ++device)
          CHECK(pp::detail::peak_chunks(table, device, pp::slot_class::logits) == 1);
        if (barriers == pp::interlaced)
          CHECK(takes_steps_at_once(table));
        auto const with = timed(inner, barriers, size, {});
        auto const without = pp::make_timetable(inner, size);
        for (int device = 0; device < devices; ++device)
          CHECK(pp::peak_activation_chunks(with, device) <=
                pp::peak_activation_chunks(without, device) + barriers * stages_per_device);
      }
}

} // namespace

TEST_CASE_TEMPLATE("a vocabulary in shards goes around other schedules",
                   Schedule,
                   pp::GPipe,
                   pp::Seq1F1B<4>,
                   pp::ZeroBubbleH1,
                   pp::Interleaved<2>,
                   pp::detail::SweptVHalf,
                   pp::detail::SweptVMin) {
  check_around(Schedule{});
}

TEST_CASE("what breaks a timetable with a vocabulary in shards is found") {
  using schedule = pp::with_vocabulary<pp::OneFOneB, 2>;
  pp::uniform_cost const cost{.broadcast = 0.5, .reduce = 0.5};
  auto const good = pp::make_timetable<schedule>({4, 6}, cost);
  REQUIRE(pp::verify(good));
  auto const entry_of = [&](pp::pass_kind kind, int device, int microbatch) {
    for (int i = good.offsets[static_cast<std::size_t>(device)];; ++i)
      if (pp::pass const& what = good.passes[static_cast<std::size_t>(i)];
          what.kind == kind && what.microbatch == microbatch)
        return static_cast<std::size_t>(i);
  };
  SUBCASE("a reduce that takes longer than the times allow") {
    auto bad = good;
    bad.groups.reduce = 0.75;
    CHECK(pp::verify(bad).broken == pp::report::rule::before_dependency);
  }
  SUBCASE("a broadcast that takes longer than the times allow") {
    auto bad = good;
    bad.groups.broadcast = 0.75;
    CHECK(pp::verify(bad).broken == pp::report::rule::before_dependency);
  }
  SUBCASE("gradients of logits before another shard has its logits") {
    auto bad = good;
    auto const late = entry_of(pp::pass_kind::logits, 2, 3);
    bad.starts[late] += 0.25;
    bad.ends[late] += 0.25;
    CHECK_FALSE(pp::verify(bad));
  }
  SUBCASE("two exchanges swapped on one device") {
    pp::device_orders orders{good.over, good.passes, good.offsets};
    std::swap(orders.passes[entry_of(pp::pass_kind::logits, 1, 0)].microbatch,
              orders.passes[entry_of(pp::pass_kind::logits, 1, 1)].microbatch);
    CHECK(pp::verify(pp::simulate(orders, cost)).broken == pp::report::rule::waits_for_ever);
  }
  SUBCASE("a pass of a shard that is left out") {
    for (auto const kind : {pp::pass_kind::embed,
                            pp::pass_kind::logits,
                            pp::pass_kind::logits_gradient,
                            pp::pass_kind::embed_gradient}) {
      pp::device_orders orders{good.over, good.passes, good.offsets};
      orders.passes.erase(orders.passes.begin() +
                          static_cast<std::ptrdiff_t>(entry_of(kind, 3, 5)));
      --orders.offsets[4];
      auto const verdict = pp::verify(pp::simulate(orders, cost));
      CHECK(verdict.broken == pp::report::rule::missing_pass);
      CHECK(verdict.what.kind == kind);
    }
  }
  SUBCASE("a pass of a shard on a stage that is none, and the other way round") {
    for (auto const& [kind, stage] :
         {std::pair{pp::pass_kind::logits, 5}, std::pair{pp::pass_kind::forward, 1}}) {
      auto bad = good;
      pp::pass& changed = bad.passes[entry_of(pp::pass_kind::forward, 1, 0)];
      changed.kind = kind;
      changed.stage = static_cast<std::uint16_t>(stage);
      CHECK(pp::verify(bad).broken == pp::report::rule::unknown_pass);
    }
  }
  SUBCASE("a gradient of logits without logits") {
    auto bad = good;
    bad.passes[entry_of(pp::pass_kind::logits, 3, 5)].kind = pp::pass_kind::embed;
    CHECK(pp::verify(bad).broken == pp::report::rule::wrong_kinds);
  }
}

TEST_CASE("shards stand around looped stages and waves alone") {
  CHECK_THROWS_WITH((pp::make_timetable<pp::with_vocabulary<pp::DualPipe<>>>({4, 8})),
                    "with_vocabulary: shards stand around stages that are looped or in waves, but "
                    "this schedule keeps two copies of every stage or places them itself");
}
