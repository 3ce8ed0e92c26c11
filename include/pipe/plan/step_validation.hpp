// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief When stages learn whether the step of the optimizer was right. Header for
//! pipelining::step_validation.

#include <cstdint>

namespace pipelining::inline v0_3 {

//! @brief Where a plan with totals validates the step of the optimizer.
//!
//! At once: all rows reach all stages before any steps, so every device waits for the last one.
//! Afterwards: rows go from device 0 to the last one; each device steps as soon as it has the rows
//! of the devices before it, and begins the next iteration. There all rows come back, from the last
//! device to device 0, before its first pass that is no forward pass of its lowest stage. Where
//! they tell that the step was wrong, stages roll back, step anew, and the iteration begins again.
//! @source Qi et al. 2024, Zero Bubble Pipeline Parallelism, section 4 and appendix C
enum class step_validation : std::uint8_t {
  at_once, //!< in the iteration itself
  next,    //!< in the plan that follows; this one finds nothing to validate: the first iteration
  both,    //!< the step of the plan before, and this one's in the plan that follows: all others
  last     //!< the step of the plan before, and nothing else: no passes
};

namespace detail {

//! True where stages step before they have all rows.
[[nodiscard]] constexpr bool steps_early(step_validation when) noexcept {
  return when == step_validation::next || when == step_validation::both;
}

//! True where the step of the plan before is validated.
[[nodiscard]] constexpr bool validates(step_validation when) noexcept {
  return when == step_validation::both || when == step_validation::last;
}

} // namespace detail
} // namespace pipelining::inline v0_3
