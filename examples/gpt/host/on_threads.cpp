// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! @file
//! @brief Trains a byte-level GPT in a pipeline of threads: any schedule by name, checked against
//! one device.
//!
//! What to read, in this order: arithmetic.hpp and layer.hpp (the model), stage.hpp (what a stage
//! does in each pass), pipeline.hpp (how the library runs the stages), then this file.

#include <pipe/cluster/rank_layout.hpp>
#include <pipe/cluster/tensor_checkpoint.hpp>
#include <pipe/planner/registry/adapters.hpp>
#include <pipe/view/figures.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <random>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "../backend.hpp"
#include "../compiled_layers.hpp"
#include "../saved_state.hpp"
#include "../system.hpp"
#include "pipeline.hpp"

namespace pp = pipelining;

namespace {

using namespace gpt;

//! @throws std::invalid_argument where checkpoints are wanted of stages that have no parts of their
//! own in the whole model
void check_checkpoints(options const& o) {
  auto const& traits = registry::find_schedule(o.schedule).traits;
  if (!o.checkpoint.empty() &&
      (has_shards_of_stages(o) || o.own.has_shards() || traits.weights_travel ||
       traits.stages_go_one_way || o.own.adapted == registry::adapter::attention_exchange)) {
    throw std::invalid_argument("--checkpoint on threads wants stages that stay whole on their "
                                "devices, which those of " +
                                name_of(o) + " do not");
  }
}

//! Steps after a training, those before it among them.
std::size_t steps_of(training const& result) {
  return static_cast<std::size_t>(result.first) + result.losses.size();
}

void report_training(options const& o, text_to_learn const& text, training const& result) {
  double const unigram = unigram_entropy(text.bytes);
  std::printf("loss %.3f nats per byte, %.3f %s the unigram entropy\n",
              result.losses.back(),
              std::abs(unigram - result.losses.back()),
              result.losses.back() < unigram ? "below" : "above");
  if (result.clipped)
    report_clipping(o, *result.clipped, steps_of(result));
}

//! Trains with an optimizer that steps between iterations, or in them, on clipped gradients.
//! @tparam Model `pipelined_model` or `clipped_model`
template <class Model>
training train(options const& o, text_to_learn const& text, std::vector<sized_table> const& sizes) {
  auto const how = clipping_of(o);
  Model model(o.size, sizes.front().table, o.lengths, seed_of(o), o.post_validation);
  model.set_clipping(how);
  checkpointed_model<Model> saved{
    model,
    {o.checkpoint, "rank-0", about_state(o, 1, text), pp::layout_of(1, 1)},
    o.every,
    o.steps};
  saved.restore_alone();
  if (!saved.has_steps())
    return {};
  auto result = train_checkpointed(o, text, sizes, saved);
  if constexpr (Model::clips) {
    result.clipped = model.clipping_done();
    result.clipped->weights = hash_of(weights_of(model));
  }
  return result;
}

//! Trains a model whose stages are whole layers, and compares schedules.
int run_whole_layers(options o, text_to_learn const& text) {
  auto const table = timetable_of(o, name_of(o));
  check_early_steps(o, table);
  o.lengths = lengths_of(o.size, table);
  for (auto const name : checked_schedules)
    (void)timetable_of(o, std::string(name)); // what cannot be cut is refused now, not later
  std::mt19937_64 random(seed_of(o));
  auto const sample = random_batch(text.bytes, 4, o.size.sequence, random);
  if (!o.checkpoint.empty())
    make_folder(o.checkpoint);
  begin_run(o, text, table);

  auto const cost = measure_passes(o.size, table.over.extents, sample);
  int const cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  auto const own_cores = share_cores(table, cost, static_cast<int>(o.devices));
  auto const shared = share_cores(table, cost, cores);

  auto const sizes = tables_of_sizes(o, table);
  auto const result =
    o.clip == 0 ? train<pipelined_model>(o, text, sizes) : train<clipped_model>(o, text, sizes);
  if (result.losses.empty()) {
    std::printf("nothing is left to train\n");
    check_output();
    return 0;
  }
  report_training(o, text, result);
  report_time(o, result, own_cores, shared, {.count = cores});
  report_slots(o, result.slots);
  report_kept(o, table, result.peaks);
  if (result.interrupted) {
    write_files({o, text, result, table}, own_cores, cost);
    std::printf("interrupted after %zu of %lld steps; schedules were not compared\n",
                steps_of(result),
                static_cast<long long>(o.steps));
    return end_run(result, true);
  }
  bool const good = report_sizes(o, text, sizes, result) && report_schedules(o, text, result);
  write_files({o, text, result, table}, own_cores, cost);
  return end_run(result, good);
}

int run(options o) {
  check_checkpoints(o);
  auto const text = find_text(o.text, GPT_EXAMPLE_README);
  if (auto const status = train_system(o, text))
    return *status;
  return run_whole_layers(std::move(o), text);
}

} // namespace

int gpt::run_on_threads(std::vector<std::string_view> const& words) {
  auto const chosen = read_options(words);
  if (chosen.help) {
    std::fputs(usage, stdout);
    check_output();
    return 0;
  }
  return run(chosen);
}
