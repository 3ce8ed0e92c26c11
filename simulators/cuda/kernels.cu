// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <cuda_runtime.h>

#include "kernels.hpp"

__global__ void increment(int* to, int const* from, int count) {
  int const i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count)
    to[i] = from[i] + 1;
}

template <int Unused>
__global__ void count_up(int* to, int count, int first) {
  for (int i = 0; i < count; ++i)
    to[i] = first + i + Unused;
}

__global__ void reverse(int* values, int count, bool synchronise) {
  extern __shared__ int staged[];
  int const i = static_cast<int>(threadIdx.x);
  if (i < count)
    staged[i] = values[i];
  if (synchronise)
    __syncthreads();
  if (i < count)
    values[i] = staged[count - 1 - i];
}

__device__ int tally;

__global__ void add_to_tally() {
  tally += 1;
}

__global__ void spin(unsigned long long* times, unsigned nanoseconds) {
  unsigned long long now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  unsigned long long const end = now + nanoseconds;
  times[0] = now;
  while (now < end) {
    __nanosleep(static_cast<unsigned>(end - now) / 2);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  }
  times[1] = now;
}

__global__ void give_up() {
  __trap();
}

cudaError_t
launch_increment(int* to, int const* from, int count, shape_of_launch how, cudaStream_t on) {
  increment<<<how.blocks, how.threads, how.shared, on>>>(to, from, count);
  return cudaGetLastError();
}

cudaError_t
launch_increment_ex(int* to, int const* from, int count, shape_of_launch how, cudaStream_t on) {
  cudaLaunchConfig_t config{};
  config.gridDim = how.blocks;
  config.blockDim = how.threads;
  config.dynamicSmemBytes = how.shared;
  config.stream = on;
  return cudaLaunchKernelEx(&config, increment, to, from, count);
}

cudaError_t launch_count_up(int* to, int count, int first, cudaStream_t on) {
  count_up<0><<<1, 1, 0, on>>>(to, count, first);
  return cudaGetLastError();
}

cudaError_t
launch_reverse(int* values, int count, bool synchronise, shape_of_launch how, cudaStream_t on) {
  reverse<<<how.blocks, how.threads, how.shared, on>>>(values, count, synchronise);
  return cudaGetLastError();
}

cudaError_t allow_shared_for_reverse(int bytes) {
  return cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

cudaError_t launch_tally(cudaStream_t on) {
  add_to_tally<<<1, 1, 0, on>>>();
  return cudaGetLastError();
}

cudaError_t address_of_tally(void** out) {
  return cudaGetSymbolAddress(out, tally);
}

cudaError_t launch_spin(unsigned long long* times, unsigned nanoseconds, cudaStream_t on) {
  spin<<<1, 1, 0, on>>>(times, nanoseconds);
  return cudaGetLastError();
}

cudaError_t launch_give_up(cudaStream_t on) {
  give_up<<<1, 1, 0, on>>>();
  return cudaGetLastError();
}

cudaError_t attributes_of_increment(cudaFuncAttributes* out) {
  return cudaFuncGetAttributes(out, increment);
}
