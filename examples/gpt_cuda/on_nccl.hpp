// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Trains a byte-level GPT in a pipeline of GPUs, a process each, with NCCL between them,
//! and compares the bits with those of virtual devices on one GPU.

#include <pipe/core/shape.hpp>
#include <pipe/cuda/error.cuh>
#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/nccl.cuh>
#include <pipe/run/launch_environment.hpp>
#include <pipe/run/rank_layout.hpp>
#include <pipe/run/store.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "../gpt/report.hpp"
#include "../gpt/run_system.hpp"
#include "../gpt/tensor_device.hpp"
#include "../gpt/tensor_report.hpp"
#include "../gpt/text.hpp"
#include "../gpt/training.hpp"
#include "../support/termination.hpp"
#include "gpu_model.hpp"
#include "gpu_options.hpp"
#include "gpu_rank.hpp"
#include "on_cuda.hpp"
#include "rank_sums.hpp"
#include "relative_error.hpp"

namespace gpt {

//! One step of a replica, and the sum of gradients over all. Collective.
//! @param pieces of all replicas
//! @return the mean loss of this one, where the last stage is
template <class Model>
double step_of_replica(Model& model,
                       batch const& pieces,
                       int replica,
                       std::int64_t microbatches,
                       rank_sums const& replicas) {
  double const loss = model.step(share_of(pieces, replica, microbatches));
  if (replicas.has_others()) {
    model.for_each_gradient([&](float* gradient, std::int64_t count) {
      replicas.add_up(gradient, count, model.runner().origin());
    });
  }
  return loss;
}

//! A model whose ranks end together, or not at all.
template <class Model, class Store>
struct rank_in_training {
  Model& model;
  Store& line;
  int replica;
  std::int64_t microbatches; //!< of one
  rank_sums const& replicas;

  double step(batch const& pieces) {
    if (example::asked_to_end(line)) {
      model.runner().fail("was told to end (SIGTERM)");
    }
    return step_of_replica(model, pieces, replica, microbatches, replicas);
  }
  void update(adamw const& optimizer, std::int64_t step) {
    model.update(optimizer, step);
    if (stop_wanted) { // after this step here, perhaps after another one elsewhere
      model.runner().fail("was interrupted");
    }
  }
  [[nodiscard]] pp::dynamic_timetable trace() { return model.trace(); }
};

//! One rank of a run, and how it does its part.
template <class Clock>
struct place_in_run {
  pp::rank_layout layout;
  pp::rank_place place;
  pp::basic_store<Clock>& line; //!< of this rank to the store of the run
  std::string start;            //!< tells the starts of a run apart
  gpu_run how;
  pp::cuda::nccl_ranks over;

