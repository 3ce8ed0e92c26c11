// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tools/timetable/make.hpp"
#include "tools/timetable/markdown_table.hpp"
#include "tools/timetable/progress_line.hpp"
#include "tools/timetable/verbs.hpp"

namespace examples {
namespace {

//! Peaks are in microbatches of a device's share of the model.
constexpr figure_column compared_columns[] = {{"stages", "stages"},
                                              {"chunks", "chunks"},
                                              {"makespan", "makespan"},
                                              {"gap", nullptr},
                                              {nullptr, "span"},
                                              {"bubble of span", "bubble_rate"},
                                              {"of makespan", "makespan_bubble_rate"},
                                              {"activations", "peak_activations"},
                                              {"weight inputs", "peak_weight_inputs"},
                                              {nullptr, "least_makespan"}};

figure_row compare_one(command const& asked, std::string const& name) {
  command own = asked;
  schedule_choice choice = choice_for(asked.choice, name);
  // The least choice that has extents; the limit is of the share, that of schedules of one stage.
  double const share =
    asked.choice.memory_limit.value_or(std::min(asked.choice.devices, asked.choice.microbatches));
  if (has(find_schedule(name).takes, option::memory_limit))
    choice.memory_limit = share;
  double const held = static_cast<double>(shown_extents(choice).stages()) / choice.devices;
  own.choice.memory_limit = share * held;
  made_table const made = make_like(own, name, asked.cost);
  pp::timetable_figures const found = pp::figures_of(made.table, made.about());
  double const least = bounds_of(made).makespan.least(); // 0 where nothing is known
  double const activations = found.peak_activations / held;
  double const inputs = found.peak_weight_inputs / held;
  return {name,
          {figure(made.table.over.extents.stages()),
           figure(made.table.over.extents.chunks),
           figure(found.makespan, rounded(found.makespan, 6)),
           {least > 0 ? per_cent(std::max(0.0, found.makespan / least - 1)) : "unknown", ""},
           figure(found.span),
           figure(found.bubble_rate, per_cent(found.bubble_rate)),
           figure(found.makespan_bubble_rate, per_cent(found.makespan_bubble_rate)),
           figure(activations, rounded(activations, 3)),
           figure(inputs, rounded(inputs, 3)),
           figure(least)}};
}

std::string comparison_of(command const& asked, std::vector<figure_row> const& all) {
  return describe_setting(asked) +
         "gap: to the makespan that no order of its placement and memory can beat\n"
         "peaks: microbatches on a device's share of the model, at most on any device\n\n" +
         aligned(lines_of(compared_columns, all), 1);
}

} // namespace

void compare(std::span<char const* const> words) {
  command const asked = read_command_line(verbs::compare, words);
  std::vector<figure_row> all;
  progress_line line(HUGE_VAL);
  for (named_schedule const& each : named_schedules()) {
    line.say("making " + std::string(each.name) + "; --limit-seconds N bounds it");
    try {
      all.push_back(compare_one(asked, std::string(each.name)));
    } catch (std::exception const& error) {
      all.push_back({std::string(each.name), {}, error.what()});
    }
  }
  line.end();
  standard_output().append(asked.format == "csv"    ? csv_of(compared_columns, all)
                           : asked.format == "json" ? "[" + json_of(compared_columns, all) + "\n]\n"
                                                    : comparison_of(asked, all));
}

} // namespace examples
