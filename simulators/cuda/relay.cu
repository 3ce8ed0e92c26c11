// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Knows nothing of the stand-in, except that the host says when it reads pinned memory.
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "relay.hpp"

namespace standin {
void host_read(void const* begin, std::size_t bytes);
}

namespace {

constexpr int slots = 2;

template <class T>
__global__ void scale_and_shift(T* to, T const* from, T scale, T shift, int count) {
  __shared__ T staged[64];
  int const i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count)
    staged[threadIdx.x] = from[i];
  __syncthreads();
  if (i < count)
    to[i] = staged[threadIdx.x] * scale + shift;
}

void check(cudaError_t code) {
  if (code != cudaSuccess)
    throw static_cast<int>(code);
}
void check(ncclResult_t code) {
  if (code != ncclSuccess)
    throw 1000 + static_cast<int>(code);
}

struct rank_state {
  relay_options how;
  int rank;
  ncclComm_t comm{};
  cudaStream_t compute{}, lane{};
  float *input[slots]{}, *output[slots]{}, *data = nullptr, *host = nullptr;
  cudaEvent_t arrived[slots]{}, computed[slots]{}, sent[slots]{}, fork{}, join{};

  [[nodiscard]] bool first() const { return rank == 0; }
  [[nodiscard]] bool last() const { return rank == how.ranks - 1; }
  [[nodiscard]] bool plants(mistake m) const { return how.planted == m; }
  [[nodiscard]] std::size_t bytes() const {
    return sizeof(float) * static_cast<std::size_t>(how.elements);
  }
};

float* allocate(std::size_t bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes));
  return static_cast<float*>(memory);
}

void set_up(rank_state& r, ncclUniqueId id) {
  check(cudaSetDevice(r.rank));
  check(ncclCommInitRank(&r.comm, r.how.ranks, id, r.rank));
  for (cudaStream_t* s : {&r.compute, &r.lane})
    check(cudaStreamCreateWithFlags(s, cudaStreamNonBlocking));
  for (int i = 0; i < slots; ++i) {
    r.input[i] = allocate(r.bytes());
    r.output[i] = allocate(r.bytes());
    for (cudaEvent_t* e : {&r.arrived[i], &r.computed[i], &r.sent[i]})
      check(cudaEventCreateWithFlags(e, cudaEventDisableTiming));
  }
  for (cudaEvent_t* e : {&r.fork, &r.join})
    check(cudaEventCreateWithFlags(e, cudaEventDisableTiming));
  std::size_t const all = r.bytes() * static_cast<std::size_t>(r.how.microbatches);
  r.data = allocate(all);
  void* pinned = nullptr;
  check(cudaMallocHost(&pinned, all));
  r.host = static_cast<float*>(pinned);
  for (int i = 0; i < r.how.elements * r.how.microbatches; ++i)
    r.host[i] = static_cast<float>(i % 17);
  std::size_t const copied = r.plants(mistake::half_initialised) ? all / 2 : all;
  check(cudaMemcpyAsync(r.data, r.host, copied, cudaMemcpyHostToDevice, r.compute));
  check(cudaStreamSynchronize(r.compute));
}

void receive(rank_state& r, int m) {
  int const s = m % slots;
  if (r.first())
    return;
  if (m >= slots && !r.plants(mistake::receive_too_early))
    check(cudaStreamWaitEvent(r.lane, r.computed[s], 0));
  check(ncclRecv(
    r.input[s], static_cast<std::size_t>(r.how.elements), ncclFloat, r.rank - 1, r.comm, r.lane));
  check(cudaEventRecord(r.arrived[s], r.lane));
}

void compute(rank_state& r, int m) {
  int const s = m % slots;
  float const* from = r.first() ? r.data + m * r.how.elements : r.input[s];
  float* to = r.last() ? r.data + m * r.how.elements : r.output[s];
  if (!r.first() && !r.plants(mistake::compute_before_arrival))
    check(cudaStreamWaitEvent(r.compute, r.arrived[s], 0));
  if (!r.last() && m >= slots && !r.plants(mistake::compute_overwrites_sent))
    check(cudaStreamWaitEvent(r.compute, r.sent[s], 0));
  int const count = r.how.elements + (r.plants(mistake::too_many_elements) ? 1 : 0);
  scale_and_shift<float><<<(count + 63) / 64, 64, 0, r.compute>>>(to, from, 2.0f, 1.0f, count);
  check(cudaGetLastError());
  check(cudaEventRecord(r.computed[s], r.compute));
}

