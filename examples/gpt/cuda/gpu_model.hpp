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

struct gpu_slots {
  model_size size;
  gpu_run how;
  std::int64_t totals_bytes = 0; //!< of a stage's row

  //! @param lengths tokens of the sequence of each microbatch
  [[nodiscard]] gpu_slot_sizes operator()(pp::timetable_view table,
                                          std::vector<std::int64_t> const& lengths) const {
    std::optional<sharded_cut> around;
    if (how.barriers)
      around = cut_around(size, table, *how.barriers);
    return {how.numbers,
            how.shard,
            size,
            cut_for(table, lengths),
            how.barriers || how.exchange ? cut_layers(size.layers, table.over.extents.stages())
                                         : cut_model(size, table.over.extents),
            totals_bytes,
            std::move(around),
            gathered_slots_of(size, table, how),
            how.exchange,
            table.over.extents};
  }
};

//! For each way that microbatches take, the copy of a stage that is there.
struct gpu_copies : copies_of<gpu_stage> {
  //! Two passes of the device at once, so that one has something to do while the shards of the
  //! other make a sum. Those that add to the gradients of one stage follow each other.
  void braid(pp::pass_kind kind,
             pp::composite_half const& half,
             pp::pass_kind other_kind,
             pp::composite_half other_half,
             gpu_copies& other) {
    gpu_stage& first = at(half.where);
    gpu_stage& second = other.at(other_half.where);
    if (&first == &second && kind != pp::pass_kind::forward)
      other_half.where.stream = half.where.stream;
    first.run_half(kind, half, 0);
    second.run_half(other_kind, other_half, 1);
  }
};

struct called_stage : gpu_copies {
  static constexpr std::int64_t totals_bytes = 0; //!< the optimizer is not called by the library
};

//! The same with the optimizer in its plan.
struct clipped_gpu_stage : gpu_copies {
  static constexpr std::int64_t totals_bytes = sizeof(gradient_row);
  clipping const* how = nullptr;
  std::int64_t rolled_back = 0;

  void contribute(pp::context const& where, pp::output row) { of.front()->contribute(where, row); }
  //! Of rows on the host. @see clipped_stage
  [[nodiscard]] bool accepts(pp::context const&, pp::totals const& all) const {
    clipped_step const found(*how, all);
    return found.finite && found.coefficient == 1;
  }
  void optimizer_step(pp::context const& where, pp::totals const& all) {
    of.front()->optimizer_step(where, all);
  }
  void roll_back(pp::context const& where, bool stepped) {
    if (stepped) {
      of.front()->roll_back(where);
      ++rolled_back;
    }
  }
  void begin_iteration(pp::context const&) {} // `optimizer_step` leaves gradients of zero
};

//! The stages of this process and the runner that drives them.
//! @tparam Called a stage as the library calls it: `called_stage`, or with its optimizer.
template <class Called, class Runner>
class gpu_model {
public:
  //! Whether the optimizer is part of the plan.
  static constexpr bool clips = Called::totals_bytes > 0;

  //! @param cut how the timetable cuts the work of a step
  //! @param only the device whose stages are here; without it, all
  //! @param more what the runner is made of beside its plan and the stages
  //! @throws std::invalid_argument as make_gpu_stages does
  template <class... More>
  gpu_model(model_size const& size,
            pp::timetable_view table,
            step_cut const& cut,
            std::uint64_t seed,
            gpu_run const& how,
            std::optional<int> only,
            More&&... more)
      : tokens_(cut.tokens()), copies_(how.copies), clipping_(how.clip != nullptr),
        over_rows_(how.over_rows), shard_(how.shard), row_count_(rows_behind(table, how)),
        rows_(row_count_ * row_bytes), stages_(make_gpu_stages(size, table, cut, seed, how, only)),
        called_(to_call(table.over.extents, stages_, how)),
        plans_(plan_maker<gpu_slots>{{size, how, Called::totals_bytes},
                                     how.clip != nullptr && how.clip->early},
               table,
               cut.lengths(),
               called_,
               std::forward<More>(more)...) {}

  //! The steps that follow are of this timetable: see `sized_runner`. Where ranks have stages,
  //! collective.
  //! @pre the same schedule, devices and microbatches as before; one copy of every stage;
  //! gpu_run::any_chunks
  void use(pp::timetable_view table, std::vector<std::int64_t> const& lengths) {
    plans_.use(table, lengths);
    auto const cut = cut_for(table, lengths);
    tokens_ = cut.tokens();
    for_each_stage([&](gpu_stage& each) { each.set_cut(cut); });
  }
  [[nodiscard]] std::vector<device_row> slots() { return plans_.slots(); }
  [[nodiscard]] auto const& plans() const { return plans_.plans(); }

