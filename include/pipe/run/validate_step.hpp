// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Early steps of the optimizer and their validation. Header for
//! pipelining::detail::step_early and pipelining::detail::validate_step.

#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/step_validation.hpp>
#include <pipe/run/arena.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/hooks.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! The rows that a device has when it steps early: those of the stages of the devices up to
//! it. The others are zeros.
//!
//! They can be told from all rows later on, so nobody has to remember what they said.
class early_totals {
public:
  //! @param memory of a device that has the rows of the stages of the devices up to it.
  explicit early_totals(arena const& memory) : all_(memory.readable_totals()) {
    auto const stride = static_cast<std::size_t>(all_.stride);
    rows_.resize(stride * static_cast<std::size_t>(all_.rows));
    for (int stage = 0; stage < all_.rows; ++stage)
      if (device_of(memory.work, stage) <= memory.device)
        std::copy_n(all_.data + stage * all_.stride,
                    stride,
                    rows_.data() + static_cast<std::size_t>(stage) * stride);
    all_.data = rows_.data();
  }
  early_totals(early_totals const&) = delete;
  early_totals& operator=(early_totals const&) = delete;

  //! All of them, in the order of the stages; valid as long as this.
  [[nodiscard]] totals const& rows() const noexcept { return all_; }

private:
  std::vector<std::byte> rows_;
  totals all_;
};

//! Steps where the rows so far say that the step is right, unless later ones tell otherwise.
//! The host decides; what a GPU steps with lies in its memory, where missing rows are zeros.
//! @throws what the stage throws.
template <can_step_early Stage>
void step_early(Stage& stage, arena const& memory, context const& where) {
  early_totals const known(memory);
  if (stage.accepts(where, known.rows()))
    stage.optimizer_step(where, memory.host_rows == nullptr ? known.rows() : memory.all_totals());
}

//! Looks at the step with all rows, and makes it right.
//! @return false where it was not: forward passes that have run since must run again.
//! @throws what the stage throws.
template <can_step_early Stage>
[[nodiscard]] bool validate_step(Stage& stage, arena const& memory, context const& where) {
  if (stage.accepts(where, memory.readable_totals()))
    return true;
  early_totals const known(memory);
  stage.roll_back(where, stage.accepts(where, known.rows()));
  stage.optimizer_step(where, memory.all_totals());
  if (memory.work.validation == step_validation::both) // the last plan begins nothing
    stage.begin_iteration(where);
  return false;
}

} // namespace pipelining::inline v0_3::detail
