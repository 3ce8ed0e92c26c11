// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A run from the first line of its report to the last, and systems that are more than a
//! schedule of stages: what their runs have in common. They have no costs of stages, nor other
//! schedules next to them.
//!
//! A system is a type with static functions of the options: `plan`, the verified timetable;
//! `pipeline` and `one_device`, models that make the same splits; `report`, what is to be said of a
//! run; and the words `one_device_has`. A model has `step`, forward and backward of all
//! microbatches without the optimizer, which returns the mean loss in nats; and its parameters by
//! `stages()` or by `for_each_parameter`. A pipeline has `update`, a step of the optimizer, and
//! `trace`, which says when each pass of the last step ran, in seconds.

#include <pipe/view/figures.hpp>
#include <pipe/view/text.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "report.hpp"

namespace gpt {

//! @param what the system, for the message
//! @throws std::invalid_argument for an option that no system goes with
inline void check_system(options const& o, std::string const& what) {
  if (o.clip != 0 || !o.costs.empty() || !o.further_counts.empty()) {
    throw std::invalid_argument(
      what + " goes with none of --clip, --costs and several --chunk-counts; leave them out");
  }
}

//! One step from the first weights, held against one device. Returns false where a gradient, or the
//! loss, differs.
template <class System>
bool check_system_bits(options const& o, text_to_learn const& text, pp::timetable_view table) {
  auto const pieces = batches(o, text, 1).next();
  auto&& model = System::pipeline(o, table);
  auto&& alone = System::one_device(o, table);
  bool const same = model.step(pieces) == alone.step(pieces);
  auto const gradients = gradients_of(model);
  auto const expected = gradients_of(alone);
  auto const different = differences(gradients, expected);
  std::printf(
    "\nOne step of %s: %lld devices, %lld microbatches, held against one device%s: %zu of "
    "%zu gradients differ\n",
    name_of(o).c_str(),
    static_cast<long long>(o.devices),
    static_cast<long long>(o.microbatches),
    System::one_device_has,
    different,
    expected.size());
  return same && different == 0;
}

//! The passes of a timetable on its first device, none of them next to another.
//! @param in_turn one microbatch after the other; else as they start in the timetable
//! @pre stages have one copy each
[[nodiscard]] inline pp::dynamic_timetable on_one_device(pp::timetable_view table,
                                                         bool in_turn = true) {
  pp::dynamic_timetable alone{.over = table.over.copy()};
  auto& extents = alone.over.extents;
  extents.where = pp::placement::custom;
  alone.over.holders.assign(static_cast<std::size_t>(extents.stages() * extents.routes()), 0);
  std::vector<int> order(static_cast<std::size_t>(table.size()));
  std::iota(order.begin(), order.end(), 0);
  auto const turn = [&](int entry) {
    return std::pair(in_turn ? table.passes[entry].microbatch : 0, table.starts[entry]);
  };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return turn(a) < turn(b); });
  for (int const entry : order) {
    auto const now = static_cast<double>(alone.passes.size());
    alone.passes.push_back(table.passes[entry]);
    alone.passes.back().overlapped = false;
    alone.starts.push_back(now);
    alone.ends.push_back(now + 1);
  }
  alone.offsets.assign(static_cast<std::size_t>(alone.over.view().row_count()) + 1, table.size());
  alone.offsets.front() = 0;
  return alone;
}

//! Makes the folder for files before any work, so that a long run does not end without them.
inline void make_folder(std::string const& path) {
  std::error_code failed;
  std::filesystem::create_directories(path, failed);
  if (!std::filesystem::is_directory(path))
    throw std::runtime_error("cannot make the folder " + path);
}

inline void print_model(options const& o, text_to_learn const& text) {
  std::printf(
    "GPT of %lld parameters (%lld layers, width %lld, %lld heads, sequences of %lld "
    "bytes) on %lld devices, vector loops: %s\ntext: %s, %zu bytes, unigram entropy %.3f "
    "nats per byte\n\n",
    static_cast<long long>(parameter_counts(o.size, cut_layers(o.size.layers, 1)).front()),
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

inline void print_plan(options const& o, pp::timetable_view table) {
  auto const name = name_of(o);
  pp::timetable_caption const about{name, unit_costs, {}};
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

//! How reports begin.
inline void begin_run(options const& o, text_to_learn const& text, pp::timetable_view plan) {
  make_folder(o.output); // before any work
  print_model(o, text);
  print_plan(o, plan);
}
//! How they end. @param good whether all gradients are right @return the exit status
[[nodiscard]] inline int end_run(training const& run, bool good) {
  check_output();
  if (!good)
    std::fprintf(stderr, "gpt: gradients of a schedule differ from those of one device\n");
  return run.interrupted ? 128 + stop_wanted : good ? 0 : 1;
}

//! Trains, checks and reports where the options ask for such stages.
//! @return the exit status of the program; nothing where every stage is whole on its device.
//! @throws as run_on_threads
std::optional<int> train_system(options o, text_to_learn const& text);

} // namespace gpt
