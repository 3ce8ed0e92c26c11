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

namespace detail {

//! The extents that the rules below ask for, worked out once for loops over many passes.
struct pass_extents {
  int stages;
  int chunks;
  int units;
};

[[nodiscard]] constexpr pass_extents pass_extents_of(shape const& extents) noexcept {
  return {stages(extents), extents.chunks, units(extents)};
}

//! No such line, or no such unit.
inline constexpr int nothing_before = -1;

//! A pass and its neighbours in the graph of dependencies. A line is what `pass_index` counts
//! before units: a row (forward, gradient of the input, gradient of the weights) of a stage.
struct pass_links {
  int line;
  int unit;
  int input_line;  //!< of what it waits for of its own unit, or `nothing_before`
  int input_stage; //!< the stage of `input_line`
  int chunk_unit;  //!< what it waits for on its own line, or `nothing_before`
  int user_stage;  //!< the stage whose pass of the same unit waits for it; its own where none does
};

//! The rules of dependencies, in one call without inner calls: compilers take microseconds for
//! each.
[[nodiscard]] constexpr pass_links links_of(pass_extents const& extents,
                                            pass const& what) noexcept {
  int const stage = what.stage;
  int const chunk = what.chunk;
  int const unit = what.microbatch * extents.chunks + chunk;
  if (what.kind == pass_kind::forward)
    return {stage,
            unit,
            stage - 1, // nothing before the first stage
            stage - 1,
            chunk > 0 ? unit - 1 : nothing_before,
            stage + 1 < extents.stages ? stage + 1 : stage};
  int const gradient = stage + extents.stages;
  if (what.kind == pass_kind::backward_weight)
    return {gradient + extents.stages, unit, gradient, stage, nothing_before, stage};
  bool const last = stage + 1 == extents.stages;
  return {gradient,
          unit,
          last ? stage : gradient + 1,
          last ? stage : stage + 1,
          chunk + 1 < extents.chunks ? unit + 1 : nothing_before,
          stage > 0 ? stage - 1 : 0};
}

} // namespace detail

//! @brief The passes that `what` waits for.
//!
//! A forward pass waits for the stage before it and for the chunk before it (whose keys and values
//! it reads). The gradient of the input waits for the stage after it (on the last stage: for its
//! own forward) and for the chunk after it (whose gradients of keys and values it takes over). The
//! gradient of the weights waits for the gradient of the input of the same unit.
//!
//! @pre contains(extents, what)
//! @complexity O(1)
[[nodiscard]] constexpr dependency_list dependencies(shape const& extents,
                                                     pass const& what) noexcept {
  detail::pass_links const links = detail::links_of(detail::pass_extents_of(extents), what);
  dependency_list result{};
  if (links.input_line != detail::nothing_before) {
    result.index[result.count] = links.input_line * units(extents) + links.unit;
    result.stage[result.count] = links.input_stage;
    ++result.count;
  }
  if (links.chunk_unit != detail::nothing_before) {
    result.index[result.count] = links.line * units(extents) + links.chunk_unit;
    result.stage[result.count] = what.stage;
    ++result.count;
  }
  return result;
}

//! @brief The stage whose pass of the same unit waits for `what`, or `what.stage` itself where that
//! is on this stage.
//! @pre contains(extents, what)
[[nodiscard]] constexpr int consumer_stage(shape const& extents, pass const& what) noexcept {
  return detail::links_of(detail::pass_extents_of(extents), what).user_stage;
}

} // namespace pipelining::inline v0_1
