// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/run/polling.hpp>

#include <cuda_runtime_api.h>

#include <tests/gpu/machine.hpp>
#include <thread>

namespace {
using real_clock = pipelining::detail::polling_clock;
}
#include <tests/gpu/machine_threads.hpp>

namespace machine {

clock::time_point clock::now() {
  return time_point(std::chrono::steady_clock::now().time_since_epoch());
}

void clock::sleep_for(duration length) {
  std::this_thread::sleep_for(length);
}

std::string obstacle() {
  int count = 0;
  cudaError_t const code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess)
    return std::string("there is no GPU here that CUDA can use: ") + cudaGetErrorString(code);
  return count == 0 ? "there is no GPU here" : "";
}

bool on_model() {
  return false;
}

void begin() {}

std::string findings() {
  return {};
}

} // namespace machine
