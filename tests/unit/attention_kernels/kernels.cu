// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The portable kernels under plain names, for the PTX interpreter and for the gates on what ptxas
// makes of them.
#include <pipe/attention/kernel/merge_splits.cuh>
#include <pipe/attention/kernel/query_sums.cuh>
#include <pipe/attention/portable/backward_mma.cuh>
#include <pipe/attention/portable/forward_mma.cuh>

#include "functors.hpp"

namespace at = pipelining::attention;

namespace {

extern __shared__ __align__(1024) unsigned char memory[];

} // namespace

#define FORWARD_OF(name, shape, element, mask, score)                                              \
  extern "C" __global__ void __launch_bounds__(shape::threads, shape::blocks)                      \
    forward_##name(const __grid_constant__ at::detail::forward_call<element, mask, score> call) {  \
    at::detail::run_forward_block<shape>(call, at::detail::no_key_splits{}, memory);               \
  }
#define FORWARD(name, dim, element, mask, score)                                                   \
  using forward_shape_##name = at::detail::forward_shape<dim, score>;                              \
  FORWARD_OF(name, forward_shape_##name, element, mask, score)
// With tiles of which two blocks fit on a multiprocessor with 100 KiB of shared memory.
#define FORWARD_COMPACT(name, dim, element, mask, score)                                           \
  using compact_shape_##name = at::detail::forward_shape<dim, score, true>;                        \
  FORWARD_OF(name##_compact, compact_shape_##name, element, mask, score)

constexpr int latent = at::head_dims(192, 128);
using window_of_document = at::both<at::sliding_window, at::document>;

FORWARD(64, 64, __nv_bfloat16, at::causal, at::plain)
FORWARD(64_half, 64, __half, at::full, at::plain)
FORWARD(64_own, 64, __half, kernel_tests::speckled, kernel_tests::bent)
FORWARD(128, 128, __nv_bfloat16, at::causal, at::plain)
FORWARD(128_full, 128, __half, at::full, at::plain)
FORWARD(128_window, 128, __nv_bfloat16, at::sliding_window, at::plain)
FORWARD(128_cap, 128, __half, window_of_document, at::soft_cap)
FORWARD(256_alibi, 256, __nv_bfloat16, at::causal, at::alibi)
FORWARD(80, 80, __nv_bfloat16, at::causal, at::plain)
FORWARD(96_cap, 96, __half, at::causal, at::soft_cap)
FORWARD(112, 112, __half, at::causal, at::plain)
FORWARD(192_128, latent, __nv_bfloat16, at::causal, at::plain)
FORWARD(192_128_own, latent, __half, kernel_tests::speckled, kernel_tests::bent)
FORWARD_COMPACT(80, 80, __nv_bfloat16, at::causal, at::plain)
FORWARD_COMPACT(128, 128, __nv_bfloat16, at::causal, at::plain)
FORWARD_COMPACT(128_cap, 128, __half, window_of_document, at::soft_cap)
FORWARD_COMPACT(192_128_own, latent, __half, kernel_tests::speckled, kernel_tests::bent)
FORWARD_COMPACT(256_alibi, 256, __nv_bfloat16, at::causal, at::alibi)

// The same with the keys in parts, and their merge.
#define FORWARD_SPLIT(name, shape, element, mask, score)                                           \
  extern "C" __global__ void __launch_bounds__(shape::threads, shape::blocks)                      \
    forward_##name##_split(                                                                        \
      const __grid_constant__ at::detail::forward_call<element, mask, score> call,                 \
      const __grid_constant__ at::detail::key_splits splits) {                                     \
    at::detail::run_forward_block<shape>(call, splits, memory);                                    \
  }                                                                                                \
  extern "C" __global__ void __launch_bounds__(at::detail::merge_threads)                          \
    merge_##name(const __grid_constant__ at::detail::forward_call<element, mask, score> call,      \
                 const __grid_constant__ at::detail::key_splits splits) {                          \
    at::detail::merge_splits_block<shape::value_dim>(call.p, call.t, splits);                      \
  }

FORWARD_SPLIT(80, forward_shape_80, __nv_bfloat16, at::causal, at::plain)
FORWARD_SPLIT(80_compact, compact_shape_80, __nv_bfloat16, at::causal, at::plain)
FORWARD_SPLIT(64, forward_shape_64, __nv_bfloat16, at::causal, at::plain)
FORWARD_SPLIT(128, forward_shape_128, __nv_bfloat16, at::causal, at::plain)
FORWARD_SPLIT(256_alibi, forward_shape_256_alibi, __nv_bfloat16, at::causal, at::alibi)

#define BACKWARD_IN(order, name, dim, element, mask, score)                                        \
  extern "C" __global__ void __launch_bounds__(at::detail::backward_shape<dim, score>::threads)    \
    backward_##name(const __grid_constant__ at::detail::backward_call<element, mask, score> call,  \
                    const __grid_constant__ at::detail::query_sums sums) {                         \
    at::detail::run_backward_block<dim, at::query_order::order>(call, sums, memory);               \
  }
#define BACKWARD(name, dim, element, mask, score)                                                  \
  BACKWARD_IN(kept, name, dim, element, mask, score)                                               \
  extern "C" __global__ void __launch_bounds__(at::detail::start_sums_threads) start_sums_##name(  \
    const __grid_constant__ at::detail::backward_call<element, mask, score> call,                  \
    const __grid_constant__ at::detail::query_sums sums) {                                         \
    at::detail::start_sums_block<at::kernel_family::portable, dim>(call, sums);                    \
  }                                                                                                \
  extern "C" __global__ void __launch_bounds__(                                                    \
    at::detail::finishing_threads<at::kernel_family::portable, dim>)                               \
    finish_sums_##name(                                                                            \
      const __grid_constant__ at::detail::backward_call<element, mask, score> call,                \
      const __grid_constant__ at::detail::query_sums sums) {                                       \
    at::detail::finish_sums_block<at::kernel_family::portable, dim, element>(call, sums);          \
  }

BACKWARD(64, 64, __nv_bfloat16, at::causal, at::plain)
BACKWARD_IN(free, 64_free, 64, __nv_bfloat16, at::causal, at::plain)
BACKWARD(64_own, 64, __half, kernel_tests::speckled, kernel_tests::bent)
BACKWARD(128, 128, __nv_bfloat16, at::causal, at::plain)
BACKWARD_IN(free, 128_free, 128, __nv_bfloat16, at::causal, at::plain)
BACKWARD(128_cap, 128, __half, window_of_document, at::soft_cap)
BACKWARD(256_alibi, 256, __nv_bfloat16, at::causal, at::alibi)
BACKWARD(80, 80, __nv_bfloat16, at::causal, at::plain)
BACKWARD(96_own, 96, __half, kernel_tests::speckled, kernel_tests::bent)
BACKWARD(112, 112, __half, at::causal, at::plain)
BACKWARD(192_128, latent, __nv_bfloat16, at::causal, at::plain)
BACKWARD_IN(free, 192_128_free, latent, __nv_bfloat16, at::causal, at::plain)
BACKWARD(192_128_cap, latent, __half, window_of_document, at::soft_cap)
