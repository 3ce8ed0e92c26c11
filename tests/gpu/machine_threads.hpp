// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Threads and doorbells of machine::clock, made of those of the `real_clock` that the one
//! source which includes this has named before.

#include <memory>
#include <tests/gpu/machine.hpp>
#include <utility>

namespace machine {

struct clock::thread::real {
  real_clock::thread own;
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
  made.real_ = std::make_shared<thread::real>(thread::real{real_clock::start(std::move(work))});
  made.joinable_ = true;
  return made;
}

struct clock::doorbell::real {
  real_clock::doorbell own{};
};
clock::doorbell::doorbell() : real_(std::make_shared<real>()) {}
void clock::doorbell::wait_until(time_point when) {
  real_->own.wait_until(real_clock::time_point(when.time_since_epoch()));
}
void clock::doorbell::ring() {
  real_->own.ring();
}

} // namespace machine
