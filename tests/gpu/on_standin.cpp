// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <simulators/cuda/standin.hpp>
#include <tests/gpu/machine.hpp>

namespace {
using real_clock = standin::clock;
}
#include <tests/gpu/machine_threads.hpp>

namespace machine {

clock::time_point clock::now() {
  return time_point(standin::clock::now().time_since_epoch());
}

void clock::sleep_for(duration length) {
  standin::clock::sleep_for(length);
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