  [[nodiscard]] int rank() const { return pp::rank_of(layout, place); }
  [[nodiscard]] auto model(gpu_options const& o, pp::timetable_view table) const {
    auto const& c = o.common;
    return on_rank<Clock>(
      c.size, table, cut_for(table, c.lengths), o.seed(), how, line, place.device, over);
  }
  //! Where the last stage is, in its first replica and shard.
  [[nodiscard]] bool reports(pp::timetable_view table) const {
    return place.shard == 0 && place.replica == 0 &&
           place.device == pp::device_of(table, pp::stages(table.extents) - 1);
  }
  //! A number of every rank, where the run is reported; else none. Collective.
  [[nodiscard]] std::vector<double>
  gather(std::string const& key, double mine, bool reports) const {
    auto const key_of = [&](int of) { return start + '/' + key + '/' + std::to_string(of); };
    line.set(key_of(rank()), std::to_string(mine));
    std::vector<double> all;
    for (int other = 0; reports && other < pp::ranks_of(layout); ++other) {
      all.push_back(std::stod(line.get(key_of(other), over.deadline)));
    }
    return all;
  }
};

//! Adds numbers up in place; into no numbers it puts them, since 0 + -0 is not -0.
inline void add_to(std::vector<float>& sum, std::vector<float> const& numbers) {
  if (sum.empty()) {
    sum = numbers;
    return;
  }
  std::transform(numbers.begin(), numbers.end(), sum.begin(), sum.begin(), std::plus<float>());
}

//! The lengths of the sequences of all replicas.
[[nodiscard]] inline std::vector<std::int64_t> repeated(std::vector<std::int64_t> const& lengths,
                                                        int replicas) {
  std::vector<std::int64_t> all;
  for (int replica = 0; replica < replicas; ++replica) {
    all.insert(all.end(), lengths.begin(), lengths.end());
  }
  return all;
}

//! The gradients of a rank's stages, out of those of all: appends what read(way, stage) gives.
template <class Read>
[[nodiscard]] std::vector<float>
gradients_of_device(pp::timetable_view table, int device, Read read) {
  std::vector<float> mine;
  for (std::size_t way = 0; static_cast<int>(way) < pp::routes(table.extents); ++way) {
    for (int s = 0; s < pp::stages(table.extents); ++s) {
      if (pp::device_of(table, s, first_of_way(table.extents, way)) == device) {
        std::vector<float> const some = read(way, s);
        mine.insert(mine.end(), some.begin(), some.end());
      }
    }
  }
  return mine;
}

//! The ranks with the copies of a rank's stages: this one and the one that mirrors it, or this one
//! alone.
[[nodiscard]] inline pp::rank_group
copies_of_rank(pp::timetable_view table, pp::rank_group const& pipeline) {
  int const mirrored = table.extents.devices - 1 - pipeline.index;
  int const first = std::min(pipeline.index, mirrored);
  auto const rank_at = [&](int device) {
    return pipeline.ranks[static_cast<std::size_t>(device)];
  };
  std::string const name = pipeline.name + "/copies " + std::to_string(first);
  if (table.extents.where != pp::placement::bidirectional || mirrored == pipeline.index) {
    return {pipeline.index, 0, name, {rank_at(pipeline.index)}};
  }
  return {first,
          pipeline.index == first ? 0 : 1,
          name,
          {rank_at(first), rank_at(table.extents.devices - 1 - first)}};
}

//! The gradients and the loss of a step against those of virtual devices on this rank's GPU, and
//! there against the host. Collective. Returns false where the rank that reports finds them wrong.
template <class Clock>
bool compare_with_one_gpu(gpu_options const& o,
                          pp::timetable_view table,
                          batch const& pieces,
                          place_in_run<Clock> const& here,
                          double loss,
                          std::vector<float> const& found) {
  auto const& c = o.common;
  std::vector<float> mine; // of all replicas
  std::vector<float> all;
  double expected = 0; // of the first
  for (int replica = 0; replica < here.layout.replicas; ++replica) {
    auto alone =
      on_virtual_devices<Clock>(c.size,
                                table,
                                cut_for(table, c.lengths),
                                o.seed(),
                                {.numbers = o.numbers, .replicas = here.layout.replicas});
    double const one = alone.step(share_of(pieces, replica, c.microbatches));
    expected = replica == 0 ? one : expected;
    add_to(all, alone.gradients());
    add_to(mine, gradients_of_device(table, here.place.device, [&](std::size_t way, int stage) {
             return alone.stages()[way][static_cast<std::size_t>(stage)]->gradients();
           }));
  }
  bool const reports = here.reports(table);
  auto const counts =
    here.gather("different", static_cast<double>(differences(found, mine)), reports);
  if (!reports) {
    return true;
  }
  double const different = std::accumulate(counts.begin(), counts.end(), 0.0);
  options whole = c; // one device has the microbatches of all replicas
  whole.lengths = repeated(c.lengths, here.layout.replicas);
  auto const host = gradients_of_one_device(whole, pieces);
  (void)take_copies(all, host.size());
  double const error = relative_error(all, host);
  std::printf(
    "\nOne step of %s over NCCL: %zu ranks, held against virtual devices on one GPU: %.0f of "
    "%zu gradients differ,\nthe loss is %.6f and %.6f; error, of the host: %.3f %%\n",
    name_of(c).c_str(),
    counts.size(),
    different,
    all.size(),
    loss,
    expected,
    100 * error);
  return different == 0 && loss == expected && error < allowed_error(o.numbers);
}

//! The gradients of shards against those of the host's shards. Collective, and returns, as above.
template <class Clock>
bool compare_with_host(gpu_options const& o,
                       pp::timetable_view table,
                       batch const& pieces,
                       place_in_run<Clock> const& here,
                       double loss,
                       std::vector<float> const& found) {
  auto const& c = o.common;
  tensor_device host(c.size, table, here.layout.shards, o.seed());
  double const expected = host.step(pieces);
  auto const mine = gradients_of_device(table, here.place.device, [&](std::size_t, int stage) {
    std::vector<float> of_stage;
    host.shard(stage, here.place.shard).for_each_parameter([&](parameter<float>& p) {
      of_stage.insert(of_stage.end(), p.gradient.begin(), p.gradient.end());
    });
    return of_stage;
  });
  bool const reports = here.reports(table);
  auto const errors = here.gather("error", relative_error(found, mine), reports);
  if (!reports) {
    return true;
  }
  double const worst = *std::max_element(errors.begin(), errors.end());
  std::printf("\nOne step of %s over NCCL: %zu ranks, %d shards of every stage, held against all "
              "shards on the host:\nthe loss is %.6f and %.6f; error of the worst rank: %.3f %%\n",
              name_of(c).c_str(),
              errors.size(),
              here.layout.shards,
              loss,
              expected,
              100 * worst);
  return std::abs(loss - expected) < 0.002 * expected && worst < allowed_error(o.numbers);
}

//! All of the run of one rank. Collective.
//! @param line of this rank to the store of the run
//! @return the exit status
template <class Clock>
int train_on_rank(gpu_options o,
                  pp::launch_environment const& started,
                  pp::basic_store<Clock>& line) {
  auto& c = o.common;
  auto const shards = static_cast<int>(has_shards_of_stages(c) ? shards_of_stages(c) : 1);
  auto const layout = pp::layout_of(started.size, static_cast<int>(c.devices), shards);
  if (layout.replicas > 1 && shards > 1) {
    throw std::invalid_argument(
      "gpt over NCCL has replicas of a pipeline, or shards of its stages; "
      "start as many ranks as --devices times --tensor");
  }
  auto const text = find_text(c.text, GPT_EXAMPLE_README);
  auto const table = shards > 1 ? tensor_system::plan(c) : timetable_of(c, name_of(c));
  c.lengths = lengths_of(c.size, table);
  int visible = 0; // some launchers show each process its own GPU only
  pp::cuda::check(cudaGetDeviceCount(&visible), "cudaGetDeviceCount");
  int const gpu = started.local_rank % visible;
  pp::cuda::current_device const current(gpu);
  // Names in the store have the number of the start, so that no two starts mistake each other.
  std::string const name = "start " + std::to_string(started.restarts);
  auto const pipeline = pp::group_of(layout, pp::rank_axis::pipeline, started.rank);
  place_in_run<Clock> here{
    layout,
    pp::place_of(layout, started.rank),
    line,
    name,
    {.numbers = o.numbers, .graph = o.graph, .timed = true, .replicas = layout.replicas},
    {.gpu = gpu, .deadline = o.deadline, .name = name + '/' + pipeline.name}};
  here.over.world_ranks = pipeline.ranks;
  auto const group_on = [&](pp::rank_axis axis) {
    return pp::group_of(layout, axis, started.rank);
  };
  rank_sums shard_sums(group_on(pp::rank_axis::tensor), line, name, o.deadline);
  rank_sums copies(copies_of_rank(table, pipeline), line, name, o.deadline);
  rank_sums replicas(group_on(pp::rank_axis::data), line, name, o.deadline);
  for (rank_sums const* const each : {&shard_sums, &copies, &replicas}) {
    each->tell(here.over);
  }
  here.how.shard = {here.place.shard, shards};
  if (shard_sums.has_others()) {
    here.how.sum = shard_sums.function();
  }
  if (copies.has_others()) {
    here.how.copies = copies.function();
  }
  auto model = here.model(o, table);
  rank_in_training<decltype(model), pp::basic_store<Clock>> training{
    model, line, here.place.replica, c.microbatches, replicas};
  options all = c; // with the microbatches of all replicas
  all.microbatches *= layout.replicas;
  all.lengths = repeated(c.lengths, layout.replicas);
  auto const check = [&] {
    model.runner().close();
    std::mt19937_64 random(o.seed() + 1);
    auto const pieces = random_batch(text.bytes, all.microbatches, c.size.sequence, random);
    auto again = here;
    again.how.graph = again.how.timed = false;
    again.over.name += "/one step";
    auto one = again.model(o, table);
    double const loss = step_of_replica(one, pieces, here.place.replica, c.microbatches, replicas);
    auto const gradients = one.gradients();
    one.runner().close();
    for (rank_sums* const each : {&shard_sums, &copies, &replicas}) {
      each->close();
    }
    return shards > 1 ? compare_with_host(o, table, pieces, again, loss, gradients)
                      : compare_with_one_gpu(o, table, pieces, again, loss, gradients);
  };
  if (!here.reports(table)) { // one rank tells of the run
    all.tells = false;
    (void)train_model(all, text, training);
    return check() ? 0 : 1;
  }
  return run_system(
    all,
    text,
    table,
    training,
    [&] {
      std::printf("GPUs over NCCL, products in %s\n",
                  o.numbers == operands::bf16 ? "bf16" : "float");
    },
    check,
    [](pp::dynamic_timetable const& trace) { return trace; });
}

} // namespace gpt
