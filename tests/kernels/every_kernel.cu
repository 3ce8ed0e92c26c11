// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Every attention kernel of one head dim and element type, for every mask, under plain names:
// scripts/check-kernels --everything compiles it once for each DIM, TYPE and ELEMENT.
#if defined(HOPPER)
#include <pipe/attention/hopper/backward.cuh>
#include <pipe/attention/hopper/forward.cuh>
#else
#include <pipe/attention/portable/backward_mma.cuh>
#include <pipe/attention/portable/forward_mma.cuh>
#endif

namespace at = pipelining::attention;

namespace {

extern __shared__ __align__(1024) unsigned char memory[];

using window_of_document = at::both<at::sliding_window, at::document>;

} // namespace

#define JOIN_(way, dim, type, mask) way##_##dim##_##type##_##mask
#define JOIN(way, dim, type, mask) JOIN_(way, dim, type, mask)

#if defined(HOPPER)
#define KERNELS(name, mask)                                                                        \
  extern "C" __global__ void __launch_bounds__(at::detail::hopper_forward_shape<DIM>::threads, 1)  \
    JOIN(forward, DIM, TYPE, name)(                                                                \
      const __grid_constant__ at::detail::hopper_forward_maps maps,                                \
      const __grid_constant__ at::detail::forward_call<ELEMENT, mask, at::plain> call) {           \
    at::detail::forward_hopper_block<DIM>(call, maps, at::detail::no_key_splits{}, memory);        \
  }                                                                                                \
  extern "C" __global__ void __launch_bounds__(at::detail::hopper_backward_shape<DIM>::threads, 1) \
    JOIN(backward, DIM, TYPE, name)(                                                               \
      const __grid_constant__ at::detail::hopper_backward_maps maps,                               \
      const __grid_constant__ at::detail::backward_call<ELEMENT, mask, at::plain> call,            \
      const __grid_constant__ at::detail::query_sums sums) {                                       \
    at::detail::backward_hopper_block<DIM, at::query_order::kept>(call, maps, sums, memory);       \
  }                                                                                                \
  extern "C" __global__ void __launch_bounds__(at::detail::hopper_backward_shape<DIM>::threads, 1) \
    JOIN(backward_free, DIM, TYPE, name)(                                                          \
      const __grid_constant__ at::detail::hopper_backward_maps maps,                               \
      const __grid_constant__ at::detail::backward_call<ELEMENT, mask, at::plain> call,            \
      const __grid_constant__ at::detail::query_sums sums) {                                       \
    at::detail::backward_hopper_block<DIM, at::query_order::free>(call, maps, sums, memory);       \
  }
#else
#define KERNELS(name, mask)                                                                        \
  extern "C" __global__ void __launch_bounds__(at::detail::forward_shape<DIM>::threads,            \
                                               at::detail::forward_shape<DIM>::blocks)             \
    JOIN(forward, DIM, TYPE, name)(                                                                \
      const __grid_constant__ at::detail::forward_call<ELEMENT, mask, at::plain> call) {           \
    at::detail::run_forward_block<at::detail::forward_shape<DIM>>(                                 \
      call, at::detail::no_key_splits{}, memory);                                                  \
  }                                                                                                \
  extern "C" __global__ void __launch_bounds__(at::detail::backward_shape<DIM>::threads)           \
    JOIN(backward, DIM, TYPE, name)(                                                               \
      const __grid_constant__ at::detail::backward_call<ELEMENT, mask, at::plain> call,            \
      const __grid_constant__ at::detail::query_sums sums) {                                       \
    at::detail::run_backward_block<DIM, at::query_order::kept>(call, sums, memory);                \
  }                                                                                                \
  extern "C" __global__ void __launch_bounds__(at::detail::backward_shape<DIM>::threads)           \
    JOIN(backward_free, DIM, TYPE, name)(                                                          \
      const __grid_constant__ at::detail::backward_call<ELEMENT, mask, at::plain> call,            \
      const __grid_constant__ at::detail::query_sums sums) {                                       \
    at::detail::run_backward_block<DIM, at::query_order::free>(call, sums, memory);                \
  }
#endif

KERNELS(full, at::full)
KERNELS(causal, at::causal)
KERNELS(window, at::sliding_window)
KERNELS(document, at::document)
KERNELS(window_of_document, window_of_document)
