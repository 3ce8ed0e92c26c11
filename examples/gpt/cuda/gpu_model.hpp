// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The model cut into stages and run by the library on GPUs: timetable, plan, runner.

#include <pipe/cuda/error.cuh>
#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/streams.cuh>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "../training.hpp"
#include "gpu_stage.hpp"

namespace gpt {

//! For each way that microbatches take, the copy of a stage that is there.
struct called_stage : copies_of<gpu_stage> {
  void join_replicas(pp::context const& where) {
    at(where).join_replicas(static_cast<cudaStream_t>(where.stream));
  }
};
//! The same with the optimizer in its plan.
using clipped_gpu_stage = clipped_stage<called_stage>;

//! The stages of this process and the runner that drives them.
//! @tparam Called a stage as the library calls it: `called_stage`, or with its optimizer.
template <class Called, class Runner>
class gpu_model : public model_in_stages<Called, Runner> {
public:
  using model = model_in_stages<Called, Runner>;

  //! @param lengths tokens of the sequence of each microbatch of a step; others may follow with
  //! gpu_run::any_chunks
  //! @param only the device whose stages are here; without it, all
  //! @param more what the runner is made of next to its plan and the stages
  //! @throws std::invalid_argument as make_gpu_stages does
  template <class... More>
  gpu_model(model_size const& size,
            pp::timetable_view table,
            std::vector<std::int64_t> const& lengths,
            std::uint64_t seed,
            gpu_run const& how,
            std::optional<int> only,
            More&&... more)
      : model(
          make_gpu_stages(size, table, cut_for(table, lengths), seed, how, only),
          table,
          lengths,
          {gpu_slots(size, how, Called::totals_bytes), how.clip != nullptr && how.clip->early},
          [](copies_of<gpu_stage> all, int) { return Called(called_stage{std::move(all)}); },
          std::forward<More>(more)...),
        tokens_(cut_whole(lengths).tokens()), how_(how), row_count_(rows_behind(table, how)),
        rows_(row_count_ * row_bytes) {
    if (how.clip != nullptr)
      this->set_clipping(*how.clip);
  }

  void use(pp::timetable_view table, std::vector<std::int64_t> const& lengths) {
    model::use(table, lengths);
    tokens_ = cut_whole(lengths).tokens();
  }

  //! Forward and backward of all microbatches, without the optimizer unless it is part of the plan.
  //! Returns the mean loss where the last stage is, else 0.
  double step(batch const& pieces) {
    for_each([&](gpu_stage& each) { each.set_text(pieces, on()); });
    this->run_plan();
    if (this->ways().size() > 1)
      add_up_copies();
    if (!model::clips) // else before the clipping, in the plan
      for_each([&](gpu_stage& each) { each.join_replicas(on()); });
    return reports_loss() ? this->ways().front().back()->loss_sum() / static_cast<double>(tokens_)
                          : 0;
  }

  //! What clipping has done to the stages that are here, but for the hash of weights.
  [[nodiscard]] clipping_report clipping_done() {
    wait();
    return model::clipping_done();
  }

  //! One step of the optimizer on every stage, before the passes of the next one, unless it was
  //! part of the plan. With clipping it counts its steps, and takes its optimizer, by itself. Where
  //! ranks have stages, collective.
  void update(adamw const& optimizer, std::int64_t step) {
    if (model::clips)
      return;
    if (counts_steps())
      step_clipped();
    else
      for_each([&](gpu_stage& each) { each.update(optimizer, step, on()); });
  }

  //! To be called before anyone looks at the weights. Where ranks have stages, collective.
  void finish() {
    model::finish();
    wait();
  }

