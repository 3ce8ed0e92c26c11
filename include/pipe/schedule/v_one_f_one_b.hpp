// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief 1F1B on a V, with the backward pass in one piece. Header for pipelining::OneFOneBV.

#include <pipe/schedule/block/building_block.hpp>
#include <pipe/schedule/block/repeat.hpp>

namespace pipelining::inline v0_3 {
namespace detail {

//! The block of 1F1B-V: forward passes one slot apart, backward passes as soon as they fit;
//! the loss turn that holds the least.
inline constexpr strides<2> one_f_one_b_v_strides{
  .fused = true, .stride = {1, 1, 0, 0}, .gap = {0, 1, 0, 2}};

} // namespace detail

//! @brief 1F1B on a V: two thirds of 1F1B's memory without splitting the backward pass.
//!
//! Peak at most 2 ceil((2P + 1) / 3) chunks of activations; bubble with unit costs (backward 2)
//! about 5 (P - 1) chunks of time. Any P >= 1, M >= 1.
//!
//! @tparam Chunks chunks of a sequence, or `dynamic`.
//! @complexity as `Repeat`.
//! @source Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024, appendix
//! (1F1B-V); the layout by first fit is our own.
template <int Chunks = 1>
using OneFOneBVChunked =
  Repeat<fixed_block<detail::one_f_one_b_v_strides>, waves, Chunks, effort::search>;

using OneFOneBV = OneFOneBVChunked<>; //!< @brief The same without chunks of sequences.

} // namespace pipelining::inline v0_3
