// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Finds out at run time if the code of a kernel for sm_90a is in the program.
//!
//! nvcc compiles a kernel once per architecture that it is asked for, and only the pass for sm_90a
//! can compile the instructions of Hopper. All other passes leave a kernel without a body. A GPU of
//! compute capability 9.0 also runs code for sm_90, sm_80 or any earlier PTX, so its capability
//! says nothing; and neither binaryVersion nor ptxVersion of cudaFuncGetAttributes knows of the
//! letter a. What differs are the launch bounds: threads_on_hopper gives the body its own, and the
//! kernel without a body those of one warp. The runtime reports the bounds of the code that it has
//! loaded, and it refuses a launch beyond them, so the kernel without a body cannot be started by
//! mistake.

#include <pipe/attention/kernel_choice.hpp>
#include <pipe/attention/launch_memory.cuh>
#include <pipe/config.hpp>
#include <pipe/cuda/error.cuh>

#include <cuda_runtime_api.h>

namespace pipelining::inline v0_3::attention::detail {

//! Launch bounds of a kernel for sm_90a that is launched with so many threads.
template <int Threads>
inline constexpr int threads_on_hopper =
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
  32;
#else
  Threads;
#endif

//! Registers of each thread at launch, of which setmaxnreg gives the consumers theirs.
template <class Shape>
inline constexpr int registers_at_launch = (Shape::consumers * Shape::consumer_registers +
                                            Shape::copy_registers) /
                                           (Shape::consumers + 1);

//! Finds the code of the kernel that the current GPU has loaded: all_there; no_code, for that
//! without a body; few_registers, where setmaxnreg would wait for ever for those that the launch
//! did not get; unclear, where a runtime reports other launch bounds than either, as the threads
//! that registers allow.
//! @param kernel whose launch bounds are threads_on_hopper<Shape::threads>
//! @throws cuda::error where the runtime cannot say
template <class Shape>
choice_reason find_code(void const* kernel) {
  static_assert(Shape::threads != 32);
  cudaFuncAttributes about{};
  auto const code = cudaFuncGetAttributes(&about, kernel);
  if (code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction) {
    (void)cudaGetLastError(); // no code for this GPU whatever
    return choice_reason::no_code;
  }
  cuda::check(code, "cudaFuncGetAttributes");
  if (about.maxThreadsPerBlock != Shape::threads) {
    return about.maxThreadsPerBlock == 32 ? choice_reason::no_code : choice_reason::unclear;
  }
  return about.numRegs < registers_at_launch<Shape> ? choice_reason::few_registers
                                                    : choice_reason::all_there;
}

//! The same, asked once.
template <class Shape>
choice_reason code_of_kernel(void const* kernel, launch_memory& memory) {
  return static_cast<choice_reason>(
    memory.fact_of(kernel, [&] { return static_cast<int>(find_code<Shape>(kernel)); }));
}

} // namespace pipelining::inline v0_3::attention::detail
