// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "kernels.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "standin.hpp"

namespace {

using standin::finding;

constexpr int count = 48;

struct kernel_machine {
  kernel_machine() {
    standin::configure({});
    for (cudaStream_t& s : on)
      cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    for (int*& p : memory) {
      void* fresh = nullptr;
      cudaMalloc(&fresh, sizeof(int) * count);
      p = static_cast<int*>(fresh);
    }
    cudaMemsetAsync(memory[0], 0, sizeof(int) * count, on[0]);
    cudaStreamSynchronize(on[0]);
  }
  cudaStream_t on[2]{};
  int* memory[2]{};
};

} // namespace

TEST_CASE("the PTX of a kernel runs at its place in the stream, with both ways to launch") {
  kernel_machine m;
  CHECK(launch_increment(m.memory[1], m.memory[0], count, {2, 32}, m.on[0]) == cudaSuccess);
  CHECK(launch_increment_ex(m.memory[0], m.memory[1], count, {2, 32}, m.on[0]) == cudaSuccess);
  CHECK(m.memory[0][count - 1] == 0);
  CHECK(cudaStreamSynchronize(m.on[0]) == cudaSuccess);
  CHECK(m.memory[0][count - 1] == 2);
  CHECK(standin::summary() == "");
  CHECK(standin::calls_of("cudaLaunchKernel") == 1);
  CHECK(standin::calls_of("cudaLaunchKernelExC") == 1);
}

TEST_CASE("what a kernel reads and writes is ordered like any other access") {
  kernel_machine m;
  launch_increment(m.memory[1], m.memory[0], count, {2, 32}, m.on[0]);
  cudaMemsetAsync(m.memory[0], 0, sizeof(int) * count, m.on[1]);
  cudaDeviceSynchronize();
  CHECK(standin::found(finding::overwrite_in_use));

  kernel_machine ahead;
  launch_increment(ahead.memory[1], ahead.memory[0], 24, {1, 32}, ahead.on[0]);
  cudaMemsetAsync(ahead.memory[0] + 24, 0, sizeof(int) * 24, ahead.on[1]);
  cudaDeviceSynchronize();
  CHECK(standin::summary() == "");
}

TEST_CASE("a kernel's own mistakes are reported with the name of the memory") {
  kernel_machine m;
  standin::name(m.memory[1], "the slot");
  launch_increment(m.memory[0], m.memory[1], 1, {1, 32}, m.on[0]); // reads what nobody wrote
  cudaStreamSynchronize(m.on[0]);
  REQUIRE(standin::found(finding::kernel_error));
  std::string const& text = standin::reports().front().text;
  CAPTURE(text);
  CHECK(text.find("kernel increment") != std::string::npos);
  CHECK(text.find("reads 4 bytes at the slot") != std::string::npos);
  CHECK(text.find("block (0,0,0), thread (0,0,0)") != std::string::npos);

  kernel_machine beyond;
  launch_increment(beyond.memory[1], beyond.memory[0], count + 1, {2, 32}, beyond.on[0]);
  cudaStreamSynchronize(beyond.on[0]);
  CHECK(standin::found(finding::kernel_error));

  for (bool synchronise : {false, true}) {
    kernel_machine raced;
    launch_reverse(raced.memory[0], 32 + 16, synchronise, {1, 64, 256}, raced.on[0]);
    cudaStreamSynchronize(raced.on[0]);
    CHECK(standin::found(finding::kernel_error) == !synchronise);
  }
}

TEST_CASE("launches outside the limits of the device fail, and the error stays to be asked for") {
  kernel_machine m;
  CHECK(launch_increment(m.memory[1], m.memory[0], count, {1, 1025}, m.on[0]) ==
        cudaErrorInvalidConfiguration);
  CHECK(launch_increment(m.memory[1], m.memory[0], count, {0, 32}, m.on[0]) ==
        cudaErrorInvalidConfiguration);
  CHECK(launch_reverse(m.memory[0], 32, true, {1, 32, 64 << 10}, m.on[0]) ==
        cudaErrorInvalidConfiguration);
  CHECK(allow_shared_for_reverse(64 << 10) == cudaSuccess);
  CHECK(launch_reverse(m.memory[0], 32, true, {1, 32, 64 << 10}, m.on[0]) == cudaSuccess);
  CHECK(allow_shared_for_reverse(300 << 10) == cudaErrorInvalidValue);
  cudaStreamSynchronize(m.on[0]);
  CHECK(standin::summary() == "");
}

TEST_CASE("the device of the stream must be current") {
  kernel_machine m;
  cudaSetDevice(1);
  CHECK(launch_increment(m.memory[1], m.memory[0], count, {2, 32}, m.on[0]) ==
        cudaErrorInvalidResourceHandle);
  CHECK(standin::found(finding::misuse));
}

