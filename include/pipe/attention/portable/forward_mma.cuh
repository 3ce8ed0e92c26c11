// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Forward kernel for sm_80 and up: one block per tile of queries and head, four warps.
//!
//! Values travel while queries meet keys; keys of the next tile travel all the while.
//! @source Dao 2023 (FlashAttention-2), section 3; the carry-in start is an own derivation: (O,
//! log-sum-exp) of other keys is the state after a tile whose maximum is the log-sum-exp and whose
//! sum is 1

#include <pipe/attention/kernel/tile_search.cuh>
#include <pipe/attention/kernel_call.hpp>
#include <pipe/attention/key_splits.hpp>
#include <pipe/attention/portable/shared_tile.cuh>

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace pipelining::inline v0_2::attention {

//! @brief Tile sizes of the forward kernel: the largest that ptxas fits into 255 registers without
//! spills. Scores beside plain need some registers themselves.
template <int Dim, score Score = plain>
struct forward_shape {
  static_assert(Dim == 64 || Dim == 128 || Dim == 256,
                "attention::forward_shape: the head dim must be 64, 128 or 256, because tiles of "
                "other widths are not laid out");
  static constexpr int warps = 4;            //!< of a block
  static constexpr int threads = 32 * warps; //!< of a block
  //! Whether registers suffice for two tiles of queries in a warp.
  static constexpr bool roomy = Dim == 64 || (Dim == 128 && std::is_same_v<Score, plain>);
  static constexpr int row_tiles = roomy ? 2 : 1;        //!< tiles of 16 queries in a warp
  static constexpr int queries = warps * row_tiles * 16; //!< of a block
  //! Keys of one step.
  static constexpr int keys = Dim == 256 ? 32 : Dim == 128 && roomy ? 48 : 64;
  static constexpr int shared_bytes = (queries + 3 * keys) * Dim * 2; //!< keys twice, values once
};

namespace detail {

//! Products to logits. Whole: every pair of the tile exists and is kept.
template <bool Whole, int Columns, int Tiles, mask Mask, score Score>
__device__ inline void make_logits(float (&s)[Tiles][Columns / 8][4],
                                   lane_place lane,
                                   int rows,
                                   int columns,
                                   pair_position origin,
                                   float scale,
                                   Mask const& m,
                                   Score const& f) {
  constexpr bool is_plain = std::is_same_v<Score, plain>;
  if constexpr (!Whole || !is_plain) {
    // Columns outside, so that few of their numbers live at a time.
#pragma unroll
    for (int n = 0; n < Columns / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        int const column = lane.column + n * 8 + e;
#pragma unroll
        for (int half = 0; half < 2 * Tiles; ++half) {
          int const row = lane.row + half * 8;
          float& x = s[half / 2][n][half % 2 * 2 + e];
          pair_position const at{
            origin.batch, origin.head, origin.query + row, origin.key + column};
          bool const kept = Whole || (row < rows && column < columns && m.keep(at));
          if constexpr (is_plain) {
            x = kept ? x : -INFINITY;
          } else {
            x = kept ? static_cast<float>(f.value(x * scale, at)) : -INFINITY;
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

  //! Turns logits to weights; factor takes them to powers of two.
  template <int Columns>
  __device__ inline void add(float (&s)[Tiles][Columns / 8][4], float factor) {
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
        float const base = top == -INFINITY ? 0.0f : top * factor;
        float const shrink = power_of_two(most[r][half] * factor - base);
        most[r][half] = top;
        float added = 0;
#pragma unroll
        for (int n = 0; n < Columns / 8; ++n) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            s[r][n][e] = power_of_two(s[r][n][e] * factor - base);
            added += s[r][n][e];
          }
        }
        sum[r][half] = sum[r][half] * shrink + added;
        if (__any_sync(0xffffffffu, shrink != 1.0f)) { // maxima soon stay as they are
#pragma unroll
          for (int n = 0; n < Dim / 8; ++n) {
            sum_of_values[r][n][2 * half] *= shrink;
            sum_of_values[r][n][2 * half + 1] *= shrink;
          }
        }
      }
    }
  }
};

//! Starts from nothing, or from the (O, log-sum-exp) of other keys where these are carried in.
template <int Tiles, int Dim, class Call>
__device__ inline void start_softmax(softmax_state<Tiles, Dim>& state,
                                     Call const& c,
                                     pair_position block,
                                     int first,
                                     lane_place lane,
                                     int rows,
                                     float factor,
                                     bool is_carried) {
  using element = std::remove_pointer_t<decltype(c.t.output.data)>;
#pragma unroll
  for (int r = 0; r < Tiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const row = lane.row + r * 16 + half * 8;
      bool const carried = is_carried && row < rows;
      float const lse =
        carried ? c.t.log_sum_exp.at(block.batch, block.head, first + row) : -INFINITY;
      bool const some = lse != -INFINITY;
      state.most[r][half] = some ? lse * log2_of_e / factor : -INFINITY;
      state.sum[r][half] = some && lane.column == 0 ? 1.0f : 0.0f;
#pragma unroll
      for (int n = 0; n < Dim / 8; ++n) {
        float2 before{0, 0};
        if (some) {
          element const* const from = c.t.output.row(block.batch, first + row, block.head);
          before =
            unpack<element>(*reinterpret_cast<std::uint32_t const*>(from + n * 8 + lane.column));
        }
        state.sum_of_values[r][n][2 * half] = before.x;
        state.sum_of_values[r][n][2 * half + 1] = before.y;
      }
    }
  }
}

//! Divides by the sums and writes O and the log-sum-exp of the rows of a warp.
//! @param tile shared memory for the rows of the block, of which the warp uses its own
template <int Tiles, int Dim, class Call>
__device__ inline void finish_softmax(softmax_state<Tiles, Dim>& state,
                                      Call const& c,
                                      pair_position block,
                                      int first,
                                      int warp_row,
                                      int rows,
                                      float factor,
                                      unsigned char* tile,
                                      int lane) {
  using element = std::remove_pointer_t<decltype(c.t.output.data)>;
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
        c.t.log_sum_exp.at(block.batch, block.head, first + row) =
          sum > 0 ? state.most[r][half] * factor * ln_of_2 + logf(sum) : -INFINITY;
      }
    }
    std::uint32_t packed[Dim / 8][2];
    pack_rows<element>(packed, state.sum_of_values[r]);
    keep_rows<Dim>(tile, warp_row + r * 16, packed, lane);
  }
  __syncwarp();
  store_rows<Tiles * 16, Dim>(tile,
                              warp_row,
                              c.t.output.row(block.batch, first, block.head),
                              c.t.output.length_stride,
                              rows,
                              lane);
}

