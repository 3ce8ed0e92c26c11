// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! @file
//! @brief Trains a byte-level GPT in a pipeline: any schedule by name, checked against one device.
//!
//! What to read, in this order: layers.hpp, layer_parts.hpp and transformer_block.hpp (the model),
//! stage.hpp (what a stage does in each pass), pipeline.hpp (how the library runs the stages), then
//! this file.

#include <pipe/core/shape.hpp>
#include <pipe/io/figures.hpp>
#include <pipe/io/text.hpp>
#include <pipe/io/timetable_details.hpp>
#include <pipe/timetable/cost.hpp>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <random>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "../support/split_words.hpp"
#include "exchange_report.hpp"
#include "host_weights_report.hpp"
#include "options.hpp"
#include "prediction.hpp"
#include "report.hpp"
#include "single_device.hpp"
#include "system.hpp"
#include "tensor_report.hpp"
#include "text.hpp"
#include "training.hpp"
#include "vocabulary_report.hpp"
#include "weight_travel_report.hpp"

namespace pp = pipelining;

namespace {

using namespace gpt;

//! Makes the folder for files before any work, so that a long run does not end without them.
void make_folder(std::string const& path) {
  std::error_code failed;
  std::filesystem::create_directories(path, failed);
  if (!std::filesystem::is_directory(path)) {
    throw std::runtime_error("cannot make the folder " + path);
  }
}

std::size_t parameter_count(model_size const& size) {
  single_device<float> device(size, 1, {1, cut_sequence(size.sequence, 1)}, 1);
  return gradients_of(device.stages()).size();
}

void print_model(options const& o, text_to_learn const& text) {
  std::printf("GPT of %zu parameters (%lld layers, width %lld, %lld heads, sequences of %lld "
              "bytes) on %lld devices\ntext: %s, %zu bytes, unigram entropy %.3f nats per byte\n\n",
              parameter_count(o.size),
              static_cast<long long>(o.size.layers),
              static_cast<long long>(o.size.width),
              static_cast<long long>(o.size.heads),
              static_cast<long long>(o.size.sequence),
              static_cast<long long>(o.devices),
              text.path.c_str(),
              text.bytes.size(),
              unigram_entropy(text.bytes));
}

void print_plan(pp::timetable_view table, pp::timetable_details const& about) {
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
    found.peak_activations / table.extents.stages_per_device,
    found.peak_weight_inputs / table.extents.stages_per_device);
}

//! Runs a system; see system.hpp.
template <class System>
int run_system(options o, text_to_learn const& text) {
  auto const table = System::plan(o);
  bool const travels = examples::find_schedule(o.schedule).weights_travel;
  auto const shown = [travels](pp::dynamic_timetable of) {
    return travels ? examples::by_groups(std::move(of)) : of;
  };
  o.lengths.assign(static_cast<std::size_t>(o.microbatches), o.size.sequence);
  auto&& model = System::pipeline(o, table);
  auto const name = name_of(o);
  pp::timetable_details const about{name, unit_costs, {}};
  auto const plan = shown(table);
  make_folder(o.output);
  print_model(o, text);
  print_plan(plan, about);
  auto const result = train_model(o, text, model);
  report_plain(text, result);
  System::report(o, table, model);
  write_run(o, text, result, plan, about, shown(result.traces.back()));
  bool const good = check_system_bits<System>(o, text, table);
  check_output();
  if (!good) {
    std::fprintf(stderr, "gpt: gradients of a schedule differ from those of one device\n");
  }
  return result.interrupted ? 128 + SIGINT : good ? 0 : 1;
}

int run(options o) {
  auto const text = find_text(o.text, GPT_EXAMPLE_README);
  if (has_shards_of_stages(o)) {
    return run_system<tensor_system>(std::move(o), text);
  }
  if (examples::has_shards(o.adapted)) {
    return run_system<vocabulary_system>(std::move(o), text);
  }
  if (o.adapted == examples::adapter::attention_exchange) {
    return run_system<exchange_system>(std::move(o), text);
  }
  auto const& named = examples::find_schedule(o.schedule);
  if (named.weights_travel) {
    return run_system<travelling_system>(std::move(o), text);
  }
  if (named.stages_go_one_way) {
    if (o.adapted == examples::adapter::none) {
      o.adapted = examples::adapter::sharded_weights; // which lie on the host
    }
    return run_system<round_system>(std::move(o), text);
  }
  auto const table = timetable_of(o, name_of(o));
  o.lengths = lengths_of(o.size, table);
  for (auto const* name : checked_schedules) {
    (void)timetable_of(o, name); // what cannot be cut is refused before the training, not after
  }
  auto const name = name_of(o);
  pp::timetable_details const about{name, unit_costs, {}};
  std::mt19937_64 random(static_cast<std::uint64_t>(o.seed));
  auto const sample = random_batch(text.bytes, 4, o.size.sequence, random);
  make_folder(o.output);
  print_model(o, text);
  print_plan(table, about);

  auto const cost = measure_passes(o.size, table.extents, sample);
  int const cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  auto const own_cores = share_cores(table, cost, static_cast<int>(o.devices));
  auto const shared = share_cores(table, cost, cores);

  auto const sizes = tables_of_sizes(o, table);
  auto const result = train(o, text, sizes);
  double const unigram = unigram_entropy(text.bytes);
  std::printf("loss %.3f nats per byte, %.3f %s the unigram entropy\n",
              result.losses.back(),
              std::abs(unigram - result.losses.back()),
              result.losses.back() < unigram ? "below" : "above");
  if (result.clipped) {
    report_clipping(o, *result.clipped, result.losses.size());
  }
  report_time(o, result, own_cores, shared, cores);
  report_slots(o, result.slots);
  report_kept(o, table, result.peaks);
  if (result.interrupted) {
    write_files(o, text, result, table, about, own_cores, cost);
    std::printf("interrupted after %zu of %lld steps; schedules were not compared\n",
                result.losses.size(),
                static_cast<long long>(o.steps));
    check_output();
    return 128 + SIGINT;
  }
  bool const good = report_sizes(o, text, sizes, result) && report_schedules(o, text, result);
  write_files(o, text, result, table, about, own_cores, cost);
  check_output();
  if (!good) {
    std::fprintf(stderr, "gpt: gradients of a schedule differ from those of one device\n");
    return 1;
  }
  return 0;
}

} // namespace

int main(int count, char** words) {
  try {
    auto const chosen = read_options(examples::split_words(count, words));
    if (chosen.help) {
      std::fputs(usage, stdout);
      check_output();
      return 0;
    }
    return run(chosen);
  } catch (std::invalid_argument const& error) {
    std::fprintf(stderr, "gpt: %s\n", error.what());
    return 2;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "gpt: %s\n", error.what());
    return 1;
  }
}
