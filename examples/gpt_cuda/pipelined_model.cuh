// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The model cut into stages and run by the library on one GPU: timetable, plan, streams.

#include <pipe/core/shape.hpp>
#include <pipe/cuda/streams.cuh>
#include <pipe/plan/lower.hpp>
#include <pipe/run/clock.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "../gpt/adamw.hpp"
#include "../gpt/model.hpp"
#include "../gpt/stage.hpp"
#include "../gpt/text.hpp"
#include "device_work.cuh"
#include "gpu_run.hpp"
#include "stage.cuh"

namespace gpt::on_gpu {

//! The stages of a timetable on virtual devices of the current GPU, an arena each.
//! @tparam Element what products multiply: float, or bf16 with trained values in float
template <class Element, class Clock = pp::polling_clock>
class pipelined_model {
public:
  //! @param cut how the timetable cuts the work of a step
  //! @throws std::invalid_argument for schedules with passes that the stages lack, and for heads of
  //! other sizes than attention has kernels for
  pipelined_model(model_size const& size,
                  pp::timetable_view table,
                  step_cut const& cut,
                  std::uint64_t seed,
                  gpu_run const& chosen = {})
      : cut_(cut), stages_(make_stages(size, check(size, table), seed, chosen)),
        runner_(
          pp::lower(table, sizes(size, table)),
          stages_,
          {.graph = chosen.graph, .warm_up = 1, .guarded = chosen.guarded, .timed = chosen.timed}) {
  }

  //! Forward and backward of all microbatches, without the optimizer. Returns the mean loss.
  double step(batch const& pieces) {
    for (auto& each : stages_) {
      each.set_text(pieces.bytes, runner_.origin());
    }
    runner_.step();
    return stages_.back().loss_sum() / static_cast<double>(cut_.tokens());
  }

  //! One step of the optimizer on every stage, before the passes of the next one.
  void update(adamw const& optimizer, std::int64_t step) {
    for (auto& each : stages_) {
      each.update(optimizer, step, runner_.origin());
    }
  }

  [[nodiscard]] std::vector<stage<Element>> const& stages() const { return stages_; }
  //! When each pass of the last step ran, in seconds.
  [[nodiscard]] pp::dynamic_timetable trace() { return runner_.trace(); }
  //! Waits for all that has been asked for.
  void finish() const {
    cuda::check(cudaStreamSynchronize(runner_.origin()), "cudaStreamSynchronize");
  }

private:
  static pp::timetable_view check(model_size const& size, pp::timetable_view table) {
    with_head_dim(size.head_dim(), [](auto) {});
    auto const refuse = [](std::string const& what) {
      throw std::invalid_argument(
        "the example on GPUs has " + what +
        "; choose a schedule with one copy of every stage and plain passes");
    };
    if (table.extents.where == pp::placement::custom || pp::routes(table.extents) > 1) {
      refuse("one copy of every stage, but this schedule takes microbatches different ways");
    }
    for (int i = 0; i < table.size(); ++i) {
      switch (table.passes[i].kind) {
      case pp::pass_kind::forward:
      case pp::pass_kind::backward:
      case pp::pass_kind::backward_input:
      case pp::pass_kind::backward_weight: break;
      default: refuse("forward and backward passes alone, but this schedule has others");
      }
    }
    return table;
  }
  [[nodiscard]] slot_sizes<Element> sizes(model_size const& size, pp::timetable_view table) const {
    return {size, cut_, cut_layers(size.layers, pp::stages(table.extents))};
  }

  std::vector<stage<Element>> make_stages(model_size const& size,
                                          pp::timetable_view table,
                                          std::uint64_t seed,
                                          gpu_run const& chosen) {
    auto const slots = sizes(size, table);
    std::int64_t tokens = 0;
    std::int64_t between = 0;
    for (int i = 0; i < table.size(); ++i) {
      auto const& what = table.passes[i];
      tokens = std::max(tokens, cut_.range({what.microbatch, what.chunk}).count());
      if (what.kind == pp::pass_kind::backward) {
        between = std::max(between, slots.bytes(pp::slot_class::weight_input, what));
      }
    }
    for (int device = 0; device < table.extents.devices; ++device) {
      work_.push_back(
        std::make_unique<device_work<Element>>(size, tokens, between, chosen.workspace_bytes));
    }
    std::vector<stage<Element>> made;
    made.reserve(slots.stages.size());
    gpt::device_memory<float> on_host;
    for (auto const& held : slots.stages) {
      auto const device =
        static_cast<std::size_t>(pp::device_of(table, static_cast<int>(made.size())));
      gpt::stage<float> host(size, held, cut_, seed, on_host);
      made.emplace_back(host, size, held, cut_, *work_[device]);
    }
    return made;
  }

  step_cut cut_;
  std::vector<std::unique_ptr<device_work<Element>>> work_; // by device
  std::vector<stage<Element>> stages_;
  pp::cuda::stream_runner<std::vector<stage<Element>>, Clock> runner_;
};

//! All gradients, or all values, of a model in the order of its layers.
template <class Element, class Clock>
[[nodiscard]] std::vector<float> gradients_of(pipelined_model<Element, Clock> const& model) {
  model.finish();
  std::vector<float> all;
  for (auto const& each : model.stages()) {
    for (auto const& weight : each.weights()) {
      auto const some = fetch(weight.gradient(), weight.count());
      all.insert(all.end(), some.begin(), some.end());
    }
  }
  return all;
}
template <class Element, class Clock>
[[nodiscard]] std::vector<float> values_of(pipelined_model<Element, Clock> const& model) {
  model.finish();
  std::vector<float> all;
  for (auto const& each : model.stages()) {
    for (auto const& weight : each.weights()) {
      auto const some = fetch(weight.value(), weight.count());
      all.insert(all.end(), some.begin(), some.end());
    }
  }
  return all;
}

} // namespace gpt::on_gpu
