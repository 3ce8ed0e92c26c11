// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Compares schedules with golden figures and orders. Header for golden_figures,
//! golden_orders, check_figures, check_order, check_rows and check_looped.

#include <pipe/flow/pass.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tests/support/golden_lines.hpp>
#include <vector>

namespace support {

//! @brief The cost models that the first line of a file of figures names: F/I/W/latency.
inline std::vector<pipelining::uniform_cost> golden_costs(std::string const& path) {
  std::ifstream file(path);
  std::string header;
  std::getline(file, header);
  auto const list = header.find("latency = ");
  if (list == std::string::npos)
    throw std::runtime_error("golden file " + path + " does not name its costs");
  std::istringstream in(header.substr(list + 10));
  std::vector<pipelining::uniform_cost> costs;
  char slash = 0;
  for (pipelining::uniform_cost cost; in >> cost.forward >> slash >> cost.backward_input >> slash >>
                                      cost.backward_weight >> slash >> cost.communication;)
    costs.push_back(cost);
  return costs;
}

//! @brief One line of a file of figures: key, peaks, and per cost makespan and span.
struct figures {
  std::string name;
  std::vector<int> key;
  std::vector<int> peaks; //!< of every device, or of the first and the last
  std::vector<double> makespans;
  std::vector<double> spans; //!< empty where the file gives makespans only
};

//! @brief The lines of a file of figures.
//! @param named whether lines begin with the name of a schedule. @param keys how many numbers come
//! before the peaks.
inline std::vector<figures> golden_figures(std::string const& path, bool named, int keys) {
  std::vector<figures> all;
  for (std::string const& line : golden_lines(path)) {
    std::istringstream in(line);
    figures one;
    if (named)
      in >> one.name;
    one.key.resize(static_cast<std::size_t>(keys));
    for (int& number : one.key)
      in >> number;
    for (int peak = 0; in >> peak;) {
      one.peaks.push_back(peak);
      if (in.peek() != ',')
        break;
      in.ignore();
    }
    for (double time = 0; in >> time;) {
      one.makespans.push_back(time);
      if (in.peek() != '/')
        continue;
      in.ignore();
      in >> time;
      one.spans.push_back(time);
    }
    all.push_back(one);
  }
  return all;
}

//! @brief Checks that a schedule has the golden times and the golden peaks, which the file gives
//! for every device or for the first and the last.
template <pipelining::schedule Schedule>
void check_figures(Schedule const& plan,
                   pipelining::pipeline_size size,
                   figures const& expected,
                   std::vector<pipelining::uniform_cost> const& costs) {
  REQUIRE(expected.makespans.size() == costs.size());
  for (std::size_t i = 0; i < costs.size(); ++i) {
    auto const table = pipelining::make_timetable(plan, size, costs[i]);
    CHECK(pipelining::makespan(table) == expected.makespans[i]);
    if (!expected.spans.empty())
      CHECK(pipelining::span_of(table) == expected.spans[i]);
    int const last = size.devices - 1;
    int const given = static_cast<int>(expected.peaks.size());
    REQUIRE((given == 2 || given == size.devices));
    for (int peak = 0; peak < given; ++peak)
      CHECK(pipelining::peak_activation_chunks(table, given == 2 ? peak * last : peak) ==
            expected.peaks[static_cast<std::size_t>(peak)]);
  }
}

//! @brief One line of a file of orders.
struct golden_order {
  std::string name;
  std::vector<int> key;
  int device = 0;
  std::string passes; //!< "0F0 1F2", with chunks "0F0.1 1F2.0"
};

//! @brief The lines of a file of orders.
inline std::vector<golden_order> golden_orders(std::string const& path, bool named, int keys) {
  std::vector<golden_order> all;
  for (std::string const& line : golden_lines(path)) {
    std::istringstream in(line);
    golden_order one;
    if (named)
      in >> one.name;
    one.key.resize(static_cast<std::size_t>(keys));
    for (int& number : one.key)
      in >> number;
    in >> one.device;
    in.ignore(2); // ": "
    std::getline(in, one.passes);
    all.push_back(one);
  }
  return all;
}

//! @brief Checks that a device of a schedule runs the golden passes.
template <pipelining::schedule Schedule>
void check_order(Schedule const& plan,
                 pipelining::pipeline_size size,
                 golden_order const& expected,
                 bool with_chunks = false) {
  auto const table = pipelining::make_timetable(plan, size);
  CHECK(row_text(table, expected.device, with_chunks) == expected.passes);
}

//! @brief Checks the lines of PyTorch's looped schedules that carry a name, keyed by devices,
//! stages per device and microbatches.
//! @param plan_of the schedule for a number of stages per device
//! @param lines how many lines of figures and of orders carry the name
template <class PlanOf>
void check_looped(std::string const& name, PlanOf const& plan_of, int lines) {
  std::string const path = "golden/interleaved/pytorch_figures.txt";
  auto const costs = golden_costs(path);
  int compared = 0;
  for (figures const& expected : golden_figures(path, true, 3))
    if (expected.name == name) {
      check_figures(plan_of(expected.key[1]), {expected.key[0], expected.key[2]}, expected, costs);
      ++compared;
    }
  for (golden_order const& expected :
       golden_orders("golden/interleaved/pytorch_orders.txt", true, 3))
    if (expected.name == name) {
      check_order(plan_of(expected.key[1]), {expected.key[0], expected.key[2]}, expected);
      ++compared;
    }
  CHECK(compared == lines);
}

//! @brief Compares rows with the lines of a file, each `P M device: passes`, as `row_text` gives
//! them.
template <class Schedule>
void check_rows(Schedule const& schedule, std::string const& path) {
  for (std::string const& line : golden_lines(path)) {
    CAPTURE(line);
    std::istringstream in(line);
    pipelining::pipeline_size size;
    int device = 0;
    in >> size.devices >> size.microbatches >> device;
    CHECK(row_text(pipelining::make_timetable(schedule, size), device) ==
          line.substr(line.find(": ") + 2));
  }
}

} // namespace support