void send(rank_state& r, int m) {
  int const s = m % slots;
  if (r.last())
    return;
  if (!r.plants(mistake::send_before_compute))
    check(cudaStreamWaitEvent(r.lane, r.computed[s], 0));
  auto count = static_cast<std::size_t>(r.how.elements);
  if (r.plants(mistake::wrong_count) && m == 1)
    --count;
  check(ncclSend(r.output[s], count, ncclFloat, r.rank + 1, r.comm, r.lane));
  check(cudaEventRecord(r.sent[s], r.lane));
}

void relay(rank_state& r) {
  for (int m = 0; m < r.how.microbatches; ++m) {
    // A receive hoisted over the send it depends on, on one rank.
    if (r.plants(mistake::send_first) && r.rank == 1 && m == 0) {
      check(ncclSend(r.output[0], 1, ncclFloat, 0, r.comm, r.lane));
    }
    receive(r, m);
    compute(r, m);
    send(r, m);
  }
}

void relay_as_graph(rank_state& r) {
  cudaGraph_t graph{};
  cudaGraphExec_t exec{};
  check(cudaStreamBeginCapture(r.compute, cudaStreamCaptureModeThreadLocal));
  check(cudaEventRecord(r.fork, r.compute));
  check(cudaStreamWaitEvent(r.lane, r.fork, 0));
  relay(r);
  check(cudaEventRecord(r.join, r.lane));
  check(cudaStreamWaitEvent(r.compute, r.join, 0));
  check(cudaStreamEndCapture(r.compute, &graph));
  check(cudaGraphInstantiate(&exec, graph, 0));
  for (int launch = 0; launch < 2; ++launch)
    check(cudaGraphLaunch(exec, r.compute));
  check(cudaStreamSynchronize(r.compute));
  check(cudaGraphExecDestroy(exec));
  check(cudaGraphDestroy(graph));
}

void read_back(rank_state& r, std::vector<float>& result) {
  std::size_t const count =
    static_cast<std::size_t>(r.how.elements) * static_cast<std::size_t>(r.how.microbatches);
  check(cudaMemcpyAsync(r.host, r.data, sizeof(float) * count, cudaMemcpyDeviceToHost, r.compute));
  if (!r.plants(mistake::read_on_host_too_early))
    check(cudaStreamSynchronize(r.compute));
  standin::host_read(r.host, sizeof(float) * count);
  if (r.last())
    result.assign(r.host, r.host + count);
}

void tear_down(rank_state& r) {
  if (r.plants(mistake::freed_too_early))
    check(cudaFreeAsync(r.output[0], r.compute));
  check(cudaStreamSynchronize(r.compute));
  // What this rank has sent may lie in its buffers until all have received everything.
  check(cudaMemsetAsync(r.data, 0, sizeof(float), r.lane));
  check(ncclAllReduce(r.data, r.data, 1, ncclFloat, ncclSum, r.comm, r.lane));
  check(cudaStreamSynchronize(r.lane));
  check(ncclCommDestroy(r.comm));
  if (!r.plants(mistake::freed_too_early))
    check(cudaFree(r.output[0]));
  for (float* p : {r.input[0], r.input[1], r.output[1], r.data})
    check(cudaFree(p));
  check(cudaFreeHost(r.host));
  for (cudaEvent_t* set : {r.arrived, r.computed, r.sent})
    for (int i = 0; i < slots; ++i)
      check(cudaEventDestroy(set[i]));
  for (cudaEvent_t e : {r.fork, r.join})
    check(cudaEventDestroy(e));
  for (cudaStream_t s : {r.compute, r.lane})
    check(cudaStreamDestroy(s));
}

} // namespace

int run_relay(relay_options const& how, int rank, ncclUniqueId id, std::vector<float>& result) {
  rank_state r{how, rank};
  try {
    set_up(r, id);
    if (how.graph)
      relay_as_graph(r);
    else
      relay(r);
    read_back(r, result);
    tear_down(r);
  } catch (int code) {
    return code;
  }
  return 0;
}
