// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Planted bugs around asynchronous copies, mbarriers and wgmma, for sm_90a; `bug` 0 is the twin.
#include <cstdint>

#define KERNEL extern "C" __global__ void
using u32 = std::uint32_t;
using u64 = std::uint64_t;

__device__ u32 address(void const* p) {
  return static_cast<u32>(__cvta_generic_to_shared(p));
}
extern __shared__ __align__(1024) unsigned char shared[];

__device__ void init(u32 bar, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ void expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
               : "memory");
}
__device__ void arrive(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ void wait(u32 bar, u32 parity) {
  asm volatile("{\n.reg .pred P;\nW:\nmbarrier.try_wait.parity.shared::cta.b64 P, [%0], %1;\n@P "
               "bra D;\nbra W;\nD:\n}" ::"r"(bar),
               "r"(parity)
               : "memory");
}
__device__ void load(u32 to, void const* from, u32 bytes, u32 bar) {
  asm volatile(
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
      to),
    "l"(from),
    "r"(bytes),
    "r"(bar)
    : "memory");
}
__device__ void store(void* to, u32 from, u32 bytes) {
  asm volatile(
    "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
    : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
template <int N>
__device__ void wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
__device__ void proxy_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// bug 1: nobody waits; 2: wrong parity; 3: more bytes expected than come; 4: no barrier after init;
// 5: one lane waits for all without __syncwarp
KERNEL bulk_load(int const* in, int* out, int bug) {
  u32 const bar = address(shared) + 512;
  int const t = threadIdx.x;
  if (t == 0) {
    init(bar, 1);
    expect(bar, bug == 3 ? 256 + 16 : 256);
    load(address(shared), in, 256, bar);
  }
  if (bug != 4)
    __syncthreads();
  if (bug == 5) {
    if (t % 32 == 0)
      wait(bar, 0);
  } else if (bug != 1) {
    wait(bar, bug == 2 ? 1 : 0);
  }
  out[t] = reinterpret_cast<int*>(shared)[t];
}

// bug 1: no proxy fence; 2: no barrier; 3: source reused before it is read; 4: block ends first;
// 5 is none: the thread that starts the copy fences for all
KERNEL bulk_store(int* out, int bug) {
  int const t = threadIdx.x;
  int* const v = reinterpret_cast<int*>(shared);
  v[t] = t;
  if (bug != 1 && bug != 5)
    proxy_fence();
  if (bug != 2)
    __syncthreads();
  if (bug == 5 && t == 0)
    proxy_fence();
  if (t == 0) {
    store(out, address(shared), 256);
    if (bug == 3)
      v[0] = 9;
    if (bug != 4)
      wait_read<0>();
    v[0] = 8;
  }
}

// A ring of one slot filled by bulk copies and read by a warp. bug 1: lane 0 frees the slot without
// __syncwarp, 2: the slot is not waited for before it is filled again
KERNEL slot(int const* in, int* out, int steps, int bug) {
  u32 const full = address(shared) + 512, empty = full + 8;
  int const t = threadIdx.x;
  if (t == 0) {
    init(full, 1);
    init(empty, 1);
  }
  __syncthreads();
  if (t == 32) {
    for (int j = 0; j < steps; ++j) {
      if (bug != 2)
        wait(empty, (j + 1) & 1);
      else if (j > 0)
        wait(full, (j - 1) & 1);
      expect(full, 128);
      load(address(shared), in + 32 * j, 128, full);
    }
  } else if (t < 32) {
    int sum = 0;
    for (int j = 0; j < steps; ++j) {
      wait(full, j & 1);
      sum += reinterpret_cast<int volatile*>(shared)[t];
      if (bug != 1)
        __syncwarp();
      if (t == 0)
        arrive(empty);
    }
    out[t] = sum;
  }
}

// bug 1: no proxy fence; 2: no barrier; 3: no wgmma.fence; 4: accumulators read before the wait;
// 5: the tile is overwritten before the wait
template <int Bug>
__device__ void product(float* out) {
  int const t = threadIdx.x;
  u32* const words = reinterpret_cast<u32*>(shared);
  for (int k = t; k < 640; k += 128)
    words[k] = 0x3f803f80;
  if (Bug != 1)
    proxy_fence();
  if (Bug != 2)
    __syncthreads();
  float d[4] = {};
  u64 const base = address(shared) >> 4;
  u64 const a = base | u64{8} << 16 | u64{16} << 32;         // 64 x 16, core matrices in order
  u64 const b = (base + 128) | u64{8} << 16 | u64{16} << 32; // 8 x 16
  if (Bug != 3)
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile(
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
    : "l"(a), "l"(b));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  if (Bug == 4)
    out[t] = d[0];
  if (Bug == 5)
    words[t] = 0;
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  out[t] = d[0] + d[1] + d[2] + d[3];
}
KERNEL product_0(float* out) {
  product<0>(out);
}
KERNEL product_1(float* out) {
  product<1>(out);
}
KERNEL product_2(float* out) {
  product<2>(out);
}
KERNEL product_3(float* out) {
  product<3>(out);
}
KERNEL product_4(float* out) {
  product<4>(out);
}
KERNEL product_5(float* out) {
  product<5>(out);
}

KERNEL no_mbarrier() {
  arrive(address(shared));
}
KERNEL too_many_arrivals() {
  if (threadIdx.x == 0)
    init(address(shared), 20);
  __syncthreads();
  if (threadIdx.x < 20)
    arrive(address(shared));
  else if (threadIdx.x == 20)
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 21;" ::"r"(address(shared)) : "memory");
}
