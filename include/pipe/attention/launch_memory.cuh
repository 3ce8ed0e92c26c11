// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Facts about a GPU that calls of attention keep, so that the next ones need not ask it,
//! and launches by them.

#include <pipe/attention/hopper/tensor_map.cuh>
#include <pipe/attention/parameters.hpp>
#include <pipe/config.hpp>
#include <pipe/cuda/error.cuh>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <unordered_map>
#include <vector>

namespace pipelining::inline v0_3::attention {

namespace detail {

//! A property of a GPU.
inline int attribute_of_device(cudaDeviceAttr which, int device) {
  int value = 0;
  cuda::check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

//! Facts about a GPU that launches need.
struct gpu_facts {
  int major = 0; //!< of its compute capability
  int minor = 0;
  int multiprocessors = 0;
  int l2_bytes = 0;
  int shared_bytes = 0; //!< of shared memory in a multiprocessor

  //! Compute capability 9.0, on which the kernels for Hopper run.
  [[nodiscard]] bool is_hopper() const { return major == 9 && minor == 0; }

  //! Of the current GPU. @throws cuda::error where the runtime cannot say
  [[nodiscard]] static gpu_facts of_current() {
    int device = 0;
    cuda::check(cudaGetDevice(&device), "cudaGetDevice");
    return {attribute_of_device(cudaDevAttrComputeCapabilityMajor, device),
            attribute_of_device(cudaDevAttrComputeCapabilityMinor, device),
            attribute_of_device(cudaDevAttrMultiProcessorCount, device),
            attribute_of_device(cudaDevAttrL2CacheSize, device),
            attribute_of_device(cudaDevAttrMaxSharedMemoryPerMultiprocessor, device)};
  }
};

//! FNV-1a over the words of a tensor that differ from call to call.
struct tensor_hash {
  [[nodiscard]] std::size_t operator()(tiled_tensor const& of) const {
    std::uint64_t sum = 14695981039346656037U;
    for (std::uint64_t const word : {std::uint64_t{reinterpret_cast<std::uintptr_t>(of.base)},
                                     std::uint64_t{of.size[1]},
                                     std::uint64_t{of.stride[0]},
                                     std::uint64_t{of.stride[2]},
                                     std::uint64_t{of.box[1]}}) {
      sum = (sum ^ word) * 1099511628211U;
    }
    return sum ^ sum >> 32;
  }
};

} // namespace detail

//! @brief The memory of calls about one GPU: its properties, its kernels, and how tensors were
//! described to the copy engine. A call whose tensors it knows asks the driver for launches only.
//!
//! For the calls of one thread on one GPU, through gpu_scratch::memory. Its facts do not depend on
//! the contents of memory, so they stay right when tensors are freed and made anew.
class launch_memory {
public:
  static constexpr std::size_t most_maps = 4096; //!< Tensors that it knows at a time: 1 MiB.

  //! Properties of the GPU. @throws cuda::error where the runtime cannot say
  [[nodiscard]] detail::gpu_facts const& gpu() {
    if (!gpu_) {
      gpu_ = detail::gpu_facts::of_current();
    }
    return *gpu_;
  }

  //! The answer of `find` about a kernel, asked once.
  template <class Find>
  [[nodiscard]] int fact_of(void const* kernel, Find const& find) {
    auto const known = facts_.find(kernel);
    return known != facts_.end() ? known->second : facts_.emplace(kernel, find()).first->second;
  }

  //! Lets a kernel use as much shared memory as it needs.
  //! @throws cuda::error where the GPU has less
  void allow_shared_memory(void const* kernel, int bytes) {
    constexpr int always = 48 << 10; // that a kernel may use without being allowed
    if (bytes > always && std::find(allowed_.begin(), allowed_.end(), kernel) == allowed_.end()) {
      cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                  "cudaFuncSetAttribute");
      allowed_.push_back(kernel);
    }
  }

  //! Encodes a tensor for the copy engine, or finds how it was encoded.
  //! @throws as encode_tensor
  [[nodiscard]] CUtensorMap encode(char const* name, detail::tiled_tensor const& tensor) {
    if (auto const known = maps_.find(tensor); known != maps_.end()) {
      return known->second;
    }
    auto const map = detail::encode_tensor(name, tensor);
    if (maps_.size() == most_maps) {
      maps_.clear();
    }
    maps_.emplace(tensor, map);
    return map;
  }

private:
  std::optional<detail::gpu_facts> gpu_{};
  std::unordered_map<void const*, int> facts_{}; // of kernels
  std::vector<void const*> allowed_{};           // kernels that have their shared memory
  std::unordered_map<detail::tiled_tensor, CUtensorMap, detail::tensor_hash> maps_{};
};

namespace detail {

//! Encodes a tensor for tiles of so many rows. Without keys no tile of them is taken, but the
//! engine wants some address.
template <class Element>
CUtensorMap map_of(launch_memory& memory,
                   char const* name,
                   tensor_view<Element> view,
                   int rows,
                   void const* some_address) {
  if (view.length == 0) {
    view.data = static_cast<Element*>(const_cast<void*>(some_address));
  }
  return memory.encode(name, describe_tensor(view, static_cast<std::uint32_t>(rows)));
}

//! Blocks of a launch, their threads, and bytes of shared memory of each.
struct launch_size {
  std::int64_t blocks;
  int threads;
  int shared_bytes = 0;
};

//! Launches kernels in the order of a stream.
struct launcher {
  launch_memory& memory;
  cudaStream_t stream;

  template <class... Argument>
  void operator()(launch_size const& size,
                  void (*kernel)(Argument...),
                  std::type_identity_t<Argument>... argument) const {
    auto const* const function = reinterpret_cast<void const*>(kernel);
    memory.allow_shared_memory(function, size.shared_bytes);
    void* arguments[] = {&argument...};
    cuda::check(cudaLaunchKernel(function,
                                 dim3(static_cast<unsigned>(size.blocks)),
                                 dim3(static_cast<unsigned>(size.threads)),
                                 arguments,
                                 static_cast<std::size_t>(size.shared_bytes),
                                 stream),
                "cudaLaunchKernel");
  }
};

} // namespace detail

} // namespace pipelining::inline v0_3::attention
