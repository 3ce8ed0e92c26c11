// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Stream capture and graphs.
#include <doctest/doctest.h>

#include "ranks.hpp"

namespace {

using standin::finding;

struct machine {
  explicit machine(standin::configuration how = {}) {
    standin::configure(how);
    for (cudaStream_t& s : on)
      cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    for (unsigned char*& p : memory) {
      void* fresh = nullptr;
      cudaMalloc(&fresh, bytes);
      p = static_cast<unsigned char*>(fresh);
      cudaMemsetAsync(p, 0, bytes, on[0]);
    }
    for (cudaEvent_t& e : event)
      cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
    cudaStreamSynchronize(on[0]);
  }
  cudaError_t copy(int to, int from, int stream) {
    return cudaMemcpyAsync(memory[to], memory[from], bytes, cudaMemcpyDeviceToDevice, on[stream]);
  }
  cudaError_t begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
    return cudaStreamBeginCapture(on[0], mode);
  }
  cudaError_t end() { return cudaStreamEndCapture(on[0], &graph); }
  static constexpr std::size_t bytes = 64;
  cudaStream_t on[3]{};
  unsigned char* memory[4]{};
  cudaEvent_t event[4]{};
  cudaGraph_t graph{};
};

// A fork to a second stream and a join back.
void fork_and_join(machine& m, bool fork = true, bool join = true, bool order = true) {
  cudaMemsetAsync(m.memory[0], 3, machine::bytes, m.on[0]);
  cudaEventRecord(m.event[0], m.on[0]);
  if (fork)
    cudaStreamWaitEvent(m.on[1], m.event[0], 0);
  m.copy(1, 0, 1);
  cudaEventRecord(m.event[1], m.on[1]);
  if (join && order)
    cudaStreamWaitEvent(m.on[0], m.event[1], 0);
  m.copy(2, 1, 0);
  if (join && !order)
    cudaStreamWaitEvent(m.on[0], m.event[1], 0);
}

} // namespace

TEST_CASE("a captured program does nothing until launched, then what it would have done") {
  for (standin::order how : {standin::order::lazy, standin::order::eager, standin::order::random}) {
    standin::configuration c;
    c.execution = how;
    machine m(c);
    CHECK(m.begin() == cudaSuccess);
    fork_and_join(m);
    cudaStreamCaptureStatus status{};
    CHECK(cudaStreamIsCapturing(m.on[1], &status) == cudaSuccess);
    CHECK(status == cudaStreamCaptureStatusActive);
    CHECK(m.end() == cudaSuccess);
    CHECK(cudaStreamIsCapturing(m.on[1], &status) == cudaSuccess);
    CHECK(status == cudaStreamCaptureStatusNone);
    cudaGraphExec_t exec{};
    CHECK(cudaGraphInstantiate(&exec, m.graph, 0) == cudaSuccess);
    std::size_t nodes = 0;
    CHECK(cudaGraphGetNodes(m.graph, nullptr, &nodes) == cudaSuccess);
    CHECK(nodes == 3);
    CHECK(int{m.memory[2][0]} == 0);
    for (int launch = 0; launch < 3; ++launch)
      CHECK(cudaGraphLaunch(exec, m.on[0]) == cudaSuccess);
    CHECK(cudaStreamSynchronize(m.on[0]) == cudaSuccess);
    CHECK(int{m.memory[2][machine::bytes - 1]} == 3);
    CHECK(standin::summary() == "");
    CHECK(standin::counters().graph_launches == 3);
    CHECK(cudaGraphExecDestroy(exec) == cudaSuccess);
    CHECK(cudaGraphDestroy(m.graph) == cudaSuccess);
  }
}

TEST_CASE("a race inside a graph is found at its launch") {
  machine m;
  m.begin();
  fork_and_join(m, true, true, false);
  REQUIRE(m.end() == cudaSuccess);
  CHECK(standin::summary() == "");
  cudaGraphExec_t exec{};
  cudaGraphInstantiate(&exec, m.graph, 0);
  cudaGraphLaunch(exec, m.on[0]);
  cudaStreamSynchronize(m.on[0]);
  bool const race =
    standin::found(finding::use_before_ready) || standin::found(finding::overwrite_in_use);
  CHECK(race);
}

