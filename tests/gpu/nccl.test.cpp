// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What the stand-in says of NCCL, asked of NCCL itself: a communicator of one rank that sends to
// itself.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <tests/gpu/machine.hpp>
#include <vector>

namespace {

template <class Code>
void need(Code code) {
  REQUIRE(static_cast<int>(code) == 0);
}

constexpr std::size_t count = 1 << 18;

struct alone {
  ncclComm_t communicator = nullptr;
  cudaStream_t on = nullptr;
  std::uint32_t* from = nullptr;
  std::uint32_t* to = nullptr;
  std::vector<std::uint32_t> numbers = std::vector<std::uint32_t>(count);

  alone() {
    machine::begin();
    need(cudaStreamCreateWithFlags(&on, cudaStreamNonBlocking));
    void* memory = nullptr;
    need(cudaMalloc(&memory, 2 * count * sizeof(std::uint32_t)));
    from = static_cast<std::uint32_t*>(memory);
    to = from + count;
    for (std::size_t i = 0; i < count; ++i)
      numbers[i] = static_cast<std::uint32_t>(i) * 2654435761U;
    need(cudaMemcpy(from, numbers.data(), count * 4, cudaMemcpyHostToDevice));
    need(cudaMemset(to, 0, count * 4));
    need(cudaDeviceSynchronize());
    ncclUniqueId id{};
    need(ncclGetUniqueId(&id));
    need(ncclCommInitRank(&communicator, 1, id, 0));
  }
  alone(alone const&) = delete;
  alone& operator=(alone const&) = delete;
  ~alone() {
    if (communicator != nullptr)
      (void)ncclCommDestroy(communicator);
    (void)cudaFree(from);
    (void)cudaStreamDestroy(on);
  }
  void exchange() const {
    need(ncclGroupStart());
    need(ncclSend(from, count, ncclUint32, 0, communicator, on));
    need(ncclRecv(to, count, ncclUint32, 0, communicator, on));
    need(ncclGroupEnd());
  }
  bool arrived() const {
    std::vector<std::uint32_t> read(count);
    need(cudaMemcpy(read.data(), to, count * 4, cudaMemcpyDeviceToHost));
    return read == numbers;
  }
};

} // namespace

TEST_CASE("a send to oneself and its receive in one group are a copy") {
  alone const one;
  one.exchange();
  need(cudaStreamSynchronize(one.on));
  CHECK(one.arrived());
  CHECK(machine::findings() == "");
}

TEST_CASE("an exchange is captured, and the graph is launched twice") {
  alone const one;
  one.exchange(); // the first use of a peer is no part of a capture
  need(cudaStreamSynchronize(one.on));
  cudaGraph_t captured = nullptr;
  need(cudaStreamBeginCapture(one.on, cudaStreamCaptureModeThreadLocal));
  one.exchange();
  need(cudaStreamEndCapture(one.on, &captured));
  cudaGraphExec_t graph = nullptr;
  need(cudaGraphInstantiate(&graph, captured, 0));
  need(cudaGraphDestroy(captured));
  for (int launch = 0; launch < 2; ++launch) {
    need(cudaMemsetAsync(one.to, 0, count * 4, one.on));
    need(cudaGraphLaunch(graph, one.on));
    need(cudaStreamSynchronize(one.on));
    CHECK(one.arrived());
  }
  need(cudaGraphExecDestroy(graph)); // before the communicator, which waits for it
  CHECK(machine::findings() == "");
}

TEST_CASE("a send to oneself without its receive is invalid") {
  alone one;
  CHECK(ncclSend(one.from, count, ncclUint32, 0, one.communicator, one.on) == ncclInvalidUsage);
  (void)ncclCommAbort(one.communicator);
  one.communicator = nullptr;
}
