// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <cuda_runtime_api.h>

#include <doctest/doctest.h>

#include <array>
#include <nvtx3/nvtx3.hpp>

#include "standin.hpp"

namespace {

using standin::finding;

constexpr std::size_t bytes = 256;

struct two_streams {
  explicit two_streams(standin::configuration how = {}) {
    standin::configure(how);
    for (cudaStream_t& s : on)
      REQUIRE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
    for (void*& p : memory)
      REQUIRE(cudaMalloc(&p, bytes) == cudaSuccess);
    REQUIRE(cudaMallocHost(&host, bytes) == cudaSuccess);
    REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
    standin::name(on[0], "first");
    standin::name(on[1], "second");
    standin::name(memory[0], "a");
  }
  std::array<cudaStream_t, 2> on{};
  std::array<void*, 3> memory{};
  void* host = nullptr;
  cudaEvent_t event{};
};

standin::configuration in_order(standin::order how, std::uint64_t seed = 1) {
  standin::configuration c;
  c.execution = how;
  c.seed = seed;
  return c;
}

constexpr std::array orders{standin::order::lazy, standin::order::eager, standin::order::random};

} // namespace

TEST_CASE("a read on another stream needs an event, in every order of execution") {
  for (standin::order how : orders) {
    for (bool waits : {false, true}) {
      CAPTURE(waits);
      two_streams m(in_order(how));
      CHECK(cudaMemsetAsync(m.memory[0], 7, bytes, m.on[0]) == cudaSuccess);
      CHECK(cudaEventRecord(m.event, m.on[0]) == cudaSuccess);
      if (waits)
        CHECK(cudaStreamWaitEvent(m.on[1], m.event, 0) == cudaSuccess);
      CHECK(cudaMemcpyAsync(m.memory[1], m.memory[0], bytes, cudaMemcpyDeviceToDevice, m.on[1]) ==
            cudaSuccess);
      CHECK(cudaDeviceSynchronize() == cudaSuccess);
      bool const race = standin::found(finding::use_before_ready) ||
                        standin::found(finding::overwrite_in_use) ||
                        standin::found(finding::uninitialised_read);
      CHECK(race == !waits);
      if (waits)
        CHECK(standin::summary() == "");
    }
  }
}

TEST_CASE("the report names both calls, their streams and the memory") {
  two_streams m(in_order(standin::order::eager));
  cudaMemsetAsync(m.memory[0], 7, bytes, m.on[0]);
  {
    standin::scope in("forward(2, 5)");
    cudaMemcpyAsync(m.memory[1], m.memory[0], bytes, cudaMemcpyDeviceToDevice, m.on[1]);
  }
  REQUIRE(standin::reports().size() == 1);
  std::string const& text = standin::reports().front().text;
  CAPTURE(text);
  CHECK(standin::reports().front().kind == finding::use_before_ready);
  for (char const* part :
       {"cudaMemcpyAsync", "cudaMemsetAsync", "first", "second", "forward(2, 5)", "256 bytes of a"})
    CHECK(text.find(part) != std::string::npos);
}

TEST_CASE("ranges of NVTX name the calls inside them") {
  two_streams m(in_order(standin::order::eager));
  cudaMemsetAsync(m.memory[0], 7, bytes, m.on[0]);
  {
    nvtx3::scoped_range in("backward", nvtx3::payload{std::int64_t{6}});
    cudaMemcpyAsync(m.memory[1], m.memory[0], bytes, cudaMemcpyDeviceToDevice, m.on[1]);
  }
  cudaMemcpyAsync(m.memory[2], m.memory[0], bytes, cudaMemcpyDeviceToDevice, m.on[1]);
  REQUIRE(standin::reports().size() == 2);
  CHECK(standin::reports()[0].text.find("in backward 6") != std::string::npos);
  CHECK(standin::reports()[1].text.find("backward") == std::string::npos);
}