TEST_CASE(
  "launches of one graph follow each other on any streams, and order with their stream only") {
  for (bool ordered : {false, true}) {
    machine m;
    m.begin();
    m.copy(1, 0, 0);
    m.end();
    cudaGraphExec_t exec{};
    cudaGraphInstantiate(&exec, m.graph, 0);
    cudaMemsetAsync(m.memory[0], 1, machine::bytes, m.on[0]); // the second launch is after it, too
    cudaGraphLaunch(exec, m.on[0]);
    cudaGraphLaunch(exec, m.on[1]);
    cudaMemcpyAsync(
      m.memory[2], m.memory[1], machine::bytes, cudaMemcpyDeviceToDevice, m.on[ordered ? 1 : 2]);
    cudaDeviceSynchronize();
    CHECK(standin::summary().empty() == ordered);
  }
}

TEST_CASE("captures end where they began, with everything joined") {
  machine unjoined;
  unjoined.begin();
  fork_and_join(unjoined, true, false);
  CHECK(unjoined.end() == cudaErrorStreamCaptureUnjoined);
  CHECK(standin::found(finding::misuse));

  machine elsewhere;
  elsewhere.begin();
  fork_and_join(elsewhere);
  CHECK(cudaStreamEndCapture(elsewhere.on[1], &elsewhere.graph) == cudaErrorStreamCaptureUnmatched);
  CHECK(elsewhere.end() == cudaErrorStreamCaptureInvalidated);

  machine never;
  CHECK(never.end() == cudaErrorIllegalState);
}

