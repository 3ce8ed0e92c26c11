// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The slots of tied gradients, totals and copies, which are given, not taken.

#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>

#include <cstdint>

namespace pipelining::inline v0_3::detail {

//! True for a step that is not about a pass and fills its slots.
[[nodiscard]] constexpr bool fills_given(item const& step) noexcept {
  return step.what == operation::receive ||
         (step.what == operation::run &&
          (step.about == subject::copied_gradient || step.about == subject::tied_gradient ||
           step.about == subject::contribution));
}

//! The slots that a step uses that is not about a pass. They are given, not taken: both ends of a
//! message use the same.
//! @param rows of totals that a message gathers
[[nodiscard]] constexpr use
given_use(pipeline_view const& over, item const& step, int rows) noexcept {
  int const stage = step.work.stage;
  auto const some = [&](int first, int count) -> use {
    return {class_of(step.about),
            fills_given(step) ? slot_place::outputs : slot_place::inputs,
            static_cast<std::uint16_t>(count),
            first};
  };
  switch (step.about) {
  case subject::copied_gradient:
    return some(copies_below(over, stage, device_of(over, step.work)), 1);
  case subject::add_copies: return some(0, copies_of(over, stage));
  case subject::tied_gradient: return some(stage == 0 ? 0 : 1, 1);
  case subject::add_tied: return some(0, 2);
  case subject::contribution: return some(stage, 1);
  case subject::gather: return some(stage, rows);
  default: return some(0, over.extents.stages());
  }
}

} // namespace pipelining::inline v0_3::detail
