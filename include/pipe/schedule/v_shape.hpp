// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief V shapes. Header for pipelining::VShape, VMin, VHalf, VZeroBubble, OneFOneBV and
//! ZeroBubbleV.

#include <pipe/flow/shape.hpp>
#include <pipe/schedule/block/building_block.hpp>
#include <pipe/schedule/block/repeat.hpp>
#include <pipe/schedule/block/timeline.hpp>
#include <pipe/schedule/block/v_search.hpp>

namespace pipelining::inline v0_3 {

//! @brief Half of 1F1B's memory: floor((P + 2) / 2) activations of a device's share of the model.
//! The bubble stays bounded in M while W + 2 I >= 2 F and W + 2 F >= 2 I.
inline constexpr offsets v_half_offsets{.forward_down = 2,
                                        .forward_up = 1,
                                        .backward_down = 2,
                                        .backward_up = 1,
                                        .forward_turn = 2,
                                        .backward_turn = 1};

//! @brief No bubble on the span with unit costs and M >= 2P - 1, at 1F1B's memory.
inline constexpr offsets v_zero_bubble_offsets{.forward_down = 4,
                                               .forward_up = 2,
                                               .backward_down = 4,
                                               .backward_up = 2,
                                               .forward_turn = 1,
                                               .backward_turn = 1};

namespace detail {

//! The least memory of the family: floor((P + 4) / 3) activations of a device's share of the
//! model, about a third of 1F1B's. Bubble with unit costs 6P - 1 - 3 (2 floor((P + 4) / 3)).
inline constexpr offsets v_min_offsets{.forward_down = 1,
                                       .forward_up = 1,
                                       .backward_down = 1,
                                       .backward_up = 1,
                                       .forward_turn = 1,
                                       .backward_turn = 1};

//! The block of a V with these offsets: as integers, since nvcc 13.0 loses a parameter that is a
//! class where the block is itself a parameter.
template <int... Numbers>
struct v_offsets_block {
  static constexpr int stages_per_device = 2;
  static constexpr bool fused = false;
  static constexpr void lay_out(building_block& block) { v_strides({Numbers...}).lay_out(block); }
};

template <offsets Offsets>
using v_block = v_offsets_block<Offsets.forward_down,
                                Offsets.forward_up,
                                Offsets.backward_down,
                                Offsets.backward_up,
                                Offsets.forward_turn,
                                Offsets.loss_turn,
                                Offsets.backward_turn>;

//! The block of V-Min; where it holds as much as that of V-ZB, on one and two devices, it is that.
struct v_min_block {
  static constexpr int stages_per_device = 2;
  static constexpr bool fused = false;
  static constexpr void lay_out(building_block& block) {
    v_strides(v_min_offsets).lay_out(block);
    if (peak_of(block) == block.extents.stages())
      v_strides(v_zero_bubble_offsets).lay_out(block);
  }
};

//! The block of 1F1B-V: forward passes one slot apart, backward passes as soon as they fit;
//! the loss turn that holds the least.
inline constexpr strides<2> one_f_one_b_v_strides{
  .fused = true, .stride = {1, 1, 0, 0}, .gap = {0, 1, 0, 2}};

struct zero_bubble_v_block {
  static constexpr int stages_per_device = 2;
  static constexpr bool fused = false;
  static constexpr void lay_out(building_block& block) {
    v_strides(v_zero_bubble_offsets).lay_out(block);
  }
  //! Writes the hand-made order, where there are no chunks.
  static constexpr void write(timeline& line) {
    line.problem.limit = line.stages + 2 * (line.chunks - 1);
    for (int device = 0; line.chunks == 1 && device < line.problem.devices(); ++device)
      write_zero_bubble_v(line, device);
  }
};

} // namespace detail

//! @brief Two stages per device in a V; the structural offsets of one microbatch set the memory.
//!
//! The order looks at the costs: where they are not those of the papers, a search goes on from the
//! five sweeps, which takes a program. `SweptVShape` stops after the sweeps and is the same in the
//! compiler and in the program. Any P >= 1, M >= 1.
//!
//! Bubble with unit costs, M >= 2P, peak m chunks of activations:
//! max(6P - 1 - 3m, 4P - 3m + 2 ceil(m / 2), 0).
//!
//! @tparam Offsets the structure of the block. @tparam Chunks chunks of a sequence, or `dynamic`.
//! @throws std::invalid_argument (generate) when no gaps keep the passes of a device apart.
//! @complexity as `Repeat`.
//! @source as `Repeat`.
template <offsets Offsets, int Chunks = 1>
using VShape = Repeat<detail::v_block<Offsets>, waves, Chunks, effort::search>;

//! @brief V-Min: the offsets `v_min_offsets`, and on two devices, where they save nothing, those of
//! V-ZB.
template <int Chunks = 1, effort How = effort::search>
using VMinChunked = Repeat<detail::v_min_block, waves, Chunks, How>;

using VMin = VMinChunked<>; //!< @brief The least memory of the family, about a third of 1F1B's.
using VHalf = VShape<v_half_offsets>; //!< @brief About half of 1F1B's memory.
//! @brief The memory of 1F1B and, with unit costs, no bubble on the span.
using VZeroBubble = VShape<v_zero_bubble_offsets>;

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

//! @brief The V shape without a bubble on the span: ZB-V, at 1F1B's memory.
//!
//! Starts from the hand-made order and reorders it for the costs, at most 2P chunks of activations.
//! With unit costs and M >= 2P - 1: span without bubble, makespan (P - 1) F over the work. With
//! unequal times or latency a search goes on from there, in the program; `SweptZeroBubbleV` has
//! none. Any P >= 1, M >= 1.
//!
//! With chunks it starts from the block of `VZeroBubble` instead and holds 2 (C - 1) chunks more.
//!
//! @tparam Chunks chunks of a sequence, or `dynamic`.
//! @complexity as `Repeat`.
//! @source Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 6 (ZB-V), for the
//! start.
template <int Chunks = 1, effort How = effort::search>
using ZeroBubbleVChunked = Repeat<detail::zero_bubble_v_block, waves, Chunks, How>;

using ZeroBubbleV = ZeroBubbleVChunked<>; //!< @brief The same without chunks of sequences.
namespace detail {

//! VShape without a search.
template <offsets Offsets, int Chunks = 1>
using SweptVShape = Repeat<v_block<Offsets>, waves, Chunks, effort::sweeps>;

using SweptVMin = VMinChunked<1, effort::sweeps>; //!< @brief Without a search for real costs.
using SweptVHalf = SweptVShape<v_half_offsets>;   //!< @brief Without a search for real costs.
//! Without a search for real costs.
using SweptVZeroBubble = SweptVShape<v_zero_bubble_offsets>;
//! Without a search for real costs.
using SweptZeroBubbleV = ZeroBubbleVChunked<1, effort::sweeps>;

} // namespace detail

} // namespace pipelining::inline v0_3