TEST_CASE("a kernel needs access to a peer before it touches the peer's memory") {
  for (bool enabled : {false, true}) {
    kernel_machine m;
    cudaSetDevice(1);
    cudaStream_t other{};
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    if (enabled) {
      int able = 0;
      CHECK(cudaDeviceCanAccessPeer(&able, 1, 0) == cudaSuccess);
      CHECK(able == 1);
      CHECK(cudaDeviceEnablePeerAccess(0, 0) == cudaSuccess);
      CHECK(cudaDeviceEnablePeerAccess(0, 0) == cudaErrorPeerAccessAlreadyEnabled);
    }
    launch_increment(m.memory[1], m.memory[0], count, {2, 32}, other);
    cudaStreamSynchronize(other);
    CHECK(standin::summary().empty() == enabled);
  }
}

TEST_CASE("a function of the host can stand for a kernel") {
  standin::register_kernel<int*, int, int>(
    "count_up<0>", [](standin::kernel_launch& launch, int* to, int how_many, int first) {
      launch.write(to, sizeof(int) * static_cast<std::size_t>(how_many));
      for (int i = 0; i < how_many; ++i)
        to[i] = -first - i;
    });
  kernel_machine m;
  CHECK(launch_count_up(m.memory[1], count, 100, m.on[0]) == cudaSuccess);
  cudaMemcpyAsync(m.memory[0], m.memory[1], sizeof(int) * count, cudaMemcpyDeviceToDevice, m.on[0]);
  cudaStreamSynchronize(m.on[0]);
  CHECK(m.memory[0][3] == -103);
  CHECK(standin::summary() == "");
  cudaMemsetAsync(m.memory[0], 0, 8, m.on[0]);
  launch_count_up(m.memory[0], count, 100, m.on[1]);
  cudaDeviceSynchronize();
  CHECK(standin::found(finding::write_conflict));
}

TEST_CASE("variables of the device keep their values between launches") {
  kernel_machine m;
  void* address = nullptr;
  REQUIRE(address_of_tally(&address) == cudaSuccess);
  int const before = *static_cast<int*>(address);
  launch_tally(m.on[0]);
  launch_tally(m.on[0]);
  cudaStreamSynchronize(m.on[0]);
  CHECK(*static_cast<int*>(address) == before + 2);
  CHECK(standin::summary() == "");
  launch_tally(m.on[0]);
  launch_tally(m.on[1]);
  cudaDeviceSynchronize();
  CHECK(standin::reports().size() > 0);
}

TEST_CASE("a kernel that waits on the clock of the device takes that time, beside others") {
  kernel_machine m;
  void* fresh = nullptr;
  REQUIRE(cudaMalloc(&fresh, 4 * sizeof(unsigned long long)) == cudaSuccess);
  auto* const times = static_cast<unsigned long long*>(fresh);
  cudaEvent_t events[2]{};
  for (cudaEvent_t& each : events)
    REQUIRE(cudaEventCreate(&each) == cudaSuccess);
  cudaEventRecord(events[0], m.on[0]);
  for (int k = 0; k < 2; ++k)
    CHECK(launch_spin(times + 2 * k, 300'000, m.on[k]) == cudaSuccess);
  cudaEventRecord(events[1], m.on[0]);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  float milliseconds = 0;
  CHECK(cudaEventElapsedTime(&milliseconds, events[0], events[1]) == cudaSuccess);
  CHECK(milliseconds >= 0.3F);
  CHECK(milliseconds < 0.31F);
  for (int k = 0; k < 2; ++k) {
    CHECK(times[2 * k + 1] - times[2 * k] >= 300'000);
    CHECK(times[2 * k + 1] - times[2 * k] < 301'000);
  }
  CHECK(times[2] < times[1]); // side by side
  CHECK(standin::summary() == "");
}

TEST_CASE("a kernel that traps is lost, and its device with it") {
  kernel_machine m;
  CHECK(launch_give_up(m.on[0]) == cudaSuccess);
  CHECK(cudaStreamSynchronize(m.on[0]) == cudaErrorLaunchFailure);
  CHECK(standin::found(finding::kernel_error));
  CHECK(cudaStreamSynchronize(m.on[1]) == cudaErrorLaunchFailure);
}

TEST_CASE("a kernel tells the device that it runs on and the one that its PTX is for") {
  for (int const major : {8, 9}) {
    standin::configure({.compute_major = major});
    cudaFuncAttributes known{};
    CHECK(attributes_of_increment(&known) == cudaSuccess);
    CHECK(known.binaryVersion == 10 * major);
    CHECK(known.ptxVersion == 80); // which libraries choose their launches by
  }
}
