// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Which passes must end before a pass may start. Header for pipelining::dependencies.

#include <pipe/core/pass.hpp>
#include <pipe/core/shape.hpp>

namespace pipelining::inline v0_1 {

//! @brief At most two passes, as their `pass_index`, and the stages that run them.
struct dependency_list {
  int index[2];
  int stage[2];
  int count;
};

//! @brief The passes that `what` waits for.
//!
//! A forward pass waits for the stage before it and for the chunk before it (whose keys and values
//! it reads). The gradient of the input waits for the stage after it (on the last stage: for its
//! own forward) and for the chunk after it (whose gradients of keys and values it takes over). The
//! gradient of the weights waits for the gradient of the input of the same unit.
//!
//! @pre contains(extents, what)
//! @complexity O(1); the simulation lives on it, hence the bare index arithmetic.
[[nodiscard]] constexpr dependency_list dependencies(shape const& extents,
                                                     pass const& what) noexcept {
  int const index = pass_index(extents, what);
  int const per_stage = extents.microbatches * extents.chunks;
  int const stage = what.stage;
  if (what.kind == pass_kind::forward) {
    if (stage == 0)
      return {{index - 1, 0}, {0, 0}, what.chunk > 0 ? 1 : 0};
    return {{index - per_stage, index - 1}, {stage - 1, stage}, what.chunk > 0 ? 2 : 1};
  }
  int const all_stages = stages(extents);
  if (what.kind == pass_kind::backward_weight)
    return {{index - all_stages * per_stage, 0}, {stage, 0}, 1};
  int const count = what.chunk + 1 < extents.chunks ? 2 : 1;
  if (stage + 1 == all_stages)
    return {{index - all_stages * per_stage, index + 1}, {stage, stage}, count};
  return {{index + per_stage, index + 1}, {stage + 1, stage}, count};
}

//! @brief The stage whose pass of the same unit waits for `what`, or `what.stage` itself where that
//! is on this stage.
//! @pre contains(extents, what)
[[nodiscard]] constexpr int consumer_stage(shape const& extents, pass const& what) noexcept {
  if (what.kind == pass_kind::forward)
    return what.stage + 1 < stages(extents) ? what.stage + 1 : what.stage;
  if (what.kind == pass_kind::backward_weight)
    return what.stage;
  return what.stage > 0 ? what.stage - 1 : 0;
}

} // namespace pipelining::inline v0_1
