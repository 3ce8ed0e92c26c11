// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Schedules have the figures and the orders of their papers, their references and independent
// simulations: all facts under tests/golden/schedules, for every schedule with a name.
// PIPELINING_TEST_EVERYTHING=1 in the environment asks for the slow ones, too.
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/timetable.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <tests/support/golden_lines.hpp>
#include <tests/support/golden_schedules.hpp>
#include <vector>

namespace pp = pipelining;
namespace registry = pipelining::registry;

namespace {

std::vector<double> by_device(pp::timetable_view table, auto const& figure) {
  std::vector<double> all;
  for (int device = 0; device < table.over.extents.devices; ++device)
    all.push_back(static_cast<double>(figure(table, device)));
  return all;
}

//! The values that a timetable has of a figure: those of all devices, or one.
std::vector<double> values_of(pp::timetable_view table, std::string const& name) {
  auto const chunks = [](pp::timetable_view of, int device) {
    return pp::peak_activation_chunks(of, device);
  };
  auto const busy = [](pp::timetable_view of, int device) { return pp::busy(of, device); };
  if (name == "makespan")
    return {pp::makespan(table)};
  if (name == "span")
    return {pp::span_of(table)};
  if (name == "bubble") // as papers print it
    return {std::round(pp::bubble_rate(table) * 1e4) / 1e4};
  if (name == "peak")
    return {pp::peak_activations(table).to_double()};
  if (name == "peaks")
    return by_device(table, chunks);
  if (name == "first")
    return {by_device(table, chunks).front()};
  if (name == "last")
    return {by_device(table, chunks).back()};
  auto const all = by_device(table, busy);
  if (name == "busy")
    return all;
  REQUIRE(name == "least_busy");
  return {*std::min_element(all.begin(), all.end())};
}

void check_figures(support::golden_fact const& fact) {
  for (std::size_t i = 0; i < fact.costs.size(); ++i) {
    auto const table = registry::make_named_timetable(fact.choice, fact.costs[i]);
    for (support::golden_figure const& figure : fact.figures) {
      CAPTURE(figure.name);
      auto const has = values_of(table, figure.name);
      bool const each_cost = figure.name == "makespan" || figure.name == "span";
      REQUIRE(figure.values.size() == (each_cost ? fact.costs.size() : has.size()));
      for (std::size_t j = 0; j < has.size(); ++j) {
        double const wanted = figure.values[each_cost ? i : j];
        if (figure.at_most)
          CHECK(has[j] <= wanted);
        else
          CHECK(has[j] == wanted);
      }
    }
  }
}

void check_row(support::golden_fact const& fact) {
  auto const table = registry::make_named_timetable(fact.choice, pp::uniform_cost{});
  bool const with_chunks = fact.row.find('.') != std::string::npos;
  CHECK(support::row_text(table, fact.device, with_chunks) == fact.row);
}

} // namespace

TEST_CASE("schedules have the figures and orders of their references") {
  bool const all = std::getenv("PIPELINING_TEST_EVERYTHING") != nullptr;
  std::size_t files = 0;
  for (registry::named_schedule const& schedule : registry::named_schedules()) {
    std::string const path = "golden/schedules/" + std::string(schedule.name) + ".txt";
    if (!std::filesystem::exists(path))
      continue;
    ++files;
    int checked = 0;
    for (std::string const& line : support::golden_lines(path)) {
      CAPTURE(path);
      CAPTURE(line);
      auto const fact = support::read_golden_fact(schedule.name, line);
      if (fact.slow && !all)
        continue;
      fact.device < 0 ? check_figures(fact) : check_row(fact);
      ++checked;
    }
    MESSAGE(path << ": " << checked << " lines");
    CHECK(checked > 0);
  }
  for (auto const& file : std::filesystem::directory_iterator("golden/schedules"))
    files -= file.path().extension() == ".txt" ? 1 : 0;
  CHECK_MESSAGE(files == 0, "a golden file has the name of no schedule");
}
