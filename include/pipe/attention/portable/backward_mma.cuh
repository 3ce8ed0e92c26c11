// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Backward kernel for sm_80 and up: one block per tile of keys and key head.
//!
//! A block keeps its keys and visits the queries of all heads of the group in turn, so that it
//! alone has all that its keys get and adds it to the running gradients once. Products are
//! transposed: rows are keys, so weights never leave the registers. Gradients of the logits do, for
//! dQ alone, which is a sum over blocks: lanes add it to floats in memory, straight from their
//! registers.
//! @source Dao 2023 (FlashAttention-2), section 3.1, for the formulas; the order of dQ as in
//! FlashAttention's deterministic backward

#include <pipe/attention/portable/backward_block.cuh>
#include <pipe/attention/portable/backward_weights.cuh>
#include <pipe/attention/portable/shared_tile.cuh>

#include <cstdint>
#include <type_traits>

namespace pipelining::inline v0_3::attention::detail {

//! Adds a number to memory; does not wait.
__device__ inline void add_one(float* to, float x) {
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)),
               "f"(x)
               : "memory");
}

//! Some columns of eight of a product of 16 rows.
template <int Columns, int All>
__device__ inline auto columns_of(float (&s)[1][All][4], int first) -> float (&)[1][Columns][4] {
  return reinterpret_cast<float(&)[1][Columns][4]>(s[0][first]);
}

//! A block and its sums.
template <int Dim, query_order Order, class Element, mask Mask, score Score>
struct gradient_sums {
  using shape = backward_shape<Dim, Score>;
  static constexpr int tiles = shape::row_tiles;

  backward_block<Dim, Order, Element, Mask, Score> block;
  held_rows<Dim> values;                    // of the warp's keys, where they are held
  float of_key[tiles][shape::width / 8][4]; // not yet times scale
  float of_value[tiles][shape::width / 8][4];

  //! Where the lane's first pair of a part of step n lies.
  __forceinline__ __device__ pair_position first_pair(unsigned n, int part) const {
    auto const here = block.place();
    return {block.batch(),
            block.head(n),
            static_cast<int>(block.c.p.query_offset) + block.first_query(n) + part * shape::part +
              here.column,
            static_cast<int>(block.c.p.key_offset) + block.first_key() + here.row};
  }

  //! Weights and gradients of a part of step n; adds to dV and dK.
  //! @param s products of keys and queries
  __forceinline__ __device__ void
  visit_part(float (&s)[tiles][shape::part / 8][4], unsigned n, int part) {
    auto const& m = block.memory;
    auto const lane = block.lane;
    auto const first_byte = static_cast<std::uint32_t>(part * shape::part * Dim * 2);
    auto const queries = m.queries(n % 2u) + first_byte;
    auto const outputs = m.outputs() + first_byte;
    float d[tiles][shape::part / 8][4] = {};
    if constexpr (shape::holds_values) {
      multiply_held<Element, Dim, shape::part>(d, values, outputs, lane());
    } else {
      multiply_rows<Element, Dim, shape::part>(d, m.values(), block.warp_row(), outputs, lane());
    }
    auto const* const numbers = m.numbers(n % 2u) + (part * shape::part + block.place().column) * 8;
    if (block.told(n) % 2 == 0) {
      auto const at = std::is_same_v<Score, plain> ? pair_position{} : first_pair(n, part);
      make_gradients<true>(s, d, at, 0, 0, block.c, numbers);
    } else {
      auto const here = block.place();
      int const first = block.first_query(n) + part * shape::part + here.column;
      make_gradients<false>(s,
                            d,
                            first_pair(n, part),
                            block.present_keys() - here.row,
                            static_cast<int>(block.c.p.query_length) - first,
                            block.c,
                            numbers);
    }
    std::uint32_t weights[tiles][shape::part / 8][2];
    std::uint32_t gradients[tiles][shape::part / 8][2];
#pragma unroll
    for (int r = 0; r < tiles; ++r) {
      pack_rows<Element>(weights[r], s[r]);
      pack_rows<Element>(gradients[r], d[r]);
      keep_rows<shape::gradient_columns>(
        m.gradients(), block.warp_row() + r * 16, gradients[r], lane(), part * shape::part / 8);
    }
    multiply_across<Element, Dim, shape::part, shape::width>(
      of_value, weights, outputs, block.first_piece(), lane());
    multiply_across<Element, Dim, shape::part, shape::width>(
      of_key, gradients, queries, block.first_piece(), lane());
  }

  //! The same of the whole step.
  __forceinline__ __device__ void visit(unsigned n) {
    auto const keys = block.memory.keys();
    auto const queries = block.memory.queries(n % 2u);
    if constexpr (shape::reads_keys_once) {
      float s[1][shape::step / 8][4] = {};
      multiply_rows<Element, Dim, shape::step>(s, keys, block.warp_row(), queries, block.lane());
#pragma unroll
      for (int part = 0; part < shape::parts; ++part) {
        visit_part(columns_of<shape::part / 8>(s, part * shape::part / 8), n, part);
      }
    } else {
#pragma unroll
      for (int part = 0; part < shape::parts; ++part) {
        float s[tiles][shape::part / 8][4] = {};
        auto const first = queries + static_cast<std::uint32_t>(part * shape::part * Dim * 2);
        multiply_rows<Element, Dim, shape::part>(s, keys, block.warp_row(), first, block.lane());
        visit_part(s, n, part);
      }
    }
  }

