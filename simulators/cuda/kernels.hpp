// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Launches of the kernels of kernels.cu, for the tests of launching.

#include <cuda_runtime_api.h>

#include <cstddef>

//! @brief What a launch is given.
struct shape_of_launch {
  unsigned blocks = 1;
  unsigned threads = 32;
  std::size_t shared = 0;
};

//! @brief to[i] = from[i] + 1
cudaError_t
launch_increment(int* to, int const* from, int count, shape_of_launch how, cudaStream_t on);
//! @brief The same through cudaLaunchKernelEx.
cudaError_t
launch_increment_ex(int* to, int const* from, int count, shape_of_launch how, cudaStream_t on);
//! @brief to[i] = i + first, by a kernel that the tests replace by a function of the host.
cudaError_t launch_count_up(int* to, int count, int first, cudaStream_t on);
//! @brief Reverses a block through dynamic shared memory.
cudaError_t
launch_reverse(int* values, int count, bool synchronise, shape_of_launch how, cudaStream_t on);
cudaError_t allow_shared_for_reverse(int bytes);
//! @brief Adds to a device variable.
cudaError_t launch_tally(cudaStream_t on);
//! @brief Address of that variable.
cudaError_t address_of_tally(void** out);
//! @brief Waits on the clock of the device; times[0], times[1]: when it began and ended.
cudaError_t launch_spin(unsigned long long* times, unsigned nanoseconds, cudaStream_t on);
//! @brief A kernel that traps.
cudaError_t launch_give_up(cudaStream_t on);
//! @brief What is known of the kernel of launch_increment.
cudaError_t attributes_of_increment(cudaFuncAttributes* out);
