// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Backward kernels for sm_80 and up: one for dQ with a block per tile of queries, then one
//! for dK and dV with a block per tile of keys.
//!
//! Each number is summed by one thread in one order, so there is nothing to be added atomically and
//! the same call gives the same bits. The price is that weights are computed twice: seven products
//! of tiles in place of five.
//! @source Dao 2023 (FlashAttention-2), section 3.1, for the formulas; cut in two as in
//! FlexAttention (Dong et al. 2024)

#include <pipe/attention/kernel/query_statistics.cuh>
#include <pipe/attention/kernel/tile_search.cuh>
#include <pipe/attention/kernel_call.hpp>
#include <pipe/attention/portable/shared_tile.cuh>

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace pipelining::inline v0_2::attention {

//! @brief Tile sizes of the kernel of dQ.
template <int Dim>
struct query_gradient_shape {
  static_assert(Dim == 64 || Dim == 128 || Dim == 256,
                "attention::query_gradient_shape: the head dim must be 64, 128 or 256, because "
                "tiles of other widths are not laid out");
  static constexpr int warps = 4;                        //!< of a block
  static constexpr int threads = 32 * warps;             //!< of a block
  static constexpr int row_tiles = Dim == 64 ? 2 : 1;    //!< tiles of 16 queries in a warp
  static constexpr int queries = warps * row_tiles * 16; //!< of a block
  static constexpr int keys = Dim == 128 ? 64 : 32;      //!< of one step
  //! Bytes of shared memory that a block takes.
  static constexpr int shared_bytes = (2 * queries + 4 * keys) * Dim * 2 + queries * 4;
};

//! @brief Tile sizes of the kernel of dK and dV. Scores beside plain need some registers
//! themselves.
template <int Dim, score Score = plain>
struct key_gradient_shape {
  static constexpr int warps = Dim == 128 ? 8 : 4;    //!< of a block
  static constexpr int threads = 32 * warps;          //!< of a block
  static constexpr int row_tiles = Dim == 64 ? 2 : 1; //!< tiles of 16 keys in a warp
  static constexpr int keys = warps * row_tiles * 16; //!< of a block
  static constexpr int queries = std::is_same_v<Score, plain> ? 32 : 16; //!< of one step
  static constexpr int width = Dim == 256 ? 128 : Dim; //!< columns of dK and dV in one block
  static constexpr int parts = Dim / width; //!< blocks that share the columns of dK and dV
  //! Steps of a product over Dim that are laid out one after the other.
  static constexpr int unrolled = Dim == 64 ? 2 : Dim / 16;
  //! Bytes of shared memory that a block takes.
  static constexpr int shared_bytes = (2 * keys + 4 * queries) * Dim * 2 + 4 * queries * 4;
};

namespace detail {

//! Products to weights (in s) and to gradients of the products (in d, which comes with dO . V).
//! @tparam Whole  every pair of the tile exists and is kept
//! @tparam Across rows are keys and columns queries
//! @param statistics of (half, part, e): the query of that number
template <bool Whole, bool Across, int Columns, int Tiles, mask Mask, score Score, class Statistics>
__device__ inline void make_gradients(float (&s)[Tiles][Columns / 8][4],
                                      float (&d)[Tiles][Columns / 8][4],
                                      lane_place lane,
                                      int rows,
                                      int columns,
                                      pair_position origin,
                                      float scale,
                                      Mask const& m,
                                      Score const& f,
                                      Statistics const& statistics) {
  constexpr bool is_plain = std::is_same_v<Score, plain>;
  float const factor = is_plain ? scale * log2_of_e : log2_of_e;
#pragma unroll
  for (int n = 0; n < Columns / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      int const column = lane.column + n * 8 + e;
#pragma unroll
      for (int half = 0; half < 2 * Tiles; ++half) {
        int const row = lane.row + half * 8;
        float& x = s[half / 2][n][half % 2 * 2 + e];
        float& y = d[half / 2][n][half % 2 * 2 + e];
        pair_position const at{origin.batch,
                               origin.head,
                               origin.query + (Across ? column : row),
                               origin.key + (Across ? row : column)};
        query_statistics const of = statistics(half, n, e);
        if (Whole || (row < rows && column < columns && m.keep(at))) {
          float const product = x * scale;
          float logit = x;
          if constexpr (!is_plain) {
            logit = static_cast<float>(f.value(product, at));
          }
          x = power_of_two(logit * factor - of.lse);
          y = x * (y - of.mean);
          if constexpr (!is_plain) {
            y *= static_cast<float>(f.derivative(product, logit, at));
          }
        } else {
          x = 0;
          y = 0;
        }
      }
    }
  }
}

//! The work of one block of the kernel of dQ.
template <int Dim, class Element, mask Mask, score Score>
__device__ inline void query_gradient_block(backward_call<Element, Mask, Score> const& c,
                                            unsigned char* memory) {
  using shape = query_gradient_shape<Dim>;
  constexpr int tiles = shape::row_tiles;
  auto const& p = c.p;
  int const lane = static_cast<int>(threadIdx.x) % 32;
  int const warp_row = static_cast<int>(threadIdx.x) / 32 * tiles * 16;
  auto const heads = static_cast<unsigned>(p.heads);
  auto const of_tile = heads * static_cast<unsigned>(p.batch);
  int const head = static_cast<int>(blockIdx.x % heads);
  int const batch = static_cast<int>(blockIdx.x % of_tile / heads);
  int const first =
    static_cast<int>(gridDim.x / of_tile - 1 - blockIdx.x / of_tile) * shape::queries;
  int const rows = min(shape::queries, static_cast<int>(p.query_length) - first);
  int const key_head = head / static_cast<int>(p.group());
  pair_position const block{batch, head, 0, 0};
  pair_position const origin{
    batch, head, static_cast<int>(p.query_offset) + first, static_cast<int>(p.key_offset)};
  tile_position const mine{batch, head, origin.query, origin.query + rows, 0, 0};
  lane_place const place{warp_row + lane / 4, lane % 4 * 2};

  constexpr std::uint32_t query_bytes = shape::queries * Dim * 2;
  constexpr std::uint32_t key_bytes = shape::keys * Dim * 2;
  auto const query_tile = shared_address(memory);      // [queries, Dim]
  auto const gradient_tile = query_tile + query_bytes; // [queries, Dim], dO
  auto stage = gradient_tile + query_bytes;            // K then V, [keys, Dim] each
  auto other_stage = stage + 2 * key_bytes;            // the same of the tile after
  auto* const mean = reinterpret_cast<float*>(memory + 2 * query_bytes + 4 * key_bytes);
  auto const copy_keys = [&](std::uint32_t to, int tile) {
    int const begin = tile * shape::keys;
    int const present = static_cast<int>(p.key_length) - begin;
    copy_tile<shape::keys, Dim, shape::threads>(
      to, c.t.key.row(batch, begin, key_head), c.t.key.length_stride, present);
    copy_tile<shape::keys, Dim, shape::threads>(
      to + key_bytes, c.t.value.row(batch, begin, key_head), c.t.value.length_stride, present);
  };

  auto now = find_key_tile<shape::keys>(p, c.m, mine, 0);
  copy_tile<shape::queries, Dim, shape::threads>(
    query_tile, c.t.query.row(batch, first, head), c.t.query.length_stride, rows);
  copy_tile<shape::queries, Dim, shape::threads>(gradient_tile,
                                                 c.t.output_gradient.row(batch, first, head),
                                                 c.t.output_gradient.length_stride,
                                                 rows);
  if (now.cover != tile_cover::skip) {
    copy_keys(stage, now.index);
  }
  end_copies();
  find_means<tiles * 16, Dim>(c, block, first, warp_row, rows, mean, lane);
  __syncwarp();
  query_statistics of[2 * tiles];
#pragma unroll
  for (int half = 0; half < 2 * tiles; ++half) {
    int const row = place.row + half * 8;
    of[half].mean = mean[row];
    of[half].lse = row < rows ? power_of(c.t.log_sum_exp.at(batch, head, first + row)) : 0.0f;
  }
  auto const statistics = [&](int half, int, int) { return of[half]; };

  float sum[tiles][Dim / 8][4] = {};
  while (now.cover != tile_cover::skip) {
    wait_for_copies<0>();
    __syncthreads(); // the tile is there, and everybody is done with the one before
    auto const next = find_key_tile<shape::keys>(p, c.m, mine, now.index + 1);
    if (next.cover != tile_cover::skip) {
      copy_keys(other_stage, next.index);
    }
    end_copies();
    float s[tiles][shape::keys / 8][4] = {};
    float d[tiles][shape::keys / 8][4] = {};
    multiply_rows<Element, Dim, shape::keys>(s, query_tile, warp_row, stage, lane);
    multiply_rows<Element, Dim, shape::keys>(d, gradient_tile, warp_row, stage + key_bytes, lane);
    auto at = origin;
    at.key += now.index * shape::keys;
    int const columns = static_cast<int>(p.key_length) - now.index * shape::keys;
    if (now.cover == tile_cover::full && rows == shape::queries) {
      make_gradients<true, false, shape::keys>(
        s, d, place, rows, columns, at, c.scale, c.m, c.f, statistics);
    } else {
      make_gradients<false, false, shape::keys>(
        s, d, place, rows, columns, at, c.scale, c.m, c.f, statistics);
    }
    multiply_across<Element, Dim, shape::keys, Dim>(sum, d, stage, 0, lane);
    now = next;
    auto const used = stage;
    stage = other_stage;
    other_stage = used;
  }
  wait_for_copies<0>(); // queries, where there was no tile of keys
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2 * tiles; ++half) {
    int const row = place.row + half * 8;
    bool const carried = p.from == carry::in && row < rows;
#pragma unroll
    for (int n = 0; n < Dim / 8; ++n) {
      float2 before{0, 0};
      if (carried) {
        before = unpack<Element>(*reinterpret_cast<std::uint32_t const*>(
          c.t.query_gradient.row(batch, first + row, head) + n * 8 + place.column));
      }
      auto& numbers = sum[half / 2][n];
      numbers[half % 2 * 2] = before.x + c.scale * numbers[half % 2 * 2];
      numbers[half % 2 * 2 + 1] = before.y + c.scale * numbers[half % 2 * 2 + 1];
    }
  }
#pragma unroll
  for (int r = 0; r < tiles; ++r) {
    keep_rows<Element, Dim>(memory, warp_row + r * 16, sum[r], lane);
  }
  __syncwarp();
  store_rows<tiles * 16, Dim>(memory,
                              warp_row,
                              c.t.query_gradient.row(batch, first, head),
                              c.t.query_gradient.length_stride,
                              rows,
                              lane);
}