TEST_CASE("a captured stream may not wait for what is outside its capture") {
  machine m;
  cudaEventRecord(m.event[0], m.on[1]);
  m.begin();
  CHECK(cudaStreamWaitEvent(m.on[0], m.event[0], 0) == cudaErrorStreamCaptureIsolation);
  CHECK(standin::found(finding::misuse));
  CHECK(m.end() == cudaErrorStreamCaptureInvalidated);

  machine two;
  two.begin();
  CHECK(cudaStreamBeginCapture(two.on[1], cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  cudaEventRecord(two.event[0], two.on[0]);
  CHECK(cudaStreamWaitEvent(two.on[1], two.event[0], 0) == cudaErrorStreamCaptureMerge);
}

TEST_CASE("calls that are illegal in a capture fail and spoil it") {
  using call = cudaError_t (*)(machine&);
  std::vector<std::pair<char const*, call>> const illegal{
    {"stream synchronize", [](machine& m) { return cudaStreamSynchronize(m.on[0]); }},
    {"stream query", [](machine& m) { return cudaStreamQuery(m.on[0]); }},
    {"device synchronize", [](machine&) { return cudaDeviceSynchronize(); }},
    {"malloc",
     [](machine&) {
       void* p = nullptr;
       return cudaMalloc(&p, 8);
     }},
    {"free", [](machine& m) { return cudaFree(m.memory[3]); }},
    {"malloc async",
     [](machine& m) {
       void* p = nullptr;
       return cudaMallocAsync(&p, 8, m.on[0]);
     }},
    {"graph launch inside a capture",
     [](machine& m) {
       cudaEventRecord(m.event[2], m.on[0]);
       return cudaEventSynchronize(m.event[2]) == cudaErrorCapturedEvent
                ? cudaErrorStreamCaptureUnsupported
                : cudaSuccess;
     }},
  };
  for (auto const& entry : illegal) {
    std::string const what = entry.first;
    CAPTURE(what);
    machine m;
    m.begin();
    m.copy(1, 0, 0);
    CHECK(entry.second(m) == cudaErrorStreamCaptureUnsupported);
    CHECK(m.copy(1, 0, 0) == cudaErrorStreamCaptureInvalidated);
    CHECK(m.end() == cudaErrorStreamCaptureInvalidated);
    CHECK(m.copy(1, 0, 0) == cudaSuccess);
    CHECK(cudaStreamSynchronize(m.on[0]) == cudaSuccess);
  }
}

// An event query by another thread breaks a capture in global mode; thread-local mode is the cure.
TEST_CASE("another thread's query spoils a global capture and no thread-local one") {
  for (cudaStreamCaptureMode mode :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal}) {
    standin::configure({});
    cudaError_t ended{};
    bool begun = false, queried = false;
    cudaEvent_t elsewhere{};
    cudaEventCreate(&elsewhere);
    standin::run_ranks(2, [&](int rank) {
      if (rank == 1) {
        standin::wait_until([&] { return begun; }, "the capture to begin");
        cudaEventQuery(elsewhere);
        queried = true;
        return;
      }
      cudaStream_t s{};
      cudaGraph_t graph{};
      cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
      cudaStreamBeginCapture(s, mode);
      begun = true;
      standin::wait_until([&] { return queried; }, "the query");
      ended = cudaStreamEndCapture(s, &graph);
    });
    CHECK(ended ==
          (mode == cudaStreamCaptureModeGlobal ? cudaErrorStreamCaptureInvalidated : cudaSuccess));
  }
}

TEST_CASE("the legacy default stream may not be used while a blocking stream is captured") {
  for (bool blocking : {false, true}) {
    machine m;
    cudaStream_t s{};
    cudaStreamCreateWithFlags(&s, blocking ? cudaStreamDefault : cudaStreamNonBlocking);
    cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
    CHECK(cudaMemsetAsync(m.memory[0], 1, 8, nullptr) ==
          (blocking ? cudaErrorStreamCaptureImplicit : cudaSuccess));
  }
}

TEST_CASE("an executable graph takes over the arguments of a graph of its shape, and of no other") {
  machine m;
  m.begin();
  cudaMemsetAsync(m.memory[0], 1, machine::bytes, m.on[0]);
  m.end();
  cudaGraphExec_t exec{};
  cudaGraphInstantiate(&exec, m.graph, 0);
  m.begin();
  cudaMemsetAsync(m.memory[1], 2, machine::bytes, m.on[0]);
  m.end();
  cudaGraphExecUpdateResultInfo info{};
  CHECK(cudaGraphExecUpdate(exec, m.graph, &info) == cudaSuccess);
  cudaGraphLaunch(exec, m.on[0]);
  cudaStreamSynchronize(m.on[0]);
  CHECK(int{m.memory[0][0]} == 0);
  CHECK(int{m.memory[1][0]} == 2);
  m.begin();
  m.copy(1, 0, 0);
  m.end();
  CHECK(cudaGraphExecUpdate(exec, m.graph, &info) == cudaErrorGraphExecUpdateFailure);
  CHECK(info.result == cudaGraphExecUpdateErrorTopologyChanged);
}

namespace {

// Three rounds of an exchange in both directions between neighbours; the received data become what
// is sent next.
void exchange(rank_resources& r, cudaEvent_t ready, cudaEvent_t sent) {
  for (int round = 0; round < 3; ++round) {
    cudaEventRecord(ready, r.on[0]);
    cudaStreamWaitEvent(r.on[1], ready, 0);
    ncclGroupStart();
    (void)r.send(0, 1 - r.rank, 1);
    (void)r.receive(1, 1 - r.rank, 1);
    ncclGroupEnd();
    cudaEventRecord(sent, r.on[1]);
    cudaStreamWaitEvent(r.on[0], sent, 0);
    cudaMemcpyAsync(r.buffer[0], r.buffer[1], r.bytes, cudaMemcpyDeviceToDevice, r.on[0]);
  }
}

} // namespace

TEST_CASE("captured messages give what eager ones give, on every machine, launch after launch") {
  standin::for_each_machine(
    {}, 5, [](standin::configuration const& how, std::string const& machine) {
      CAPTURE(machine);
      on_ranks(how, 2, 1, [](rank_resources& r) {
        cudaEvent_t ready{}, sent{};
        cudaEventCreateWithFlags(&ready, cudaEventDisableTiming);
        cudaEventCreateWithFlags(&sent, cudaEventDisableTiming);
        exchange(r, ready, sent);
        CHECK(cudaStreamSynchronize(r.on[0]) == cudaSuccess);
        CHECK(int{r.buffer[0][0]} == 16 * (1 - r.rank));
        cudaGraph_t graph{};
        cudaGraphExec_t exec{};
        CHECK(cudaStreamBeginCapture(r.on[0], cudaStreamCaptureModeThreadLocal) == cudaSuccess);
        exchange(r, ready, sent);
        CHECK(cudaStreamEndCapture(r.on[0], &graph) == cudaSuccess);
        CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
        CHECK(cudaGraphLaunch(exec, r.on[0]) == cudaSuccess);
        CHECK(cudaGraphLaunch(exec, r.on[0]) == cudaSuccess);
        exchange(r, ready, sent); // captured and live work may be mixed
        CHECK(cudaStreamSynchronize(r.on[0]) == cudaSuccess);
        CHECK(int{r.buffer[0][0]} == 16 * r.rank);
        CHECK(cudaGraphExecDestroy(exec) == cudaSuccess);
        CHECK(cudaGraphDestroy(graph) == cudaSuccess);
        // All have received what this rank has sent.
        ncclAllReduce(r.buffer[1], r.buffer[2], 4, ncclFloat, ncclSum, r.comm[0], r.on[0]);
        CHECK(cudaStreamSynchronize(r.on[0]) == cudaSuccess);
        CHECK(ncclCommDestroy(r.comm[0]) == ncclSuccess);
      });
      CHECK(standin::summary() == "");
    });
}

// Destroy and abort wait until no graph refers to the communicator.
TEST_CASE("a communicator that outlives its graphs ends, one with a graph left does not") {
  for (bool graph_first : {false, true}) {
    ncclResult_t code = ncclSuccess;
    on_ranks({}, 1, 1, [&](rank_resources& r) {
      cudaGraph_t graph{};
      cudaStreamBeginCapture(r.on[0], cudaStreamCaptureModeThreadLocal);
      ncclAllReduce(r.buffer[0], r.buffer[1], 4, ncclFloat, ncclSum, r.comm[0], r.on[0]);
      cudaStreamEndCapture(r.on[0], &graph);
      if (graph_first)
        cudaGraphDestroy(graph);
      code = ncclCommAbort(r.comm[0]);
    });
    CHECK((code == ncclSuccess) == graph_first);
    CHECK(standin::found(finding::deadlock) == !graph_first);
    CHECK(standin::found(finding::misuse) == !graph_first);
  }
}

TEST_CASE("an executable graph may not be freed while another thread launches it") {
  for (bool const waits : {false, true}) {
    CAPTURE(waits);
    standin::configuration how;
    how.launch_depth = 2;
    if (waits)
      how.faults = {{.function = "cudaGraphLaunch", .action = standin::fault_action::stall}};
    machine m(how);
    CHECK(m.begin() == cudaSuccess);
    fork_and_join(m);
    CHECK(m.end() == cudaSuccess);
    cudaGraphExec_t exec{};
    CHECK(cudaGraphInstantiate(&exec, m.graph, 0) == cudaSuccess);
    (void)standin::run_ranks(1, [&](int) {
      auto launching = standin::clock::start([&] { (void)cudaGraphLaunch(exec, m.on[0]); });
      standin::clock::sleep_for(std::chrono::milliseconds(1));
      CHECK((cudaGraphExecDestroy(exec) == cudaSuccess) == !waits);
      launching.detach();
    });
    CHECK(standin::found(finding::misuse) == waits);
  }
}

TEST_CASE("one group holds captured or live streams, not both") {
  on_ranks({}, 1, 1, [](rank_resources& r) {
    cudaStreamBeginCapture(r.on[0], cudaStreamCaptureModeThreadLocal);
    ncclGroupStart();
    (void)r.send(0, 0, 0);
    (void)r.receive(1, 0, 1);
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
  });
  CHECK(standin::found(finding::misuse));
}

// Branches of a graph have no order of their own, so where one NCCL kernel fits two communicators
// can deadlock.
TEST_CASE("two communicators on unordered branches: safe on one stream, not with little room") {
  for (bool one_stream : {false, true}) {
    standin::configuration how;
    how.resident_nccl_kernels = 1;
    bool deadlocked = false;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      how.execution = standin::order::random;
      how.seed = seed;
      on_ranks(how, 2, 2, [&](rank_resources& r) {
        cudaEvent_t fork{}, join{};
        cudaEventCreate(&fork);
        cudaEventCreate(&join);
        cudaGraph_t graph{};
        cudaGraphExec_t exec{};
        cudaStreamBeginCapture(r.on[0], cudaStreamCaptureModeThreadLocal);
        cudaEventRecord(fork, r.on[0]);
        cudaStreamWaitEvent(r.on[1], fork, 0);
        std::size_t const second = one_stream ? 0 : 1;
        ncclAllReduce(r.buffer[0], r.buffer[1], 4, ncclFloat, ncclSum, r.comm[0], r.on[0]);
        ncclAllReduce(r.buffer[2], r.buffer[3], 4, ncclFloat, ncclSum, r.comm[1], r.on[second]);
        cudaEventRecord(join, r.on[1]);
        cudaStreamWaitEvent(r.on[0], join, 0);
        cudaStreamEndCapture(r.on[0], &graph);
        cudaGraphInstantiate(&exec, graph, 0);
        cudaGraphLaunch(exec, r.on[0]);
        cudaStreamSynchronize(r.on[0]);
      });
      deadlocked = deadlocked || standin::found(finding::deadlock);
    }
    CHECK(deadlocked == !one_stream);
  }
}

