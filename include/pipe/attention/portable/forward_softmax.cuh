// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Logits and online softmax on the accumulators of mma.sync, and what becomes of them.

#include <pipe/attention/kernel/kept_pairs.cuh>
#include <pipe/attention/kernel/tile_search.cuh>
#include <pipe/attention/kernel/warp_matrix.cuh>
#include <pipe/attention/mask.hpp>
#include <pipe/attention/parameters.hpp>
#include <pipe/attention/portable/shared_tile.cuh>
#include <pipe/attention/score.hpp>

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace pipelining::inline v0_3::attention::detail {

//! Products to logits.
//! @param at of the lane's first row and column
template <bool Whole, int Columns, int Tiles, score Score>
__device__ inline void make_logits(float (&s)[Tiles][Columns / 8][4],
                                   std::uint32_t const (&kept)[2 * Tiles],
                                   pair_position at,
                                   float scale,
                                   Score const& f) {
  constexpr bool is_plain = std::is_same_v<Score, plain>;
  if constexpr (!Whole || !is_plain) {
    // Columns outside, so that few of their numbers live at a time.
#pragma unroll
    for (int n = 0; n < Columns / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
#pragma unroll
        for (int half = 0; half < 2 * Tiles; ++half) {
          float& x = s[half / 2][n][half % 2 * 2 + e];
          bool const is_kept = Whole || (kept[half] >> (2 * n + e) & 1) != 0;
          if constexpr (is_plain) {
            x = is_kept ? x : -INFINITY;
          } else {
            pair_position const here{at.batch, at.head, at.query + half * 8, at.key + n * 8 + e};
            x = is_kept ? static_cast<float>(f.value(x * scale, here)) : -INFINITY;
          }
        }
      }
    }
  }
}

//! Online softmax of the rows that a lane shares with three others.
template <int Tiles, int Dim>
struct softmax_state {
  float sum_of_values[Tiles][Dim / 8][4]; // [16 Tiles, Dim], not yet divided by sum
  float most[Tiles][2];                   // in units of the logits handed to add
  float sum[Tiles][2];                    // of this lane alone

  float base[Tiles][2]; // of the weights under way, in powers of two

  //! Takes logits into the maxima and scales what was summed up to the new ones.
  template <int Columns>
  __device__ inline void raise(float const (&s)[Tiles][Columns / 8][4], float factor) {
    float shrink[Tiles][2];
    bool grows = false;
#pragma unroll
    for (int r = 0; r < Tiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = most[r][half];
#pragma unroll
        for (int n = 0; n < Columns / 8; ++n) {
          top = fmaxf(top, fmaxf(s[r][n][2 * half], s[r][n][2 * half + 1]));
        }
        top = largest_of_row(top);
        base[r][half] = top == -INFINITY ? 0.0f : top * factor;
        shrink[r][half] = power_of_two(most[r][half] * factor - base[r][half]);
        grows = grows || top != most[r][half];
        most[r][half] = top;
        sum[r][half] *= shrink[r][half];
      }
    }
    if (__any_sync(0xffffffffu, grows)) { // maxima soon stay as they are
#pragma unroll
      for (int r = 0; r < Tiles; ++r) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int n = 0; n < Dim / 8; ++n) {
            sum_of_values[r][n][2 * half] *= shrink[r][half];
            sum_of_values[r][n][2 * half + 1] *= shrink[r][half];
          }
        }
      }
    }
  }

  //! Turns logits of 16 columns to weights; factor takes them to powers of two.
  template <int Columns>
  __device__ inline void
  weigh(float (&s)[Tiles][Columns / 8][4], std::uint32_t step, float factor) {
#pragma unroll
    for (int r = 0; r < Tiles; ++r) {
#pragma unroll
      for (std::uint32_t n = 2 * step; n < 2 * step + 2; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          s[r][n][e] = power_of_two(s[r][n][e] * factor - base[r][e / 2]);
          sum[r][e / 2] += s[r][n][e];
        }
      }
    }
  }
};

