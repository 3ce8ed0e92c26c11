// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/run/clock.hpp>

#include <cuda_runtime_api.h>

#include <memory>
#include <tests/gpu/machine.hpp>
#include <thread>
#include <utility>

namespace machine {

clock::time_point clock::now() {
  return time_point(std::chrono::steady_clock::now().time_since_epoch());
}

void clock::sleep_for(duration length) {
  std::this_thread::sleep_for(length);
}

struct clock::thread::real {
  pipelining::polling_clock::thread own;
};
void clock::thread::join() {
  real_->own.join();
  joinable_ = false;
}
void clock::thread::detach() {
  real_->own.detach();
  joinable_ = false;
}
clock::thread clock::start(std::function<void()> work) {
  thread made;
  made.real_ =
    std::make_shared<thread::real>(thread::real{pipelining::polling_clock::start(std::move(work))});
  made.joinable_ = true;
  return made;
}

struct clock::doorbell::real {
  pipelining::polling_clock::doorbell own{};
};
clock::doorbell::doorbell() : real_(std::make_shared<real>()) {}
void clock::doorbell::wait_until(time_point when) {
  real_->own.wait_until(pipelining::polling_clock::time_point(when.time_since_epoch()));
}
void clock::doorbell::ring() {
  real_->own.ring();
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
