// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Instructions of sm_80 that the portable attention kernels are made of: asynchronous
//! copies, matrix loads and matrix products of one warp.

#include <pipe/config.hpp>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace pipelining::inline v0_3::attention {

namespace detail {

//! Element types that the matrix units multiply.
template <class Element>
inline constexpr bool is_kernel_element =
  std::is_same_v<Element, __nv_bfloat16> || std::is_same_v<Element, __half>;

//! Address within shared memory, as the instructions below want it.
__device__ inline std::uint32_t shared_address(void const* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

//! threadIdx.x, asked for each time: nothing that follows from it stays in a register meanwhile.
__device__ inline int thread_anew() {
  int number;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
  return number;
}

//! A number in shared memory, read anew each time.
__device__ inline void write_slot(std::uint32_t slot, int number) {
  asm volatile("st.shared.s32 [%0], %1;" ::"r"(slot), "r"(number) : "memory");
}
__device__ inline int read_slot(std::uint32_t slot) {
  int number;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(number) : "r"(slot) : "memory");
  return number;
}

//! Starts to copy 16 bytes to shared memory; zeros in place of them where `there` is false.
__device__ inline void copy_16_bytes(std::uint32_t to, void const* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
               "l"(__cvta_generic_to_global(from)),
               "r"(there ? 16 : 0)
               : "memory");
}

//! Ends a group of copies of this thread.
__device__ inline void end_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

//! Waits until at most Open of this thread's latest groups are under way.
template <int Open>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Open) : "memory");
}

//! Four 8 x 8 matrices; lanes 8 i ... 8 i + 7 give the rows of matrix i.
__device__ inline void load_matrices(std::uint32_t (&to)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

//! The same, each matrix transposed.
__device__ inline void load_matrices_across(std::uint32_t (&to)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

//! sum[16 x 8] += a[16 x 16] b[16 x 8], of one warp.
//! @source PTX ISA, "Matrix Fragments for mma.m16n8k16"
template <class Element>
__device__ inline void
multiply_add(float (&sum)[4], std::uint32_t const (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  static_assert(is_kernel_element<Element>);
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

//! Two numbers rounded to elements, the first in the low half.
template <class Element>
__device__ inline std::uint32_t pack(float low, float high) {
  std::uint32_t both;
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  }
  return both;
}

//! The two elements of a pack.
template <class Element>
__device__ inline float2 unpack(std::uint32_t both) {
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    return {__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u)};
  } else {
    return __half22float2(
      __halves2half2(__ushort_as_half(static_cast<unsigned short>(both)),
                     __ushort_as_half(static_cast<unsigned short>(both >> 16))));
  }
}

//! 2^x; 0 for -infinity.
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

//! Sum over the four lanes that hold one row of a product.
__device__ inline float sum_of_row(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

//! Largest over the four lanes that hold one row of a product.
__device__ inline float largest_of_row(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

} // namespace detail

} // namespace pipelining::inline v0_3::attention
