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

#include <pipe/attention/kernel/query_sums.cuh>
#include <pipe/attention/kernel/tile_search.cuh>
#include <pipe/attention/kernel/warp_matrix.cuh>
#include <pipe/attention/kernel_call.hpp>
#include <pipe/attention/mask.hpp>
#include <pipe/attention/portable/backward_block.cuh>
#include <pipe/attention/portable/shared_tile.cuh>
#include <pipe/attention/score.hpp>

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

template <int Tiles, int Eights>
__device__ inline void clear(float (&sum)[Tiles][Eights][4]) {
#pragma unroll
  for (int i = 0; i < Tiles * Eights * 4; ++i) {
    sum[i / 4 / Eights][i / 4 % Eights][i % 4] = 0;
  }
}

//! Products to weights (in s) and to gradients of the products (in d, which comes with dO . V).
//! Rows are keys and columns queries.
//! @tparam Whole  every pair of the tile exists and is kept
//! @param first   of the lane's pairs
//! @param rows    that exist, counted from there; columns likewise
//! @param numbers shared memory with two floats of the query of each column, from the lane's first
//! on
template <bool Whole, int Tiles, int Columns, class Call>
__device__ inline void make_gradients(float (&s)[Tiles][Columns][4],
                                      float (&d)[Tiles][Columns][4],
                                      pair_position first,
                                      int rows,
                                      int columns,
                                      Call const& c,
                                      unsigned char const* numbers) {
  constexpr bool is_plain = std::is_same_v<std::remove_cvref_t<decltype(c.f)>, plain>;
  float const factor = is_plain ? c.scale * log2_of_e : log2_of_e;
#pragma unroll
  for (int n = 0; n < Columns; ++n) {
    auto const four = *reinterpret_cast<float4 const*>(numbers + n * 8 * 8);
    float const lse[2] = {four.x, four.z};
    float const mean[2] = {four.y, four.w};
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      int const column = n * 8 + e;
#pragma unroll
      for (int half = 0; half < 2 * Tiles; ++half) {
        int const row = half * 8;
        float& x = s[half / 2][n][half % 2 * 2 + e];
        float& y = d[half / 2][n][half % 2 * 2 + e];
        pair_position const at{first.batch, first.head, first.query + column, first.key + row};
        if (Whole || (row < rows && column < columns && c.m.keep(at))) {
          float const product = x * c.scale;
          float logit = x;
          if constexpr (!is_plain) {
            logit = static_cast<float>(c.f.value(product, at));
          }
          x = power_of_two(logit * factor - lse[e]);
          y = x * (y - mean[e]);
          if constexpr (!is_plain) {
            y *= static_cast<float>(c.f.derivative(product, logit, at));
          }
        } else {
          x = 0;
          y = 0;
        }
      }
    }
  }
}

//! A block and its sums.
template <int Dim, query_order Order, class Element, mask Mask, score Score>
struct gradient_sums {
  using shape = backward_shape<Dim, Score>;
  static constexpr int tiles = shape::row_tiles;

  backward_block<Dim, Order, Element, Mask, Score> block;
  held_rows<shape::value_dim> values;           // of the warp's keys, where they are held
  float of_key[tiles][shape::key_width / 8][4]; // not yet times scale
  float of_value[tiles][shape::value_width / 8][4];

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
    int const first_row = part * shape::part;
    auto const queries = m.queries(n % 2u) + first_row * row_bytes<shape::query_dim>;
    auto const outputs = m.outputs() + first_row * row_bytes<shape::value_dim>;
    float d[tiles][shape::part / 8][4] = {};
    if constexpr (shape::holds_values) {
      multiply_held<Element, shape::value_dim, shape::part>(d, values, outputs, lane());
    } else {
      multiply_rows<Element, shape::value_dim, shape::part>(
        d, m.values(), block.warp_row(), outputs, lane());
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
    multiply_across<Element, shape::value_dim, shape::part, shape::value_width>(
      of_value, weights, outputs, block.first_piece(), lane());
    multiply_across<Element, shape::query_dim, shape::part, shape::key_width>(
      of_key, gradients, queries, block.first_piece(), lane());
  }

  //! The same of the whole step.
  __forceinline__ __device__ void visit(unsigned n) {
    auto const keys = block.memory.keys();
    auto const queries = block.memory.queries(n % 2u);
    if constexpr (shape::reads_keys_once) {
      float s[1][shape::step / 8][4] = {};
      multiply_rows<Element, shape::query_dim, shape::step>(
        s, keys, block.warp_row(), queries, block.lane());
#pragma unroll
      for (int part = 0; part < shape::parts; ++part) {
        visit_part(columns_of<shape::part / 8>(s, part * shape::part / 8), n, part);
      }
    } else {
#pragma unroll
      for (int part = 0; part < shape::parts; ++part) {
        float s[tiles][shape::part / 8][4] = {};
        auto const first = queries + part * shape::part * row_bytes<shape::query_dim>;
        multiply_rows<Element, shape::query_dim, shape::part>(
          s, keys, block.warp_row(), first, block.lane());
        visit_part(s, n, part);
      }
    }
  }