  //! dQ of step n: 32 queries and 32 columns of this warp.
  __forceinline__ __device__ void add_queries(unsigned n) const {
    constexpr int row_groups = shape::step / 32;
    auto const& m = block.memory;
    float of_query[2][4][4] = {};
    multiply_transposed<Element, shape::keys, shape::gradient_columns, Dim>(
      of_query,
      shared_address(m.gradients()),
      block.warp() % row_groups * 4,
      m.keys(),
      block.first_piece() + block.warp() / row_groups * 4,
      block.lane());
    if constexpr (Order == query_order::kept) {
      if (block.lane() == 0) {
        wait_for_tile(block.after(n), block.before(n));
      }
      __syncwarp();
    }
    float* const to = block.sums.sums + block.number(n) * (shape::step * Dim) +
                      (block.half() * shape::warps + block.warp()) * (32 * 32) + block.lane();
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      add_one(to + i * 32, of_query[i / 16][i / 4 % 4][i % 4]);
    }
  }

  //! Hands the turn at step n on; after all have added.
  __forceinline__ __device__ void hand_on(unsigned n) const {
    if constexpr (Order == query_order::kept) {
      if (thread_anew() == 0) {
        write_after(block.after(n), block.tile());
      }
    }
  }

  //! Adds the sums of this lane to a running gradient, to which no other block adds.
  __forceinline__ __device__ void add_to(tensor_view<float> const& running,
                                         float const (&sum)[tiles][shape::width / 8][4],
                                         float factor) const {
#pragma unroll
    for (int half = 0; half < 2 * tiles; ++half) {
      int const row = block.place().row + half * 8;
      if (row < block.present_keys()) {
        float* const to = running.row(block.batch(), block.first_key() + row, block.key_head()) +
                          block.half() * shape::width + block.place().column;
#pragma unroll
        for (int n = 0; n < shape::width / 8; ++n) {
          auto* const two = reinterpret_cast<float2*>(to + n * 8);
          float2 before = *two;
          before.x += factor * sum[half / 2][n][half % 2 * 2];
          before.y += factor * sum[half / 2][n][half % 2 * 2 + 1];
          *two = before;
        }
      }
    }
  }

  //! Takes work and brings its keys, values and first step; false where no query sees the keys.
  __forceinline__ __device__ bool start() {
    if (threadIdx.x == 0) {
      block.take_work();
    }
    __syncthreads();
    if (block.warp() == 0) {
      block.find_step(1, 0, 0);
    }
    __syncthreads();
    if (block.told(1) == no_more_tiles) {
      return false;
    }
    block.copy_own(block.memory.keys(), block.c.t.key);
    block.copy_own(block.memory.values(), block.c.t.value);
    if constexpr (!shape::values_lie_on_queries) {
      block.copy_queries(1);
    }
    block.copy_outputs(1);
    end_copies();
    if (block.warp() == 0) {
      block.find_next(2);
    }
    if constexpr (shape::holds_values) {
      wait_for_copies<0>();
      __syncthreads();
      hold_rows<Dim>(values, block.memory.values(), block.warp_row(), block.lane());
    }
    if constexpr (shape::values_lie_on_queries) {
      __syncthreads(); // everybody has its values
      block.copy_queries(1);
      end_copies();
    }
    return true;
  }

  __forceinline__ __device__ void run() {
    if (!start()) {
      return; // the running gradients stay as they are
    }
#pragma unroll
    for (int i = 0; i < tiles * shape::width / 2; ++i) {
      of_key[i / (shape::width / 2)][i / 4 % (shape::width / 8)][i % 4] = 0;
      of_value[i / (shape::width / 2)][i / 4 % (shape::width / 8)][i % 4] = 0;
    }
    unsigned n = 1;
    do {
      wait_for_copies<0>();
      __syncthreads(); // the queries are there, and everybody is done with those before
      if (n > 1) {
        hand_on(n - 1);
      }
      if (block.told(n + 1) != no_more_tiles) {
        block.copy_queries(n + 1);
      }
      end_copies();
      if (block.warp() == 0) {
        block.find_next(n + 2);
      }
      visit(n);
      __syncthreads(); // the gradients are there, and everybody is done with dO
      if (block.told(n + 1) != no_more_tiles) {
        block.copy_outputs(n + 1);
      }
      end_copies();
      add_queries(n);
      ++n;
    } while (block.told(n) != no_more_tiles);
    __syncthreads();
    hand_on(n - 1);
    add_to(block.c.t.key_gradient, of_key, block.c.scale);
    add_to(block.c.t.value_gradient, of_value, 1.0f);
  }
};

//! The work of one block.
template <int Dim, query_order Order, class Element, mask Mask, score Score>
__device__ inline void run_backward_block(backward_call<Element, Mask, Score> const& c,
                                          query_sums const& sums,
                                          unsigned char* memory) {
  gradient_sums<Dim, Order, Element, Mask, Score> all{{c, sums, {memory}}};
  all.run();
}

} // namespace pipelining::inline v0_3::attention::detail
