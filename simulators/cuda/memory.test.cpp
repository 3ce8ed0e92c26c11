// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <cuda_runtime_api.h>

#include <doctest/doctest.h>

#include <array>

#include "standin.hpp"

namespace {

using standin::finding;

constexpr std::size_t bytes = 128;

struct memory_machine {
  explicit memory_machine(standin::order how = standin::order::lazy) {
    standin::configure({.execution = how});
    for (cudaStream_t* s : {&first, &second})
      cudaStreamCreateWithFlags(s, cudaStreamNonBlocking);
    for (void** p : {&a, &b})
      cudaMalloc(p, bytes);
    cudaEventCreate(&event);
  }
  cudaStream_t first{}, second{};
  void *a = nullptr, *b = nullptr;
  cudaEvent_t event{};
};

} // namespace

TEST_CASE("a copy of memory nobody wrote is reported, byte by byte") {
  memory_machine m;
  cudaMemsetAsync(m.a, 0, bytes - 8, m.first);
  cudaMemcpyAsync(m.b, m.a, bytes - 8, cudaMemcpyDeviceToDevice, m.first);
  cudaStreamSynchronize(m.first);
  CHECK(standin::summary() == "");
  cudaMemcpyAsync(m.b, m.a, bytes, cudaMemcpyDeviceToDevice, m.first);
  cudaStreamSynchronize(m.first);
  REQUIRE(standin::found(finding::uninitialised_read));
  CHECK(standin::reports().front().text.find("8 bytes of allocation 0 of device 0 + 120") !=
        std::string::npos);
}

TEST_CASE("a copy past the end of an allocation is refused and reported") {
  memory_machine m;
  CHECK(cudaMemsetAsync(m.a, 0, bytes + 1, m.first) == cudaErrorInvalidValue);
  CHECK(standin::found(finding::out_of_bounds));
}

TEST_CASE("freed memory may not be used, nor freed again") {
  memory_machine m;
  cudaMemsetAsync(m.a, 0, bytes, m.first);
  CHECK(cudaFree(m.a) == cudaSuccess); // waits for the device, so this is correct
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(standin::summary() == "");
  CHECK(cudaFree(m.a) == cudaErrorInvalidValue);
  CHECK(standin::found(finding::double_free));
  cudaMemsetAsync(m.a, 0, bytes, m.first);
  cudaStreamSynchronize(m.first);
  CHECK(standin::found(finding::use_after_free));
  CHECK(cudaFree(nullptr) == cudaSuccess);
}

TEST_CASE("cudaFree does not wait for another device that still uses the memory") {
  for (bool waits : {false, true}) {
    memory_machine m;
    cudaMemsetAsync(m.a, 0, bytes, m.first);
    cudaStreamSynchronize(m.first);
    cudaSetDevice(1);
    cudaStream_t other{};
    void* c = nullptr;
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    cudaMalloc(&c, bytes);
    cudaMemcpyPeerAsync(c, 1, m.a, 0, bytes, other);
    if (waits)
      cudaStreamSynchronize(other);
    cudaSetDevice(0);
    CHECK(cudaFree(m.a) == cudaSuccess);
    cudaSetDevice(1);
    cudaDeviceSynchronize();
    CHECK(standin::summary().empty() == waits);
  }
}

TEST_CASE(
  "stream-ordered allocation: use needs order after the allocation and before the release") {
  for (int planted = 0; planted < 3; ++planted) {
    CAPTURE(planted);
    memory_machine m;
    void* p = nullptr;
    cudaMallocAsync(&p, bytes, m.first);
    cudaEventRecord(m.event, m.first);
    if (planted != 1)
      cudaStreamWaitEvent(m.second, m.event, 0);
    cudaMemsetAsync(p, 1, bytes, m.second);
    cudaEventRecord(m.event, m.second);
    if (planted != 2)
      cudaStreamWaitEvent(m.first, m.event, 0);
    cudaFreeAsync(p, m.first);
    cudaDeviceSynchronize();
    CHECK(standin::summary().empty() == (planted == 0));
  }
}

TEST_CASE(
  "copies to and from pageable memory keep the host waiting, those of pinned memory do not") {
  memory_machine m;
  std::array<char, bytes> pageable{};
  cudaMemcpyAsync(m.a, pageable.data(), bytes, cudaMemcpyHostToDevice, m.first);
  CHECK(standin::counters().steps == 1);
  CHECK(standin::counters().waiting_copies == 1);
  void* pinned = nullptr;
  cudaMallocHost(&pinned, bytes);
  cudaMemcpyAsync(m.a, pinned, bytes, cudaMemcpyHostToDevice, m.first);
  CHECK(standin::counters().steps == 1);
  CHECK(standin::counters().waiting_copies == 1);
  cudaDeviceSynchronize();
  CHECK(standin::summary() == "");
}

TEST_CASE("pageable memory in a capture is reported, pinned memory is not") {
  for (bool const pinned : {false, true})
    for (bool const out : {false, true}) {
      memory_machine m;
      std::array<char, bytes> pageable{};
      void* host = pageable.data();
      if (pinned)
        cudaMallocHost(&host, bytes);
      cudaStreamBeginCapture(m.first, cudaStreamCaptureModeThreadLocal);
      CHECK(
        cudaMemcpyAsync(out ? host : m.a, out ? m.a : host, bytes, cudaMemcpyDefault, m.first) ==
        cudaSuccess);
      cudaGraph_t captured{};
      cudaStreamEndCapture(m.first, &captured);
      CHECK(standin::found(finding::misuse) == !pinned);
      CHECK((standin::summary().find(" with pageable memory inside a capture") !=
             std::string::npos) == !pinned);
    }
}