  //! Calls visit(gradient, count) for every trained tensor that is here.
  template <class Visit>
  void for_each_gradient(Visit visit) const {
    for_each([&](gpu_stage const& each) { each.for_each_gradient(visit); });
  }
  //! All gradients become zero, without a step of the optimizer.
  void clear_gradients() {
    for_each_gradient([&](float* gradient, std::int64_t count) {
      auto const bytes = static_cast<std::size_t>(count) * sizeof(float);
      pp::cuda::check(cudaMemsetAsync(gradient, 0, bytes, on()), "cudaMemsetAsync");
    });
  }
  [[nodiscard]] bool reports_loss() const { return this->ways().front().back() != nullptr; }
  //! Gradients and values of the stages that are here, in the order of the layers; of those with
  //! two copies, the first ones, and then the second ones.
  [[nodiscard]] std::vector<float> gradients() const {
    return joined([](gpu_stage const& each) { return each.gradients(); });
  }
  [[nodiscard]] std::vector<float> values() const {
    return joined([](gpu_stage const& each) { return each.values(); });
  }
  //! Whether stages count the steps of an optimizer that clips, in the plan or after it.
  [[nodiscard]] bool counts_steps() const { return how_.clip != nullptr; }

private:
  [[nodiscard]] cudaStream_t on() const { return this->runner().origin(); }
  //! For all that the steps so far do.
  void wait() const { pp::cuda::check(cudaStreamSynchronize(on()), "cudaStreamSynchronize"); }
  template <class Visit>
  void for_each(Visit visit) const {
    this->for_each_stage([&](std::size_t, gpu_stage& each) { visit(each); });
  }
  template <class Read>
  [[nodiscard]] std::vector<float> joined(Read read) const {
    wait();
    std::vector<float> all;
    for_each([&](gpu_stage const& each) {
      auto const some = read(each);
      all.insert(all.end(), some.begin(), some.end());
    });
    return all;
  }

  static constexpr auto row_bytes = static_cast<std::int64_t>(sizeof(gradient_row));
  //! Of the totals of clipping after the plan.
  static std::int64_t rows_behind(pp::timetable_view table, gpu_run const& how) {
    return how.clip == nullptr || model::clips ? 0 : table.over.extents.stages() * how.shard.of;
  }
  //! What the plan does where every stage has one copy and one shard. Of two copies, which have the
  //! same gradients, the first ones have rows.
  void step_clipped() {
    pp::context where;
    where.stream = on();
    auto const bytes = static_cast<std::size_t>(row_count_ * row_bytes);
    pp::cuda::check(cudaMemsetAsync(rows_.data(), 0, bytes, on()), "cudaMemsetAsync");
    auto row = how_.shard.number;
    for (auto const& each : this->ways().front()) {
      if (each != nullptr)
        each->contribute(where, {static_cast<int>(row), rows_.data() + row * row_bytes, row_bytes});
      row += how_.shard.of;
    }
    if (how_.over_rows) { // all but one rank add zeros to a row
      static_assert(sizeof(gradient_row) == 2 * sizeof(double));
      how_.over_rows(reinterpret_cast<double*>(rows_.data()), 2 * row_count_, on());
    }
    pp::totals const all{rows_.data(), row_bytes, row_bytes, static_cast<int>(row_count_)};
    for_each([&](gpu_stage& each) { each.optimizer_step(where, all); });
  }

  void add_up_copies() {
    for (Called const& each : this->called()) {
      gpu_stage* const one = each.of.front();
      gpu_stage* const other = each.of.back();
      if (one == other)
        continue; // a single one, or neither is here
      if (one != nullptr && other != nullptr) {
        add_copies(*one, *other, on());
      } else {
        each.here()->for_each_sum(
          [&](float* numbers, std::int64_t count) { how_.copies(numbers, count, on()); });
      }
    }
    wait(); // before losses are read
  }

  std::int64_t tokens_; // of a step
  gpu_run how_;
  std::int64_t row_count_;
  pp::cuda::device_memory rows_; // [stages, shards]
};

//! All stages of a timetable, on virtual devices of the current GPU with an arena each.
//! @tparam Called of gpu_model: with its optimizer where `how` has clipping
//! @param lengths tokens of the sequence of each microbatch
//! @throws std::invalid_argument as make_gpu_stages does
template <class Clock = pp::detail::polling_clock, class Called = called_stage>
[[nodiscard]] gpu_model<Called, pp::cuda::stream_runner<std::vector<Called>, Clock>>
on_virtual_devices(model_size const& size,
                   pp::timetable_view table,
                   std::vector<std::int64_t> const& lengths,
                   std::uint64_t seed,
                   gpu_run const& how = {}) {
  int gpu = 0;
  pp::cuda::check(cudaGetDevice(&gpu), "cudaGetDevice");
  pp::cuda::stream_options const over{
    .gpus = std::vector<int>(static_cast<std::size_t>(table.over.extents.devices), gpu),
    .graph = how.graph,
    .warm_up = 1,
    .guarded = how.guarded,
    .timed = how.timed};
  return {size, table, lengths, seed, how, std::optional<int>(), over};
}

} // namespace gpt