//! Starts from nothing, or from the (O, log-sum-exp) of other keys where these are carried in.
template <int Tiles, int Dim, class Block>
__device__ __forceinline__ void
start_softmax(softmax_state<Tiles, Dim>& state, Block const& block, float factor) {
  auto const& c = block.c;
  using element = std::remove_pointer_t<decltype(c.t.output.data)>;
  int const batch = block.batch();
  int const head = block.head();
  int const first = block.first();
  auto const lane = block.place();
  int const rows = block.rows();
  bool const is_carried = !Block::is_split && c.p.from == carry::in;
#pragma unroll
  for (int r = 0; r < Tiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const row = lane.row + r * 16 + half * 8;
      bool const carried = is_carried && row < rows;
      float const lse = carried ? c.t.log_sum_exp.at(batch, head, first + row) : -INFINITY;
      bool const some = lse != -INFINITY;
      state.most[r][half] = some ? lse * log2_of_e / factor : -INFINITY;
      state.sum[r][half] = some && lane.column == 0 ? 1.0f : 0.0f;
#pragma unroll
      for (int n = 0; n < Dim / 8; ++n) {
        float2 before{0, 0};
        if (some) {
          element const* const from = c.t.output.row(batch, first + row, head);
          before =
            unpack<element>(*reinterpret_cast<std::uint32_t const*>(from + n * 8 + lane.column));
        }
        state.sum_of_values[r][n][2 * half] = before.x;
        state.sum_of_values[r][n][2 * half + 1] = before.y;
      }
    }
  }
}

//! Divides by the sums and writes O and the log-sum-exp of the rows of a warp, by way of the
//! block's shared memory, of which the warp uses its own rows.
template <int Tiles, int Dim, class Block>
__device__ __forceinline__ void
finish_softmax(softmax_state<Tiles, Dim>& state, Block const& block, float factor) {
  auto const& c = block.c;
  using element = std::remove_pointer_t<decltype(c.t.output.data)>;
  int const batch = block.batch();
  int const head = block.head();
  int const first = block.first();
  int const warp_row = block.warp_row();
  int const rows = block.rows();
  int const lane = block.lane();
#pragma unroll
  for (int r = 0; r < Tiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const row = warp_row + r * 16 + lane / 4 + half * 8;
      float const sum = sum_of_row(state.sum[r][half]);
      float const share = sum > 0 ? 1 / sum : 0.0f;
#pragma unroll
      for (int n = 0; n < Dim / 8; ++n) {
        state.sum_of_values[r][n][2 * half] *= share;
        state.sum_of_values[r][n][2 * half + 1] *= share;
      }
      if (lane % 4 == 0 && row < rows) {
        c.t.log_sum_exp.at(batch, head, first + row) =
          sum > 0 ? state.most[r][half] * factor * ln_of_2 + logf(sum) : -INFINITY;
      }
    }
    std::uint32_t packed[Dim / 8][2];
    pack_rows<element>(packed, state.sum_of_values[r]);
    keep_rows<Dim>(block.memory, warp_row + r * 16, packed, lane);
  }
  __syncwarp();
  store_rows<Tiles * 16, Dim>(block.memory,
                              warp_row,
                              c.t.output.row(batch, first, head),
                              c.t.output.length_stride,
                              rows,
                              lane);
}

//! The same for a part of the keys: to scratch, in float.
template <int Tiles, int Dim, class Block>
requires(Block::is_split) __device__ __forceinline__
  void finish_softmax(softmax_state<Tiles, Dim>& state, Block const& block, float factor) {
  auto const& p = block.c.p;
  auto const& splits = block.splits;
  auto const first_row =
    ((block.part() * p.batch + block.batch()) * p.heads + block.head()) * p.query_length +
    block.first();
  auto const lane = block.place();
  int const rows = block.rows();
#pragma unroll
  for (int r = 0; r < Tiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const row = lane.row + r * 16 + half * 8;
      float const sum = sum_of_row(state.sum[r][half]);
      float const share = sum > 0 ? 1 / sum : 0.0f;
      if (row < rows) {
        auto const at = first_row + row;
        if (lane.column == 0) {
          splits.log_sum_exp[at] =
            sum > 0 ? state.most[r][half] * factor * ln_of_2 + logf(sum) : -INFINITY;
        }
#pragma unroll
        for (int n = 0; n < Dim / 8; ++n) {
          *reinterpret_cast<float2*>(splits.output + at * Dim + n * 8 + lane.column) = {
            state.sum_of_values[r][n][2 * half] * share,
            state.sum_of_values[r][n][2 * half + 1] * share};
        }
      }
    }
  }
}

} // namespace pipelining::inline v0_3::attention::detail
