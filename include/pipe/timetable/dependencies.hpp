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

//! The strides of `pass_index`, worked out once for loops over many passes.
struct pass_strides {
  int stages;
  int chunks;
  int stage; //!< from a pass to that of the same unit on the next stage
  int row;   //!< from a forward pass to its input gradient, and from that to the weights' gradient
};

[[nodiscard]] constexpr pass_strides strides_of(shape const& extents) noexcept {
  return {stages(extents), extents.chunks, units(extents), stages(extents) * units(extents)};
}

//! No such pass.
inline constexpr int no_pass = -1;

//! A pass and its neighbours in the graph of dependencies, as values of `pass_index`.
struct pass_links {
  int index;       //!< of the pass itself
  int input;       //!< what it waits for of its own unit, or `no_pass`
  int input_stage; //!< the stage that runs `input`
  int chunk;       //!< what it waits for of the neighbouring chunk on its own stage, or `no_pass`
  int user_stage;  //!< the stage whose pass of the same unit waits for it; its own where none does
};

//! The rules of `dependencies` and `consumer_stage` in one call without inner calls: compilers take
//! microseconds for each, and do this for every pass.
[[nodiscard]] constexpr pass_links links_of(pass_strides const& strides,
                                            pass const& what) noexcept {
  int const stage = what.stage;
  int const chunk = what.chunk;
  int const forward = stage * strides.stage + what.microbatch * strides.chunks + chunk;
  if (what.kind == pass_kind::forward)
    return {forward,
            stage > 0 ? forward - strides.stage : no_pass,
            stage - 1,
            chunk > 0 ? forward - 1 : no_pass,
            stage + 1 < strides.stages ? stage + 1 : stage};
  int const gradient = forward + strides.row;
  if (what.kind == pass_kind::backward_weight)
    return {gradient + strides.row, gradient, stage, no_pass, stage};
  bool const last = stage + 1 == strides.stages;
  return {gradient,
          last ? forward : gradient + strides.stage,
          last ? stage : stage + 1,
          chunk + 1 < strides.chunks ? gradient + 1 : no_pass,
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
  detail::pass_links const links = detail::links_of(detail::strides_of(extents), what);
  dependency_list result{};
  if (links.input != detail::no_pass) {
    result.index[result.count] = links.input;
    result.stage[result.count] = links.input_stage;
    ++result.count;
  }
  if (links.chunk != detail::no_pass) {
    result.index[result.count] = links.chunk;
    result.stage[result.count] = what.stage;
    ++result.count;
  }
  return result;
}

//! @brief The stage whose pass of the same unit waits for `what`, or `what.stage` itself where that
//! is on this stage.
//! @pre contains(extents, what)
[[nodiscard]] constexpr int consumer_stage(shape const& extents, pass const& what) noexcept {
  return detail::links_of(detail::strides_of(extents), what).user_stage;
}

} // namespace pipelining::inline v0_1
