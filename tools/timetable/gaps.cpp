// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/planner/registry/adapters.hpp>
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/planner/search/bounds.hpp>
#include <pipe/planner/search/exact.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/view/append.hpp>
#include <pipe/view/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "command_line.hpp"
#include "markdown_table.hpp"
#include "progress_line.hpp"
#include "tools/support/decimals.hpp"
#include "verbs.hpp"

namespace pp = pipelining;

namespace examples {
namespace {

//! What the table says of one schedule.
struct gap_row {
  std::string name;
  double makespan = 0;
  int peak = 0;        //!< chunks of activations
  double least = 0;    //!< the optimum, or a bound
  bool proven = false; //!< `least` is the makespan of an order
};

gap_row look_at(command const& asked, named_schedule const& schedule) {
  gap_row row;
  row.name = std::string(schedule.name);
  schedule_choice choice = asked.choice;
  choice.name = row.name;
  if (has(schedule.takes, option::memory_limit))
    choice.memory_limit =
      schedule.traits.stages_per_device == 1 ? choice.devices : choice.devices + 2;
  if (schedule.traits.over_chunks)
    choice.chunks = 2;
  if (has(schedule.takes, option::stages_per_device) && schedule.traits.stages_per_device > 2)
    choice.stages_per_device = 2; // since proofs are for few stages
  pp::dynamic_timetable table = make_named_timetable(choice, asked.cost);
  if (schedule.traits.stages_go_one_way)
    throw std::invalid_argument("no order is known to be least of stages that go one way");
  if (schedule.traits.weights_travel)
    table = by_groups(std::move(table));
  row.makespan = pp::makespan(table);
  for (int device = 0; device < table.over.extents.devices; ++device)
    row.peak = std::max(row.peak, pp::peak_activation_chunks(table, device));
  pp::shape const& extents = table.over.extents;
  pp::time_bounds::options options;
  options.memory_limit = (row.peak + 1e-9) / extents.chunks;
  row.least = pp::least_times(table.over, asked.cost, options).makespan.least();
  row.proven = row.least >= row.makespan * (1 - 1e-9);
  if (row.proven || extents.chunks > 1 || extents.routes() > 1)
    return row;
  pp::exact_order const order = pp::shortest_order(
    extents, asked.cost, {.memory_limit = row.peak, .most_states = std::size_t{1} << 16});
  row.least = std::max(row.least, order.bound);
  row.proven = order.optimal || row.least >= row.makespan * (1 - 1e-9);
  return row;
}

std::string text_of(command const& asked, std::vector<gap_row> const& rows) {
  pp::uniform_cost const& cost = asked.cost;
  std::string out;
  pp::append(out, asked.choice.devices, " devices, ", asked.choice.microbatches);
  pp::append(
    out, " microbatches, forward ", cost.forward, ", backward_input ", cost.backward_input);
  pp::append(out, ", backward_weight ", cost.backward_weight, ", message ", cost.communication);
  out += ":\n\n";
  std::vector<table_line> lines{{"schedule", "makespan", "peak", "least makespan", "gap"}};
  for (gap_row const& row : rows)
    lines.push_back({"`" + row.name + "`",
                     rounded(row.makespan, 3),
                     std::to_string(row.peak),
                     (row.proven ? "" : "at least ") + rounded(row.least, 3),
                     (row.proven ? "" : "at most ") +
                       rounded(std::max(0.0, 100 * (row.makespan / row.least - 1)), 1) + " %"});
  return out + table_of(lines);
}

std::string json_of(std::vector<gap_row> const& rows) {
  std::string out = "[";
  for (gap_row const& row : rows) {
    pp::append(out, out.size() == 1 ? "\n" : ",\n", "{\"schedule\":");
    pp::append_quoted(out, row.name);
    pp::append(out, ",\"makespan\":", row.makespan, ",\"peak_activation_chunks\":", row.peak);
    pp::append(out, ",\"least_makespan\":", row.least);
    pp::append(out, ",\"proven\":", row.proven ? "true}" : "false}");
  }
  return out + "\n]\n";
}

} // namespace

void gaps(std::span<char const* const> words) {
  command const asked = read_command_line(verbs::gaps, words);
  if (asked.measured)
    throw usage_error("gaps: proofs need times in whole thousandths; give --cost F,I,W");
  if (asked.choice.devices > 4 || asked.choice.microbatches > 8)
    throw usage_error("gaps: proofs are for at most 4 devices and 8 microbatches");
  std::vector<gap_row> rows;
  progress_line line(HUGE_VAL);
  for (named_schedule const& schedule : named_schedules()) {
    line.say("proving " + std::string(schedule.name));
    try {
      rows.push_back(look_at(asked, schedule));
    } catch (std::invalid_argument const&) {
      // The schedule does not take these sizes, or holds more stages than proofs are for.
    }
  }
  line.end();
  std::string const out = asked.format == "json" ? json_of(rows) : text_of(asked, rows);
  std::fwrite(out.data(), 1, out.size(), stdout);
}

} // namespace examples