//! Adds the sums of a warp to its rows of a running gradient.
template <int Tiles, int Width>
__device__ inline void add_to_running(float (&sum)[Tiles][Width / 8][4],
                                      float factor,
                                      float* first,
                                      std::int64_t stride,
                                      lane_place place,
                                      int rows) {
#pragma unroll
  for (int half = 0; half < 2 * Tiles; ++half) {
    int const row = place.row + half * 8;
    if (row < rows) {
      float* const to = first + row * stride + place.column;
#pragma unroll
      for (int n = 0; n < Width / 8; ++n) {
        auto* const two = reinterpret_cast<float2*>(to + n * 8);
        float2 running = *two;
        running.x += factor * sum[half / 2][n][half % 2 * 2];
        running.y += factor * sum[half / 2][n][half % 2 * 2 + 1];
        *two = running;
      }
    }
  }
}

//! The work of one block of the kernel of dK and dV. All query heads of the group come in turn, so
//! that one block has all that its keys get.
template <int Dim, class Element, mask Mask, score Score>
__device__ inline void key_gradient_block(backward_call<Element, Mask, Score> const& c,
                                          unsigned char* memory) {
  using shape = key_gradient_shape<Dim, Score>;
  constexpr int tiles = shape::row_tiles;
  auto const& p = c.p;
  int const lane = static_cast<int>(threadIdx.x) % 32;
  int const warp_row = static_cast<int>(threadIdx.x) / 32 * tiles * 16;
  // Early keys are seen by most queries where a mask is causal: they go first.
  auto const heads = static_cast<unsigned>(p.key_heads);
  auto const of_tile = heads * static_cast<unsigned>(p.batch);
  int const key_head = static_cast<int>(blockIdx.x % heads);
  int const batch = static_cast<int>(blockIdx.x % of_tile / heads);
  int const first = static_cast<int>(blockIdx.x / of_tile) * shape::keys;
  int const column = static_cast<int>(blockIdx.y) * shape::width; // of dK and dV
  int const rows = min(shape::keys, static_cast<int>(p.key_length) - first);
  int const first_head = key_head * static_cast<int>(p.group());
  int const key_position = static_cast<int>(p.key_offset) + first;
  tile_position const mine{batch, first_head, 0, 0, key_position, key_position + rows};
  lane_place const place{warp_row + lane / 4, lane % 4 * 2};

  constexpr std::uint32_t key_bytes = shape::keys * Dim * 2;
  constexpr std::uint32_t query_bytes = shape::queries * Dim * 2;
  auto const key_tile = shared_address(memory); // [keys, Dim]
  auto const value_tile = key_tile + key_bytes; // [keys, Dim]
  auto const stages = value_tile + key_bytes;   // twice Q and dO, [queries, Dim] each
  auto* const numbers =
    reinterpret_cast<query_statistics*>(memory + 2 * key_bytes + 4 * query_bytes); // [2, queries]
  auto const copy_queries = [&](int stage, next_queries const& tile) {
    int const begin = tile.index * shape::queries;
    int const head = first_head + tile.head;
    int const present = static_cast<int>(p.query_length) - begin;
    auto const to = stages + static_cast<std::uint32_t>(stage) * 2 * query_bytes;
    copy_tile<shape::queries, Dim, shape::threads>(
      to, c.t.query.row(batch, begin, head), c.t.query.length_stride, present);
    copy_tile<shape::queries, Dim, shape::threads>(to + query_bytes,
                                                   c.t.output_gradient.row(batch, begin, head),
                                                   c.t.output_gradient.length_stride,
                                                   present);
    int const row = static_cast<int>(threadIdx.x);
    if (row < shape::queries) {
      query_statistics of{0, 0};
      if (row < present) {
        of = {power_of(c.t.log_sum_exp.at(batch, head, begin + row)),
              c.mean.at(batch, head, begin + row)};
      }
      numbers[stage * shape::queries + row] = of;
    }
  };

  auto now = find_query_tile<shape::queries>(p, c.m, mine, 0, 0);
  if (now.cover == tile_cover::skip) {
    return; // the running gradients stay as they are
  }
  copy_tile<shape::keys, Dim, shape::threads>(
    key_tile, c.t.key.row(batch, first, key_head), c.t.key.length_stride, rows);
  copy_tile<shape::keys, Dim, shape::threads>(
    value_tile, c.t.value.row(batch, first, key_head), c.t.value.length_stride, rows);
  copy_queries(0, now);
  end_copies();
  float of_key[tiles][shape::width / 8][4] = {};
  float of_value[tiles][shape::width / 8][4] = {};
  int stage = 0;
  while (now.cover != tile_cover::skip) {
    wait_for_copies<0>();
    __syncthreads(); // the tile is there, and everybody is done with the one before
    auto const next = find_query_tile<shape::queries>(p, c.m, mine, now.head, now.index + 1);
    if (next.cover != tile_cover::skip) {
      copy_queries(stage ^ 1, next);
    }
    end_copies();
    auto const query_tile = stages + static_cast<std::uint32_t>(stage) * 2 * query_bytes;
    auto const gradient_tile = query_tile + query_bytes;
    float s[tiles][shape::queries / 8][4] = {};
    float d[tiles][shape::queries / 8][4] = {};
    multiply_rows<Element, Dim, shape::queries, shape::unrolled>(
      s, key_tile, warp_row, query_tile, lane);
    multiply_rows<Element, Dim, shape::queries, shape::unrolled>(
      d, value_tile, warp_row, gradient_tile, lane);
    int const begin = now.index * shape::queries;
    pair_position const at{
      batch, first_head + now.head, static_cast<int>(p.query_offset) + begin, key_position};
    int const columns = static_cast<int>(p.query_length) - begin;
    auto const* const of = numbers + stage * shape::queries + place.column;
    auto const statistics = [&](int, int n, int e) { return of[n * 8 + e]; };
    if (now.cover == tile_cover::full && rows == shape::keys) {
      make_gradients<true, true, shape::queries>(
        s, d, place, rows, columns, at, c.scale, c.m, c.f, statistics);
    } else {
      make_gradients<false, true, shape::queries>(
        s, d, place, rows, columns, at, c.scale, c.m, c.f, statistics);
    }
    multiply_across<Element, Dim, shape::queries, shape::width>(
      of_value, s, gradient_tile, column / 8, lane);
    multiply_across<Element, Dim, shape::queries, shape::width>(
      of_key, d, query_tile, column / 8, lane);
    now = next;
    stage ^= 1;
  }
  wait_for_copies<0>();
  add_to_running<tiles, shape::width>(of_key,
                                      c.scale,
                                      c.t.key_gradient.row(batch, first, key_head) + column,
                                      c.t.key_gradient.length_stride,
                                      place,
                                      rows);
  add_to_running<tiles, shape::width>(of_value,
                                      1.0f,
                                      c.t.value_gradient.row(batch, first, key_head) + column,
                                      c.t.value_gradient.length_stride,
                                      place,
                                      rows);
}

} // namespace detail

} // namespace pipelining::inline v0_2::attention
