// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Training on threads, with checkpoints in the files that ranks of MPI have, too.

#include <pipe/cluster/rank_layout.hpp>
#include <pipe/cluster/tensor_checkpoint.hpp>

#include <cstdint>
#include <cstdio>
#include <vector>

#include "../saved_state.hpp"
#include "../training.hpp"

namespace gpt {

//! Writes the state of a model between steps, and reads it before the first one.
//! @tparam Model `pipelined_model` or `clipped_model`
template <class Model>
class thread_checkpoints {
public:
  //! @param model must outlive this
  thread_checkpoints(options const& o, text_to_learn const& text, Model& model)
      : model_(model), saved_{
                         {o.checkpoint, "rank-0", about_state(o, 1, text), pp::layout_of(1, 1)},
                         o.every,
                         o.steps} {
    if (o.checkpoint.empty())
      return;
    training_state state(model);
    if (saved_.load_alone(state.tensors)) {
      state.use();
      std::printf("goes on after step %lld\n", static_cast<long long>(first()));
    }
  }

  [[nodiscard]] std::int64_t first() const { return saved_.first; }

  //! To be called after each step.
  //! @throws std::runtime_error where a file cannot be written
  void after(std::int64_t step) {
    bool const stops = stop_wanted != 0 && !saved_.files.folder.empty();
    if (saved_.wants(step + 1) || stops) {
      model_.finish(); // what is to be validated in the next iteration
      pp::save_tensors(saved_.files, step + 1, training_state(model_, false).tensors);
    }
  }

private:
  Model& model_;
  saved_steps saved_;
};

//! Trains with an optimizer that steps between iterations, or in them, on clipped gradients.
inline training
train(options const& o, text_to_learn const& text, std::vector<sized_table> const& sizes) {
  pp::timetable_view const table = sizes.front().table;
  auto const seed = seed_of(o);
  auto const how = clipping_of(o);
  if (o.clip == 0) {
    pipelined_model model(o.size, table, o.lengths, seed);
    thread_checkpoints saved(o, text, model);
    auto const update = [&](std::int64_t step) {
      model.update(how.optimizer, step);
      saved.after(step);
    };
    return train_sizes(o, text, sizes, model, update, saved.first());
  }
  clipped_model model(o.size, table, o.lengths, seed, o.post_validation);
  for (auto& stage : model.called())
    stage.set_clipping(how);
  thread_checkpoints saved(o, text, model);
  auto const after = [&](std::int64_t step) { saved.after(step); };
  auto result = train_sizes(o, text, sizes, model, after, saved.first());
  model.finish();
  auto const counts = model.counts();
  result.clipped = {counts.clipped,
                    counts.left_out,
                    0,
                    model.early_steps().corrected(),
                    model.early_steps().repeated(),
                    hash_of(weights_of(model.stages()))};
  for (auto const& stage : model.called())
    result.clipped->rolled_back += stage.rolled_back();
  return result;
}

} // namespace gpt
