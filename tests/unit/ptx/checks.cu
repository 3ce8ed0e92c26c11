// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Kernels with one planted bug each and their correct twins, for sm_80.
#include <cstdint>

#define KERNEL extern "C" __global__ void

template <bool Broken>
__device__ void sum(float const* in, float* out, int n) {
  __shared__ float part[128];
  int const t = threadIdx.x;
  int const i = blockIdx.x * 128 + t;
  part[t] = i < n ? in[i] : 0.0F;
  for (int step = 64; step > 0; step /= 2) {
    if (!Broken || step != 32) __syncthreads();
    if (t < step) part[t] += part[t + step];
  }
  if (t == 0) out[blockIdx.x] = part[0];
}
KERNEL sum_good(float const* in, float* out, int n) { sum<false>(in, out, n); }
KERNEL sum_without_barrier(float const* in, float* out, int n) { sum<true>(in, out, n); }

KERNEL scale(float* x, int n, float by) {
  int const i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= by;
}
