// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Which passes make something for another device. Header for pipelining::receiver.

#include <pipe/core/pass.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/plan/item.hpp>

namespace pipelining::inline v0_1 {

//! @brief The stage that reads what a pass makes, or `nothing`: the last stage's forward, the first
//! stage's gradient and
//!        weight gradients are read by nobody else.
[[nodiscard]] constexpr int reader_stage(shape const& extents, pass const& maker) noexcept {
  if (maker.kind == pass_kind::forward)
    return maker.stage + 1 < stages(extents) ? maker.stage + 1 : nothing;
  return gives_input_gradient(maker.kind) && maker.stage > 0 ? maker.stage - 1 : nothing;
}

//! @brief The device that a message from `maker` goes to, or `nothing` when nothing leaves the
//! device.
[[nodiscard]] constexpr int receiver(shape const& extents, pass const& maker) noexcept {
  int const reader = reader_stage(extents, maker);
  if (reader == nothing)
    return nothing;
  int const to = device_of(extents, reader, maker.microbatch);
  return to == device_of(extents, maker) ? nothing : to;
}

} // namespace pipelining::inline v0_1
