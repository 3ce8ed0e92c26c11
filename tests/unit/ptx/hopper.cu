// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One kernel per Hopper instruction: wgmma, tensor and bulk copies, mbarriers, stmatrix.
#include <cuda.h>

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
__device__ void proxy_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#define D16 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}"
#define R16                                                                                        \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),  \
    "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),       \
    "+f"(d[15])

// The image of A and B goes to shared memory as it is; the descriptors are relative to its start.
template <int TransposeA, int TransposeB>
__device__ void product(uint4 const* image, int pieces, u64 a, u64 b, float const* c, float* out) {
  int const t = threadIdx.x;
  for (int k = t; k < pieces; k += 128)
    reinterpret_cast<uint4*>(shared)[k] = image[k];
  proxy_fence();
  __syncthreads();
  float d[16];
  for (int k = 0; k < 16; ++k)
    d[k] = c[k * 128 + t];
  u64 const base = address(shared) >> 4;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 " D16
               ", %16, %17, 1, 1, 1, %18, %19;"
               : R16
               : "l"(a + base), "l"(b + base), "n"(TransposeA), "n"(TransposeB));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int k = 0; k < 16; ++k)
    out[k * 128 + t] = d[k];
}
KERNEL product_nn(uint4 const* i, int n, u64 a, u64 b, float const* c, float* d) {
  product<0, 0>(i, n, a, b, c, d);
}
KERNEL product_nt(uint4 const* i, int n, u64 a, u64 b, float const* c, float* d) {
  product<0, 1>(i, n, a, b, c, d);
}
KERNEL product_tn(uint4 const* i, int n, u64 a, u64 b, float const* c, float* d) {
  product<1, 0>(i, n, a, b, c, d);
}
KERNEL product_tt(uint4 const* i, int n, u64 a, u64 b, float const* c, float* d) {
  product<1, 1>(i, n, a, b, c, d);
}

// A from registers [register][thread], fp16.
KERNEL product_registers(uint4 const* image, int pieces, u32 const* a, u64 b, float* out) {
  int const t = threadIdx.x;
  for (int k = t; k < pieces; k += 128)
    reinterpret_cast<uint4*>(shared)[k] = image[k];
  proxy_fence();
  __syncthreads();
  float d[16] = {};
  u64 const base = address(shared) >> 4;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile(
    "{.reg .pred p; setp.ne.b32 p, %21, 0;\n"
    "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 " D16
    ", {%16,%17,%18,%19}, %20, p, 1, 1, 0;}"
    : R16
    : "r"(a[t]), "r"(a[128 + t]), "r"(a[256 + t]), "r"(a[384 + t]), "l"(b + base), "r"(0));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int k = 0; k < 16; ++k)
    out[k * 128 + t] = d[k];
}

KERNEL
tensor_load(const __grid_constant__ CUtensorMap map, u32* out, int words, int c0, int c1, int c2) {
  u32 const bar = address(shared) + words * 4;
  if (threadIdx.x == 0) {
    init(bar, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    expect(bar, words * 4);
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2,%3,%4}], [%5];" ::"r"(address(shared)),
                 "l"(&map),
                 "r"(c0),
                 "r"(c1),
                 "r"(c2),
                 "r"(bar)
                 : "memory");
  }
  __syncthreads();
  wait(bar, 0);
  for (int k = threadIdx.x; k < words; k += blockDim.x)
    out[k] = reinterpret_cast<u32*>(shared)[k];
}

template <bool Add>
__device__ void store(CUtensorMap const& map, u32 const* in, int words, int c0, int c1, int c2) {
  for (int k = threadIdx.x; k < words; k += blockDim.x)
    reinterpret_cast<u32*>(shared)[k] = in[k];
  proxy_fence();
  __syncthreads();
  if (threadIdx.x == 0) {
    if (Add) {
      asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, "
                   "{%1,%2,%3}], [%4];" ::"l"(&map),
                   "r"(c0),
                   "r"(c1),
                   "r"(c2),
                   "r"(address(shared))
                   : "memory");
    } else {
      asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1,%2,%3}], [%4];" ::"l"(
          &map),
        "r"(c0),
        "r"(c1),
        "r"(c2),
        "r"(address(shared))
        : "memory");
    }
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}
KERNEL tensor_store(
  const __grid_constant__ CUtensorMap map, u32 const* in, int words, int c0, int c1, int c2) {
  store<false>(map, in, words, c0, c1, c2);
}
KERNEL tensor_add(
  const __grid_constant__ CUtensorMap map, u32 const* in, int words, int c0, int c1, int c2) {
  store<true>(map, in, words, c0, c1, c2);
}

// Linear copies in and out again, the second as a float sum.
KERNEL bulk(float const* in, float* copy, float* sum, int bytes) {
  u32 const bar = address(shared) + bytes;
  if (threadIdx.x == 0) {
    init(bar, 1);
    expect(bar, bytes);
    asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
        "r"(address(shared)),
      "l"(in),
      "r"(bytes),
      "r"(bar)
      : "memory");
    wait(bar, 0);
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(copy),
                 "r"(address(shared)),
                 "r"(bytes)
                 : "memory");
    asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(sum),
      "r"(address(shared)),
      "r"(bytes)
      : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
}

// A ring of two slots: one producer thread, one consumer warp; out gets the running sums.
KERNEL ring(int const* in, int* out, int steps) {
  int* const slot = reinterpret_cast<int*>(shared);
  u32 const full = address(shared) + 64, empty = full + 16;
  if (threadIdx.x == 0) {
    for (int k = 0; k < 2; ++k) {
      init(full + 8 * k, 1);
      init(empty + 8 * k, 32);
    }
  }
  __syncthreads();
  if (threadIdx.x == 32) {
    for (int j = 0; j < steps; ++j) {
      wait(empty + 8 * (j % 2), (j / 2 + 1) & 1);
      slot[j % 2] = in[j];
      arrive(full + 8 * (j % 2));
    }
  } else if (threadIdx.x < 32) {
    int sum = 0;
    for (int j = 0; j < steps; ++j) {
      wait(full + 8 * (j % 2), (j / 2) & 1);
      sum += slot[j % 2] * static_cast<int>(threadIdx.x);
      arrive(empty + 8 * (j % 2));
    }
    out[threadIdx.x] = sum;
  }
}

KERNEL store_matrix(u32 const* in, uint4* out) {
  int const l = threadIdx.x;
  uint4* const rows = reinterpret_cast<uint4*>(shared);
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                 address(rows + (l * 5) % 32)),
               "r"(in[l]),
               "r"(in[32 + l]),
               "r"(in[64 + l]),
               "r"(in[96 + l])
               : "memory");
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};" ::"r"(
                 address(rows + 32 + l % 16)),
               "r"(in[l]),
               "r"(in[32 + l])
               : "memory");
  __syncwarp();
  out[l] = rows[l];
  if (l < 16)
    out[32 + l] = rows[32 + l];
}

KERNEL leader(u32* out) {
  u32 who, chosen;
  asm volatile("{.reg .pred p; elect.sync %0|p, 0xffffffff; selp.b32 %1, 1, 0, p;}"
               : "=r"(who), "=r"(chosen));
  out[threadIdx.x] = who * 2 + chosen;
}
