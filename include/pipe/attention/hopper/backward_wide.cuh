// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Consumers of the backward kernel for Hopper above head dim 128.
//!
//! A warpgroup's registers hold dK and dV of 64 keys for half of the head dim, so both consumers
//! have the same keys: each makes the weights of half of the queries of a step, puts weights and
//! gradients of the logits in shared memory, and then multiplies those of all queries with its part
//! of the head dim: half of 256. Of 192 with values of 128 one has 128 columns of dQ and dK, the
//! other the last 64 and all of dV: as many products each.
//! @source Shah et al. 2024 (FlashAttention-3): two warpgroups share dK and dV of a narrow tile at
//! head dim 256

#include <pipe/attention/hopper/backward_block.cuh>
#include <pipe/attention/hopper/backward_steps.cuh>
#include <pipe/attention/hopper/backward_weights.cuh>
#include <pipe/attention/query_sums.hpp>

#include <cstdint>

namespace pipelining::inline v0_3::attention::detail {

//! One consumer: a part of the head dim.
//! @tparam Share number of the consumer where parts differ, else -1
template <int Dim, int Share, query_order Order, class Element, mask Mask, score Score>
struct wide_key_consumer {
  using shape = hopper_backward_shape<Dim>;
  static constexpr int key_width = Share == 1 ? 64 : 128;  // columns of dQ and dK
  static constexpr int value_width = Share == 0 ? 0 : 128; // columns of dV
  static constexpr int logits = 16;
  static constexpr int groups_after_queries = value_width == 0 ? 1 : 2; // dV, dK
  enum place : std::uint8_t { of_weights, of_gradients };

  key_steps<Dim, Order, Element, Mask, Score> steps;
  int turn = 0;                                           // which places a step takes
  float of_key[key_width / 2];                            // [64, key_width], not yet times scale
  float of_value[value_width == 0 ? 1 : value_width / 2]; // [64, value_width]
  float of_query[key_width / 2]; // [64, key_width] of dQ of a step, not yet times scale

  //! Where this consumer's columns begin.
  __forceinline__ __device__ int key_column() const {
    return Share == -1 ? steps.walk.number * 128 : Share * 128;
  }
  __forceinline__ __device__ int value_column() const {
    return Share == -1 ? steps.walk.number * 128 : 0;
  }

  __forceinline__ __device__ int query_column() const { return key_column(); }

  __forceinline__ __device__ void start_logits(float (&s)[logits], int stage) const {
    steps.walk.template start<Element, 0>(s, stage, steps.walk.number);
  }

  //! The panels from a column on in a tile of 64 rows.
  __forceinline__ __device__ static std::uint32_t panels_of(std::uint32_t tile, int column) {
    constexpr int bytes = 64 * panel_row_bytes;
    return describe_tile(tile + column * (bytes / panel_width / piece_bytes), bytes);
  }

  //! Starts dQ: gradients [64 queries, 64 keys] times keys [64, key_width].
  __forceinline__ __device__ void start_queries() {
    auto const gradients = describe_tile(steps.walk.memory.gradient_piece(turn, of_gradients), 16);
    auto const keys = panels_of(steps.walk.memory.own_piece(0, 0), key_column());
#pragma unroll
    for (int n = 0; n < shape::keys / 16; ++n) {
      start_product<Element, true, true>(of_query,
                                         moved(gradients, n * 2 * eight_rows_bytes),
                                         moved(keys, n * 2 * eight_rows_bytes),
                                         n > 0);
    }
    end_products();
  }

  //! Starts sum += what a place has [64 keys, 64 queries] times columns of queries, or of dO.
  template <int Count>
  __forceinline__ __device__ void
  start_keys(float (&sum)[Count], place where, int stage, int column) {
    auto const left = describe_tile(steps.walk.memory.gradient_piece(turn, where), 16);
    auto const right =
      panels_of(steps.walk.memory.step_piece(where == of_weights ? 1 : 0, stage, 0), column);
#pragma unroll
    for (int n = 0; n < shape::step / 16; ++n) {
      start_product<Element, false, true>(
        sum, moved(left, n * 32), moved(right, n * 2 * eight_rows_bytes), true);
    }
    end_products();
  }

  //! Weights and gradients of a step whose logits s are under way.
  __forceinline__ __device__ void visit_step(float (&s)[logits], int stage, int told) {
    int const part = steps.walk.number;
    float d[16];
    std::uint32_t packed[8];
    before_products();
    steps.walk.template start<Element, 1>(d, stage, part);
    wait_for_products<1>(s);
    steps.weigh(s, packed, stage, part, told);
    steps.walk.keep(packed, turn, of_weights);
    wait_for_products<0>(d);
    make_hopper_gradients<Element>(packed, s, d, steps.numbers(stage, part, 1));
    steps.walk.keep(packed, turn, of_gradients);
  }

  //! Starts all that follows from the weights of a step.
  __forceinline__ __device__ void start_sums(int stage) {
    start_queries();
    if constexpr (value_width != 0) {
      start_keys(of_value, of_weights, stage, value_column());
    }
    start_keys(of_key, of_gradients, stage, key_column());
    turn ^= 1;
  }
};

} // namespace pipelining::inline v0_3::attention::detail
