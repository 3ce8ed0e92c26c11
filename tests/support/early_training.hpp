// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Stages of the small model that take their optimizer's steps early, for tests of their
//! validation.

#include <pipe/config.hpp>
#include <pipe/run/context.hpp>

#include <cstddef>
#include <vector>

#include "tests/support/training.hpp"

namespace support {

//! Spoils complete gradients now and then, on different stages: some devices have stepped when
//! others find out, or none has.
PIPELINING_HOST_DEVICE inline void plant(trained& s, int stage, int stages, int step) {
  int const at = step % 11;
  if ((at == 2 && stage + 1 == stages) || (at == 6 && stage == stages / 2))
    s.gradient = __builtin_huge_valf();
  if (((at == 4 || at == 5) && stage + 1 == stages) || (at == 9 && stage == 0))
    s.gradient += 16 * s.scale; // to be clipped
}

//! What one device makes of the model, with the same planted gradients.
inline void
train_planted(std::vector<trained>& model, int microbatches, int first_step, int steps) {
  for (int step = first_step; step < first_step + steps; ++step) {
    run_passes(model, 0, microbatches);
    for (std::size_t s = 0; s < model.size(); ++s)
      plant(model[s], static_cast<int>(s), static_cast<int>(model.size()), step);
    step_all(model);
  }
}

//! No overflow, and nothing to clip.
[[nodiscard]] inline bool accepts_rows(pipelining::totals const& all) {
  float squared = 0;
  int overflows = 0;
  for (int stage = 0; stage < all.rows; ++stage) {
    squared += all.row<training_row>(stage)[0].squared_norm;
    overflows += all.row<training_row>(stage)[0].overflow;
  }
  return overflows == 0 && !(squared > 1.0F);
}

//! Keeps a copy of its numbers from before its last step.
struct early_training_stage : training_stage {
  trained before{};
  int rolled_back = 0; //!< steps that were undone
  int made_up = 0;     //!< steps that came late, where there was nothing to undo
  bool forgets_to_roll_back = false;

  void gradients_ready(pipelining::context const& where) {
    plant(numbers, where.stage, last_stage + 1, announced);
    training_stage::gradients_ready(where);
  }

  [[nodiscard]] bool accepts(pipelining::context const&, pipelining::totals const& all) const {
    return accepts_rows(all);
  }
  void optimizer_step(pipelining::context const& where, pipelining::totals const& all) {
    before = numbers;
    training_stage::optimizer_step(where, all);
  }
  void roll_back(pipelining::context const&, bool undo) {
    ++(undo ? rolled_back : made_up);
    if (undo && !forgets_to_roll_back)
      numbers = before;
  }
  void begin_iteration(pipelining::context const&) {} // the step has zeroed all
};

[[nodiscard]] inline std::vector<early_training_stage> early_training_model(int stages,
                                                                            float scale = 64) {
  std::vector<early_training_stage> model;
  for (trained const& numbers : untrained(stages, scale)) {
    model.emplace_back();
    model.back().numbers = numbers;
    model.back().last_stage = stages - 1;
  }
  return model;
}

//! What a program zeroes before every iteration that it begins.
PIPELINING_HOST_DEVICE inline void zero(trained& numbers) {
  numbers.gradient = numbers.shared_gradient = numbers.loss = 0;
}

//! A stage whose gradients and loss the program zeroes: its optimizer leaves them as they are.
struct stage_zeroed_by_the_program : training_stage {
  float clip = 1;   //!< the largest square of the norm of all gradients
  trained before{}; //!< its last step
  trained told{};   //!< whose row is in the totals
  int rolled_back = 0;
  int made_up = 0;

  void contribute(pipelining::context const& where, pipelining::output row) {
    told = numbers;
    training_stage::contribute(where, row);
  }
  [[nodiscard]] bool accepts(pipelining::context const&, pipelining::totals const& all) const {
    return coefficient(all) == 1.0F;
  }
  void optimizer_step(pipelining::context const&, pipelining::totals const& all) {
    before = numbers;
    float const rate = 0.0625F * coefficient(all) / numbers.scale;
    numbers.weight -= rate * numbers.gradient;
    numbers.shared -= rate * numbers.shared_gradient;
  }
  void roll_back(pipelining::context const&, bool undo) {
    ++(undo ? rolled_back : made_up);
    if (undo)
      numbers = before;
    numbers.gradient = told.gradient;
    numbers.shared_gradient = told.shared_gradient;
  }
  void begin_iteration(pipelining::context const&) { zero(numbers); }

private:
  [[nodiscard]] float coefficient(pipelining::totals const& all) const {
    float squared = 0;
    for (int stage = 0; stage < all.rows; ++stage)
      squared += all.row<training_row>(stage)[0].squared_norm;
    return squared > clip ? clip / squared : 1.0F;
  }
};

[[nodiscard]] inline std::vector<stage_zeroed_by_the_program> zeroed_by_the_program(int stages,
                                                                                    float clip) {
  std::vector<stage_zeroed_by_the_program> model;
  for (trained const& numbers : untrained(stages, 64)) {
    model.emplace_back();
    model.back().numbers = numbers;
    model.back().last_stage = stages - 1;
    model.back().clip = clip;
  }
  return model;
}

} // namespace support
