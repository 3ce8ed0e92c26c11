// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/view/append.hpp>
#include <pipe/view/figures.hpp>
#include <pipe/view/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <exception>
#include <string>
#include <vector>

#include "make.hpp"
#include "markdown_table.hpp"
#include "progress_line.hpp"
#include "tools/support/decimals.hpp"
#include "verbs.hpp"

namespace pp = pipelining;

namespace examples {
namespace {

//! A line of the table; peaks in microbatches of a device's share of the model.
struct compared {
  std::string name;
  std::string problem; //!< why there is no timetable, else empty
  pp::shape extents = {};
  pp::timetable_figures found = {};
  //! No order of its placement and memory takes less; 0 where nothing is known.
  double least_makespan = 0;
};

compared compare_one(command const& asked, std::string const& name) {
  compared result{name, ""};
  try {
    command own = asked;
    schedule_choice choice = choice_for(asked.choice, name);
    // The least choice that has extents; the limit is of the share, that of schedules of one stage.
    bool const limited = has(find_schedule(name).takes, option::memory_limit);
    double const share =
      asked.choice.memory_limit.value_or(std::min(asked.choice.devices, asked.choice.microbatches));
    if (limited)
      choice.memory_limit = share;
    double const held = static_cast<double>(shown_extents(choice).stages()) / choice.devices;
    own.choice.memory_limit = share * held;
    made_table const made = make_like(own, name, asked.cost);
    result.extents = made.table.over.extents;
    result.found = pp::figures_of(made.table, made.about());
    result.least_makespan = bounds_of(made).makespan.least();
    result.found.peak_activations /= held;
    result.found.peak_weight_inputs /= held;
  } catch (std::exception const& error) {
    result.problem = error.what();
  }
  return result;
}

//! Always that many digits behind the point, so that columns line up.
std::string percent(double rate) {
  std::string text = rounded(100 * rate, 1);
  return (text.find('.') == text.npos ? text + ".0" : text) + " %";
}

std::vector<std::string> cells_of(compared const& line) {
  return {line.name,
          std::to_string(line.extents.stages()),
          std::to_string(line.extents.chunks),
          rounded(line.found.makespan, 6),
          line.least_makespan > 0
            ? percent(std::max(0.0, line.found.makespan / line.least_makespan - 1))
            : "unknown",
          percent(line.found.bubble_rate),
          percent(line.found.makespan_bubble_rate),
          rounded(line.found.peak_activations, 3),
          rounded(line.found.peak_weight_inputs, 3)};
}

std::string text_of(command const& asked, std::vector<compared> const& all) {
  std::vector<std::vector<std::string>> rows{{"schedule",
                                              "stages",
                                              "chunks",
                                              "makespan",
                                              "gap",
                                              "bubble of span",
                                              "of makespan",
                                              "activations",
                                              "weight inputs"}};
  for (compared const& line : all)
    rows.push_back(line.problem.empty() ? cells_of(line)
                                        : std::vector<std::string>{line.name, line.problem});
  std::string text = describe_setting(asked);
  pp::append(text,
             "gap: to the makespan that no order of its placement and memory can beat\n"
             "peaks: microbatches on a device's share of the model, at most on any device\n\n");
  return text + aligned(rows, 1);
}

std::string csv_of(std::vector<compared> const& all) {
  std::string text = "schedule,stages,chunks,makespan,span,bubble_rate,makespan_bubble_rate,"
                     "peak_activations,peak_weight_inputs,least_makespan\n";
  for (compared const& line : all)
    if (line.problem.empty()) {
      pp::append(text, line.name, ",", line.extents.stages(), ",", line.extents.chunks, ",");
      pp::append(text, line.found.makespan, ",", line.found.span, ",", line.found.bubble_rate, ",");
      pp::append(text, line.found.makespan_bubble_rate, ",", line.found.peak_activations, ",");
      pp::append(text, line.found.peak_weight_inputs, ",", line.least_makespan, "\n");
    }
  return text;
}

std::string json_of(std::vector<compared> const& all) {
  std::string text = "[";
  for (compared const& line : all) {
    pp::append(text, text.size() == 1 ? "\n{\"schedule\":" : ",\n{\"schedule\":");
    pp::append_quoted(text, line.name);
    if (!line.problem.empty()) {
      pp::append(text, ",\"problem\":");
      pp::append_quoted(text, line.problem);
      pp::append(text, "}");
      continue;
    }
    pp::append(text, ",\"stages\":", line.extents.stages(), ",\"chunks\":", line.extents.chunks);
    pp::append(text, ",\"makespan\":", line.found.makespan, ",\"span\":", line.found.span);
    pp::append(text, ",\"bubble_rate\":", line.found.bubble_rate);
    pp::append(text, ",\"makespan_bubble_rate\":", line.found.makespan_bubble_rate);
    pp::append(text, ",\"peak_activations\":", line.found.peak_activations);
    pp::append(text, ",\"peak_weight_inputs\":", line.found.peak_weight_inputs);
    pp::append(text, ",\"least_makespan\":", line.least_makespan, "}");
  }
  return text + "\n]\n";
}

} // namespace

std::string compare(command const& asked) {
  std::vector<compared> all;
  progress_line line(HUGE_VAL);
  for (named_schedule const& each : named_schedules()) {
    line.say("making " + std::string(each.name) + "; --limit-seconds N bounds it");
    all.push_back(compare_one(asked, std::string(each.name)));
  }
  line.end();
  return asked.format == "csv"    ? csv_of(all)
         : asked.format == "json" ? json_of(all)
                                  : text_of(asked, all);
}

} // namespace examples
