// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Reads the facts about schedules under tests/golden/schedules. Header for golden_fact and
//! read_golden_fact.

#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/timetable/cost.hpp>

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace support {

//! @brief A figure of timetables, one value for each cost model or for each device.
struct golden_figure {
  std::string name;
  bool at_most = false; //!< "<=" and not "=": the values are bounds
  std::vector<double> values;
};

//! @brief One line of a file: figures under some cost models, or the row of a device.
struct golden_fact {
  pipelining::registry::schedule_choice choice;
  bool slow = false; //!< a long search
  std::vector<pipelining::uniform_cost> costs;
  std::vector<golden_figure> figures;
  int device = -1; //!< whose row it is; -1: figures
  std::string row;
};

namespace detail {

inline std::vector<std::string> split(std::string const& text, std::string_view between) {
  std::vector<std::string> parts;
  std::size_t from = 0;
  for (std::size_t at = 0; (at = text.find(between, from)) != std::string::npos;
       from = at + between.size())
    parts.push_back(text.substr(from, at - from));
  parts.push_back(text.substr(from));
  return parts;
}

inline std::vector<double> numbers(std::string const& text, std::string_view between) {
  std::vector<double> all;
  for (std::string const& word : split(text, between))
    all.push_back(std::stod(word));
  return all;
}

// An option by its word on command lines, without the dashes; P and M are the size.
inline void set(pipelining::registry::schedule_choice& choice,
                std::string const& name,
                std::string const& value) {
  if (name == "P" || name == "M")
    (name == "P" ? choice.devices : choice.microbatches) = std::stoi(value);
  else if (name == "unfused")
    choice.unfused = true;
  else if (name == "memory-limit")
    choice.memory_limit = std::stod(value);
  else if (name == "chunk-counts")
    for (double const count : numbers(value, ","))
      choice.chunk_counts.push_back(static_cast<int>(count));
  else {
    for (auto const& each : pipelining::registry::named_option::all())
      if (each.number != nullptr && each.name == "--" + name) {
        choice.*each.number = std::stoi(value);
        return;
      }
    throw std::runtime_error("a golden line has an unknown option: " + name);
  }
}

} // namespace detail

//! @brief The fact of a line: see tests/golden/schedules/README.md.
//! @throws std::runtime_error for a line that is none
inline golden_fact read_golden_fact(std::string_view schedule, std::string const& line) {
  auto const parts = detail::split(line, " | ");
  if (parts.size() != 3)
    throw std::runtime_error("a golden line wants three parts: " + line);
  golden_fact fact;
  fact.choice.name = schedule;
  for (std::string const& word : detail::split(parts[0], " ")) {
    auto const pair = detail::split(word, "=");
    fact.slow |= pair[0] == "slow";
    if (pair[0] != "slow")
      detail::set(fact.choice, pair[0], pair.back());
  }
  if (parts[1].starts_with("device ")) {
    fact.device = std::stoi(parts[1].substr(7));
    fact.row = parts[2];
    return fact;
  }
  for (std::string const& word : detail::split(parts[1], " ")) {
    pipelining::uniform_cost& cost = fact.costs.emplace_back();
    double* const times[] = {&cost.forward,
                             &cost.backward_input,
                             &cost.backward_weight,
                             &cost.communication,
                             &cost.overlapped_pair,
                             &cost.all_reduce};
    auto const values = detail::numbers(word, "/");
    for (std::size_t i = 0; i < values.size(); ++i)
      *times[i] = values[i];
  }
  for (std::string const& word : detail::split(parts[2], " ")) {
    auto const pair = detail::split(word, "=");
    bool const at_most = pair[0].ends_with('<');
    fact.figures.push_back({at_most ? pair[0].substr(0, pair[0].size() - 1) : pair[0],
                            at_most,
                            detail::numbers(pair.at(1), ",")});
  }
  return fact;
}

} // namespace support
