// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Trains a byte-level GPT in a pipeline of GPUs, a process each, with NCCL between them,
//! and compares the bits with those of virtual devices on one GPU.

#include <pipe/cluster/launch_environment.hpp>
#include <pipe/cluster/rank_layout.hpp>
#include <pipe/cluster/store.hpp>
#include <pipe/cuda/error.cuh>
#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/nccl.cuh>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../papers/tensor_parallel.hpp"
#include "on_cuda.hpp"
#include "rank_sums.hpp"

namespace gpt {

//! One rank of a run, and how it does its part.
template <class Clock>
struct place_in_run {
  pp::rank_layout layout;
  pp::rank_place place;
  pp::basic_store<Clock>& line; //!< of this rank to the store of the run
  std::string start;            //!< tells the starts of a run apart
  gpu_run how;
  pp::cuda::nccl_options over;

  [[nodiscard]] int rank() const { return pp::rank_of(layout, place); }
  //! The stages of a timetable that are of this rank's device. Collective, as all that it does is.
  //! @tparam Called of gpu_model: with its optimizer where `how` has clipping
  //! @param of the first iteration
  //! @pre the GPU of `over` is current
  //! @throws std::invalid_argument as make_gpu_stages does; run_error as nccl_runner does
  template <class Called>
  [[nodiscard]] auto model(gpu_options const& o, sized_table const& of) const {
    using runner = pp::cuda::nccl_runner<std::vector<Called>, pp::basic_store<Clock>, Clock>;
    auto with = over;
    with.graph = how.graph;
    with.warm_up = 1;
    with.guarded = how.guarded;
    with.timed = how.timed;
    with.elements = how.numbers == operands::bf16 ? "f32, products of bf16" : "f32";
    auto const& c = o.common;
    std::optional<int> const device(place.device);
    return gpu_model<Called, runner>(
      c.size, of.table, of.lengths, seed_of(c), how, device, line, place.device, with);
  }
  //! Where the last stage is, in its first replica and shard.
  [[nodiscard]] bool reports(pp::timetable_view table) const {
    return place.shard == 0 && place.replica == 0 &&
           place.device == pp::device_of(table, table.over.extents.stages() - 1);
  }
  //! A number of every rank, where the run is reported; else none. Collective.
  [[nodiscard]] std::vector<double>
  gather(std::string const& key, double mine, bool reports) const {
    auto const key_of = [&](int of) { return start + '/' + key + '/' + std::to_string(of); };
    line.set(key_of(rank()), std::to_string(mine));
    std::vector<double> all;
    for (int other = 0; reports && other < pp::ranks_of(layout); ++other)
      all.push_back(std::stod(line.get(key_of(other), over.deadline)));
    return all;
  }
  //! A hash of the weights of all stages, one rank after the other; of the first shard of each.
  //! Collective.
  [[nodiscard]] std::uint64_t hash_of_weights(gpu_stages const& stages) const {
    auto const key_of = [&](std::size_t stage) {
      return start + "/weights of replica " + std::to_string(place.replica) + ", shard " +
             std::to_string(place.shard) + ", stage " + std::to_string(stage);
    };
    auto const& mine = stages.front();
    std::uint64_t last = 0;
    auto const before = [&](std::size_t stage) {
      return std::stoull(line.get(key_of(stage - 1), over.deadline));
    };
    for (std::size_t stage = 0; stage < mine.size(); ++stage) {
      if (mine[stage] != nullptr) {
        auto const values = mine[stage]->values();
        last = stage == 0 ? hash_of(values) : hash_of(values, before(stage));
        line.set(key_of(stage), std::to_string(last));
      }
    }
    return last;
  }
};

//! The gradients of a rank's stages, out of those of all: appends what read(way, stage) gives.
template <class Read>
[[nodiscard]] std::vector<float>
gradients_of_device(pp::timetable_view table, int device, Read read) {
  std::vector<float> mine;
  auto const homes = homes_of(table);
  auto const stages = static_cast<std::size_t>(table.over.extents.stages());
  for (std::size_t i = 0; i < homes.size(); ++i) {
    if (homes[i] == device) {
      std::vector<float> const some = read(i / stages, i % stages);
      mine.insert(mine.end(), some.begin(), some.end());
    }
  }
  return mine;
}

//! The ranks with the copies of a rank's stages: this one and the one that mirrors it, or this one
//! alone.
[[nodiscard]] inline pp::rank_group copies_of_rank(pp::timetable_view table,
                                                   pp::rank_group const& pipeline) {
  bool const two = table.over.extents.where == pp::placement::bidirectional;
  int const mirrored = two ? table.over.extents.devices - 1 - pipeline.index : pipeline.index;
  auto const [first, last] = std::minmax(pipeline.index, mirrored);
  pp::rank_group all{
    first, pipeline.index == first ? 0 : 1, pipeline.name + "/copies " + std::to_string(first), {}};
  for (int device = first; device <= last; device += std::max(last - first, 1))
    all.ranks.push_back(pipeline.ranks[static_cast<std::size_t>(device)]);
  return all;
}

[[nodiscard]] inline pp::rank_group alone(int rank) {
  return {rank, 0, "alone " + std::to_string(rank), {rank}};
}
//! All ranks of a replica, with all shards of its stages.
[[nodiscard]] inline pp::rank_group whole_pipeline(pp::rank_layout const& layout,
                                                   pp::rank_place const& place) {
  pp::rank_group all{place.replica, 0, "whole pipeline " + std::to_string(place.replica), {}};
  for (int device = 0; device < layout.devices; ++device) {
    for (int shard = 0; shard < layout.shards; ++shard) {
      if (device == place.device && shard == place.shard)
        all.index = static_cast<int>(all.ranks.size());
      all.ranks.push_back(
        pp::rank_of(layout, {.device = device, .replica = place.replica, .shard = shard}));
    }
  }
  return all;
}

//! The gradients and the loss of a step against those of virtual devices on this rank's GPU, and
//! there against the host. Collective. Returns false where the rank that reports finds them wrong.
//! @param of the size of its iteration. @param number of that
template <class Clock>
bool compare_with_one_gpu(gpu_options const& o,
                          sized_table const& of,
                          std::size_t number,
                          batch const& pieces,
                          place_in_run<Clock> const& here,
                          first_step const& found) {
  auto const& c = o.common;
  pp::timetable_view const table = of.table;
  auto how = run_of(o);
  how.replicas = here.layout.replicas;
  std::vector<float> mine; // of all replicas
  std::vector<float> all;
  double expected = 0; // of the first
  for (int replica = 0; replica < here.layout.replicas; ++replica) {
    auto alone = model_of<Clock>(o, table, of.lengths, how);
    double const one = alone.step(share_of(pieces, replica, c.microbatches));
    expected = replica == 0 ? one : expected;
    add_to(all, alone.gradients());
    add_to(mine,
           gradients_of_device(table, here.place.device, [&](std::size_t way, std::size_t stage) {
             return alone.ways()[way][stage]->gradients();
           }));
  }
  bool const reports = here.reports(table);
  auto const counts = here.gather("different of size " + std::to_string(number),
                                  static_cast<double>(differences(found.gradients, mine)),
                                  reports);
  if (!reports)
    return true;
  double const different = std::accumulate(counts.begin(), counts.end(), 0.0);
  options whole = c; // one device has the microbatches of all replicas
  whole.lengths = of.lengths;
  whole = of_all_replicas(std::move(whole), here.layout.replicas);
  auto const host = step_on_host(whole, pieces).gradients;
  (void)take_copies(all, host.size());
  double const error = relative_error(all, host);
  std::printf(
    "\nOne step of %s over NCCL: %zu ranks, held against virtual devices on one GPU: %.0f of "
    "%zu gradients differ,\nthe loss is %.6f and %.6f; error, of the host: %.3f %%\n",
    name_of(c).c_str(),
    counts.size(),
    different,
    all.size(),
    found.loss,
    expected,
    100 * error);
  return different == 0 && found.loss == expected && error < allowed_error(o.numbers);
}

//! The gradients of shards against those of the host's shards. Collective, and returns, as above.
template <class Clock>
bool compare_with_host(gpu_options const& o,
                       pp::timetable_view table,
                       batch const& pieces,
                       place_in_run<Clock> const& here,
                       first_step const& found) {
  auto const& c = o.common;
  double expected = 0; // of the first replica
  std::vector<float> mine;
  for (int replica = 0; replica < here.layout.replicas; ++replica) {
    auto host = tensor_system::one_device(c, table);
    double const one = host.step(share_of(pieces, replica, c.microbatches));
    expected = replica == 0 ? one : expected;
    add_to(mine, gradients_of_device(table, here.place.device, [&](std::size_t, std::size_t stage) {
             std::vector<float> of_stage;
             append(of_stage,
                    host.shard(static_cast<int>(stage), here.place.shard),
                    &parameter<float>::gradient);
             return of_stage;
           }));
  }
  for (float& x : mine) // each is of the mean over its microbatches alone
    x /= static_cast<float>(here.layout.replicas);
  bool const reports = here.reports(table);
  auto const errors = here.gather("error", relative_error(found.gradients, mine), reports);
  if (!reports)
    return true;
  double const worst = *std::max_element(errors.begin(), errors.end());
  std::printf("\nOne step of %s over NCCL: %zu ranks, %d shards of every stage, held against all "
              "shards on the host:\nthe loss is %.6f and %.6f; error of the worst rank: %.3f %%\n",
              name_of(c).c_str(),
              errors.size(),
              here.layout.shards,
              found.loss,
              expected,
              100 * worst);
  return std::abs(found.loss - expected) < 0.002 * expected && worst < allowed_error(o.numbers);
}

//! Holds the first step of each size against the host, or one GPU that has all stages. Collective.
template <class Clock>
bool check_first_steps(gpu_options const& o,
                       options const& all,
                       text_to_learn const& text,
                       std::vector<sized_table> const& sizes,
                       place_in_run<Clock> const& here,
                       sums_of_rank& sums) {
  auto const& c = o.common;
  auto const pieces = batches(all, text, 1).next();
  auto again = here;
  again.how.graph = again.how.timed = false;
  again.how.clip = nullptr;
  again.over.name += "/one step";
  auto one = again.template model<called_stage>(o, sizes.front());
  std::vector<first_step> found;
  for (auto const& now : sizes) {
    if (sizes.size() > 1)
      one.use(now.table, now.lengths);
    double const loss = one.step(share_of(pieces, here.place.replica, c.microbatches));
    found.push_back({loss, one.gradients()});
    one.clear_gradients();
  }
  one.runner().close();
  sums.close();
  if (here.layout.shards > 1)
    return compare_with_host(o, sizes.front().table, pieces, again, found.front());
  bool good = true;
  for (std::size_t size = 0; size < sizes.size(); ++size)
    good = compare_with_one_gpu(o, sizes[size], size, pieces, again, found[size]) && good;
  return good;
}

//! All of the run of one rank, from where it has its place. Collective.
template <class Called, class Clock>
int train_at_place(gpu_options const& o,
                   text_to_learn const& text,
                   std::vector<sized_table> const& sizes,
                   place_in_run<Clock> here,
                   sums_of_rank& sums) {
  auto const& c = o.common;
  pp::timetable_view const table = sizes.front().table;
  auto const how = clipping_of(c);
  here.how.clip = c.clip != 0 ? &how : nullptr;
  here.how.any_chunks = sizes.size() > 1;
  auto model = here.template model<Called>(o, sizes.front());
  rank_in_training<decltype(model), pp::basic_store<Clock>> training{
    {model, checkpoints_in(o, here.rank(), here.layout, text), c.every, c.steps},
    here.line,
    here.place.replica,
    c.microbatches};
  training.agree(here.line, here.rank(), here.start, o.deadline);
  if (!training.has_steps(here.reports(table))) {
    model.runner().close();
    sums.close();
    return 0;
  }
  auto all = of_all_replicas(c, here.layout.replicas);
  auto const clipped = [&] {
    auto found = model.clipping_done();
    auto const rolled_back =
      here.gather("rolled back", static_cast<double>(found.rolled_back), here.reports(table));
    found.rolled_back =
      static_cast<std::int64_t>(std::accumulate(rolled_back.begin(), rolled_back.end(), 0.0));
    found.weights = here.hash_of_weights(model.ways());
    return found;
  };
  auto const check = [&] {
    model.runner().close();
    return check_first_steps(o, all, text, sizes, here, sums);
  };
  if (!here.reports(table)) { // one rank tells of the run
    all.tells = telling::nothing;
    (void)train_checkpointed(all, text, sizes, training);
    if (c.clip != 0)
      (void)clipped();
    return check() ? 0 : 1;
  }
  return report_run(
    o, all, text, sizes, training, "GPUs over NCCL", static_cast<int>(c.devices), clipped, check);
}

//! All of the run of one rank. Collective.
//! @param line of this rank to the store of the run
//! @return the exit status
template <class Clock>
int train_on_rank(gpu_options o,
                  pp::launch_environment const& started,
                  pp::basic_store<Clock>& line) {
  auto& c = o.common;
  auto const shards = static_cast<int>(shards_of_stages(c));
  auto const layout = pp::layout_of(started.size, static_cast<int>(c.devices), shards);
  auto const text = find_text(c.text, GPT_EXAMPLE_README);
  // Names in the store have the number of the start, so that no two starts mistake each other.
  std::string const name = "start " + std::to_string(started.restarts);
  agree_on_run(line,
               about_ranks(o, checkpoints_in(o, started.rank, layout, text), text),
               started.rank,
               started.size,
               name + "/options",
               o.deadline);
  options unclipped = c; // the steps are the same
  unclipped.clip = 0;
  auto const table = shards > 1 ? tensor_system::plan(unclipped) : chosen_timetable(c);
  c.lengths = lengths_of(c.size, table);
  check_gathered(c, table, layout.replicas);
  auto const sizes = tables_of_sizes(c, table);
  int visible = 0; // some launchers show each process its own GPU only
  pp::cuda::check(cudaGetDeviceCount(&visible), "cudaGetDeviceCount");
  int const gpu = started.local_rank % visible;
  pp::cuda::current_device const current(gpu);
  auto const pipeline = pp::group_of(layout, pp::rank_axis::pipeline, started.rank);
  place_in_run<Clock> here{
    layout,
    pp::place_of(layout, started.rank),
    line,
    name,
    run_of(o),
    {.gpu = gpu, .deadline = o.deadline, .name = name + '/' + pipeline.name}};
  here.over.world_ranks = pipeline.ranks;
  auto const group_on = [&](pp::rank_axis axis) {
    return pp::group_of(layout, axis, started.rank);
  };
  bool const in_plan = clips_in_plan(c, table);
  auto const sums_over = [&](pp::rank_group const& group) {
    return rank_sums(group, line, name, o.deadline);
  };
  sums_of_rank sums{
    sums_over(group_on(pp::rank_axis::tensor)),
    sums_over(copies_of_rank(table, pipeline)),
    sums_over(group_on(pp::rank_axis::data)),
    sums_over(c.clip == 0 || in_plan ? alone(started.rank) : whole_pipeline(layout, here.place))};
  sums.tell(here.over);
  here.how.shard = {here.place.shard, shards};
  here.how.graph = o.graph;
  here.how.timed = true;
  here.how.replicas = layout.replicas;
  here.how.weights = sums.replicas.weights(here.place.replica, layout.replicas);
  here.how.sum = sums.shards.function();
  here.how.copies = sums.copies.function();
  here.how.over_replicas = sums.replicas.function();
  here.how.over_rows = sums.rows.function<double>();
  return in_plan ? train_at_place<clipped_gpu_stage>(o, text, sizes, here, sums)
                 : train_at_place<called_stage>(o, text, sizes, here, sums);
}

} // namespace gpt
