// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Products of a warpgroup with tiles in shared memory, and the descriptors of these.
//!
//! A tile is what one tensor copy brings: panels of 64 elements (128 bytes) by so many rows, whose
//! 16-byte pieces trade places by row modulo 8.
//! @source PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Operation"

#include <pipe/attention/hopper/wgmma.cuh>
#include <pipe/attention/kernel/warp_matrix.cuh>
#include <pipe/config.hpp>

#include <cstdint>

namespace pipelining::inline v0_3::attention::detail {

inline constexpr int panel_width = 64;        // elements
inline constexpr int panel_row_bytes = 128;   // of one row of a panel
inline constexpr int eight_rows_bytes = 1024; // after which the places repeat

inline constexpr int piece_bytes = 16; // in which descriptors count

//! Low half of the descriptor of a tile with 128-byte swizzle; `moved` makes the whole. All lanes
//! take the first one's, so that ptxas knows it is the same for all and keeps it in one uniform
//! register: products want their descriptors there.
//! @param piece       where the tile begins, as its shared address / piece_bytes
//! @param panel_bytes from one panel to the next, where the product runs across panels
__device__ inline std::uint32_t describe_tile(std::uint32_t piece, int panel_bytes) {
  auto const panel = static_cast<std::uint32_t>(panel_bytes / piece_bytes) << 16;
  return __shfl_sync(0xffffffffu, piece + panel, 0);
}

//! The descriptor so many bytes from the start of a tile. The sum stays below 2^14 in units of 16
//! bytes, so the high half is always the same.
__device__ inline std::uint64_t moved(std::uint32_t tile, int bytes) {
  constexpr auto swizzle = std::uint64_t{1} << 62;
  constexpr auto high =
    (static_cast<std::uint64_t>(eight_rows_bytes / piece_bytes) << 32 | swizzle) >> 32;
  std::uint64_t whole;
  asm("mov.b64 %0, {%1, %2};"
      : "=l"(whole)
      : "r"(tile + static_cast<std::uint32_t>(bytes / piece_bytes)),
        "r"(static_cast<std::uint32_t>(high)));
  return whole;
}

//! To call between the last ordinary use of registers and products that use them.
__device__ inline void before_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

//! Ends a group of products.
__device__ inline void end_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

//! Waits until at most Open of the latest groups are under way; d is of a group that is over.
template <int Open, int Count>
__device__ inline void wait_for_products(float (&d)[Count]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Open) : "memory");
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    asm volatile("" : "+f"(d[i])::"memory"); // else the compiler may read d before
  }
}

//! Starts d[64 x Columns] = left right^T over a whole head, as one group: left has 64 rows, right a
//! row for each column of d; both as describe_tile gives them, with panels that do not matter.
//! @tparam RightRows of the whole tile that right is in
template <class Element, int Dim, int RightRows, int Count>
__device__ __forceinline__ void
start_rows(float (&d)[Count], std::uint32_t left, std::uint32_t right) {
  constexpr int rows = 64;
#pragma unroll
  for (int n = 0; n < Dim / 16; ++n) {
    int const inside = n % 4 * 32;
    start_product<Element>(d,
                           moved(left, n / 4 * rows * panel_row_bytes + inside),
                           moved(right, n / 4 * RightRows * panel_row_bytes + inside),
                           n > 0);
  }
  end_products();
}

//! Starts sum[64 x Dim] += a b over the rows of tile b, as one group: a in registers, packed.
//! @param b where the tile begins, as its shared address / piece_bytes
template <class Element, int Count, int Packed>
__device__ __forceinline__ void
start_sum(float (&sum)[Count], std::uint32_t const (&a)[Packed], std::uint32_t b) {
  constexpr int rows = 4 * Packed;
  constexpr int columns = Count < 64 ? 2 * Count : 128; // of one product
  auto const right = describe_tile(b, rows * panel_row_bytes);
#pragma unroll
  for (int n = 0; n < rows / 16; ++n) {
    std::uint32_t const part[4] = {a[4 * n], a[4 * n + 1], a[4 * n + 2], a[4 * n + 3]};
#pragma unroll
    for (int first = 0; first < 2 * Count; first += columns) {
      start_product<Element>(
        reinterpret_cast<float(&)[columns / 2]>(sum[first / 2]),
        part,
        moved(right, first / panel_width * rows * panel_row_bytes + n * 2 * eight_rows_bytes));
    }
  }
  end_products();
}

//! Writes four matrices of 8 x 8 elements, packed as accumulators are; a lane says where a row of
//! one goes, 16 bytes.
__device__ inline void store_matrices(std::uint32_t row, std::uint32_t const* packed) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(packed[0]),
               "r"(packed[1]),
               "r"(packed[2]),
               "r"(packed[3])
               : "memory");
}

//! Writes 16 rows of a warp, packed as accumulators are, to rows of a tile, laid out as tensor
//! copies and products want it.
//! @tparam Columns written: all of packed, then zeros
//! @param first  of the rows of the warp
//! @param column where those of packed begin in a panel: 0, or 32 of 32 columns
template <int Columns, int Count>
__device__ __forceinline__ void keep_hopper_rows(
  std::uint32_t tile, std::uint32_t const (&packed)[Count], int first, int lane, int column = 0) {
  constexpr std::uint32_t zeros[4] = {};
  int const line = first + lane % 16;
  auto const to =
    tile + line * panel_row_bytes + ((column / 8 + lane / 16) ^ line % 8) * piece_bytes;
#pragma unroll
  for (int n = 0; n < Columns / 8; n += 2) {
    store_matrices((to ^ n % 8 * piece_bytes) + n / 8 * 64 * panel_row_bytes,
                   n < Count / 2 ? packed + 2 * n : zeros);
  }
}

} // namespace pipelining::inline v0_3::attention::detail