TEST_CASE("an external event of a graph is recorded by every launch, and the host may ask for it") {
  for (standin::order how : {standin::order::lazy, standin::order::eager, standin::order::random}) {
    standin::configuration c;
    c.execution = how;
    machine m(c);
    cudaEvent_t const early = m.event[0];
    CHECK(m.begin() == cudaSuccess);
    m.copy(1, 0, 0);
    CHECK(cudaEventRecordWithFlags(early, m.on[0], cudaEventRecordExternal) == cudaSuccess);
    m.copy(2, 1, 0);
    CHECK(m.end() == cudaSuccess);
    std::size_t nodes = 0;
    CHECK(cudaGraphGetNodes(m.graph, nullptr, &nodes) == cudaSuccess);
    CHECK(nodes == 3);
    cudaGraphExec_t made = nullptr;
    CHECK(cudaGraphInstantiate(&made, m.graph, 0) == cudaSuccess);
    CHECK(cudaEventQuery(early) == cudaSuccess); // never recorded
    for (int launch = 0; launch < 2; ++launch) {
      cudaMemsetAsync(m.memory[3], 1, machine::bytes, m.on[0]);
      CHECK(cudaGraphLaunch(made, m.on[0]) == cudaSuccess);
      if (how == standin::order::lazy)
        CHECK(cudaEventQuery(early) == cudaErrorNotReady);
      CHECK(cudaEventSynchronize(early) == cudaSuccess);
    }
    CHECK(cudaStreamSynchronize(m.on[0]) == cudaSuccess);
    cudaGraphExecDestroy(made);
    CHECK(standin::summary() == "");
  }
}

