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

//! The stages of this process and the runner that drives them.
template <class Runner>
class gpu_model {
public:
  //! @param make_runner makes the runner of these stages
  template <class MakeRunner>
  gpu_model(gpu_stages stages, std::int64_t tokens, MakeRunner make_runner)
      : tokens_(tokens), stages_(std::move(stages)), runner_(make_runner(stages_)) {}

  //! Forward and backward of all microbatches, without the optimizer. Returns the mean loss where
  //! the last stage is, else 0.
  double step(batch const& pieces) {
    for_each_stage([&](gpu_stage& each) { each.set_text(pieces, runner_.origin()); });
    runner_.step();
    return reports_loss() ? stages_.back()->loss_sum() / static_cast<double>(tokens_) : 0;
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
  [[nodiscard]] bool reports_loss() const { return stages_.back() != nullptr; }
  //! When each pass of the last step ran, in seconds. Where ranks have stages, collective.
  [[nodiscard]] pp::dynamic_timetable trace() { return runner_.trace(); }
  //! Gradients and values of the stages that are here, in the order of the layers.
  [[nodiscard]] std::vector<float> gradients() const {
    return joined([](gpu_stage const& each) { return each.gradients(); });
  }
  [[nodiscard]] std::vector<float> values() const {
    return joined([](gpu_stage const& each) { return each.values(); });
  }
  [[nodiscard]] gpu_stages const& stages() const { return stages_; }
  [[nodiscard]] Runner& runner() { return runner_; }

private:
  template <class Visit>
  void for_each_stage(Visit visit) const {
    for (auto const& each : stages_) {
      if (each != nullptr) {
        visit(*each);
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

  std::int64_t tokens_; // of a step
  gpu_stages stages_;
  Runner runner_;
};

//! All stages of a timetable, on virtual devices of the current GPU with an arena each.
//! @param cut how the timetable cuts the work of a step
//! @throws std::invalid_argument as make_gpu_stages does
template <class Clock = pp::polling_clock>
[[nodiscard]] gpu_model<pp::cuda::stream_runner<gpu_stages, Clock>>
on_virtual_devices(model_size const& size,
                   pp::timetable_view table,
                   step_cut const& cut,
                   std::uint64_t seed,
                   gpu_run const& how = {}) {
  int gpu = 0;
  pp::cuda::check(cudaGetDevice(&gpu), "cudaGetDevice");
  return {make_gpu_stages(size, table, cut, seed, how), cut.tokens(), [&](gpu_stages& stages) {
            return pp::cuda::stream_runner<gpu_stages, Clock>(
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
