// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Tiles of rows in shared memory, and products of a warp with them.
//!
//! A tile is [rows, Dim] of 16-bit elements. The 16-byte pieces of a row trade places by row, so
//! that eight rows of one column of pieces lie in eight different groups of banks.

#include <pipe/attention/kernel/warp_matrix.cuh>

#include <cstdint>

namespace pipelining::inline v0_2::attention::detail {

//! Bytes from the start of a tile to one piece of one row.
template <int Dim>
__device__ inline std::uint32_t piece_offset(int row, int piece) {
  return static_cast<std::uint32_t>(row * Dim * 2 + ((piece ^ (row & 7)) << 4));
}

//! Starts to copy a tile; rows from `present` on become zeros, whatever memory holds there.
//! @param first row 0 of the tile in global memory. @param stride elements from row to row
template <int Rows, int Dim, int Threads, class Element>
__device__ inline void
copy_tile(std::uint32_t tile, Element const* first, std::int64_t stride, int present) {
  constexpr int pieces = Dim / 8;
  constexpr int rows_at_once = Threads / pieces;
  static_assert(Threads % pieces == 0 && Rows % rows_at_once == 0 && rows_at_once % 4 == 0);
  int const piece = static_cast<int>(threadIdx.x) % pieces;
  int const begin = static_cast<int>(threadIdx.x) / pieces;
  Element const* from = first + begin * stride + piece * 8;
  std::int64_t const onward = rows_at_once * stride; // one pointer that moves, not one per row
  auto to = tile + piece_offset<Dim>(begin, piece);
  asm volatile("" : "+r"(to)); // else every address leaves the loop over tiles, into registers
#pragma unroll
  for (int step = 0; step < Rows; step += rows_at_once) {
    bool const there = begin + step < present;
    // Rows that lie a multiple of 8 apart trade places alike; else the row's bit 2 has changed.
    copy_16_bytes((to ^ (step % 8 << 4)) + step * Dim * 2, there ? from : first, there);
    from += onward;
  }
}

//! Where a lane points ldmatrix for piece 0 + `piece` of its row; other pieces follow by XOR of
//! 16-byte steps, other rows by addition of multiples of 8 rows. One register serves a product.
//! @pre the tile begins at a multiple of the bytes of a row
template <int Dim>
__device__ inline std::uint32_t lane_address(std::uint32_t tile, int row, int piece) {
  return tile + piece_offset<Dim>(row, piece);
}

//! sum[Tiles 16 x Columns] += left right^T over Dim, both tiles [rows, Dim].
//! @tparam Unrolled steps of 16 elements laid out one after the other: all, unless registers are
//! short
//! @param row first row of the warp in left
template <class Element, int Dim, int Columns, int Unrolled = Dim / 16, int Tiles>
__device__ inline void multiply_rows(
  float (&sum)[Tiles][Columns / 8][4], std::uint32_t left, int row, std::uint32_t right, int lane) {
  constexpr std::uint32_t sixteen_rows = 16 * Dim * 2;
  auto const from_left = lane_address<Dim>(left, row + lane % 16, lane / 16);
  auto const from_right = lane_address<Dim>(right, lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll Unrolled
  for (std::uint32_t step = 0; step < Dim / 16; ++step) {
    std::uint32_t a[Tiles][4];
#pragma unroll
    for (std::uint32_t r = 0; r < Tiles; ++r) {
      load_matrices(a[r], (from_left ^ step * 32) + r * sixteen_rows);
    }
#pragma unroll
    for (std::uint32_t n = 0; n < Columns / 16; ++n) {
      std::uint32_t b[4];
      load_matrices(b, (from_right ^ step * 32) + n * sixteen_rows);
#pragma unroll
      for (std::uint32_t r = 0; r < Tiles; ++r) {
        multiply_add<Element>(sum[r][2 * n], a[r], b[0], b[1]);
        multiply_add<Element>(sum[r][2 * n + 1], a[r], b[2], b[3]);
      }
    }
  }
}

//! sum[Tiles 16 x Width] += left right over Inner, with left from registers, rounded to elements,
//! and right the columns [8 first_piece, 8 first_piece + Width) of a tile [Inner, Dim].
template <class Element, int Dim, int Inner, int Width, int Tiles>
__device__ inline void multiply_across(float (&sum)[Tiles][Width / 8][4],
                                       float const (&left)[Tiles][Inner / 8][4],
                                       std::uint32_t right,
                                       int first_piece,
                                       int lane) {
  constexpr std::uint32_t sixteen_rows = 16 * Dim * 2;
  auto const from = lane_address<Dim>(right, lane % 16, first_piece + lane / 16);
#pragma unroll
  for (std::uint32_t step = 0; step < Inner / 16; ++step) {
    std::uint32_t a[Tiles][4];
#pragma unroll
    for (std::uint32_t r = 0; r < Tiles; ++r) {
      auto const& low = left[r][2 * step];
      auto const& high = left[r][2 * step + 1];
      a[r][0] = pack<Element>(low[0], low[1]);
      a[r][1] = pack<Element>(low[2], low[3]);
      a[r][2] = pack<Element>(high[0], high[1]);
      a[r][3] = pack<Element>(high[2], high[3]);
    }
#pragma unroll
    for (std::uint32_t n = 0; n < Width / 16; ++n) {
      std::uint32_t b[4];
      load_matrices_across(b, (from ^ n * 32) + step * sixteen_rows);
#pragma unroll
      for (std::uint32_t r = 0; r < Tiles; ++r) {
        multiply_add<Element>(sum[r][2 * n], a[r], b[0], b[1]);
        multiply_add<Element>(sum[r][2 * n + 1], a[r], b[2], b[3]);
      }
    }
  }
}

//! Writes 16 rows that a warp holds as sums to its rows of a tile, as elements.
template <class Element, int Dim>
__device__ inline void
keep_rows(unsigned char* tile, int row, float const (&sum)[Dim / 8][4], int lane) {
  auto const place = lane_address<Dim>(lane % 4 * 4, row + lane / 4, 0);
#pragma unroll
  for (std::uint32_t n = 0; n < Dim / 8; ++n) {
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      auto const at = (place ^ n * 16) + half * 8 * Dim * 2;
      *reinterpret_cast<std::uint32_t*>(tile + at) =
        pack<Element>(sum[n][2 * half], sum[n][2 * half + 1]);
    }
  }
}

//! Stores rows [row, row + Rows) of a tile to global memory, 16 bytes a lane, by one warp.
//! @param first row 0 of the tile in global memory. @param present rows that exist there
template <int Rows, int Dim, class Element>
__device__ inline void store_rows(
  unsigned char const* tile, int row, Element* first, std::int64_t stride, int present, int lane) {
  constexpr int pieces = Dim / 8;
#pragma unroll 1
  for (int at = lane; at < Rows * pieces; at += 32) {
    int const line = row + at / pieces;
    int const piece = at % pieces;
    if (line < present) {
      *reinterpret_cast<uint4*>(first + line * stride + piece * 8) =
        *reinterpret_cast<uint4 const*>(tile + piece_offset<Dim>(line, piece));
    }
  }
}

} // namespace pipelining::inline v0_2::attention::detail
