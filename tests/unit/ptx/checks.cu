// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Kernels with one planted bug each and their correct twins, for sm_80.
#include <cstdint>

#define KERNEL extern "C" __global__ void
using u32 = std::uint32_t;

__device__ u32 address(void const* p) {
  return static_cast<u32>(__cvta_generic_to_shared(p));
}

template <bool Broken>
__device__ void sum(float const* in, float* out, int n) {
  __shared__ float part[128];
  int const t = threadIdx.x;
  int const i = blockIdx.x * 128 + t;
  part[t] = i < n ? in[i] : 0.0F;
  for (int step = 64; step > 0; step /= 2) {
    if (!Broken || step != 32)
      __syncthreads();
    if (t < step)
      part[t] += part[t + step];
  }
  if (t == 0)
    out[blockIdx.x] = part[0];
}
KERNEL sum_good(float const* in, float* out, int n) {
  sum<false>(in, out, n);
}
KERNEL sum_without_barrier(float const* in, float* out, int n) {
  sum<true>(in, out, n);
}

KERNEL scale(float* x, int n, float by) {
  int const i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    x[i] *= by;
}

// Neighbours in one warp exchange bytes through shared memory.
template <bool Broken>
__device__ void neighbours(unsigned char* out) {
  __shared__ unsigned char v[32];
  v[threadIdx.x] = static_cast<unsigned char>(threadIdx.x);
  if (!Broken)
    __syncwarp();
  out[threadIdx.x] = v[threadIdx.x ^ 1];
}
KERNEL neighbours_good(unsigned char* out) {
  neighbours<false>(out);
}
KERNEL neighbours_without_syncwarp(unsigned char* out) {
  neighbours<true>(out);
}

// mode 0: good; 1: not waited for; 2: waited for, but only by the thread that copied
template <int Mode>
__device__ void copy(int const* in, int* out) {
  __shared__ __align__(16) int v[256];
  int const t = threadIdx.x;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address(v + 4 * t)),
               "l"(in + 4 * t)
               : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  asm volatile("cp.async.wait_group %0;" ::"n"(Mode == 1 ? 1 : 0) : "memory");
  if (Mode != 2)
    __syncthreads();
  out[t] = v[255 - t];
}
KERNEL copy_good(int const* in, int* out) {
  copy<0>(in, out);
}
KERNEL copy_not_waited_for(int const* in, int* out) {
  copy<1>(in, out);
}
KERNEL copy_without_barrier(int const* in, int* out) {
  copy<2>(in, out);
}

KERNEL misaligned(char* x) {
  *reinterpret_cast<int*>(x + threadIdx.x * 2) = 1;
}
KERNEL shared_bounds(int* out, int at) {
  extern __shared__ int v[];
  v[at + threadIdx.x] = 1;
  out[threadIdx.x] = v[at + threadIdx.x];
}
KERNEL shared_uninitialised(int* out, int written) {
  extern __shared__ int v[];
  if (threadIdx.x < written)
    v[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = v[31 - threadIdx.x];
}
KERNEL local_uninitialised(int* out, int written) {
  int volatile v[8];
  for (int k = 0; k < written; ++k)
    v[k] = k;
  out[threadIdx.x] = v[threadIdx.x % 8];
}

KERNEL local_bounds(int* out, int at) {
  int volatile v[8];
  for (int k = 0; k < 8; ++k)
    v[k] = k;
  out[threadIdx.x] = v[at + threadIdx.x];
}

KERNEL part_of_a_warp(int* out, int limit) {
  if (threadIdx.x < limit)
    out[threadIdx.x] = __shfl_xor_sync(0xffffffffU, static_cast<int>(threadIdx.x), 1);
}
KERNEL barrier_in_a_branch(int* out, int limit) {
  if (threadIdx.x < limit) {
    __syncthreads();
    out[threadIdx.x] = 1;
  } else {
    __syncthreads();
    out[threadIdx.x] = 2;
  }
}
KERNEL early_exit(int* out, int limit) {
  if (threadIdx.x >= limit)
    return;
  __syncthreads();
  out[threadIdx.x] = 1;
}
KERNEL named_barrier(int* out, int expected) {
  asm volatile("bar.sync 3, %0;" ::"r"(expected) : "memory");
  out[threadIdx.x] = 1;
}

// Block 1 waits for a flag of block 0. fences: 1 before the flag is set, 2 after it is seen.
KERNEL handshake(int* data, int* flag, int* out, int fences) {
  if (blockIdx.x == 1) {
    data[0] = 42;
    if (fences & 1)
      __threadfence();
    atomicExch(flag, 1);
  } else {
    while (atomicAdd(flag, 0) == 0) {
    }
    if (fences & 2)
      __threadfence();
    out[0] = data[0];
  }
}
KERNEL waits_for_ever(int const volatile* flag) {
  while (*flag == 0) {
  }
}
KERNEL release_acquire(int* data, int* flag, int* out) {
  if (blockIdx.x == 1) {
    data[0] = 7;
    asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
  } else {
    int seen = 0;
    while (seen == 0)
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    out[0] = data[0];
  }
}
KERNEL release_by_one_lane(int* data, int* flag, int* out, bool waits) {
  int const lane = threadIdx.x;
  if (blockIdx.x == 1) {
    data[lane] = lane;
    if (waits)
      __syncwarp();
    if (lane == 0)
      asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
  } else {
    int seen = 0;
    while (lane == 0 && seen == 0)
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    __syncwarp();
    out[lane] = data[lane];
  }
}
KERNEL same_place(int* out) {
  out[0] = 1;
}
KERNEL plain_and_atomic(int* out) {
  if (threadIdx.x == 0)
    out[0] = 1;
  else
    atomicAdd(out, 1);
}

__constant__ int table[4] = {2, 3, 5, 7};
__device__ int counter = 10;
KERNEL variables(int* out) {
  out[threadIdx.x] = table[threadIdx.x % 4] + atomicAdd(&counter, 1) * 0;
}
KERNEL unknown(int* out) {
  asm volatile("made.up.b32 %0, 1;" : "=r"(out[0]));
}
KERNEL gives_up(int* out) {
  if (out[threadIdx.x] == 3)
    asm volatile("trap;");
}
