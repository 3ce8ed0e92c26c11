// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Trains a byte-level GPT in a pipeline of virtual devices on one GPU, and compares
//! schedules with each other bit by bit and with the model on the host.
//!
//! What to read, in this order: layer.hpp and stage.hpp (the model, on any machine), machine.cuh (a
//! GPU as one), gpu_model.hpp (how the library runs the stages), then this file.

#include <pipe/cluster/rank_layout.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "gpu_model.hpp"
#include "gpu_report.hpp"

namespace gpt {

//! A model on virtual devices of this GPU.
//! @param of the first iteration
template <class Clock, class Called = called_stage>
[[nodiscard]] auto model_of(gpu_options const& o,
                            pp::timetable_view table,
                            std::vector<std::int64_t> const& lengths,
                            gpu_run const& how) {
  return on_virtual_devices<Clock, Called>(
    o.common.size, table, cut_for(table, lengths), seed_of(o.common), how);
}

template <class Clock>
first_step step_of(gpu_options const& o, pp::timetable_view table, batch const& pieces) {
  auto model = model_of<Clock>(o, table, o.common.lengths, run_of(o));
  double const loss = model.step(pieces);
  return {loss, model.gradients()};
}

//! Splits off the gradients of second copies of stages.
[[nodiscard]] inline std::vector<float> take_copies(std::vector<float>& gradients,
                                                    std::size_t of_model) {
  auto const end = gradients.begin() + static_cast<std::ptrdiff_t>(of_model);
  std::vector<float> copies(end, gradients.end());
  gradients.erase(end, gradients.end());
  return copies;
}

//! The schedules that are compared at the end of every run, beside the chosen one.
inline constexpr std::string_view compared_schedules[] = {registry::names::one_f_one_b,
                                                          registry::names::interleaved,
                                                          registry::names::zero_bubble_h1,
                                                          registry::names::v_half,
                                                          registry::names::seq1f1b};

//! Compares schedules with the host, and bit by bit with each other where their sums are the same:
//! those of as many chunks, and in the same order of microbatches.
template <class Clock>
bool compare_schedules(gpu_options const& o, batch const& pieces) {
  auto const& c = o.common;
  auto const host = gradients_of_one_device(c, pieces);
  std::printf("\nOne step of every schedule: %lld virtual devices, %zu gradients\n"
              "  %-13s %6s  %8s  %19s  %s\n",
              static_cast<long long>(c.devices),
              host.size(),
              "schedule",
              "chunks",
              "loss",
              "error, of the host",
              "gradients differ from the first with the same sums");
  bool good = true;
  // By chunks, whether stages have two copies, and whether the last microbatch comes first.
  std::map<std::tuple<int, bool, bool>, first_step> first;
  std::vector<std::string> names(std::begin(compared_schedules), std::end(compared_schedules));
  if (adds_from_last(timetable_of(c, name_of(c))))
    names.emplace_back(registry::names::breadth_first); // of whole layers
  if (std::find(names.begin(), names.end(), name_of(c)) == names.end())
    names.push_back(name_of(c));
  for (auto const& name : names) {
    auto const table = timetable_of(c, name);
    bool const halves = table.over.extents.where == pp::placement::bidirectional;
    auto step = step_of<Clock>(o, table, pieces);
    auto const copies = take_copies(step.gradients, host.size());
    auto const [beside, is_first] =
      first.try_emplace({table.over.extents.chunks, halves, adds_from_last(table)}, step);
    auto const different = differences(step.gradients, beside->second.gradients) +
                           (halves ? differences(copies, step.gradients) : 0);
    double const error = relative_error(step.gradients, host);
    std::printf("  %-13s %6d  %8.4f  %17.3f %%  %s\n",
                name.c_str(),
                table.over.extents.chunks,
                step.loss,
                100 * error,
                is_first ? "(the first)" : std::to_string(different).c_str());
    good = good && different == 0 && error < allowed_error(o.numbers);
  }
  return good;
}

//! Holds a system against the host, and devices that take over attention of each other bit by bit
//! against one that splits attention alike.
template <class Clock>
bool compare_system(gpu_options const& o, pp::timetable_view table, batch const& pieces) {
  auto const& c = o.common;
  auto const devices = static_cast<long long>(c.devices);
  auto const host = step_on_host(c, table, pieces);
  auto const found = step_of<Clock>(o, table, pieces);
  double const error = relative_error(found.gradients, host.gradients);
  std::printf(
    "\nOne step of %s: %lld virtual devices, held against %s on the host: the loss is %.6f "
    "and %.6f; error of %zu gradients: %.3f %%\n",
    name_of(c).c_str(),
    devices,
    barriers_in(c) ? "all shards" : "one device",
    found.loss,
    host.loss,
    host.gradients.size(),
    100 * error);
  bool const near_host =
    std::abs(found.loss - host.loss) < 0.002 * host.loss && error < allowed_error(o.numbers);
  if (!exchange_in(c))
    return near_host;
  auto const alone = step_of<Clock>(o, exchange_system::on_one_device(c, table), pieces);
  auto const different = differences(found.gradients, alone.gradients);
  std::printf("%lld virtual devices, held against one that splits attention alike: %zu of %zu "
              "gradients differ, its loss is %.6f\n",
              devices,
              different,
              host.gradients.size(),
              alone.loss);
  return near_host && different == 0 && found.loss == alone.loss;
}

//! Runs iterations of all sizes on one model, and each on its own. False where a gradient differs.
template <class Clock>
bool compare_sizes(gpu_options const& o,
                   std::vector<sized_table> const& sizes,
                   batch const& pieces) {
  if (sizes.size() == 1)
    return true;
  auto how = run_of(o);
  how.any_chunks = true;
  auto model = model_of<Clock>(o, sizes.front().table, sizes.front().lengths, how);
  std::size_t different = 0;
  for (int round = 0; round < 2; ++round) {
    for (auto const& now : sizes) {
      model.use(now.table, now.lengths);
      model.step(pieces);
      auto alone = model_of<Clock>(o, now.table, now.lengths, run_of(o));
      alone.step(pieces);
      different += differences(model.gradients(), alone.gradients());
      model.clear_gradients();
    }
  }
  std::printf("\niterations of %zu sizes: two rounds of all on one model, held against a model for "
              "each: %zu gradients differ\n",
              sizes.size(),
              different);
  return different == 0;
}

//! @tparam Clock of the runner. @tparam Called of gpu_model
template <class Clock, class Called>
int train_on_virtual_devices(gpu_options const& o,
                             text_to_learn const& text,
                             std::vector<sized_table> const& sizes) {
  auto const& c = o.common;
  auto const clipped = clipping_of(c);
  auto const& first = sizes.front();
  auto how = run_of(o);
  how.graph = o.graph;
  how.timed = true;
  how.clip = c.clip != 0 ? &clipped : nullptr;
  how.any_chunks = sizes.size() > 1;
  auto model = model_of<Clock, Called>(o, first.table, first.lengths, how);
  pp::rank_layout const alone{.devices = static_cast<int>(c.devices), .replicas = 1, .shards = 1};
  checkpointed_model<decltype(model)> training{
    model, {checkpoints_in(o, "devices", alone, text), c.every, c.steps}};
  training.restore_alone();
  if (!training.has_steps())
    return 0;
  return report_run(
    o,
    c,
    text,
    sizes,
    training,
    "virtual devices of one GPU",
    1,
    [&] {
      auto found = model.clipping_done();
      found.weights = hash_of(std::vector<float>());
      for (auto const& each : model.ways().front())
        found.weights = hash_of(each->values(), found.weights);
      return found;
    },
    [&] {
      auto const pieces = batches(c, text, 1).next();
      return is_system(c)
               ? compare_system<Clock>(o, first.table, pieces)
               : compare_sizes<Clock>(o, sizes, pieces) && compare_schedules<Clock>(o, pieces);
    });
}

//! @tparam Clock of the runner
template <class Clock>
int train_on_cuda(std::vector<std::string_view> const& words) {
  auto o = read_gpu_options(words);
  auto& c = o.common;
  if (auto const status = ends_at_once(c))
    return *status;
  if (has_shards_of_stages(c))
    throw std::invalid_argument("shards of a stage want a GPU each: --backend nccl has --tensor");
  auto const text = find_text(c.text, GPT_EXAMPLE_README);
  auto const table = chosen_timetable(c);
  c.lengths = lengths_of(c.size, table);
  for (auto const name : compared_schedules)
    if (!is_system(c))
      (void)timetable_of(c, std::string(name)); // what cannot be cut is refused now, not later
  check_gathered(c, table, 1);
  auto const sizes = tables_of_sizes(c, table);
  return clips_in_plan(c, table)
           ? train_on_virtual_devices<Clock, clipped_gpu_stage>(o, text, sizes)
           : train_on_virtual_devices<Clock, called_stage>(o, text, sizes);
}

} // namespace gpt
