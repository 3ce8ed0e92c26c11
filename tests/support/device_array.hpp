// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Memory of a device with a copy on the host, for tests on the stand-in for the CUDA
//! runtime.

#include <cuda_runtime_api.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace device_tests {

//! Numbers in memory of the current device; `host` is what was written or fetched last.
template <class Number>
class device_array {
public:
  explicit device_array(std::int64_t count) : host(static_cast<std::size_t>(count)) {
    REQUIRE(cudaMalloc(&memory_, host.size() * sizeof(Number)) == cudaSuccess);
  }
  device_array(device_array const&) = delete;
  device_array& operator=(device_array const&) = delete;
  ~device_array() { (void)cudaFree(memory_); }

  Number* data() const { return static_cast<Number*>(memory_); }
  std::int64_t count() const { return static_cast<std::int64_t>(host.size()); }

  //! Normally distributed numbers.
  void fill(std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (auto& x : host) {
      x = static_cast<Number>(normal(random));
    }
    send();
  }
  void fill_zero() {
    std::fill(host.begin(), host.end(), static_cast<Number>(0.0f));
    send();
  }
  void send() { copy(memory_, host.data(), cudaMemcpyHostToDevice); }
  void fetch() { copy(host.data(), memory_, cudaMemcpyDeviceToHost); }

  //! What the host has, in double.
  std::vector<double> numbers() const {
    std::vector<double> all;
    for (auto const x : host) {
      all.push_back(static_cast<double>(static_cast<float>(x)));
    }
    return all;
  }

  std::vector<Number> host;

private:
  void copy(void* to, void const* from, cudaMemcpyKind kind) {
    REQUIRE(cudaMemcpy(to, from, host.size() * sizeof(Number), kind) == cudaSuccess);
  }
  void* memory_ = nullptr;
};

} // namespace device_tests