TEST_CASE("memory may be overwritten only after its readers") {
  for (standin::order how : orders) {
    for (bool waits : {false, true}) {
      two_streams m(in_order(how));
      cudaMemsetAsync(m.memory[0], 1, bytes, m.on[0]);
      cudaMemcpyAsync(m.memory[1], m.memory[0], bytes, cudaMemcpyDeviceToDevice, m.on[0]);
      cudaStreamSynchronize(m.on[0]);
      cudaMemcpyAsync(m.memory[2], m.memory[0], bytes, cudaMemcpyDeviceToDevice, m.on[0]);
      cudaEventRecord(m.event, m.on[0]);
      if (waits)
        cudaStreamWaitEvent(m.on[1], m.event, 0);
      cudaMemsetAsync(m.memory[0], 2, bytes, m.on[1]);
      cudaDeviceSynchronize();
      bool const race =
        standin::found(finding::overwrite_in_use) || standin::found(finding::use_before_ready);
      CHECK(race == !waits);
    }
  }
}

TEST_CASE("a wait takes the record made before it, not a later one") {
  two_streams m;
  cudaMemsetAsync(m.memory[1], 1, bytes, m.on[0]);
  cudaEventRecord(m.event, m.on[0]);
  cudaStreamWaitEvent(m.on[1], m.event, 0);
  cudaMemsetAsync(m.memory[0], 1, bytes, m.on[0]);
  cudaEventRecord(m.event, m.on[0]);
  cudaMemcpyAsync(m.memory[2], m.memory[0], bytes, cudaMemcpyDeviceToDevice, m.on[1]);
  cudaDeviceSynchronize();
  CHECK(standin::reports().size() > 0);
}

TEST_CASE("waiting for an event that was never recorded is reported") {
  two_streams m;
  CHECK(cudaStreamWaitEvent(m.on[1], m.event, 0) == cudaSuccess);
  CHECK(standin::found(finding::misuse));
}

TEST_CASE("the host must wait before it reads what a copy brings") {
  for (bool waits : {false, true}) {
    two_streams m;
    cudaMemsetAsync(m.memory[0], 42, bytes, m.on[0]);
    cudaMemcpyAsync(m.host, m.memory[0], bytes, cudaMemcpyDeviceToHost, m.on[0]);
    if (waits)
      cudaStreamSynchronize(m.on[0]);
    standin::host_read(m.host, bytes);
    if (waits)
      CHECK(static_cast<unsigned char*>(m.host)[bytes - 1] == 42);
    cudaDeviceSynchronize();
    CHECK(standin::summary().empty() == waits);
  }
}

TEST_CASE("lazy runs nothing before somebody waits, eager everything at once") {
  two_streams lazy;
  cudaMemsetAsync(lazy.memory[0], 1, bytes, lazy.on[0]);
  CHECK(standin::counters().steps == 0);
  CHECK(cudaStreamQuery(lazy.on[0]) == cudaErrorNotReady);
  cudaStreamSynchronize(lazy.on[0]);
  CHECK(standin::counters().steps == 1);

  two_streams eager(in_order(standin::order::eager));
  cudaMemsetAsync(eager.memory[0], 1, bytes, eager.on[0]);
  CHECK(standin::counters().steps == 1);
}

TEST_CASE("lazy runs only what the waiting host needs") {
  two_streams m;
  cudaMemsetAsync(m.memory[0], 1, bytes, m.on[0]);
  cudaMemsetAsync(m.memory[1], 1, bytes, m.on[1]);
  cudaStreamSynchronize(m.on[1]);
  CHECK(standin::counters().steps == 1);
  CHECK(*static_cast<unsigned char*>(m.memory[0]) == 0xFF);
  CHECK(*static_cast<unsigned char*>(m.memory[1]) == 1);
}

TEST_CASE("a loop of queries ends, because queries force the machine on") {
  for (standin::order how : orders) {
    two_streams m(in_order(how));
    for (int i = 0; i < 5; ++i)
      cudaMemsetAsync(m.memory[0], i, bytes, m.on[0]);
    cudaEventRecord(m.event, m.on[0]);
    int polls = 0;
    while (cudaEventQuery(m.event) == cudaErrorNotReady)
      REQUIRE(++polls < 1000);
    CHECK(*static_cast<unsigned char*>(m.memory[0]) == 4);
  }
}