TEST_CASE("NCCL adds nodes of its own to a graph, which go with each launch; more over a network") {
  for (bool const network : {false, true})
    standin::for_each_machine({}, 2, [&](standin::configuration how, std::string const& machine) {
      CAPTURE(machine);
      CAPTURE(network);
      how.network = network;
      on_ranks(how, 2, 1, [&](rank_resources& r) {
        cudaEvent_t ready{}, sent{};
        cudaEventCreateWithFlags(&ready, cudaEventDisableTiming);
        cudaEventCreateWithFlags(&sent, cudaEventDisableTiming);
        exchange(r, ready, sent); // the first use of the peer
        cudaGraph_t graph{};
        cudaGraphExec_t exec{};
        CHECK(cudaStreamBeginCapture(r.on[0], cudaStreamCaptureModeThreadLocal) == cudaSuccess);
        exchange(r, ready, sent);
        CHECK(cudaStreamEndCapture(r.on[0], &graph) == cudaSuccess);
        std::size_t count = 0;
        CHECK(cudaGraphGetNodes(graph, nullptr, &count) == cudaSuccess);
        std::vector<cudaGraphNode_t> nodes(count);
        CHECK(cudaGraphGetNodes(graph, nodes.data(), &count) == cudaSuccess);
        auto const of_type = [&](cudaGraphNodeType wanted) {
          return std::count_if(nodes.begin(), nodes.end(), [&](cudaGraphNode_t node) {
            cudaGraphNodeType type{};
            (void)cudaGraphNodeGetType(node, &type);
            return type == wanted;
          });
        };
        CHECK(of_type(cudaGraphNodeTypeKernel) == 3);
        CHECK(of_type(cudaGraphNodeTypeMemcpy) == 3);
        // The stream of the communicator waits once for what it did before the launch, and records
        // an event after each kernel; so does the stream of its proxy.
        CHECK(of_type(cudaGraphNodeTypeWaitEvent) == (network ? 2 : 1));
        CHECK(of_type(cudaGraphNodeTypeHost) == (network ? 3 : 0));
        CHECK(of_type(cudaGraphNodeTypeEventRecord) == (network ? 6 : 3));
        CHECK(count == (network ? 17 : 10));
        CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
        for (int launch = 0; launch < 2; ++launch)
          CHECK(cudaGraphLaunch(exec, r.on[0]) == cudaSuccess);
        CHECK(cudaStreamSynchronize(r.on[0]) == cudaSuccess);
        CHECK(int{r.buffer[0][0]} == 16 * (1 - r.rank));
      });
      CHECK(standin::summary() == "");
      CHECK(standin::counters().host_functions == (network ? 2 * 2 * 3 : 0));
    });
}