  //! Forward and backward of all microbatches, without the optimizer unless it is part of the plan.
  //! Returns the mean loss where the last stage is, else 0.
  double step(batch const& pieces) {
    for_each_stage([&](gpu_stage& each) { each.set_text(pieces, runner().origin()); });
    plans_.step();
    if (stages_.size() > 1)
      add_up_copies();
    return reports_loss() ? last().loss_sum() / static_cast<double>(tokens_) : 0;
  }
  //! To be called before anyone looks at the weights. Where ranks have stages, collective.
  void finish() { plans_.finish(); }

  //! What clipping has done to the stages that are here, but for the hash of weights.
  [[nodiscard]] clipping_report clipping_done() {
    pp::cuda::check(cudaStreamSynchronize(runner().origin()), "cudaStreamSynchronize");
    clipping_report found;
    for_each_stage([&](gpu_stage const& each) {
      auto const counts = each.counts();
      found.clipped = counts.clipped;
      found.left_out = counts.left_out;
    });
    if constexpr (clips)
      for (Called const& each : called_)
        found.rolled_back += each.rolled_back;
    found.corrected = plans_.early_steps().corrected();
    found.repeated = plans_.early_steps().repeated();
    return found;
  }

  //! One step of the optimizer on every stage, before the passes of the next one, unless it was
  //! part of the plan. With clipping it counts its steps, and takes its optimizer, by itself. Where
  //! ranks have stages, collective.
  void update(adamw const& optimizer, std::int64_t step) {
    if constexpr (!clips) {
      if (clipping_)
        step_clipped();
      else
        for_each_stage([&](gpu_stage& each) { each.update(optimizer, step, runner().origin()); });
    }
  }

  //! Calls with(bytes), tensor by tensor, of what the next step of the stages here depends on, and
  //! puts it back; validates an early step of the optimizer before. Where ranks have stages,
  //! collective.
  template <class Visit>
  void exchange(Visit const& with) {
    finish();
    pp::cuda::check(cudaStreamSynchronize(runner().origin()), "cudaStreamSynchronize");
    for_each_stage([&](gpu_stage& each) { each.exchange(with); });
  }

  //! Calls visit(gradient, count) for every trained tensor that is here.
  template <class Visit>
  void for_each_gradient(Visit visit) const {
    for_each_stage([&](gpu_stage const& each) { each.for_each_gradient(visit); });
  }
  //! The same without what replicas have added up when it was scattered.
  template <class Visit>
  void for_each_own_gradient(Visit visit) const {
    for_each_stage([&](gpu_stage const& each) {
      if (!each.is_gathered())
        each.for_each_gradient(visit);
    });
  }
  //! All gradients become zero, without a step of the optimizer.
  void clear_gradients() {
    for_each_gradient([&](float* gradient, std::int64_t count) {
      auto const bytes = static_cast<std::size_t>(count) * sizeof(float);
      pp::cuda::check(cudaMemsetAsync(gradient, 0, bytes, runner().origin()), "cudaMemsetAsync");
    });
  }
  [[nodiscard]] bool reports_loss() const { return stages_.front().back() != nullptr; }
  [[nodiscard]] pp::dynamic_timetable trace() { return runner().trace(); }
  //! Gradients and values of the stages that are here, in the order of the layers; of those with
  //! two copies, the first ones, and then the second ones.
  [[nodiscard]] std::vector<float> gradients() const {
    return joined([](gpu_stage const& each) { return each.gradients(); });
  }
  [[nodiscard]] std::vector<float> values() const {
    return joined([](gpu_stage const& each) { return each.values(); });
  }
  [[nodiscard]] gpu_stages const& stages() const { return stages_; }
  //! What the parameters of all stages here are in the model, as `exchange` visits them.
  [[nodiscard]] std::vector<std::vector<tensor_part>> parts() const {
    std::vector<std::vector<tensor_part>> all;
    for_each_stage([&](gpu_stage const& each) { all.push_back(each.parts()); });
    return all;
  }
  //! Whether stages count the steps of an optimizer that clips.
  [[nodiscard]] bool counts_steps() const { return clipping_; }
  [[nodiscard]] Runner& runner() { return plans_.runner(); }

private:
  static std::vector<Called>
  to_call(pp::shape const& extents, gpu_stages const& from, gpu_run const& how) {
    Called one{};
    one.extents = extents;
    if constexpr (clips)
      one.how = how.clip;
    std::vector<Called> called(from.front().size(), one);
    bool const one_copy = extents.where == pp::placement::custom;
    for (auto const& way : from) {
      for (std::size_t s = 0; s < way.size(); ++s) {
        bool const elsewhere = one_copy && way[s] == nullptr;
        called[s].of.push_back((elsewhere ? from.front() : way)[s].get());
      }
    }
    return called;
  }

