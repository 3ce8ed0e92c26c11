// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Tensor maps: how the copy engine of Hopper is told of a tensor and of the tiles taken
//! from it.

#include <pipe/attention/kernel_call.hpp>
#include <pipe/attention/parameters.hpp>
#include <pipe/cuda/error.cuh>

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

namespace pipelining::inline v0_3::attention {

namespace detail {

//! A tensor [batch, length, heads, dim] as five dimensions, innermost first: 64 elements of
//! a panel, length, panels of a head, heads, batch. A box is `rows` tokens of one head, all panels.
//! Where heads are not whole panels, the first dimension is that of the head, the third has one
//! element, and a box is `rows` tokens of 64 elements: those beyond the head are zeros.
struct tiled_tensor {
  static constexpr unsigned rank = 5; //!< dimensions
  CUtensorMapDataType type = {};      //!< of its elements
  void* base = nullptr;               //!< the first element, aligned to 16 bytes
  cuuint64_t size[rank] = {};         //!< of each dimension, in elements
  cuuint64_t stride[rank - 1] = {};   //!< bytes, from dimension 1 on
  std::uint32_t box[rank] = {};       //!< of each dimension, in elements
  [[nodiscard]] friend bool operator==(tiled_tensor const&, tiled_tensor const&) = default;
};

//! True when the copy engine takes the stride of a dimension. The driver's manual does not say that
//! it takes 0.
template <class Element>
bool is_stride_of_copies(std::int64_t size, std::int64_t stride) {
  constexpr std::int64_t bytes = sizeof(Element);
  return size <= 1 || (stride > 0 && stride < (std::int64_t{1} << 40) / bytes);
}

//! True when the copy engine takes all strides of some tensors.
template <class... Element>
bool are_strides_of_copies(tensor_view<Element> const&... view) {
  return (... && (is_stride_of_copies<Element>(view.batch, view.batch_stride) &&
                  is_stride_of_copies<Element>(view.length, view.length_stride) &&
                  is_stride_of_copies<Element>(view.heads, view.head_stride)));
}

//! Describes a tensor to the copy engine, which takes its strides, see are_strides_of_copies.
//!
//! A dimension of size 1 has no stride to speak of and gets one that the engine takes. A tensor
//! without elements is described as one row of its head, of which no tile is ever taken.
//! @param rows tokens of a tile, 1 ... 256
template <class Element>
[[nodiscard]] tiled_tensor describe_tensor(tensor_view<Element> const& view, std::uint32_t rows) {
  constexpr std::int64_t bytes = sizeof(Element);
  constexpr std::uint32_t panel = 64;
  auto const stride_of = [&](std::int64_t size, std::int64_t stride) {
    return static_cast<std::uint64_t>(size <= 1 ? 16 : stride * bytes);
  };
  auto const size_of = [](std::int64_t size) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1));
  };
  auto const dim = static_cast<std::uint32_t>(view.dim);
  bool const is_whole = dim % panel == 0;
  auto const panels = is_whole ? dim / panel : 1;
  using element = std::remove_const_t<Element>;
  bool const is_bfloat = std::is_same_v<element, __nv_bfloat16>;
  return {is_bfloat ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
          const_cast<element*>(view.data),
          {is_whole ? panel : dim,
           size_of(view.length),
           panels,
           size_of(view.heads),
           size_of(view.batch)},
          {stride_of(view.length, view.length_stride),
           panel * bytes,
           stride_of(view.heads, view.head_stride),
           stride_of(view.batch, view.batch_stride)},
          {panel, rows, panels, 1, 1}};
}

//! cuTensorMapEncodeTiled. It is part of the driver and asked for by name, once, so that nobody has
//! to link the driver.
inline decltype(&cuTensorMapEncodeTiled) tensor_encoder() {
  static auto const encoder = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult how{};
    cuda::check(cudaGetDriverEntryPointByVersion(
                  "cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &how),
                "cudaGetDriverEntryPointByVersion");
    if (found == nullptr || how != cudaDriverEntryPointSuccess) {
      throw cuda::error("attention: the driver has no cuTensorMapEncodeTiled; kernels for Hopper "
                        "need a driver of CUDA 12.0 or later",
                        cudaErrorNotSupported);
    }
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  return encoder;
}

//! Encodes a tensor for the copy engine, with 128-byte swizzle and zeros outside.
//!
//! @throws cuda::error where the driver has no encoder or refuses
[[nodiscard]] inline CUtensorMap encode_tensor(char const* name, tiled_tensor const& tensor) {
  std::uint32_t const steps[tiled_tensor::rank] = {1, 1, 1, 1, 1};
  CUtensorMap map;
  auto const code = detail::tensor_encoder()(&map,
                                             tensor.type,
                                             tiled_tensor::rank,
                                             tensor.base,
                                             tensor.size,
                                             tensor.stride,
                                             tensor.box,
                                             steps,
                                             CU_TENSOR_MAP_INTERLEAVE_NONE,
                                             CU_TENSOR_MAP_SWIZZLE_128B,
                                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS) {
    throw cuda::error("attention: cuTensorMapEncodeTiled refuses " + std::string(name) +
                        " with code " + std::to_string(static_cast<int>(code)),
                      cudaErrorInvalidValue);
  }
  return map;
}

} // namespace detail

} // namespace pipelining::inline v0_3::attention