//! The same for a part of the keys: to scratch, in float.
template <int Tiles, int Dim>
__device__ inline void finish_split(softmax_state<Tiles, Dim>& state,
                                    key_splits const& splits,
                                    std::int64_t first_row,
                                    lane_place lane,
                                    int rows,
                                    float factor) {
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

//! The work of one block. With parts of the keys, those of one tile of queries are neighbours.
template <int Dim, class Element, mask Mask, score Score, class Splits>
__device__ inline void forward_block(forward_call<Element, Mask, Score> const& c,
                                     Splits const& splits,
                                     unsigned char* memory) {
  using shape = forward_shape<Dim, Score>;
  constexpr int tiles = shape::row_tiles;
  constexpr bool is_plain = std::is_same_v<Score, plain>;
  constexpr bool is_split = !std::is_same_v<Splits, no_key_splits>;
  auto const& p = c.p;
  int const lane = static_cast<int>(threadIdx.x) % 32;
  int const warp_row = static_cast<int>(threadIdx.x) / 32 * tiles * 16;
  // Late queries see most keys where a mask is causal: they go first.
  auto const heads = static_cast<unsigned>(p.heads);
  auto const sequences = static_cast<unsigned>(p.batch);
  auto const of_tile = heads * sequences;
  auto const parts = static_cast<unsigned>(splits.count);
  auto const part = blockIdx.x % parts;
  auto const block = blockIdx.x / parts;
  int const head = static_cast<int>(block % heads);
  int const batch = static_cast<int>(block / heads % sequences);
  int const first =
    static_cast<int>(gridDim.x / parts / of_tile - 1 - block / of_tile) * shape::queries;
  int const rows = min(shape::queries, static_cast<int>(p.query_length) - first);
  int const key_head = head / static_cast<int>(p.group());
  pair_position const origin{
    batch, head, static_cast<int>(p.query_offset) + first, static_cast<int>(p.key_offset)};
  tile_position const mine{batch, head, origin.query, origin.query + rows, 0, 0};
  lane_place const place{warp_row + lane / 4, lane % 4 * 2};
  float const factor = is_plain ? c.scale * log2_of_e : log2_of_e;
  int first_tile = 0;
  int end_of_keys = static_cast<int>(p.key_length);
  if constexpr (is_split) {
    auto const count = (p.key_length + shape::keys - 1) / shape::keys;
    first_tile = static_cast<int>(count * part / parts);
    end_of_keys = min(end_of_keys, static_cast<int>(count * (part + 1) / parts) * shape::keys);
  }

  constexpr std::uint32_t key_bytes = shape::keys * Dim * 2;
  auto const query_tile = shared_address(memory);                // [queries, Dim]
  auto const value_tile = query_tile + shape::queries * Dim * 2; // [keys, Dim]
  auto key_tile = value_tile + key_bytes;                        // [keys, Dim], the first of two
  auto other_key_tile = key_tile + key_bytes;                    // [keys, Dim]
  auto const copy_keys = [&](tensor_view<Element const> const& from, std::uint32_t to, int tile) {
    int const begin = tile * shape::keys;
    copy_tile<shape::keys, Dim, shape::threads>(to,
                                                from.row(batch, begin, key_head),
                                                from.length_stride,
                                                static_cast<int>(p.key_length) - begin,
                                                static_cast<int>(threadIdx.x));
  };

  softmax_state<tiles, Dim> state;
  start_softmax(state,
                c,
                pair_position{batch, head, 0, 0},
                first,
                place,
                rows,
                factor,
                !is_split && p.from == carry::in);
  auto now = find_key_tile<shape::keys>(p, c.m, mine, first_tile, end_of_keys);
  copy_tile<shape::queries, Dim, shape::threads>(query_tile,
                                                 c.t.query.row(batch, first, head),
                                                 c.t.query.length_stride,
                                                 rows,
                                                 static_cast<int>(threadIdx.x));
  if (now.cover != tile_cover::skip) {
    copy_keys(c.t.key, key_tile, now.index);
  }
  end_copies();
  while (now.cover != tile_cover::skip) {
    wait_for_copies<0>(); // keys
    __syncthreads();      // and everybody is done with the values before
    copy_keys(c.t.value, value_tile, now.index);
    end_copies();
    // Now, not later: products and logits need the registers that addresses take.
    auto const next = find_key_tile<shape::keys>(p, c.m, mine, now.index + 1, end_of_keys);
    if (next.cover != tile_cover::skip) {
      copy_keys(c.t.key, other_key_tile, next.index);
    }
    end_copies();
    float s[tiles][shape::keys / 8][4] = {};
    multiply_rows<Element, Dim, shape::keys>(s, query_tile, warp_row, key_tile, lane);
    wait_for_copies<1>(); // values
    __syncthreads();      // and everybody is done with the keys
    auto at = origin;
    at.key += now.index * shape::keys;
    int const columns = static_cast<int>(p.key_length) - now.index * shape::keys;
    if (now.cover == tile_cover::full && rows == shape::queries) {
      make_logits<true, shape::keys>(s, place, rows, columns, at, c.scale, c.m, c.f);
    } else {
      make_logits<false, shape::keys>(s, place, rows, columns, at, c.scale, c.m, c.f);
    }
    state.template add<shape::keys>(s, factor);
    multiply_across<Element, Dim, shape::keys, Dim>(state.sum_of_values, s, value_tile, 0, lane);
    now = next;
    auto const used = key_tile;
    key_tile = other_key_tile;
    other_key_tile = used;
  }
  wait_for_copies<0>(); // queries, where there was no tile of keys
  __syncthreads();
  if constexpr (is_split) {
    auto const row = ((part * p.batch + batch) * p.heads + head) * p.query_length + first;
    finish_split(state, splits, row, place, rows, factor);
  } else {
    finish_softmax(
      state, c, pair_position{batch, head, 0, 0}, first, warp_row, rows, factor, memory, lane);
  }
}

} // namespace detail

} // namespace pipelining::inline v0_2::attention
