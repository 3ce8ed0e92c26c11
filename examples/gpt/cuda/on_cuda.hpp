// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Trains a byte-level GPT in a pipeline of virtual devices on one GPU, and compares
//! schedules with each other bit by bit and with the model on the host.
//!
//! What to read, in this order: layer.hpp and stage.hpp (the model, on any machine), machine.cuh (a
//! GPU as one), gpu_model.hpp (how the library runs the stages), then this file.

#include <pipe/cluster/rank_layout.hpp>
#include <pipe/cluster/tensor_checkpoint.hpp>
#include <pipe/view/figures.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "../papers/attention_exchange.hpp"
#include "../papers/vocabulary.hpp"
#include "../saved_state.hpp"
#include "gpu_model.hpp"

namespace gpt {

inline constexpr char const* gpu_usage =
  "usage: gpt --backend cuda [--bf16] [--graph] [OPTION [VALUE]]...\n"
  "       mpirun -n P gpt --backend nccl [--bf16] [--graph] [--deadline S] [OPTION [VALUE]]...\n"
  "Products by cuBLAS, rows and single numbers by CUB and Thrust, attention by the kernels of the\n"
  "library. A head must have 64 or 128 elements, so the model is of --width 256 and --heads 4 by\n"
  "itself. All options of --with are there. --tensor N wants nccl with N times as many ranks as\n"
  "--devices; more are replicas of the pipeline with --microbatches each,\n"
  "which share the weights that --with sharded-weights or gathered-once gathers.\n\n"
  "  --bf16             products multiply numbers in bf16; what is trained stays in float\n"
  "  --graph            every step but the first is one CUDA graph\n"
  "  --deadline S       nccl: seconds that a rank waits for others before the run fails (60)\n"
  "  --checkpoint       as below, with either backend; ranks go on from the newest that has all\n"
  "                     tensors of each, whoever has written them\n\n";

struct gpu_options {
  options common;
  operands numbers = operands::float32;
  bool graph = false;
  std::chrono::seconds deadline{60};
  std::int64_t workspace_bytes = gpu_run{}.workspace_bytes;
};

//! @param ranks of a run over NCCL: as many devices, unless told otherwise; 0: on one GPU
//! @throws std::invalid_argument with one line for the user
[[nodiscard]] inline gpu_options read_gpu_options(std::vector<std::string_view> const& words,
                                                  int ranks = 0) {
  gpu_options chosen;
  bool bf16 = false;
  options usual;
  usual.size.width = 256;
  detail::known_option const of_gpus[] = {
    {"--bf16", &bf16}, {"--graph", &chosen.graph}, {"--deadline", &chosen.deadline, 1000000}};
  chosen.common = read_options(words, usual, of_gpus, ranks);
  chosen.numbers = bf16 ? operands::bf16 : operands::float32;
  if (chosen.common.post_validation && chosen.graph) {
    throw std::invalid_argument("with --post-validation the host decides in the middle of an "
                                "iteration, which a graph does not let it; leave out --graph");
  }
  auto const& named = registry::find_schedule(chosen.common.schedule);
  if (named.traits.weights_travel || named.traits.stages_go_one_way) {
    throw std::invalid_argument("on GPUs every stage has a device, where it goes forward and back; "
                                "--backend threads has " +
                                chosen.common.schedule);
  }
  return chosen;
}

inline constexpr int skipped = 77; //!< exit status

//! The exit status of a run that only tells what options there are, or that no GPU is here.
[[nodiscard]] inline std::optional<int> ends_at_once(options const& o, bool tells = true) {
  auto const why = o.help ? std::string() : missing_gpu();
  if (o.help && tells) {
    std::fputs(gpu_usage, stdout);
    std::fputs(usage, stdout);
    check_output();
  } else if (!why.empty()) {
    std::printf("skipped, %s\n", why.c_str());
  }
  return o.help ? std::optional(0) : why.empty() ? std::nullopt : std::optional(skipped);
}

//! Those of with_vocabulary, where the vocabulary is in shards.
[[nodiscard]] inline std::optional<int> barriers_in(options const& o) {
  return o.own.has_shards() ? std::optional(barriers_of(o)) : std::nullopt;
}

//! The schedule whose devices take over attention of each other, where that is chosen.
[[nodiscard]] inline std::optional<exchange_schedule> exchange_in(options const& o) {
  return o.own.adapted == registry::adapter::attention_exchange
           ? std::optional(exchange_system::schedule(o))
           : std::nullopt;
}
//! Whether stages are more than layers of a schedule: they have no costs, nor other schedules
//! next to them.
[[nodiscard]] inline bool is_system(options const& o) {
  return barriers_in(o) || exchange_in(o);
}

//! What schedules may lie from the host: attention rounds to bf16, and products may.
[[nodiscard]] inline double allowed_error(operands numbers) {
  return numbers == operands::bf16 ? 0.03 : 0.02;
}

//! Where the weights lie that are gathered, if any are.
[[nodiscard]] inline weights_home home_of(options const& o) {
  return o.own.adapted == registry::adapter::weights_on_host ? weights_home::host
                                                             : weights_home::shards;
}

//! What options say of a run on a GPU.
[[nodiscard]] inline gpu_run run_of(gpu_options const& o) {
  return {.numbers = o.numbers,
          .workspace_bytes = o.workspace_bytes,
          .barriers = barriers_in(o.common),
          .home = home_of(o.common),
          .exchange = exchange_in(o.common)};
}

//! @param replicas of the pipeline
//! @throws std::invalid_argument for what gathered weights do not go with
inline void check_gathered(options const& o, pp::timetable_view table, int replicas) {
  if (!o.own.gathers_weights())
    return;
  bool const on_host = home_of(o) == weights_home::host;
  if (o.clip != 0 && on_host) {
    throw std::invalid_argument(
      "with weights-on-host the host steps on what lies there, but --clip wants all gradients on "
      "GPUs; leave it out");
  }
  if (o.clip != 0 && replicas > 1) {
    throw std::invalid_argument("where replicas share the weights, no GPU has the gradients of a "
                                "whole stage, which --clip wants; leave it out");
  }
  if (on_host && table.over.extents.routes() > 1) {
    throw std::invalid_argument(
      "weights-on-host wants one copy of every stage, but this schedule has two; choose another");
  }
}

//! Where a process keeps its checkpoints, which another cut of the model may go on from.
//! @param rank of several; none: all devices are here
[[nodiscard]] inline pp::checkpoint_place checkpoints_in(gpu_options const& o,
                                                         std::optional<int> rank,
                                                         pp::rank_layout const& layout,
                                                         text_to_learn const& text) {
  char const* const program = o.numbers == operands::bf16 ? "gpt on GPUs in bf16" : "gpt on GPUs";
  run_lines lines;
  lines.add("sequences-of-step", layout.replicas * o.common.microbatches);
  return {o.common.checkpoint,
          rank ? "rank-" + std::to_string(*rank) : "devices",
          about_parts(program, o.common, text).learning + lines.text,
          layout};
}

//! All that must be the same on all ranks.
[[nodiscard]] inline std::string
about_ranks(gpu_options const& o, pp::checkpoint_place const& files, text_to_learn const& text) {
  // All members: one that is new does not compile before it has its place here.
  auto const& [common, numbers, graph, deadline, workspace] = o; // the last two are a rank's own
  run_lines lines;
  lines.add("graph", graph ? "yes" : "no");
  lines.add("checkpoints", common.checkpoint.empty() ? "no" : "yes");
  lines.add("every", common.every);
  auto const run = about_parts("gpt over NCCL", common, text);
  return run.learning + run.cut + files.about + pp::lines_of(files.layout) + lines.text;
}

//! Trains, reports and writes files, with times that events have measured.
//! @param where one sentence on the devices. @param gpus of the run
//! @param clipped gives a clipping_report. @param check holds one step against another machine
//! @return the exit status
template <class Model, class Clipped, class Check>
int report_run(gpu_options const& chosen,
               options const& o,
               text_to_learn const& text,
               std::vector<sized_table> const& sizes,
               Model& model,
               char const* where,
               int gpus,
               Clipped clipped,
               Check check) {
  auto const& table = sizes.front().table;
  begin_run(o, text, table);
  auto const result = train_checkpointed(o, text, sizes, model);
  std::printf("%s, products in %s\nloss %.3f nats per byte, unigram entropy %.3f\n",
              where,
              chosen.numbers == operands::bf16 ? "bf16" : "float",
              result.losses.back(),
              unigram_entropy(text.bytes));
  if (o.clip != 0)
    report_clipping(o, clipped(), static_cast<std::size_t>(model.first) + result.losses.size());
  if (is_system(o)) { // which has no costs of stages
    std::printf("measured: step %.1f ms\n", 1e3 * result.step_seconds);
    write_run({o, text, result, table}, result.traces.back());
  } else {
    auto const cost = pp::costs_of(views_of(result.traces));
    auto const own = share_cores(table, cost, static_cast<int>(o.devices));
    report_time(o,
                result,
                own,
                share_cores(table, cost, gpus),
                {gpus, "GPU", gpus == 1 ? "GPU of this run" : "GPUs of this run"});
    report_slots(o, result.slots);
    write_files({o, text, result, table}, own, cost);
  }
  return end_run(result, check());
}

//! Whether clipping is part of the plan, which has totals where every stage has one copy and no
//! shards. Elsewhere it follows the sums over copies and shards.
//! @throws std::invalid_argument as check_early_steps does
[[nodiscard]] inline bool clips_in_plan(options const& o, pp::timetable_view table) {
  check_early_steps(o, table);
  return o.clip != 0 && table.over.extents.routes() == 1 && !has_shards_of_stages(o);
}

struct first_step {
  double loss = 0;
  std::vector<float> gradients;
};

//! The timetable of the chosen schedule, of stages, of parts of them or of pieces around them.
[[nodiscard]] inline pp::dynamic_timetable chosen_timetable(options const& o) {
  return barriers_in(o)   ? vocabulary_system::plan(o)
         : exchange_in(o) ? exchange_system::plan(o)
                          : timetable_of(o, name_of(o));
}

//! The same on the host. @param o with all microbatches of the step, and their lengths
[[nodiscard]] inline first_step step_on_host(options const& o, batch const& pieces) {
  auto const step_of = [&](auto device) {
    double const loss = device.step(pieces);
    return first_step{loss, gradients_of(device)};
  };
  if (barriers_in(o))
    return step_of(vocabulary_system::one_device(o, chosen_timetable(o)));
  if (exchange_in(o))
    return step_of(exchange_system::one_device(o, chosen_timetable(o)));
  return step_of(single_device(o.size, 1, cut_whole(o.lengths), seed_of(o)));
}

//! A model on virtual devices of this GPU.
//! @param of the first iteration
template <class Clock, class Called = called_stage>
[[nodiscard]] auto model_of(gpu_options const& o,
                            pp::timetable_view table,
                            std::vector<std::int64_t> const& lengths,
                            gpu_run const& how) {
  return on_virtual_devices<Clock, Called>(o.common.size, table, lengths, seed_of(o.common), how);
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

//! The schedules that are compared at the end of every run, next to the chosen one.
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
  auto const host = step_on_host(c, pieces);
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
  auto const alone = step_of<Clock>(o, on_one_device(table), pieces);
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
    model, checkpoints_in(o, {}, alone, text), c.every, c.steps};
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
int train_on_cuda(gpu_options o) {
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
