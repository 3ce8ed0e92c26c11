// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tools/timetable/command_line.hpp"
#include "tools/timetable/markdown_table.hpp"
#include "tools/timetable/progress_line.hpp"
#include "tools/timetable/verbs.hpp"

namespace examples {
namespace {

//! The least makespan is the optimum, or a bound; it is proven where an order has it.
constexpr figure_column gap_columns[] = {{"makespan", "makespan"},
                                         {"peak", "peak_activation_chunks"},
                                         {"least makespan", "least_makespan"},
                                         {"gap", nullptr},
                                         {nullptr, "proven"}};

figure_row row_of(std::string const& name, double makespan, int peak, double least, bool proven) {
  double const gap = std::max(0.0, 100 * (makespan / least - 1));
  return {name,
          {figure(makespan, rounded(makespan, 3)),
           figure(peak),
           figure(least, (proven ? "" : "at least ") + rounded(least, 3)),
           {(proven ? "" : "at most ") + rounded(gap, 1) + " %", ""},
           {"", proven ? "true" : "false"}}};
}

figure_row look_at(command const& asked, named_schedule const& schedule) {
  schedule_choice choice = asked.choice;
  choice.name = std::string(schedule.name);
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
  double const makespan = pp::makespan(table);
  int const peak = static_cast<int>(pp::peak_activations(table).numerator); // in chunks
  pp::shape const& extents = table.over.extents;
  pp::time_bounds::options options;
  options.memory_limit = (peak + 1e-9) / extents.chunks;
  double least = pp::least_times(table.over, asked.cost, options).makespan.least();
  bool proven = least >= makespan * (1 - 1e-9);
  if (!proven && extents.chunks == 1 && extents.routes() == 1) {
    pp::exact_order const order = pp::shortest_order(
      extents, asked.cost, {.memory_limit = peak, .most_states = std::size_t{1} << 16});
    least = std::max(least, order.bound);
    proven = order.optimal || least >= makespan * (1 - 1e-9);
  }
  return row_of(choice.name, makespan, peak, least, proven);
}

std::string gaps_as_text(command const& asked, std::vector<figure_row> const& rows) {
  pp::uniform_cost const& cost = asked.cost;
  std::string out;
  pp::append(out, asked.choice.devices, " devices, ", asked.choice.microbatches);
  pp::append(
    out, " microbatches, forward ", cost.forward, ", backward_input ", cost.backward_input);
  pp::append(out, ", backward_weight ", cost.backward_weight, ", message ", cost.communication);
  return out + ":\n\n" + markdown_of(gap_columns, rows);
}

} // namespace

void gaps(std::span<char const* const> words) {
  command const asked = read_command_line(verbs::gaps, words);
  if (asked.measured)
    throw usage_error("gaps: proofs need times in whole thousandths; give --cost F,I,W");
  if (asked.choice.devices > 4 || asked.choice.microbatches > 8)
    throw usage_error("gaps: proofs are for at most 4 devices and 8 microbatches");
  std::vector<figure_row> rows;
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
  std::string const out =
    asked.format == "json" ? "[" + json_of(gap_columns, rows) + "\n]\n" : gaps_as_text(asked, rows);
  std::fwrite(out.data(), 1, out.size(), stdout);
}

} // namespace examples