TEST_CASE("a copy to or from the host and what computes beside it need an order") {
  for (bool const out : {false, true})
    for (bool const waits : {false, true}) {
      memory_machine m;
      void* host = nullptr;
      cudaMallocHost(&host, bytes);
      cudaMemset(host, 0, bytes);
      cudaDeviceSynchronize();
      auto const compute = [&] {
        out ? cudaMemsetAsync(m.a, 1, bytes, m.first)
            : cudaMemcpyAsync(m.b, m.a, bytes, cudaMemcpyDeviceToDevice, m.first);
      };
      auto const copy = [&] {
        cudaMemcpyAsync(out ? host : m.a, out ? m.a : host, bytes, cudaMemcpyDefault, m.second);
      };
      out ? compute() : copy();
      cudaEventRecord(m.event, out ? m.first : m.second);
      if (waits)
        cudaStreamWaitEvent(out ? m.second : m.first, m.event, 0);
      out ? copy() : compute();
      cudaDeviceSynchronize();
      CHECK(standin::summary().empty() == waits);
    }
}

TEST_CASE("registered host memory is pinned until it is unregistered") {
  for (bool waits : {false, true}) {
    memory_machine m(standin::order::eager); // the copy is over, but the host cannot know
    std::array<char, bytes> mine{};
    CHECK(cudaHostRegister(mine.data(), bytes, cudaHostRegisterDefault) == cudaSuccess);
    CHECK(cudaHostRegister(mine.data(), bytes, 0) == cudaErrorHostMemoryAlreadyRegistered);
    cudaMemcpyAsync(m.a, mine.data(), bytes, cudaMemcpyHostToDevice, m.first);
    if (waits)
      cudaStreamSynchronize(m.first);
    CHECK(cudaHostUnregister(mine.data()) == cudaSuccess);
    CHECK(cudaHostUnregister(mine.data()) == cudaErrorHostMemoryNotRegistered);
    CHECK(standin::found(finding::overwrite_in_use) == !waits);
  }
}

TEST_CASE("the kind of a copy must fit its pointers") {
  memory_machine m;
  std::array<char, bytes> host{};
  CHECK(cudaMemcpyAsync(host.data(), m.a, bytes, cudaMemcpyHostToDevice, m.first) ==
        cudaErrorInvalidValue);
  CHECK(standin::found(finding::misuse));
  cudaPointerAttributes facts{};
  cudaPointerGetAttributes(&facts, m.a);
  CHECK(facts.type == cudaMemoryTypeDevice);
  cudaPointerGetAttributes(&facts, host.data());
  CHECK(facts.type == cudaMemoryTypeUnregistered);
}

TEST_CASE("rows of a two-dimensional copy are checked one by one") {
  memory_machine m;
  cudaMemsetAsync(m.b, 9, bytes, m.first);
  cudaMemsetAsync(m.a, 1, bytes, m.first);
  cudaMemcpy2DAsync(m.a, 32, m.b, 32, 16, 4, cudaMemcpyDeviceToDevice, m.first);
  cudaStreamSynchronize(m.first);
  auto const* seen = static_cast<unsigned char*>(m.a);
  CHECK(seen[15] == 9);
  CHECK(seen[16] == 1);
  CHECK(seen[32 * 3 + 15] == 9);
  CHECK(cudaMemcpy2DAsync(m.a, 32, m.b, 32, 33, 1, cudaMemcpyDeviceToDevice, m.first) ==
        cudaErrorInvalidPitchValue);
}

TEST_CASE("set-up after freeze() and what was not given back are reported on request") {
  memory_machine m;
  standin::freeze();
  cudaMemsetAsync(m.a, 0, bytes, m.first);
  CHECK(standin::summary() == "");
  void* late = nullptr;
  cudaMalloc(&late, bytes);
  CHECK(standin::found(finding::late_setup));
  CHECK(!standin::found(finding::leak));
  standin::report_leaks();
  CHECK(standin::found(finding::leak));
}

TEST_CASE("copies between devices go through the host until one of them has access to the other") {
  for (bool const able : {true, false}) {
    CAPTURE(able);
    standin::configure({.peer_access = able});
    void* on[2]{};
    for (int device = 0; device < 2; ++device) {
      cudaSetDevice(device);
      cudaMalloc(&on[device], bytes);
      cudaMemset(on[device], device, bytes);
      cudaDeviceSynchronize();
    }
    char host[bytes]{};
    CHECK(cudaMemcpy(on[1], host, bytes, cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK(cudaMemcpy(
            static_cast<char*>(on[1]) + bytes / 2, on[1], bytes / 2, cudaMemcpyDeviceToDevice) ==
          cudaSuccess);
    CHECK(standin::counters().staged_copies == 0);
    CHECK(cudaMemcpyPeerAsync(on[1], 1, on[0], 0, bytes, nullptr) == cudaSuccess);
    CHECK(standin::counters().staged_copies == 1);
    CHECK(cudaMemcpy(on[0], on[1], bytes, cudaMemcpyDeviceToDevice) == cudaSuccess);
    CHECK(standin::counters().staged_copies == 2);
    CHECK((cudaDeviceEnablePeerAccess(0, 0) == cudaSuccess) == able);
    CHECK(cudaMemcpyPeerAsync(on[1], 1, on[0], 0, bytes, nullptr) == cudaSuccess);
    CHECK(cudaMemcpyPeerAsync(on[0], 0, on[1], 1, bytes, nullptr) == cudaSuccess);
    CHECK(standin::counters().staged_copies == (able ? 2 : 4));
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(standin::found(finding::misuse) == false);
  }
}