  //! Waits for the turn of this block to add to the dQ of step n; by a warp.
  __forceinline__ __device__ void wait_for_turn(unsigned n) const {
    if constexpr (Order == query_order::kept) {
      if (block.lane() == 0) {
        wait_for_tile(block.after(n), block.before(n));
      }
      __syncwarp();
    }
  }
  //! Where this lane's sums of dQ of step n begin.
  __forceinline__ __device__ float* sums_of(unsigned n) const {
    return block.sums.sums + block.number(n) * (shape::step * shape::query_dim) + block.lane();
  }

  //! dQ of step n: 32 queries and 32 columns of this warp.
  __forceinline__ __device__ void add_queries(unsigned n) const {
    constexpr int row_groups = shape::step / 32;
    auto const& m = block.memory;
    float of_query[2][4][4] = {};
    multiply_transposed<Element, shape::keys, shape::gradient_columns, shape::query_dim>(
      of_query,
      shared_address(m.gradients()),
      block.warp() % row_groups * 4,
      m.keys(),
      block.first_piece() + block.warp() / row_groups * 4,
      block.lane());
    wait_for_turn(n);
    float* const to = sums_of(n) + (block.half() * shape::warps + block.warp()) * (32 * 32);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      add_one(to + i * 32, of_query[i / 16][i / 4 % 4][i % 4]);
    }
  }

  //! Adds 16 queries of this warp and Groups groups of 16 columns, from `first` on, Apart apart.
  //! @param whole false: the last group is not there
  //! @param waits for the turn of this block before it adds
  template <int Groups, int Apart>
  __forceinline__ __device__ void
  add_groups(unsigned n, int first, bool whole, bool waits = true) const {
    auto const& m = block.memory;
    int const rows = block.warp() % (shape::step / 16);
    float of_query[1][2 * Groups][4] = {};
    multiply_transposed<Element, shape::keys, shape::gradient_columns, shape::query_dim, 2 * Apart>(
      of_query, shared_address(m.gradients()), rows * 2, m.keys(), first * 2, block.lane(), whole);
    if (waits) {
      wait_for_turn(n);
    }
    float* const to = sums_of(n) + (rows * (shape::query_dim / 16) + first) * 256;
#pragma unroll
    for (int group = 0; group < Groups; ++group) {
      if (group < Groups - 1 || whole) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          add_one(to + group * (Apart * 256) + i * 32, of_query[0][2 * group + i / 4][i % 4]);
        }
      }
    }
  }

  //! dQ of step n for head dims that are not made of squares of 32: 16 queries of this warp. Two
  //! warps share their columns: every other group of 16, or every other two, one after the other,
  //! where registers are short.
  __forceinline__ __device__ void add_rows_of_queries(unsigned n) const {
    constexpr int row_tiles = shape::step / 16;
    constexpr int groups = shape::query_dim / 16;
    static_assert(shape::warps == 2 * row_tiles && shape::halves == 1);
    int const second = block.warp() / row_tiles;
    if constexpr (shape::wide) {
#pragma unroll
      for (int pair = 0; pair < groups / 4; ++pair) {
        add_groups<2, 1>(n, (second + pair * 2) * 2, true, pair == 0);
      }
    } else {
      add_groups<(groups + 1) / 2, 2>(n, second, groups % 2 == 0 || second == 0);
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
  template <int Eights>
  __forceinline__ __device__ void add_to(tensor_view<float> const& running,
                                         float const (&sum)[tiles][Eights][4],
                                         float factor) const {
#pragma unroll
    for (int half = 0; half < 2 * tiles; ++half) {
      int const row = block.place().row + half * 8;
      if (row < block.present_keys()) {
        float* const to = running.row(block.batch(), block.first_key() + row, block.key_head()) +
                          block.half() * (Eights * 8) + block.place().column;
#pragma unroll
        for (int n = 0; n < Eights; ++n) {
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
      block.find_step(1, 0, block.sums.steps - 1);
    }
    __syncthreads();
    if (block.told(1) == no_more_tiles) {
      return false;
    }
    block.template copy_own<shape::query_dim>(block.memory.keys(), block.c.t.key);
    block.template copy_own<shape::value_dim>(block.memory.values(), block.c.t.value);
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
      hold_rows<shape::value_dim>(values, block.memory.values(), block.warp_row(), block.lane());
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
    clear(of_key);
    clear(of_value);
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
      if constexpr (sums_are_squares<shape::query_dim>) {
        add_queries(n);
      } else {
        add_rows_of_queries(n);
      }
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