TEST_CASE("NCCL's own nodes stand beside the captured stream, and each launch enqueues them") {
  std::uint64_t before = 0;
  on_ranks({}, 2, 2, [&](rank_resources& r) {
    auto const meet = [&](std::size_t lane) {
      if (r.rank == 0)
        CHECK(r.send(0, 1, 0, lane) == ncclSuccess);
      else
        CHECK(r.receive(1, 0, 0, lane) == ncclSuccess);
    };
    meet(0); // the first use of the peer
    meet(1);
    cudaGraph_t graph{};
    CHECK(cudaStreamBeginCapture(r.on[0], cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    meet(0);
    size_t behind = 0;
    cudaGraphNode_t const* last = nullptr;
    cudaStreamCaptureStatus status{};
    CHECK(cudaStreamGetCaptureInfo(r.on[0], &status, nullptr, nullptr, &last, nullptr, &behind) ==
          cudaSuccess);
    REQUIRE(behind == 1);
    cudaGraphNodeType type{};
    CHECK(cudaGraphNodeGetType(*last, &type) == cudaSuccess);
    CHECK(type == cudaGraphNodeTypeKernel); // not the record of NCCL's event
    meet(0);
    meet(1); // a wait of its own
    CHECK(cudaStreamEndCapture(r.on[0], &graph) == cudaSuccess);
    std::size_t nodes = 0;
    CHECK(cudaGraphGetNodes(graph, nullptr, &nodes) == cudaSuccess);
    CHECK(nodes == 3 * 2 + 2);
    cudaGraphExec_t exec{};
    CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    CHECK(cudaStreamSynchronize(r.on[0]) == cudaSuccess);
    if (r.rank == 0)
      before = standin::counters().operations;
    CHECK(cudaGraphLaunch(exec, r.on[0]) == cudaSuccess);
    CHECK(cudaStreamSynchronize(r.on[0]) == cudaSuccess);
  });
  CHECK(standin::counters().operations - before == 2 * (8 + 2)); // with its start and its end
  CHECK(standin::summary() == "");
}

TEST_CASE("a graph waits for what its communicator did before it, in whatever stream") {
  for (bool const again : {false, true})
    standin::for_each_machine({}, 4, [&](standin::configuration const& how, std::string const& m) {
      CAPTURE(m);
      on_ranks(how, 2, 1, [&](rank_resources& r) {
        // Two messages into one buffer in two streams: only the lane of the communicator orders
        // them.
        auto const meet = [&](std::size_t stream) {
          if (r.rank == 0)
            CHECK(r.send(stream, 1, stream) == ncclSuccess);
          else
            CHECK(r.receive(3, 0, stream) == ncclSuccess);
        };
        cudaGraph_t graph{};
        cudaGraphExec_t exec{};
        meet(0); // the first use of the peer
        CHECK(cudaStreamBeginCapture(r.on[1], cudaStreamCaptureModeThreadLocal) == cudaSuccess);
        meet(1);
        CHECK(cudaStreamEndCapture(r.on[1], &graph) == cudaSuccess);
        CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
        if (again)
          CHECK(cudaGraphLaunch(exec, r.on[0]) == cudaSuccess);
        meet(0);
        CHECK(cudaGraphLaunch(exec, r.on[1]) == cudaSuccess);
        CHECK(cudaStreamSynchronize(r.on[1]) == cudaSuccess);
        if (r.rank == 1)
          CHECK(int{r.buffer[3][0]} == 1);
      });
      CHECK(standin::summary() == "");
    });
}
