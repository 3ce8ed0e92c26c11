// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Forward kernel for sm_80 and up: one block per tile of queries and head, four warps.
//!
//! While values are summed up, their weights are made, and the next keys travel, and their values
//! where there is a second place for them; else these travel while keys are multiplied.
//! @source Dao 2023 (FlashAttention-2), section 3; the carry-in start is an own derivation: (O,
//! log-sum-exp) of other keys is the state after a tile whose maximum is the log-sum-exp and whose
//! sum is 1

#include <pipe/attention/portable/forward_block.cuh>
#include <pipe/attention/portable/forward_softmax.cuh>
#include <pipe/attention/portable/shared_tile.cuh>

#include <cstdint>
#include <type_traits>

namespace pipelining::inline v0_3::attention::detail {

//! The work of one block.
template <class Shape, class Element, mask Mask, score Score, class Splits>
__device__ inline void run_forward_block(forward_call<Element, Mask, Score> const& c,
                                         Splits const& splits,
                                         unsigned char* memory) {
  using shape = Shape;
  constexpr int tiles = shape::row_tiles;
  constexpr bool is_plain = std::is_same_v<Score, plain>;
  forward_block<Shape, Element, Mask, Score, Splits> const block{c, splits, memory};
  float const factor = is_plain ? c.scale * log2_of_e : log2_of_e;
  if (threadIdx.x == 0) {
    block.take_work();
  }
  __syncthreads(); // the work is told
  softmax_state<tiles, shape::value_dim> state;
  start_softmax(state, block, factor);
  auto now = block.find_keys(block.first_tile());
  auto values = block.values(0);
  auto other_values = block.values(shape::value_places - 1);
  block.copy_queries();
  block.copy_keys(now / 2, values);
  int const lane = block.lane();
  int const warp_row = block.warp_row();
  while (block.is_tile(now)) {
    wait_for_copies<shape::value_places - 1>(); // keys
    __syncthreads();                            // and everybody is done with the values before
    block.copy_late_values(now / 2);
    // Now, not later: products and logits need the registers that this takes.
    auto const next = block.find_keys(now / 2 + 1);
    // Rows that do not exist only matter to scores, which may read tables of positions.
    bool const whole = now % 2 == 0 && (is_plain || block.rows() == shape::queries);
    std::uint32_t kept[2 * tiles];
    if (!whole) {
      block.ask_pairs(kept, now / 2);
    }
    float s[tiles][shape::keys / 8][4] = {};
    multiply_rows<Element, shape::query_dim, shape::keys>(
      s, block.queries(), warp_row, block.keys(), lane);
    wait_for_copies<0>(); // values
    __syncthreads();      // and everybody is done with the keys
    auto const at = is_plain ? pair_position{} : block.first_pair(now / 2);
    if (whole) {
      make_logits<true, shape::keys>(s, kept, at, c.scale, c.f);
    } else {
      make_logits<false, shape::keys>(s, kept, at, c.scale, c.f);
    }
    state.template raise<shape::keys>(s, factor);
    multiply_across<Element, shape::value_dim, shape::keys, shape::value_dim>(
      state.sum_of_values, s, values, 0, block.lane(), [&](std::uint32_t step) {
        state.template weigh<shape::keys>(s, step, factor);
        if (step == (shape::keys > 16 ? 1 : 0)) { // then logits have left registers for addresses
          block.copy_keys(next / 2, other_values);
        }
      });
    now = next;
    auto const used = values;
    values = other_values;
    other_values = used;
  }
  wait_for_copies<0>(); // queries, where there was no tile of keys
  __syncthreads();
  finish_softmax(state, block, factor);
}

} // namespace pipelining::inline v0_3::attention::detail