  template <class Visit>
  void for_each_stage(Visit visit) const {
    for (auto const& way : stages_) {
      for (auto const& each : way)
        if (each != nullptr)
          visit(*each);
    }
  }
  template <class Read>
  [[nodiscard]] std::vector<float> joined(Read read) const {
    pp::cuda::check(cudaStreamSynchronize(plans_.runner().origin()), "cudaStreamSynchronize");
    std::vector<float> all;
    for_each_stage([&](gpu_stage const& each) {
      auto const some = read(each);
      all.insert(all.end(), some.begin(), some.end());
    });
    return all;
  }

  [[nodiscard]] gpu_stage const& last() const { return *stages_.front().back(); }

  static constexpr auto row_bytes = static_cast<std::int64_t>(sizeof(gradient_row));
  //! Of the totals of clipping behind the plan.
  static std::int64_t rows_behind(pp::timetable_view table, gpu_run const& how) {
    return how.clip == nullptr || clips ? 0 : table.over.extents.stages() * how.shard.of;
  }
  //! What the plan does where every stage has one copy and one shard. Of two copies, which have the
  //! same gradients, the first ones have rows.
  void step_clipped() {
    auto const on = runner().origin();
    pp::context where;
    where.stream = on;
    auto const bytes = static_cast<std::size_t>(row_count_ * row_bytes);
    pp::cuda::check(cudaMemsetAsync(rows_.data(), 0, bytes, on), "cudaMemsetAsync");
    auto row = shard_.number;
    for (auto const& each : stages_.front()) {
      if (each != nullptr)
        each->contribute(where, {static_cast<int>(row), rows_.data() + row * row_bytes, row_bytes});
      row += shard_.of;
    }
    if (over_rows_) { // all but one rank add zeros to a row
      static_assert(sizeof(gradient_row) == 2 * sizeof(double));
      over_rows_(reinterpret_cast<double*>(rows_.data()), 2 * row_count_, on);
    }
    pp::totals const all{rows_.data(), row_bytes, row_bytes, static_cast<int>(row_count_)};
    for_each_stage([&](gpu_stage& each) { each.optimizer_step(where, all); });
  }

  void add_up_copies() {
    auto const on = runner().origin();
    for (Called const& each : called_) {
      gpu_stage* const one = each.of.front();
      gpu_stage* const other = each.of.back();
      if (one == other)
        continue; // a single one, or neither is here
      if (one != nullptr && other != nullptr) {
        add_copies(*one, *other, on);
      } else {
        (one != nullptr ? one : other)->for_each_sum([&](float* numbers, std::int64_t count) {
          copies_(numbers, count, on);
        });
      }
    }
    pp::cuda::check(cudaStreamSynchronize(on), "cudaStreamSynchronize"); // before losses are read
  }

  std::int64_t tokens_; // of a step
  sum_over_gpus copies_;
  bool clipping_; // in the plan or behind it
  sum_of<double> over_rows_;
  shard_of_stage shard_;
  std::int64_t row_count_;
  pp::cuda::device_memory rows_; // [stages, shards]
  gpu_stages stages_;
  std::vector<Called> called_;
  sized_runner<Runner, gpu_slots> plans_;
};

//! All stages of a timetable, on virtual devices of the current GPU with an arena each.
//! @tparam Called of gpu_model: with its optimizer where `how` has clipping
//! @param cut how the timetable cuts the work of a step
//! @throws std::invalid_argument as make_gpu_stages does
template <class Clock = pp::detail::polling_clock, class Called = called_stage>
[[nodiscard]] gpu_model<Called, pp::cuda::stream_runner<std::vector<Called>, Clock>>
on_virtual_devices(model_size const& size,
                   pp::timetable_view table,
                   step_cut const& cut,
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
  return {size, table, cut, seed, how, std::optional<int>(), over};
}

} // namespace gpt
