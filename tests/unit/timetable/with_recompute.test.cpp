// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/plan/lower.hpp>
#include <pipe/planner/model/peak_bytes.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/zero_bubble_auto.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/cost_table.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tests/support/golden_lines.hpp>
#include <type_traits>
#include <utility>
#include <vector>

namespace pp = pipelining;

namespace {

// The compiler makes and checks the same.
static_assert(pp::verify(pp::timetable<pp::with_recompute<pp::Seq1F1B<2>>, 3, 4>));

//! What a device holds at most when an input counts `kept` from its forward to its backward and the
//! rest of an activation 1 - kept from where it is made to there.
double peak_with_inputs(pp::timetable_view table, int device, double kept) {
  std::vector<std::pair<double, double>> changes; // time, change; what ends comes first
  auto const hold = [&changes](double from, double to, double weight) {
    changes.emplace_back(from, weight);
    changes.emplace_back(to, -weight);
  };
  for (int i = table.offsets[device]; i < table.offsets[device + 1]; ++i) {
    pp::pass const& made = table.passes[i];
    if (made.kind == pp::pass_kind::backward)
      continue;
    int last = i;
    while (table.passes[last].kind != pp::pass_kind::backward ||
           table.passes[last].microbatch != made.microbatch)
      ++last;
    if (made.kind != pp::pass_kind::recompute)
      hold(table.starts[i], table.ends[last], kept);
    if (made.kind != pp::pass_kind::checkpointed_forward)
      hold(table.starts[i], table.ends[last], 1 - kept);
  }
  std::sort(changes.begin(), changes.end());
  double held = 0;
  double peak = 0;
  for (auto const& [time, change] : changes) {
    held += change;
    peak = std::max(peak, held);
  }
  return peak;
}

template <class Schedule>
void check_golden(Schedule const& schedule,
                  std::istringstream& line,
                  pp::pipeline_size size,
                  double f,
                  double b,
                  double kept) {
  auto const table = pp::make_timetable(schedule, size, pp::uniform_cost{f, b / 2, b / 2});
  double makespan = 0;
  line >> makespan;
  CHECK(pp::makespan(table) == makespan);
  for (int device = 0; device < size.devices; ++device) {
    double peak = 0;
    line >> peak;
    CHECK(peak_with_inputs(table, device, kept) == doctest::Approx(peak));
  }
}

} // namespace

TEST_CASE("1F1B with recompute takes the time and the memory of the golden file") {
  std::ifstream golden("golden/families/recompute.txt");
  REQUIRE(golden);
  int lines = 0;
  for (std::string text; std::getline(golden, text);) {
    if (text.empty() || text[0] == '#')
      continue;
    CAPTURE(text);
    std::istringstream line(text);
    pp::pipeline_size size;
    double f = 0;
    double b = 0;
    double kept = 0;
    bool last_keeps = false;
    bool early = false;
    line >> size.devices >> size.microbatches >> f >> b >> kept >> last_keeps >> early;
    if (!early) // a kind of its own: see tests/unit/run/own_flow.test.cpp
      continue;
    ++lines;
    if (last_keeps)
      check_golden(
        pp::with_recompute<pp::OneFOneB, pp::recompute::all_but_last>{}, line, size, f, b, kept);
    else
      check_golden(pp::with_recompute<pp::OneFOneB>{}, line, size, f, b, kept);
  }
  CHECK(lines == 11);
}

TEST_CASE("the law of 1F1B with recompute holds over ranges") {
  for (int devices = 1; devices <= 8; ++devices)
    for (int microbatches = devices; microbatches <= 3 * devices; ++microbatches)
      for (double const f : {1.0, 3.0})
        for (double const b : {2.0, 3.0, 7.0}) {
          auto const table = pp::make_timetable(pp::with_recompute<pp::OneFOneB>{},
                                                {devices, microbatches},
                                                pp::uniform_cost{f, b / 2, b / 2});
          CHECK(pp::makespan(table) == microbatches * (2 * f + b) + (devices - 1) * (f + b));
          for (int device = 0; device < devices; ++device) {
            CHECK(pp::peak_activation_chunks(table, device) == 1);
            double const inputs = devices - 1 - device;
            CHECK(peak_with_inputs(table, device, 0.125) == doctest::Approx(1 + inputs * 0.125));
          }
        }
}

