// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <tests/support/golden_lines.hpp>

namespace pp = pipelining;

namespace {

pp::dynamic_timetable
hand_made(std::string const& name, pp::pipeline_size size, pp::uniform_cost const& cost) {
  return name == "zb-h1" ? pp::make_timetable<pp::ZeroBubbleH1>(size, cost)
                         : pp::make_timetable<pp::ZeroBubbleH2>(size, cost);
}

void check_peak_everywhere(pp::timetable_view table, int peak) {
  for (int device = 0; device < table.over.extents.devices; ++device)
    CHECK(pp::peak_activation_chunks(table, device) == peak);
}

} // namespace

TEST_CASE("ZB-H1 keeps every rule and its closed forms") {
  for (int devices = 1; devices <= 12; ++devices)
    for (int microbatches = 1; microbatches <= 30; ++microbatches)
      for (double const latency : {0.0, 1.0}) {
        auto const table = pp::make_timetable<pp::ZeroBubbleH1>(
          {devices, microbatches}, pp::uniform_cost{10, 12, 8, latency});
        check_peak_everywhere(table, std::min(devices, microbatches));
        if (microbatches < (latency > 0 ? 2 * devices : devices))
          continue;
        CHECK(pp::span_of(table) - 30 * microbatches ==
              (devices - 1) * (10 + 12 - 8 + 4 * latency));
        CHECK(pp::makespan(table) == pp::span_of(table));
      }
}

TEST_CASE("ZB-H2 keeps every rule and its closed forms") {
  for (int devices = 1; devices <= 12; ++devices)
    for (int microbatches = 1; microbatches <= 30; ++microbatches)
      for (double const latency : {0.0, 1.0})
        for (double const weight : {8.0, 12.0}) {
          double const busy = (22 + weight) * microbatches;
          auto const table = pp::make_timetable<pp::ZeroBubbleH2>(
            {devices, microbatches}, pp::uniform_cost{10, 12, weight, latency});
          check_peak_everywhere(table, std::min(2 * devices - 1, microbatches));
          if (microbatches < 2 * devices - 1 || weight > 10)
            continue;
          double const bubble = (devices - 1) * (10 + 12 + 2 * latency - 2 * weight);
          CHECK(pp::span_of(table) - busy == std::max(0.0, bubble));
          CHECK(pp::makespan(table) - busy == std::max(bubble, (devices - 1) * (10 + latency)));
        }
}

TEST_CASE("ZB-H1 and ZB-H2 have the figures of the reference") {
  for (std::string const& line : support::golden_lines("golden/zero_bubble/h1_h2_figures.txt")) {
    CAPTURE(line);
    std::istringstream in(line);
    std::string name;
    pp::pipeline_size size;
    pp::uniform_cost cost;
    double span = 0;
    double makespan = 0;
    int peak = 0;
    in >> name >> size.devices >> size.microbatches >> cost.forward >> cost.backward_input >>
      cost.backward_weight >> cost.communication >> span >> makespan >> peak;
    auto const table = hand_made(name, size, cost);
    CHECK(pp::span_of(table) == span);
    CHECK(pp::makespan(table) == makespan);
    CHECK(pp::peak_activations(table) == pp::ratio{peak, 1});
  }
}

TEST_CASE("ZB-H1 and ZB-H2 have the orders of the reference") {
  for (std::string const& line : support::golden_lines("golden/zero_bubble/h1_h2_orders.txt")) {
    std::istringstream in(line);
    std::string name;
    pp::pipeline_size size;
    int device = 0;
    in >> name >> size.devices >> size.microbatches >> device;
    CHECK(support::row_text(hand_made(name, size, {}), device) == line.substr(line.find(": ") + 2));
  }
}

TEST_CASE("the published bubble rates come out to four decimals") {
  int rows = 0;
  for (std::string const& line : support::golden_lines("golden/zero_bubble/published_table.txt")) {
    CAPTURE(line);
    std::istringstream in(line);
    pp::pipeline_size size;
    pp::uniform_cost cost;
    double one_f_one_b = 0;
    double h1 = 0;
    double h2 = 0;
    in >> size.devices >> size.microbatches >> cost.forward >> cost.backward_input >>
      cost.backward_weight >> cost.communication >> one_f_one_b >> h1 >> h2;
    auto const printed = [](pp::timetable_view table) {
      return std::round(pp::bubble_rate(table) * 1e4) / 1e4;
    };
    CHECK(printed(pp::make_timetable<pp::OneFOneB>(size, cost)) == one_f_one_b);
    CHECK(printed(pp::make_timetable<pp::ZeroBubbleH1>(size, cost)) == h1);
    CHECK(printed(pp::make_timetable<pp::ZeroBubbleH2>(size, cost)) == h2);
    ++rows;
  }
  CHECK(rows == 12);
}
