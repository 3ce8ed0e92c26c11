// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A run from the first line of its report to the last: what is the same wherever stages
//! run.

#include <pipe/timetable/timetable.hpp>
#include <pipe/view/figures.hpp>
#include <pipe/view/text.hpp>

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>

#include "matrix.hpp"
#include "options.hpp"
#include "report.hpp"
#include "single_device.hpp"
#include "text.hpp"
#include "training.hpp"

namespace gpt {

//! Makes the folder for files before any work, so that a long run does not end without them.
inline void make_folder(std::string const& path) {
  std::error_code failed;
  std::filesystem::create_directories(path, failed);
  if (!std::filesystem::is_directory(path)) {
    throw std::runtime_error("cannot make the folder " + path);
  }
}

[[nodiscard]] inline std::size_t parameter_count(model_size const& size) {
  single_device<float> device(size, 1, {1, cut_sequence(size.sequence, 1)}, 1);
  return gradients_of(device.stages()).size();
}

inline void print_model(options const& o, text_to_learn const& text) {
  std::printf("GPT of %zu parameters (%lld layers, width %lld, %lld heads, sequences of %lld "
              "bytes) on %lld devices, vector loops: %s\ntext: %s, %zu bytes, unigram entropy %.3f "
              "nats per byte\n\n",
              parameter_count(o.size),
              static_cast<long long>(o.size.layers),
              static_cast<long long>(o.size.width),
              static_cast<long long>(o.size.heads),
              static_cast<long long>(o.size.sequence),
              static_cast<long long>(o.devices),
              vectors().name(),
              text.path.c_str(),
              text.bytes.size(),
              unigram_entropy(text.bytes));
}

inline void print_plan(pp::timetable_view table, pp::timetable_caption const& about) {
  std::string text;
  pp::write_text(text, table, about);
  std::fputs(text.c_str(), stdout);
  auto const found = pp::figures_of(table, about);
  std::printf(
    "\npredicted with unit costs: bubble %.1f %% of the span, %.1f %% of the makespan; peak "
    "activations %.3g and weight\ninputs %.3g microbatches on a device's share of the "
    "model\n\n",
    100 * found.bubble_rate,
    100 * found.makespan_bubble_rate,
    found.peak_activations / table.over.extents.stages_per_device,
    found.peak_weight_inputs / table.over.extents.stages_per_device);
}

//! Systems that have no costs of stages, nor other schedules beside them.
//! @param plan to be shown. @param check holds one step against one device
//! @param ran what of a trace is to be shown
template <class Model, class Report, class Check, class Ran>
int run_system(options const& o,
               text_to_learn const& text,
               pp::timetable_view plan,
               Model& model,
               Report report,
               Check check,
               Ran ran) {
  auto const name = name_of(o);
  pp::timetable_caption const about{name, unit_costs, {}};
  make_folder(o.output);
  print_model(o, text);
  print_plan(plan, about);
  auto const result = train_model(o, text, model);
  report_plain(text, result);
  report();
  write_run(o, text, result, plan, about, ran(result.traces.back()));
  bool const good = check();
  check_output();
  if (!good) {
    std::fprintf(stderr, "gpt: gradients of a schedule differ from those of one device\n");
  }
  return result.interrupted ? 128 + stop_wanted : good ? 0 : 1;
}

} // namespace gpt