TEST_CASE("a backward pass that recomputes within itself takes the times of the golden file") {
  int lines = 0;
  for (std::string const& text : support::golden_lines("golden/families/recompute.txt")) {
    CAPTURE(text);
    std::istringstream line(text);
    pp::pipeline_size size;
    double f = 0;
    double b = 0;
    double kept = 0;
    bool last_keeps = false;
    bool early = false;
    double makespan = 0;
    line >> size.devices >> size.microbatches >> f >> b >> kept >> last_keeps >> early >> makespan;
    if (early)
      continue;
    ++lines;
    pp::cost_table cost({.devices = size.devices, .microbatches = size.microbatches},
                        {f, f + b / 2, b / 2});
    if (last_keeps)
      cost.set(pp::pass_kind::backward_input, size.devices - 1, 0, b / 2);
    CHECK(pp::makespan(pp::make_timetable(pp::OneFOneB{}, size, cost)) == makespan);
    if (!last_keeps)
      CHECK(makespan == (size.microbatches + size.devices - 1) * (2 * f + b));
  }
  CHECK(lines == 13);
}

namespace {

//! InfiniPipe's number of recomputed layers, of four: the same along a diagonal.
struct by_diagonal {
  std::vector<int> layers;

  [[nodiscard]] double operator()(pp::pass const& what) const {
    return layers[static_cast<std::size_t>(64 + what.stage - what.microbatch)] / 4.0;
  }
};

//! One share for all.
struct same_share {
  double share;

  double operator()(pp::pass const&) const { return share; }
};

template <class Share>
auto recomputed_in_part(pp::pipeline_size size, Share share, double f, double b) {
  return pp::make_timetable(
    pp::with_recompute<pp::OneFOneB, pp::recompute::in_part<Share>>{{}, {share}},
    size,
    pp::detail::partial_cost<pp::uniform_cost, Share>{{f, b / 2, b / 2}, share});
}

} // namespace

TEST_CASE("layers recomputed along diagonals cost 1F1B what the last stage recomputes") {
  std::mt19937 random(2509);
  for (int devices = 1; devices <= 8; ++devices)
    for (int trial = 0; trial < 12; ++trial) {
      int const microbatches = devices + static_cast<int>(random() % 20);
      by_diagonal share;
      for (int i = 0; i < 128; ++i)
        share.layers.push_back(random() % 2 == 0 ? 0 : static_cast<int>(random() % 5));
      auto const table = recomputed_in_part({devices, microbatches}, share, 1, 2);
      double last = 0;
      for (int m = 0; m < microbatches; ++m)
        last += share(pp::row_writer::make(pp::pass_kind::forward, devices - 1, m));
      CAPTURE(devices);
      CAPTURE(microbatches);
      CHECK(pp::makespan(table) == (microbatches + devices - 1) * 3 + last);
      // A unit of which nothing is dropped keeps all.
      for (pp::pass const& what : table.passes)
        if (what.kind == pp::pass_kind::checkpointed_forward)
          CHECK(share(what) > 0);
        else if (what.kind == pp::pass_kind::forward)
          CHECK(share(what) == 0);
    }
}

TEST_CASE(
  "a share of every activation takes its share of the time, and leaves the rest in memory") {
  for (int devices = 1; devices <= 8; ++devices)
    for (double const share : {0.25, 0.5, 1.0}) {
      int const microbatches = 2 * devices + 1;
      auto const table = recomputed_in_part({devices, microbatches}, same_share{share}, 2, 6);
      CHECK(pp::makespan(table) == microbatches * (2 + 2 * share + 6) + (devices - 1) * (2 + 6));
      for (int device = 0; device < devices; ++device) {
        // Of 64 bytes, four of them the input, as many as are not recomputed stay.
        double const kept = 4 + 60 * (1 - share);
        auto const bytes = [&](pp::pass const&) { return pp::unit_bytes{64, kept, 0}; };
        CHECK(pp::peak_device_bytes(table, device, bytes) == 64 + (devices - 1 - device) * kept);
      }
    }
  CHECK_THROWS_WITH_AS((void)recomputed_in_part({2, 2}, same_share{1.5}, 1, 2),
                       "partial_cost: the share of an activation that is recomputed or copied "
                       "must be between 0 and 1",
                       std::invalid_argument);
}

