// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The model cut into stages and run by the library on GPUs: timetable, plan, runner.

#include <pipe/core/shape.hpp>
#include <pipe/cuda/error.cuh>
#include <pipe/cuda/streams.cuh>
#include <pipe/plan/lower.hpp>
#include <pipe/run/clock.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "../gpt/adamw.hpp"
#include "../gpt/model.hpp"
#include "../gpt/stage.hpp"
#include "../gpt/stage_copies.hpp"
#include "../gpt/text.hpp"
#include "gpu_run.hpp"
#include "gpu_stage.hpp"

namespace gpt {

//! What the slots of a timetable's plan take.
[[nodiscard]] inline gpu_slot_sizes
gpu_sizes(model_size const& size, pp::timetable_view table, step_cut cut, gpu_run const& how) {
  return {how.numbers,
          how.shard,
          size,
          std::move(cut),
          cut_layers(size.layers, pp::stages(table.extents))};
}

//! A stage as the library knows it: for each way that microbatches take, the copy that is there.
using called_stages = std::vector<copies_of<gpu_stage>>;

//! The stages of this process and the runner that drives them.
template <class Runner>
class gpu_model {
public:
  //! @param copies adds numbers up over both copies of a stage, where one is in another process
  //! @param make_runner makes the runner of these stages
  template <class MakeRunner>
  gpu_model(pp::shape const& extents,
            gpu_stages stages,
            std::int64_t tokens,
            sum_over_gpus copies,
            MakeRunner make_runner)
      : tokens_(tokens), stages_(std::move(stages)), called_(to_call(extents, stages_)),
        copies_(std::move(copies)), runner_(make_runner(called_)) {}

  //! Forward and backward of all microbatches, without the optimizer. Returns the mean loss where
  //! the last stage is, else 0.
  double step(batch const& pieces) {
    for_each_stage([&](gpu_stage& each) { each.set_text(pieces, runner_.origin()); });
    runner_.step();
    if (stages_.size() > 1) {
      add_up_copies();
    }
    return reports_loss() ? last().loss_sum() / static_cast<double>(tokens_) : 0;
  }

  //! One step of the optimizer on every stage, before the passes of the next one.
  void update(adamw const& optimizer, std::int64_t step) {
    for_each_stage([&](gpu_stage& each) { each.update(optimizer, step, runner_.origin()); });
  }

  //! Calls visit(gradient, count) for every trained tensor that is here.
  template <class Visit>
  void for_each_gradient(Visit visit) const {
    for_each_stage([&](gpu_stage const& each) { each.for_each_gradient(visit); });
  }
  [[nodiscard]] bool reports_loss() const { return stages_.front().back() != nullptr; }
  //! When each pass of the last step ran, in seconds. Where ranks have stages, collective.
  [[nodiscard]] pp::dynamic_timetable trace() { return runner_.trace(); }
  //! Gradients and values of the stages that are here, in the order of the layers; of those with
  //! two copies, the first ones, and then the second ones.
  [[nodiscard]] std::vector<float> gradients() const {
    return joined([](gpu_stage const& each) { return each.gradients(); });
  }
  [[nodiscard]] std::vector<float> values() const {
    return joined([](gpu_stage const& each) { return each.values(); });
  }
  [[nodiscard]] gpu_stages const& stages() const { return stages_; }
  [[nodiscard]] Runner& runner() { return runner_; }

private:
  static called_stages to_call(pp::shape const& extents, gpu_stages const& from) {
    called_stages called(from.front().size(), {extents, {}});
    for (auto const& way : from) {
      for (std::size_t s = 0; s < way.size(); ++s) {
        called[s].of.push_back(way[s].get());
      }
    }
    return called;
  }

  template <class Visit>
  void for_each_stage(Visit visit) const {
    for (auto const& way : stages_) {
      for (auto const& each : way) {
        if (each != nullptr) {
          visit(*each);
        }
      }
    }
  }
  template <class Read>
  [[nodiscard]] std::vector<float> joined(Read read) const {
    pp::cuda::check(cudaStreamSynchronize(runner_.origin()), "cudaStreamSynchronize");
    std::vector<float> all;
    for_each_stage([&](gpu_stage const& each) {
      auto const some = read(each);
      all.insert(all.end(), some.begin(), some.end());
    });
    return all;
  }

  [[nodiscard]] gpu_stage const& last() const { return *stages_.front().back(); }

  //! Both copies of every stage get the sum of what they have.
  void add_up_copies() {
    auto const on = runner_.origin();
    for (copies_of<gpu_stage> const& each : called_) {
      gpu_stage* const one = each.of.front();
      gpu_stage* const other = each.of.back();
      if (one == other) {
        continue; // a single one, or neither is here
      }
      if (one != nullptr && other != nullptr) {
        add_copies(*one, *other, on);
      } else {
        (one != nullptr ? one : other)
          ->for_each_sum(
            [&](float* numbers, std::int64_t count) { copies_(numbers, count, on); });
      }
    }
    pp::cuda::check(cudaStreamSynchronize(on), "cudaStreamSynchronize"); // before losses are read
  }

  std::int64_t tokens_; // of a step
  gpu_stages stages_;
  called_stages called_;
  sum_over_gpus copies_;
  Runner runner_;
};

//! All stages of a timetable, on virtual devices of the current GPU with an arena each.
//! @param cut how the timetable cuts the work of a step
//! @throws std::invalid_argument as make_gpu_stages does
template <class Clock = pp::polling_clock>
[[nodiscard]] gpu_model<pp::cuda::stream_runner<called_stages, Clock>>
on_virtual_devices(model_size const& size,
                   pp::timetable_view table,
                   step_cut const& cut,
                   std::uint64_t seed,
                   gpu_run const& how = {}) {
  int gpu = 0;
  pp::cuda::check(cudaGetDevice(&gpu), "cudaGetDevice");
  return {table.extents,
          make_gpu_stages(size, table, cut, seed, how),
          cut.tokens(),
          {},
          [&](called_stages& stages) {
            return pp::cuda::stream_runner<called_stages, Clock>(
              pp::lower(table, gpu_sizes(size, table, cut, how)),
              stages,
              {.gpus = std::vector<int>(static_cast<std::size_t>(table.extents.devices), gpu),
               .graph = how.graph,
               .warm_up = 1,
               .guarded = how.guarded,
               .timed = how.timed});
          }};
}

} // namespace gpt
