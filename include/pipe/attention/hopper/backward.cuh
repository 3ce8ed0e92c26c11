// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Backward kernel for sm_90a: one warp copies tiles, two warpgroups multiply them, one warp
//! brings what is known of the queries, one keeps the order of dQ.
//!
//! Blocks stay: each takes the next piece of work until none is left, and brings its tiles while
//! the gradients of the piece before leave.
//!
//! A block keeps 128 keys of one head with their values and visits the queries of all heads of the
//! group, step by step, or of a part of heads and steps where blocks are few, and adds what its
//! keys get to the running gradients once. Products are transposed: rows are keys, so weights never
//! leave the registers. Gradients of the logits do: dK takes them from registers, dQ from shared
//! memory, where both warpgroups put theirs. dQ is a sum over blocks: lanes add it to floats in
//! memory, straight from their registers.
//!
//! Five products of tiles. While the weights are made, dO meets the values; while dQ is added, dK
//! is summed and the next queries meet their keys.
//! @source Dao 2023 (FlashAttention-2), section 3.1, for the formulas; Shah et al. 2024
//! (FlashAttention-3), sections 3.1 and 3.2, for roles and overlap; the order of dQ as in
//! FlashAttention's deterministic backward

#include <pipe/attention/hopper/backward_block.cuh>
#include <pipe/attention/hopper/backward_copies.cuh>
#include <pipe/attention/hopper/backward_steps.cuh>
#include <pipe/attention/hopper/backward_weights.cuh>
#include <pipe/attention/hopper/backward_wide.cuh>
#include <pipe/attention/query_sums.hpp>

#include <cstdint>
#include <type_traits>

namespace pipelining::inline v0_3::attention::detail {

//! One consumer: 64 keys.
template <int Dim, query_order Order, class Element, mask Mask, score Score>
struct key_consumer {
  using shape = hopper_backward_shape<Dim>;

  key_steps<Dim, Order, Element, Mask, Score> steps;
  // Groups that may be under way while gradients are made: that of dV. At 128 the registers do not
  // suffice for it; the other consumer multiplies meanwhile.
  static constexpr int still_open = Dim == 64 ? 1 : 0;
  static constexpr int logits = 32;
  static constexpr int groups_after_queries = 1; // dK

  int turn = 0;                // which place the gradients of a step take
  std::uint32_t gradients[16]; // of the last part of a step
  float of_key[Dim / 2];       // [64, Dim] of the warpgroup, not yet times scale
  float of_value[Dim / 2];     // [64, Dim]
  float of_query[32];          // [64, 64] of this consumer's share of dQ, not yet times scale

  __forceinline__ __device__ void start_logits(float (&s)[logits], int stage) const {
    steps.walk.template start<Element, 0>(s, stage, 0);
  }

  //! Starts dQ: gradients [64 queries, 128 keys] times keys [128, 64]. At head dim 64 a consumer
  //! has half of the queries, else a panel of the head dim. Where heads are not whole panels the
  //! second one multiplies zeros, too: products of two widths in branches would wait for each
  //! other.
  __forceinline__ __device__ void start_queries() {
    int const share = steps.walk.number;
    auto const gradients =
      describe_tile(steps.walk.memory.gradient_piece(turn, Dim == 64 ? share : 0), 16);
    auto const keys =
      describe_tile(steps.walk.memory.own_piece(0, 0) +
                      (Dim == 64 ? 0 : share) * (shape::rows * panel_row_bytes / piece_bytes),
                    16);
#pragma unroll
    for (int n = 0; n < shape::keys / 16; ++n) {
      start_product<Element, true, true>(
        of_query,
        moved(gradients, n * 2 * eight_rows_bytes),
        moved(keys, n / 4 * shape::key_tile_bytes + n % 4 * 2 * eight_rows_bytes),
        n > 0);
    }
    end_products();
    turn ^= 1;
  }

  //! Weights and gradients of a step whose first logits s are under way; adds to dV, and all but
  //! the last part to dK.
  __forceinline__ __device__ void visit_step(float (&s)[logits], int stage, int told) {
    float d[32];
    std::uint32_t weights[16];
#pragma unroll
    for (int part = 0; part < shape::parts; ++part) {
      before_products();
      steps.walk.template start<Element, 1>(d, stage, part);
      wait_for_products<1>(s);
      steps.weigh(s, weights, stage, part, told);
      before_products();
      start_sum<Element>(of_value, weights, steps.walk.memory.step_piece(1, stage, part));
      wait_for_products<still_open>(d);
      make_hopper_gradients<Element>(gradients, s, d, steps.numbers(stage, part, 1));
      steps.walk.keep(gradients, turn, part);
      if (part + 1 < shape::parts) {
        before_products();
        start_sum<Element>(of_key, gradients, steps.walk.memory.step_piece(0, stage, part));
        steps.walk.template start<Element, 0>(s, stage, part + 1);
      }
    }
  }

  //! Starts dQ and the last part of dK of a step.
  __forceinline__ __device__ void start_sums(int stage) {
    start_queries();
    start_sum<Element>(of_key, gradients, steps.walk.memory.step_piece(0, stage, shape::parts - 1));
  }

  //! Where its sums begin.
  __forceinline__ __device__ int query_column() const {
    return steps.walk.number * 64;
  }
  __forceinline__ __device__ static int key_column() {
    return 0;
  }
  __forceinline__ __device__ static int value_column() {
    return 0;
  }
};

//! The work of one block.
template <int Dim, query_order Order, class Element, mask Mask, score Score>
__device__ inline void backward_hopper_block(backward_call<Element, Mask, Score> const& c,
                                             hopper_backward_maps const& maps,
                                             query_sums const& sums,
                                             unsigned char* shared) {
  using shape = hopper_backward_shape<Dim>;
  run_roles<shape, Order == query_order::kept>(
    shared,
    [&](backward_memory<shape> const& memory, bool is_first_lane) {
      using call = backward_call<Element, Mask, Score>;
      copying_warp<shape, Order, call>{c, maps, sums, memory, is_first_lane}.run();
    },
    [&](backward_memory<shape> const& memory, int lane) {
      tell_all_numbers<shape, Order == query_order::free && takes_turns<Order, Mask>>(
        sums, memory, lane);
    },
    [&](backward_memory<shape> const& memory, int lane) {
      if constexpr (Order == query_order::kept) {
        keep_order(sums, memory, lane);
      }
    },
    [&](backward_consumer<shape> const& walk) {
      if constexpr (!shape::is_wide) {
        key_consumer<Dim, Order, Element, Mask, Score> consumer{{c, sums, walk}};
        run_consumer(consumer);
      } else if constexpr (shape::query_dim == shape::value_dim) {
        wide_key_consumer<Dim, -1, Order, Element, Mask, Score> consumer{{c, sums, walk}};
        run_consumer(consumer);
      } else if (walk.number == 0) {
        wide_key_consumer<Dim, 0, Order, Element, Mask, Score> consumer{{c, sums, walk}};
        run_consumer(consumer);
      } else {
        wide_key_consumer<Dim, 1, Order, Element, Mask, Score> consumer{{c, sums, walk}};
        run_consumer(consumer);
      }
    });
}

} // namespace pipelining::inline v0_3::attention::detail