TEST_CASE("the first stages of every device alone are recomputed") {
  pp::with_recompute<pp::Interleaved<3>, pp::recompute::first_stages> const two{{}, {2}};
  for (int devices = 1; devices <= 5; ++devices) {
    auto const table = pp::make_timetable(two, {devices, 2 * devices});
    CHECK(pp::prove(pp::lower(table)));
    int recomputed = 0;
    for (pp::pass const& what : table.passes) {
      if (what.kind == pp::pass_kind::recompute || what.kind == pp::pass_kind::checkpointed_forward)
        CHECK(what.stage < 2 * devices);
      recomputed += what.kind == pp::pass_kind::recompute;
    }
    CHECK(recomputed == 2 * devices * 2 * devices);
  }
}

TEST_CASE(
  "a unit that keeps its input alone needs its recompute, and one that keeps all has none") {
  auto table = pp::make_timetable(pp::with_recompute<pp::OneFOneB>{}, {2, 3});
  REQUIRE(pp::verify(table));
  auto const first = [&table](pp::pass_kind kind) -> pp::pass& {
    return *std::find_if(table.passes.begin(), table.passes.end(), [kind](pp::pass const& what) {
      return what.kind == kind;
    });
  };
  SUBCASE("kept and recomputed") {
    first(pp::pass_kind::checkpointed_forward).kind = pp::pass_kind::forward;
    CHECK(pp::verify(table).broken == pp::report::rule::repeated_pass);
  }
  SUBCASE("not recomputed") {
    pp::pass& gone = first(pp::pass_kind::recompute);
    gone.kind = pp::pass_kind::copy_request;
    CHECK_FALSE(pp::verify(table));
  }
}

TEST_CASE("a forward pass right before its own backward keeps its activation") {
  // The last stage is the slowest, and recomputation frees nothing there.
  double const times[] = {3, 2, 2, 2, 2, 3, 3, 8.4};
  pp::pipeline_size const size{8, 32};
  pp::cost_table cost({.devices = 8, .microbatches = 32}, {});
  for (int stage = 0; stage < 8; ++stage)
    for (pp::pass_kind const kind : {pp::pass_kind::forward,
                                     pp::pass_kind::backward_input,
                                     pp::pass_kind::backward_weight,
                                     pp::pass_kind::recompute})
      cost.set(kind, stage, 0, times[stage]);
  auto const plain = pp::make_timetable<pp::OneFOneB>(size, cost);
  auto const everywhere = pp::make_timetable<pp::with_recompute<pp::OneFOneB>>(size, cost);
  auto const where_it_frees =
    pp::make_timetable<pp::with_recompute<pp::OneFOneB, pp::recompute::where_it_frees>>(size, cost);
  CHECK(pp::verify(where_it_frees));
  CHECK(pp::makespan(where_it_frees) == pp::makespan(plain));
  CHECK(pp::makespan(everywhere) > 1126);
  for (int device = 0; device < 8; ++device)
    CHECK(pp::peak_activations(where_it_frees, device) == pp::peak_activations(everywhere, device));
  // Next to another pass of the device it is free as well, wherever the stage is.
  auto const looped =
    pp::make_timetable<pp::with_recompute<pp::Interleaved<2>, pp::recompute::where_it_frees>>(
      {2, 4});
  CHECK(pp::verify(looped));
  for (int device = 0; device < 2; ++device) {
    auto const row = pp::timetable_view(looped).row(device);
    for (std::size_t i = 1; i < row.size(); ++i) {
      CHECK_FALSE((row[i - 1].kind == pp::pass_kind::checkpointed_forward &&
                   row[i].kind == pp::pass_kind::recompute && row[i - 1].stage == row[i].stage &&
                   row[i - 1].microbatch == row[i].microbatch));
      CHECK((
        row[i].kind != pp::pass_kind::backward || row[i - 1].kind == pp::pass_kind::recompute ||
        (row[i - 1].kind == pp::pass_kind::forward && row[i - 1].microbatch == row[i].microbatch)));
    }
  }
}

