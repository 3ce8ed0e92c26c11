// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Tiles of rows in shared memory, and products of a warp with them.
//!
//! A tile is [rows, Dim] of 16-bit elements. The 16-byte pieces of a row trade places by row, so
//! that eight rows of one column of pieces lie in eight different groups of banks. Rows lie whole
//! groups of eight pieces apart.

#include <pipe/attention/head_dims.hpp>
#include <pipe/attention/kernel/warp_matrix.cuh>
#include <pipe/attention/parameters.hpp>

#include <cstdint>

namespace pipelining::inline v0_3::attention::detail {

//! Bytes from one row of a tile to the next.
template <int Dim>
inline constexpr int row_bytes = row_elements(Dim) * 2;

//! Bytes from the start of a tile to one piece of one row.
template <int Dim>
__device__ inline std::uint32_t piece_offset(int row, int piece) {
  return static_cast<std::uint32_t>(row * row_bytes<Dim> + ((piece ^ (row & 7)) << 4));
}

//! The place `pieces` further than `from` in a row.
//! @pre from is that of a piece whose number has no bit in common with `pieces`
template <int Dim>
__device__ inline std::uint32_t further(std::uint32_t from, std::uint32_t pieces) {
  if constexpr (is_power_of_two(row_bytes<Dim>)) {
    return from ^ pieces * 16;
  } else { // groups of eight do not begin at multiples of the row
    return (from ^ pieces % 8 * 16) + pieces / 8 * 128;
  }
}

//! Starts to copy rows [first, first + Rows) of a head to a tile; rows from `length` on become
//! zeros, whatever memory holds there.
//! @param number of the thread among Threads of the block
template <int Rows, int Dim, int Threads, class Element>
__device__ inline void copy_tile(std::uint32_t tile,
                                 tensor_view<Element const> const& from,
                                 int batch,
                                 int head,
                                 int first,
                                 int length,
                                 int number) {
  constexpr int pieces = Dim / 8;
  // Of a row at once: all, or eight where their number is no power of two.
  constexpr int together = is_power_of_two(pieces) ? pieces : 8;
  constexpr int rows_at_once = Threads / together;
  static_assert(Threads % together == 0 && Rows % rows_at_once == 0 && rows_at_once % 4 == 0);
  auto const thread = static_cast<unsigned>(number) % Threads;
  int const piece = static_cast<int>(thread % together);
  int const begin = static_cast<int>(thread / together);
  int const present = length - first - begin;
  // One pointer that moves, not one per row; nothing is read where it leaves the tensor.
  Element const* row = from.row(batch, first + begin, head) + piece * 8;
  std::int64_t const onward = rows_at_once * from.length_stride;
  auto to = tile + piece_offset<Dim>(begin, piece);
  asm volatile("" : "+r"(to)); // else every address leaves the loop over tiles, into registers
#pragma unroll
  for (int step = 0; step < Rows; step += rows_at_once) {
#pragma unroll
    for (int group = 0; group < pieces; group += together) {
      if (pieces - group >= together || piece < pieces - group) {
        // Rows that lie a multiple of 8 apart trade places alike; else the row's bit 2 has changed.
        copy_16_bytes((to ^ (step % 8 << 4)) + step * row_bytes<Dim> + group * 16,
                      row + group * 8,
                      step < present);
      }
    }
    row += onward;
  }
}

//! Where a lane points ldmatrix for piece 0 + `piece` of its row; other pieces follow by `further`,
//! other rows by addition of multiples of 8 rows. One register serves a product.
//! @pre the tile begins at a multiple of the bytes of a row, or of 128 where these are no power of
//! 2
template <int Dim>
__device__ inline std::uint32_t lane_address(std::uint32_t tile, int row, int piece) {
  return tile + piece_offset<Dim>(row, piece);
}

//! sum[Tiles 16 x 8 Columns] += a b for 16 of the inner dimension.
//! @param a    Tiles operands
//! @param load of (b, n): columns [16 n, 16 n + 16) of the other operand
//! @param whole false: the last 16 columns are not there
template <class Element, int Tiles, int Columns, class Load>
__device__ __forceinline__ void multiply_step(float (&sum)[Tiles][Columns][4],
                                              std::uint32_t const (*a)[4],
                                              Load const& load,
                                              bool whole = true) {
#pragma unroll
  for (std::uint32_t n = 0; n < Columns / 2; ++n) {
    if (n == Columns / 2 - 1 && !whole) {
      continue;
    }
    std::uint32_t b[4];
    load(b, n);
#pragma unroll
    for (std::uint32_t r = 0; r < Tiles; ++r) {
      multiply_add<Element>(sum[r][2 * n], a[r], b[0], b[1]);
      multiply_add<Element>(sum[r][2 * n + 1], a[r], b[2], b[3]);
    }
  }
}

//! sum[Tiles 16 x Columns] += left right^T over Dim, both tiles [rows, Dim].
//! @tparam Unrolled steps of 16 elements laid out one after the other: all, unless registers are
//! short
//! @param row first row of the warp in left
template <class Element, int Dim, int Columns, int Unrolled = Dim / 16, int Tiles>
__device__ inline void multiply_rows(
  float (&sum)[Tiles][Columns / 8][4], std::uint32_t left, int row, std::uint32_t right, int lane) {
  constexpr std::uint32_t sixteen_rows = 16 * row_bytes<Dim>;
  auto const from_left = lane_address<Dim>(left, row + lane % 16, lane / 16);
  auto const from_right = lane_address<Dim>(right, lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll Unrolled
  for (std::uint32_t step = 0; step < Dim / 16; ++step) {
    std::uint32_t a[Tiles][4];
#pragma unroll
    for (std::uint32_t r = 0; r < Tiles; ++r) {
      load_matrices(a[r], further<Dim>(from_left, 2 * step) + r * sixteen_rows);
    }
    multiply_step<Element>(sum, a, [&](std::uint32_t(&b)[4], std::uint32_t n) {
      load_matrices(b, further<Dim>(from_right, 2 * step) + n * sixteen_rows);
    });
  }
}

//! 16 rows of sums rounded to elements, two neighbours in one: what they are as a left operand.
template <class Element, int Columns>
__device__ inline void pack_rows(std::uint32_t (&to)[Columns][2], float const (&sum)[Columns][4]) {
#pragma unroll
  for (int n = 0; n < Columns; ++n) {
    to[n][0] = pack<Element>(sum[n][0], sum[n][1]);
    to[n][1] = pack<Element>(sum[n][2], sum[n][3]);
  }
}

//! Columns [16 step, 16 step + 16) of 16 rows as a left operand.
template <class Element, int Columns>
__device__ inline void
left_operand(std::uint32_t (&to)[4], float const (&sum)[Columns][4], std::uint32_t step) {
#pragma unroll
  for (std::uint32_t n = 0; n < 4; ++n) {
    auto const& four = sum[2 * step + n / 2];
    to[n] = pack<Element>(four[n % 2 * 2], four[n % 2 * 2 + 1]);
  }
}
template <class Element, int Columns>
__device__ inline void left_operand(std::uint32_t (&to)[4],
                                    std::uint32_t const (&packed)[Columns][2],
                                    std::uint32_t step) {
#pragma unroll
  for (std::uint32_t n = 0; n < 4; ++n) {
    to[n] = packed[2 * step + n / 2][n % 2];
  }
}

//! The default of multiply_across before a step: nothing.
struct no_more_to_do {
  __device__ void operator()(std::uint32_t) const {}
};

//! sum[Tiles 16 x Width] += left right over Inner, with left from registers, as sums or packed, and
//! right the columns [8 first_piece, 8 first_piece + Width) of a tile [Inner, Dim].
//! @param before called with the number of each step of 16 columns of left, which it may still make
template <class Element,
          int Dim,
          int Inner,
          int Width,
          int Tiles,
          class Left,
          class Before = no_more_to_do>
__device__ inline void multiply_across(float (&sum)[Tiles][Width / 8][4],
                                       Left const& left,
                                       std::uint32_t right,
                                       int first_piece,
                                       int lane,
                                       Before const& before = {}) {
  constexpr std::uint32_t sixteen_rows = 16 * row_bytes<Dim>;
  auto const from = lane_address<Dim>(right, lane % 16, first_piece + lane / 16);
#pragma unroll
  for (std::uint32_t step = 0; step < Inner / 16; ++step) {
    before(step);
    std::uint32_t a[Tiles][4];
#pragma unroll
    for (std::uint32_t r = 0; r < Tiles; ++r) {
      left_operand<Element>(a[r], left[r], step);
    }
    multiply_step<Element>(sum, a, [&](std::uint32_t(&b)[4], std::uint32_t n) {
      load_matrices_across(b, further<Dim>(from, 2 * n) + step * sixteen_rows);
    });
  }
}

//! The left operands of multiply_held: 16 rows of a tile [rows, Dim], all of it in registers.
template <int Dim>
using held_rows = std::uint32_t[Dim / 16][4];

template <int Dim>
__device__ inline void hold_rows(held_rows<Dim>& to, std::uint32_t left, int row, int lane) {
  auto const from = lane_address<Dim>(left, row + lane % 16, lane / 16);
#pragma unroll
  for (std::uint32_t step = 0; step < Dim / 16; ++step) {
    load_matrices(to[step], further<Dim>(from, 2 * step));
  }
}

//! multiply_rows with rows that are held in registers.
template <class Element, int Dim, int Columns>
__device__ inline void multiply_held(float (&sum)[1][Columns / 8][4],
                                     held_rows<Dim> const& left,
                                     std::uint32_t right,
                                     int lane) {
  auto const from = lane_address<Dim>(right, lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
  for (std::uint32_t step = 0; step < Dim / 16; ++step) {
    multiply_step<Element>(sum, left + step, [&](std::uint32_t(&b)[4], std::uint32_t n) {
      load_matrices(b, further<Dim>(from, 2 * step) + n * 16 * row_bytes<Dim>);
    });
  }
}

//! sum[Tiles 16 x Columns] += left^T right over Inner rows of both: columns of a tile [Inner, Left]
//! from piece `left_piece` on, and of a tile [Inner, Dim] from `right_piece` on, in groups of 16
//! that lie Apart pieces apart.
//! @param whole false: the last group of columns is not there
template <class Element, int Inner, int Left, int Dim, int Apart = 2, int Tiles, int Columns>
__device__ inline void multiply_transposed(float (&sum)[Tiles][Columns][4],
                                           std::uint32_t left,
                                           int left_piece,
                                           std::uint32_t right,
                                           int right_piece,
                                           int lane,
                                           bool whole = true) {
  auto const from_left =
    lane_address<Left>(left, lane % 8 + lane / 16 * 8, left_piece + lane / 8 % 2);
  auto const from_right = lane_address<Dim>(right, lane % 16, right_piece + lane / 16);
#pragma unroll
  for (std::uint32_t step = 0; step < Inner / 16; ++step) {
    std::uint32_t a[Tiles][4];
#pragma unroll
    for (std::uint32_t r = 0; r < Tiles; ++r) {
      load_matrices_across(a[r], further<Left>(from_left, 2 * r) + step * 16 * row_bytes<Left>);
    }
    auto const load = [&](std::uint32_t(&b)[4], std::uint32_t n) {
      load_matrices_across(b, further<Dim>(from_right, Apart * n) + step * 16 * row_bytes<Dim>);
    };
    multiply_step<Element>(sum, a, load, whole);
  }
}

//! Writes 16 rows that a warp holds to its rows of a tile, from column 8 first_piece on.
template <int Dim, int Columns>
__device__ inline void keep_rows(unsigned char* tile,
                                 int row,
                                 std::uint32_t const (&packed)[Columns][2],
                                 int lane,
                                 int first_piece = 0) {
  auto const place = lane_address<Dim>(lane % 4 * 4, row + lane / 4, first_piece);
#pragma unroll
  for (std::uint32_t n = 0; n < Columns; ++n) {
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      *reinterpret_cast<std::uint32_t*>(tile + further<Dim>(place, n) + half * 8 * row_bytes<Dim>) =
        packed[n][half];
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

} // namespace pipelining::inline v0_3::attention::detail
