// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The kernels for Hopper under plain names, for the PTX interpreter and for the gates on what ptxas
// makes of them.
#include <pipe/attention/hopper/backward.cuh>
#include <pipe/attention/hopper/forward.cuh>
#include <pipe/attention/kernel/merge_splits.cuh>
#include <pipe/attention/kernel/query_sums.cuh>

#include "functors.hpp"

namespace at = pipelining::attention;

namespace {

extern __shared__ __align__(1024) unsigned char memory[];

} // namespace

#define FORWARD(name, dim, element, mask, score)                                                   \
  extern "C" __global__ void __launch_bounds__(                                                    \
    at::detail::hopper_forward_shape<dim, score>::threads, 1)                                      \
    forward_##name(const __grid_constant__ at::detail::hopper_forward_maps maps,                   \
                   const __grid_constant__ at::detail::forward_call<element, mask, score> call,    \
                   const __grid_constant__ at::detail::piece_order order) {                        \
    at::detail::forward_hopper_block<dim>(call, maps, at::detail::no_key_splits{}, order, memory); \
  }

constexpr int latent = at::head_dims(192, 128);
using causal_document = at::both<at::causal, at::document>;
using window_of_document = at::both<at::sliding_window, at::document>;

FORWARD(64, 64, __nv_bfloat16, at::causal, at::plain)
FORWARD(64_own, 64, __half, kernel_tests::speckled, kernel_tests::bent)
FORWARD(128, 128, __nv_bfloat16, at::causal, at::plain)
FORWARD(128_document, 128, __nv_bfloat16, causal_document, at::plain)
FORWARD(128_half, 128, __half, at::full, at::plain)
FORWARD(128_cap, 128, __half, window_of_document, at::soft_cap)
FORWARD(256, 256, __nv_bfloat16, at::causal, at::plain)
FORWARD(256_cap, 256, __half, window_of_document, at::soft_cap)
FORWARD(80, 80, __nv_bfloat16, at::causal, at::plain)
FORWARD(96_cap, 96, __half, window_of_document, at::soft_cap)
FORWARD(112, 112, __half, at::causal, at::plain)
FORWARD(192_128, latent, __nv_bfloat16, at::causal, at::plain)
FORWARD(192_128_cap, latent, __half, window_of_document, at::soft_cap)

extern "C" __global__ void __launch_bounds__(at::detail::hopper_forward_shape<128>::threads, 1)
  forward_128_split(
    const __grid_constant__ at::detail::hopper_forward_maps maps,
    const __grid_constant__ at::detail::forward_call<__nv_bfloat16, at::causal, at::plain> call,
    const __grid_constant__ at::detail::piece_order order,
    const __grid_constant__ at::detail::key_splits splits) {
  at::detail::forward_hopper_block<128>(call, maps, splits, order, memory);
}

extern "C" __global__ void __launch_bounds__(at::detail::merge_threads) merge_128(
  const __grid_constant__ at::detail::forward_call<__nv_bfloat16, at::causal, at::plain> call,
  const __grid_constant__ at::detail::key_splits splits) {
  at::detail::merge_splits_block<128>(call.p, call.t, splits);
}

#define SUMS(name, dim, element, mask, score)                                                      \
  extern "C" __global__ void __launch_bounds__(at::detail::start_sums_threads) start_sums_##name(  \
    const __grid_constant__ at::detail::backward_call<element, mask, score> call,                  \
    const __grid_constant__ at::detail::query_sums sums) {                                         \
    at::detail::start_sums_block<at::kernel_family::hopper, dim>(call, sums);                      \
  }                                                                                                \
  extern "C" __global__ void __launch_bounds__(                                                    \
    at::detail::finishing_threads<at::kernel_family::hopper, dim>)                                 \
    finish_sums_##name(                                                                            \
      const __grid_constant__ at::detail::backward_call<element, mask, score> call,                \
      const __grid_constant__ at::detail::query_sums sums) {                                       \
    at::detail::finish_sums_block<at::kernel_family::hopper, dim, element>(call, sums);            \
  }

#define BACKWARD(name, dim, order, element, mask, score)                                           \
  extern "C" __global__ void __launch_bounds__(at::detail::hopper_backward_shape<dim>::threads, 1) \
    backward_##name(const __grid_constant__ at::detail::hopper_backward_maps maps,                 \
                    const __grid_constant__ at::detail::backward_call<element, mask, score> call,  \
                    const __grid_constant__ at::detail::query_sums sums) {                         \
    at::detail::backward_hopper_block<dim, at::query_order::order>(call, maps, sums, memory);      \
  }

SUMS(64, 64, __nv_bfloat16, at::causal, at::plain)
SUMS(64_own, 64, __half, kernel_tests::speckled, kernel_tests::bent)
SUMS(64_heads, 64, __nv_bfloat16, kernel_tests::window_of_head, at::plain)
SUMS(128, 128, __nv_bfloat16, at::causal, at::plain)
SUMS(128_document, 128, __nv_bfloat16, causal_document, at::plain)
SUMS(80, 80, __nv_bfloat16, at::causal, at::plain)
SUMS(96_cap, 96, __half, window_of_document, at::soft_cap)
SUMS(112, 112, __half, at::causal, at::plain)
SUMS(192_128, latent, __nv_bfloat16, at::causal, at::plain)
SUMS(192_128_cap, latent, __half, window_of_document, at::soft_cap)
SUMS(128_cap, 128, __half, window_of_document, at::soft_cap)
SUMS(256, 256, __nv_bfloat16, at::causal, at::plain)
SUMS(256_cap, 256, __half, window_of_document, at::soft_cap)

BACKWARD(64, 64, kept, __nv_bfloat16, at::causal, at::plain)
BACKWARD(64_free, 64, free, __nv_bfloat16, at::causal, at::plain)
BACKWARD(64_own, 64, kept, __half, kernel_tests::speckled, kernel_tests::bent)
BACKWARD(64_heads, 64, kept, __nv_bfloat16, kernel_tests::window_of_head, at::plain)
BACKWARD(128, 128, kept, __nv_bfloat16, at::causal, at::plain)
BACKWARD(128_free, 128, free, __nv_bfloat16, at::causal, at::plain)
BACKWARD(128_document, 128, kept, __nv_bfloat16, causal_document, at::plain)
BACKWARD(80, 80, kept, __nv_bfloat16, at::causal, at::plain)
BACKWARD(80_free, 80, free, __nv_bfloat16, at::causal, at::plain)
BACKWARD(96_cap, 96, kept, __half, window_of_document, at::soft_cap)
BACKWARD(112, 112, kept, __half, at::causal, at::plain)
BACKWARD(192_128, latent, kept, __nv_bfloat16, at::causal, at::plain)
BACKWARD(192_128_free, latent, free, __nv_bfloat16, at::causal, at::plain)
BACKWARD(192_128_cap, latent, kept, __half, window_of_document, at::soft_cap)
BACKWARD(128_cap, 128, kept, __half, window_of_document, at::soft_cap)
BACKWARD(256, 256, kept, __nv_bfloat16, at::causal, at::plain)
BACKWARD(256_free, 256, free, __nv_bfloat16, at::causal, at::plain)
BACKWARD(256_cap, 256, kept, __half, window_of_document, at::soft_cap)