namespace {

//! The rule for stages 0, 2 and 5, written otherwise.
struct by_hand {
  static constexpr bool only_where_it_frees = true;
  bool operator()(pp::shape const&, pp::pass const& forward) const {
    return forward.stage == 0 || forward.stage == 2 || forward.stage == 5;
  }
};

} // namespace

TEST_CASE("only the stages that are given are recomputed") {
  static constexpr int given[] = {0, 2, 5};
  auto const same = [](pp::dynamic_timetable const& one, pp::dynamic_timetable const& other) {
    return one.passes == other.passes && one.starts == other.starts;
  };
  auto const check = [&](auto const& schedule, pp::pipeline_size size) {
    using schedule_type = std::remove_cvref_t<decltype(schedule)>;
    auto const some = pp::make_timetable(
      pp::with_recompute<schedule_type, pp::recompute::where_it_frees>{schedule, {given}}, size);
    CHECK(pp::verify(some));
    CHECK(
      same(some, pp::make_timetable(pp::with_recompute<schedule_type, by_hand>{schedule}, size)));
    CHECK_FALSE(
      same(some,
           pp::make_timetable(
             pp::with_recompute<schedule_type, pp::recompute::where_it_frees>{schedule}, size)));
    for (pp::pass const& each : some.passes)
      CHECK((each.kind != pp::pass_kind::recompute ||
             std::find(std::begin(given), std::end(given), each.stage) != std::end(given)));
  };
  check(pp::OneFOneB{}, {6, 9});
  check(pp::Interleaved<2>{}, {3, 6});
  check(pp::ZeroBubbleAuto<>{.memory_limit = 4}, {6, 9});
}

TEST_CASE("orders that are made for recomputation keep their limit and are no longer than 1F1B") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    auto const between = [&](unsigned least, unsigned most) {
      return static_cast<int>(least + random() % (most - least + 1));
    };
    pp::pipeline_size const size{between(1, 8), between(1, 24)};
    pp::cost_table cost({.devices = size.devices, .microbatches = size.microbatches},
                        {1, 1, 1, random() % 2 == 0 ? 0 : 0.25});
    for (int stage = 0; seed > 20 && stage < size.devices; ++stage)
      for (pp::pass_kind const kind : {pp::pass_kind::forward,
                                       pp::pass_kind::backward_input,
                                       pp::pass_kind::backward_weight,
                                       pp::pass_kind::recompute})
        cost.set(kind, stage, 0, between(4, 8) / 8.0);
    auto const whole =
      pp::make_timetable<pp::with_recompute<pp::OneFOneB, pp::recompute::where_it_frees>>(size,
                                                                                          cost);
    for (int const limit : {1, 2, 3, size.devices, 2 * size.devices}) {
      CAPTURE(limit);
      auto const table = pp::make_timetable(
        pp::with_recompute<pp::ZeroBubbleAuto<>, pp::recompute::where_it_frees>{{limit}},
        size,
        cost);
      CHECK(pp::verify(table, limit));
      CHECK(pp::peak_activations(table) <= pp::ratio{limit, 1});
      CHECK(pp::makespan(table) <= pp::makespan(whole) * (1 + 1e-9));
    }
    // Some activations are recomputed and some are not.
    struct every_other {
      bool operator()(pp::shape const&, pp::pass const& forward) const {
        return (forward.microbatch + forward.stage) % 2 == 0;
      }
    };
    for (int const limit : {1, 2, size.devices}) {
      auto const mixed = pp::make_timetable(
        pp::with_recompute<pp::ZeroBubbleAuto<>, every_other>{{limit}, {}}, size, cost);
      CHECK(pp::verify(mixed, limit));
    }
  }
  auto const at = [](int limit) {
    return pp::makespan(pp::make_timetable(
      pp::with_recompute<pp::ZeroBubbleAuto<>, pp::recompute::where_it_frees>{{limit}}, {8, 24}));
  };
  CHECK(at(1) == 108);
  CHECK(at(2) == 107);
  CHECK(at(4) == 105);
  CHECK(at(8) == 102);
}
