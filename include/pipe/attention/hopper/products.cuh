// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief wgmma: products of a warpgroup with tiles in shared memory, and the descriptors of these.
//!
//! A tile is what one tensor copy brings: panels of 64 elements (128 bytes) by so many rows, whose
//! 16-byte pieces trade places by row modulo 8.
//! @source PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Operation"

#include <pipe/attention/kernel/warp_matrix.cuh>
#include <pipe/config.hpp>

#include <cuda_bf16.h>

#include <cstdint>

namespace pipelining::inline v0_2::attention::detail {

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

//! An element type in the names of instructions.
template <class Element>
inline constexpr char name_in_ptx[] = "f16";
template <>
inline constexpr char name_in_ptx<__nv_bfloat16>[] = "bf16";

// clang-format off

//! d[64 x 128] = a b^T, or += with add, for 16 of the inner dimension: both in rows along it.
template <class Element>
__device__ inline void
start_product(float (&d)[64], std::uint64_t a, std::uint64_t b, bool add) {
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n128k16.f32.%67.%67 "
               "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
               "%64, %65, add, 1, 1, 0, 0;\n}"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                 "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                 "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
                 "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                 "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
                 "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
                 "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                 "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]),
                 "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
                 "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
               : "l"(a), "l"(b), "r"(static_cast<int>(add)), "C"(name_in_ptx<Element>));
}

//! The same for d[64 x 64].
template <class Element>
__device__ inline void
start_product(float (&d)[32], std::uint64_t a, std::uint64_t b, bool add) {
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k16.f32.%35.%35 "
               "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
               "%32, %33, add, 1, 1, 0, 0;\n}"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                 "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                 "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
                 "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                 "+f"(d[30]), "+f"(d[31])
               : "l"(a), "l"(b), "r"(static_cast<int>(add)), "C"(name_in_ptx<Element>));
}

//! d[64 x 64] = a^T b, or += with add, for 16 of the inner dimension: both in rows across it.
template <class Element>
__device__ inline void
start_product_across(float (&d)[32], std::uint64_t a, std::uint64_t b, bool add) {
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k16.f32.%35.%35 "
               "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
               "%32, %33, add, 1, 1, 1, 1;\n}"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                 "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                 "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
                 "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                 "+f"(d[30]), "+f"(d[31])
               : "l"(a), "l"(b), "r"(static_cast<int>(add)), "C"(name_in_ptx<Element>));
}

//! d[64 x 128] += a b for 16 of the inner dimension: a in registers, b in rows across.
template <class Element>
__device__ inline void
start_product(float (&d)[64], std::uint32_t const (&a)[4], std::uint64_t b) {
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %69, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n128k16.f32.%70.%70 "
               "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
               "{%64, %65, %66, %67}, %68, add, 1, 1, 1;\n}"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                 "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                 "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
                 "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                 "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
                 "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
                 "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                 "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]),
                 "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
                 "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1),
                 "C"(name_in_ptx<Element>));
}

//! The same for d[64 x 64].
template <class Element>
__device__ inline void
start_product(float (&d)[32], std::uint32_t const (&a)[4], std::uint64_t b) {
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k16.f32.%38.%38 "
               "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
               "{%32, %33, %34, %35}, %36, add, 1, 1, 1;\n}"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                 "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                 "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
                 "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                 "+f"(d[30]), "+f"(d[31])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1),
                 "C"(name_in_ptx<Element>));
}

// clang-format on

//! Starts d[64 x Columns] = left right^T over a whole head, as one group: left has 64 rows, right a
//! row for each column of d; both as describe_tile gives them, with panels that do not matter.
template <class Element, int Dim, int Count>
__device__ __forceinline__ void
start_rows(float (&d)[Count], std::uint32_t left, std::uint32_t right) {
  constexpr int rows = 64;
  constexpr int columns = 2 * Count;
#pragma unroll
  for (int n = 0; n < Dim / 16; ++n) {
    int const inside = n % 4 * 32;
    start_product<Element>(d,
                           moved(left, n / 4 * rows * panel_row_bytes + inside),
                           moved(right, n / 4 * columns * panel_row_bytes + inside),
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
  auto const right = describe_tile(b, rows * panel_row_bytes);
#pragma unroll
  for (int n = 0; n < rows / 16; ++n) {
    std::uint32_t const part[4] = {a[4 * n], a[4 * n + 1], a[4 * n + 2], a[4 * n + 3]};
    start_product<Element>(sum, part, moved(right, n * 2 * eight_rows_bytes));
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

//! Writes the rows of a warpgroup as elements to a tile of 64 rows, laid out as tensor copies want
//! it.
//! @param row    of the lane; its second row is 8 further down
//! @param column of the lane
template <class Element, int Count>
__device__ __forceinline__ void
keep_hopper_rows(std::uint32_t tile, float const (&d)[Count], int row, int column) {
  constexpr int rows = 64;
#pragma unroll
  for (int i = 0; i < Count / 2; ++i) {
    int const n = i / 2;
    int const line = row + i % 2 * 8;
    auto const to = tile + n / 8 * rows * panel_row_bytes + line * panel_row_bytes +
                    ((n % 8 ^ line % 8) * 16) + column * 2;
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(pack<Element>(d[2 * i], d[2 * i + 1]))
                 : "memory");
  }
}

} // namespace pipelining::inline v0_2::attention::detail
