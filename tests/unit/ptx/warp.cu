// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Instructions of a warp: exchange, matrices, atomics.
#include <cassert>
#include <cstdint>
#include <cstdio>

#define KERNEL extern "C" __global__ void
using u32 = std::uint32_t;

__device__ u32 shared_address(void const* p) {
  return static_cast<u32>(__cvta_generic_to_shared(p));
}

KERNEL exchange(u32 const* in, u32* out) {
  int const l = threadIdx.x;
  u32 const v = in[l];
  u32 const all = 0xffffffffU;
  int k = 0;
  auto put = [&](u32 x) { out[k++ * 32 + l] = x; };
  put(__shfl_sync(all, v, (l * 7 + 3) % 32));
  put(__shfl_up_sync(all, v, 3));
  put(__shfl_down_sync(all, v, 5));
  put(__shfl_xor_sync(all, v, 9));
  put(__shfl_sync(all, v, 11, 8));
  put(__shfl_up_sync(all, v, 2, 8));
  put(__shfl_down_sync(all, v, 3, 16));
  put(__ballot_sync(all, v % 3 == 0));
  put(__any_sync(all, v == in[5]));
  put(__all_sync(all, v == in[5]));
  put(__match_any_sync(all, v % 4));
  put(__reduce_add_sync(all, v));
  put(static_cast<u32>(__reduce_min_sync(all, static_cast<int>(v))));
  put(__reduce_xor_sync(all, v));
  u32 half = 0;
  if (l % 2 == 0) {
    half = __shfl_xor_sync(0x55555555U, v, 2);
  } else {
    half = __shfl_xor_sync(0xaaaaaaaaU, v, 4);
  }
  put(half);
}

// in: 32 rows of 16 bytes; out: 4 registers plain, 4 transposed
KERNEL load_matrix(uint4 const* in, u32* out) {
  __shared__ uint4 rows[32];
  int const l = threadIdx.x;
  rows[l] = in[l];
  __syncwarp();
  u32 r[4], t[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(&rows[(l * 5) % 32])));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(t[0]), "=r"(t[1]), "=r"(t[2]), "=r"(t[3])
               : "r"(shared_address(&rows[(l * 3) % 32])));
  for (int k = 0; k < 4; ++k) {
    out[k * 32 + l] = r[k];
    out[(4 + k) * 32 + l] = t[k];
  }
}

// Registers come from and go to [register][lane] arrays; the host places the matrices.
KERNEL multiply_bf16_k16(u32 const* a, u32 const* b, float const* c, float* d) {
  int const l = threadIdx.x;
  asm volatile("{ .reg .b32 x; mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
               "{%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13}; }"
               : "=f"(d[l]), "=f"(d[32 + l]), "=f"(d[64 + l]), "=f"(d[96 + l])
               : "r"(a[l]),
                 "r"(a[32 + l]),
                 "r"(a[64 + l]),
                 "r"(a[96 + l]),
                 "r"(b[l]),
                 "r"(b[32 + l]),
                 "f"(c[l]),
                 "f"(c[32 + l]),
                 "f"(c[64 + l]),
                 "f"(c[96 + l]));
}
KERNEL multiply_f16_k16(u32 const* a, u32 const* b, float const* c, float* d) {
  int const l = threadIdx.x;
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
               "{%8,%9}, {%10,%11,%12,%13};"
               : "=f"(d[l]), "=f"(d[32 + l]), "=f"(d[64 + l]), "=f"(d[96 + l])
               : "r"(a[l]),
                 "r"(a[32 + l]),
                 "r"(a[64 + l]),
                 "r"(a[96 + l]),
                 "r"(b[l]),
                 "r"(b[32 + l]),
                 "f"(c[l]),
                 "f"(c[32 + l]),
                 "f"(c[64 + l]),
                 "f"(c[96 + l]));
}
KERNEL multiply_bf16_k8(u32 const* a, u32 const* b, float const* c, float* d) {
  int const l = threadIdx.x;
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
               "{%7,%8,%9,%10};"
               : "=f"(d[l]), "=f"(d[32 + l]), "=f"(d[64 + l]), "=f"(d[96 + l])
               : "r"(a[l]),
                 "r"(a[32 + l]),
                 "r"(b[l]),
                 "f"(c[l]),
                 "f"(c[32 + l]),
                 "f"(c[64 + l]),
                 "f"(c[96 + l]));
}
KERNEL multiply_tf32_k8(u32 const* a, u32 const* b, float const* c, float* d) {
  int const l = threadIdx.x;
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
               "{%8,%9}, {%10,%11,%12,%13};"
               : "=f"(d[l]), "=f"(d[32 + l]), "=f"(d[64 + l]), "=f"(d[96 + l])
               : "r"(a[l]),
                 "r"(a[32 + l]),
                 "r"(a[64 + l]),
                 "r"(a[96 + l]),
                 "r"(b[l]),
                 "r"(b[32 + l]),
                 "f"(c[l]),
                 "f"(c[32 + l]),
                 "f"(c[64 + l]),
                 "f"(c[96 + l]));
}

KERNEL atomics(u32* words, float* floats, u32* order) {
  int const t = threadIdx.x + blockIdx.x * blockDim.x;
  order[t] = atomicAdd(&words[0], 1U);
  atomicMax(&words[1], static_cast<u32>(t * 37 % 101));
  atomicMin(reinterpret_cast<int*>(&words[2]), 50 - t);
  atomicXor(&words[3], 1U << (t % 32));
  atomicInc(&words[4], 6);
  atomicAdd(&floats[0], 0.5F);
  for (u32 seen = words[5] * 0, old;; seen = old) { // doubles and adds one, by compare and swap
    old = atomicCAS(&words[6], seen, seen * 2 + 1);
    if (old == seen || old > 1000)
      break;
  }
}

// Divergent loops that meet again; local arrays with computed indices.
KERNEL divergent(int const* trips, int* out) {
  int const t = threadIdx.x;
  int history[8];
  for (int k = 0; k < 8; ++k)
    history[k] = t * k;
  int sum = 0;
  for (int k = 0; k < trips[t]; ++k) {
    if (k % 3 == t % 3)
      continue;
    sum += history[(k + t) % 8];
    if (sum > 500)
      break;
  }
  out[t] = sum + __popc(__ballot_sync(0xffffffffU, sum > 100)) * 10000;
}

// Functions that stay functions, with returns in the middle and calls of their own.
__device__ __noinline__ int half_or_triple(int x) {
  if (x % 2 == 0)
    return x / 2;
  return 3 * x + 1;
}
__device__ __noinline__ int collatz(int x, int most) {
  int steps = 0;
  while (x != 1 && steps < most) {
    x = half_or_triple(x);
    ++steps;
  }
  return steps;
}
KERNEL calls(int* out, double* powers, int limit) {
  int const t = threadIdx.x;
  assert(t < limit);
  out[t] = collatz(t + 1, 1000);
  powers[t] = pow(static_cast<double>(t), 1.5);
  if (t == 5)
    printf("thread %d\n", t);
}
