// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <memory>
#include <tests/gpu/machine.hpp>
#include <tests/simulators/cuda/standin.hpp>
#include <utility>

namespace machine {

clock::time_point clock::now() {
  return time_point(standin::clock::now().time_since_epoch());
}

void clock::sleep_for(duration length) {
  standin::clock::sleep_for(length);
}

struct clock::thread::real {
  standin::clock::thread own;
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
  made.real_ = std::make_shared<thread::real>(thread::real{standin::clock::start(std::move(work))});
  made.joinable_ = true;
  return made;
}

struct clock::doorbell::real {
  standin::clock::doorbell own{};
};
clock::doorbell::doorbell() : real_(std::make_shared<real>()) {}
void clock::doorbell::wait_until(time_point when) {
  real_->own.wait_until(standin::clock::time_point(when.time_since_epoch()));
}
void clock::doorbell::ring() {
  real_->own.ring();
}

std::string obstacle() {
  return {};
}

bool on_model() {
  return true;
}

void begin() {
  standin::configure({.execution = standin::order::random, .seed = 2});
}

std::string findings() {
  return standin::summary();
}

} // namespace machine