TEST_CASE("the legacy default stream joins blocking streams and no others") {
  for (bool blocking : {false, true}) {
    two_streams m;
    cudaStream_t s{};
    cudaStreamCreateWithFlags(&s, blocking ? cudaStreamDefault : cudaStreamNonBlocking);
    cudaMemsetAsync(m.memory[0], 1, bytes, s);
    cudaMemcpyAsync(m.memory[1], m.memory[0], bytes, cudaMemcpyDeviceToDevice, nullptr);
    cudaDeviceSynchronize();
    CHECK(standin::summary().empty() == blocking);
  }
}

TEST_CASE("a host function runs in stream order and may not call CUDA") {
  two_streams m;
  int seen = 0;
  cudaLaunchHostFunc(
    m.on[0], [](void* p) { *static_cast<int*>(p) = 1; }, &seen);
  CHECK(seen == 0);
  cudaStreamSynchronize(m.on[0]);
  CHECK(seen == 1);
  CHECK(standin::summary() == "");
  cudaLaunchHostFunc(
    m.on[0], [](void*) { CHECK(cudaDeviceSynchronize() == cudaErrorNotPermitted); }, nullptr);
  cudaStreamSynchronize(m.on[0]);
  CHECK(standin::found(finding::misuse));
}

TEST_CASE("elapsed time is virtual, and needs events that keep time") {
  standin::configuration how;
  how.cost.transfer = std::chrono::microseconds(5);
  how.cost.bytes_per_nanosecond = 1.0;
  two_streams m(how);
  cudaEvent_t from{}, to{};
  cudaEventCreate(&from);
  cudaEventCreate(&to);
  cudaEventRecord(from, m.on[0]);
  for (int i = 0; i < 100; ++i)
    cudaMemcpyAsync(m.host, m.host, bytes, cudaMemcpyHostToHost, m.on[0]);
  cudaEventRecord(to, m.on[0]);
  float milliseconds = 0;
  CHECK(cudaEventElapsedTime(&milliseconds, from, to) == cudaErrorNotReady);
  cudaEventSynchronize(to);
  CHECK(cudaEventElapsedTime(&milliseconds, from, to) == cudaSuccess);
  CHECK(milliseconds == doctest::Approx(0.5256).epsilon(1e-3));
  CHECK(cudaEventElapsedTime(&milliseconds, m.event, to) == cudaErrorInvalidResourceHandle);
}

TEST_CASE("handles are checked: a destroyed stream, another device's stream") {
  two_streams m;
  cudaStreamDestroy(m.on[1]);
  CHECK(cudaMemsetAsync(m.memory[0], 1, bytes, m.on[1]) == cudaErrorInvalidResourceHandle);
  CHECK(standin::found(finding::misuse));
  CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
  CHECK(cudaGetLastError() == cudaSuccess);
  cudaEvent_t other{};
  cudaSetDevice(1);
  cudaEventCreate(&other);
  CHECK(cudaEventRecord(other, m.on[0]) == cudaErrorInvalidResourceHandle);
}

TEST_CASE("calls are counted by name") {
  two_streams m;
  auto const before = standin::total_calls();
  cudaMemsetAsync(m.memory[0], 1, bytes, m.on[0]);
  cudaMemsetAsync(m.memory[0], 1, bytes, m.on[0]);
  cudaEventRecord(m.event, m.on[0]);
  CHECK(standin::calls_of("cudaMemsetAsync") == 2);
  CHECK(standin::calls_of("cudaEventRecord") == 1);
  CHECK(standin::total_calls() == before + 3);
}

TEST_CASE("a full launch queue makes the host wait") {
  standin::configuration how;
  how.launch_depth = 2;
  two_streams m(how);
  for (int i = 0; i < 5; ++i)
    cudaMemsetAsync(m.memory[0], 1, bytes, m.on[0]);
  CHECK(standin::counters().steps == 3);
}

TEST_CASE("priorities are kept and clamped") {
  two_streams m;
  int least = 1, greatest = 1, got = 1;
  CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest) == cudaSuccess);
  CHECK(greatest < least);
  cudaStream_t s{};
  CHECK(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, greatest - 100) == cudaSuccess);
  CHECK(cudaStreamGetPriority(s, &got) == cudaSuccess);
  CHECK(got == greatest);
}
