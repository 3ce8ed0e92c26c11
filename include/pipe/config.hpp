// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The only header that asks which compiler this is, and the only one that defines macros
//! next to version.hpp.

#include <pipe/version.hpp>

#if __cplusplus < 202002L
#error "pipelining needs C++20: compile with -std=c++20, or link the target pipelining::core"
#endif

//! Marks a function that host and device code both call. Empty where the compiler knows no devices.
#if defined(__CUDACC__)
#define PIPELINING_HOST_DEVICE __host__ __device__
#else
#define PIPELINING_HOST_DEVICE
#endif

//! Tells the processor that this is a loop which waits for another core.
#if defined(__has_builtin) && !defined(__CUDA_ARCH__)
#if __has_builtin(__builtin_ia32_pause)
#define PIPELINING_RELAX() __builtin_ia32_pause()
#endif
#endif
#if !defined(PIPELINING_RELAX) && defined(__aarch64__) && !defined(__CUDA_ARCH__)
#define PIPELINING_RELAX() __asm__ __volatile__("yield")
#endif
#if !defined(PIPELINING_RELAX)
#define PIPELINING_RELAX() static_cast<void>(0)
#endif

//! Marks functions of which compilers make versions for other x86-64 processors than the build's.
//! What they call goes into them, whole. Only where a compiler can do so.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__CUDACC__)
#define PIPELINING_X86_64_V3                                                                       \
  [[gnu::noinline, gnu::flatten, gnu::target("avx2,bmi,bmi2,f16c,fma,lzcnt,movbe")]]
#define PIPELINING_X86_64_V4                                                                       \
  [[gnu::noinline,                                                                                 \
    gnu::flatten,                                                                                  \
    gnu::target(                                                                                   \
      "avx2,bmi,bmi2,f16c,fma,lzcnt,movbe,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]]
#endif

//! Whether NVTX's headers are there; toolkits may come without them. Asked by headers for CUDA
//! only.
#if __has_include(<nvtx3/nvToolsExt.h>)
#define PIPELINING_HAS_NVTX 1
#else
#define PIPELINING_HAS_NVTX 0
#endif

//! Marks a kernel. Hidden, so that two libraries that instantiate the same kernel keep their own.
#if defined(__CUDACC__)
#define PIPELINING_KERNEL __attribute__((visibility("hidden"))) __global__
#endif
