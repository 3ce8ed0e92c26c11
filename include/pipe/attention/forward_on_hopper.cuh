// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Launches forward of chunked attention on a Hopper GPU.

#include <pipe/attention/forward.cuh>
#include <pipe/attention/forward_hopper.cuh>
#include <pipe/attention/kernel_call.hpp>
#include <pipe/attention/tensor_map.cuh>
#include <pipe/config.hpp>
#include <pipe/cuda/error.cuh>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace pipelining::inline v0_1::attention {

namespace detail {

template <class Built, int Dim, class Element, mask Mask, score Score>
PIPELINING_KERNEL void __launch_bounds__(hopper_forward_shape<Dim, Score>::threads, 1)
  forward_hopper_kernel(hopper_forward_maps const __grid_constant__ maps,
                        forward_call<Element, Mask, Score> const __grid_constant__ call) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char attention_memory[];
  forward_hopper_block<Dim>(call, maps, attention_memory);
#else
  (void)maps;
  (void)call;
  __trap(); // the program has no code for sm_90a, only for others
#endif
}

//! A property of the current GPU.
inline int attribute_of_device(cudaDeviceAttr which) {
  int device = 0;
  int value = 0;
  cuda::check(cudaGetDevice(&device), "cudaGetDevice");
  cuda::check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

} // namespace detail

//! @brief Says whether the current GPU runs the kernels for Hopper: compute capability 9.0.
//! @throws cuda::error where the runtime cannot say
[[nodiscard]] inline bool is_hopper() {
  return detail::attribute_of_device(cudaDevAttrComputeCapabilityMajor) == 9 &&
         detail::attribute_of_device(cudaDevAttrComputeCapabilityMinor) == 0;
}

//! @brief Attention of one chunk of queries over the keys cached so far, on a Hopper GPU.
//!
//! Does what forward_on_device does, with the instructions of sm_90a, and within the same
//! tolerance; the bits differ. The same call gives the same bits. The program has to be compiled
//! for sm_90a (-gencode arch=compute_90a,code=sm_90a).
//!
//! @tparam Dim elements of a head: 64 or 128
//! @param p      sizes, offsets, scale (above 0)
//! @param t      as for forward_on_device; strides must not be negative
//! @param m      which pairs are kept; tiles that it skips are neither read nor multiplied
//! @param f      what is done to scale * query . key
//! @param stream in whose order the kernel runs, on the current GPU; the call does not wait for it
//! @throws std::invalid_argument as check_for_kernels, and where the current GPU is no Hopper,
//!         before any launch
//! @throws cuda::error where the launch fails
template <int Dim, class Element, mask Mask = causal, score Score = plain, class Built = built_here>
void forward_on_hopper(parameters const& p,
                       forward_tensors<Element, float> const& t,
                       Mask const& m,
                       Score const& f,
                       cudaStream_t stream) {
  static_assert(is_kernel_element<Element>,
                "attention::forward_on_hopper: elements must be __nv_bfloat16 or __half, because "
                "the matrix units multiply no others here; use attention::forward for float");
  using shape = hopper_forward_shape<Dim, Score>;
  check_for_kernels<Dim>(p, t);
  if (!is_hopper()) {
    detail::refuse("the kernels for Hopper run on compute capability 9.0, which the current GPU "
                   "does not have; use forward_on_device");
  }
  auto const work = (p.query_length + shape::queries - 1) / shape::queries * p.heads * p.batch;
  if (work == 0) {
    return;
  }
  auto const map_of = [](char const* name, auto const& view, int rows) {
    return encode_tensor<Element>(name,
                                  describe_tensor(name, view, static_cast<std::uint32_t>(rows)));
  };
  // Without keys no tile of them is taken, but the engine wants some address.
  auto key = t.key;
  auto value = t.value;
  if (p.key_length == 0) {
    key.data = value.data = t.query.data;
  }
  hopper_forward_maps maps{map_of("query", t.query, shape::rows),
                           map_of("key", key, shape::keys),
                           map_of("value", value, shape::keys),
                           map_of("output", t.output, shape::rows)};
  forward_call<Element, Mask, Score> call{p, t, m, f, static_cast<float>(p.effective_scale())};
  auto const blocks =
    std::min<std::int64_t>(work, detail::attribute_of_device(cudaDevAttrMultiProcessorCount));
  auto const* const kernel =
    reinterpret_cast<void const*>(detail::forward_hopper_kernel<Built, Dim, Element, Mask, Score>);
  cuda::check(
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape::shared_bytes),
    "cudaFuncSetAttribute");
  void* arguments[] = {&maps, &call};
  cuda::check(cudaLaunchKernel(kernel,
                               dim3(static_cast<unsigned>(blocks)),
                               dim3(shape::threads),
                               arguments,
                               shape::shared_bytes,
                               stream),
              "cudaLaunchKernel");
}

} // namespace pipelining::inline v0_1::attention
