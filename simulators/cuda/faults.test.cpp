// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Injected faults, deadlines in virtual time, and the search through all orders.
#include <doctest/doctest.h>

#include <map>

#include "ranks.hpp"

namespace {

using namespace std::chrono_literals;
using standin::fault_action;
using standin::finding;

standin::configuration with(standin::fault f) {
  standin::configuration how;
  how.faults.push_back(std::move(f));
  return how;
}

//! Waits like an executor does: poll, look at the communicator, give up at a deadline, then abort.
struct watch_result {
  bool reached = false;
  bool expired = false;
  cudaError_t cuda = cudaSuccess;
  ncclResult_t nccl = ncclSuccess;
};

watch_result watch(rank_resources& r, cudaEvent_t finished, standin::clock::duration patience) {
  watch_result result;
  auto const deadline = standin::clock::now() + patience;
  for (;;) {
    result.cuda = cudaEventQuery(finished);
    if (result.cuda == cudaSuccess) {
      result.reached = true;
      return result;
    }
    ncclCommGetAsyncError(r.comm[0], &result.nccl);
    result.expired = standin::clock::now() >= deadline;
    if (result.cuda != cudaErrorNotReady || result.nccl != ncclSuccess || result.expired) {
      ncclCommAbort(r.comm[0]);
      return result;
    }
    standin::clock::sleep_for(1ms);
  }
}

// Every rank passes a message round a ring, twice.
std::vector<watch_result> ring(standin::configuration const& how,
                               int ranks,
                               std::vector<standin::outcome>* outcomes = nullptr) {
  std::vector<watch_result> results(static_cast<std::size_t>(ranks));
  auto const ends = on_ranks(how, ranks, 1, [&](rank_resources& r) {
    cudaEvent_t finished{};
    if (cudaEventCreateWithFlags(&finished, cudaEventDisableTiming) != cudaSuccess)
      return;
    for (int round = 0; round < 2; ++round) {
      ncclGroupStart();
      (void)r.send(0, (r.rank + 1) % ranks);
      (void)r.receive(1, (r.rank + ranks - 1) % ranks);
      if (ncclGroupEnd() != ncclSuccess)
        return;
    }
    if (cudaEventRecord(finished, r.on[0]) != cudaSuccess)
      return;
    results[static_cast<std::size_t>(r.rank)] = watch(r, finished, 1s);
  });
  if (outcomes)
    *outcomes = ends;
  return results;
}

} // namespace

TEST_CASE("without a fault the ring is complete and no deadline expires") {
  for (watch_result const& r : ring({}, 3)) {
    CHECK(r.reached);
    CHECK(!r.expired);
  }
  CHECK(standin::summary() == "");
}

TEST_CASE("an error is returned by the named call and by no other") {
  standin::configure(
    with({.function = "cudaMemsetAsync", .call = 2, .cuda_code = cudaErrorLaunchFailure}));
  void* p = nullptr;
  cudaStream_t s{};
  CHECK(cudaMalloc(&p, 8) == cudaSuccess);
  CHECK(cudaStreamCreate(&s) == cudaSuccess);
  CHECK(cudaMemsetAsync(p, 1, 8, s) == cudaSuccess);
  CHECK(cudaMemsetAsync(p, 2, 8, s) == cudaErrorLaunchFailure);
  CHECK(cudaMemsetAsync(p, 3, 4, s) == cudaSuccess);
  CHECK(cudaStreamSynchronize(s) == cudaSuccess);
  CHECK(int{static_cast<char*>(p)[7]} == 1);
  CHECK(int{static_cast<char*>(p)[0]} == 3);
  CHECK(cudaPeekAtLastError() == cudaErrorLaunchFailure);
}

TEST_CASE("a kernel that fails on the device spoils the device for good") {
  standin::configure(with({.function = "cudaMemsetAsync",
                           .action = fault_action::asynchronous_error,
                           .cuda_code = cudaErrorIllegalAddress}));
  void* p = nullptr;
  cudaStream_t s{};
  cudaMalloc(&p, 8);
  cudaStreamCreate(&s);
  CHECK(cudaMemsetAsync(p, 1, 8, s) == cudaSuccess);
  CHECK(cudaStreamSynchronize(s) == cudaErrorIllegalAddress);
  CHECK(cudaMemsetAsync(p, 1, 8, s) == cudaErrorIllegalAddress);
  CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
  CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
  CHECK(int{*static_cast<unsigned char*>(p)} == 0xFF);
}

TEST_CASE("deadlines expire in virtual time on every rank when one operation stalls") {
  auto const results = ring(
    with({.function = "ncclGroupEnd", .call = 2, .rank = 1, .action = fault_action::stall}), 3);
  for (watch_result const& r : results) {
    CHECK(!r.reached);
    CHECK(r.expired);
  }
  CHECK(!standin::found(finding::deadlock));
}

TEST_CASE("without a deadline a stall is a deadlock that is named") {
  on_ranks(with({.function = "ncclSend", .rank = 0, .action = fault_action::stall}),
           2,
           1,
           [](rank_resources& r) {
             if (r.rank == 0)
               (void)r.send(0, 1);
             if (r.rank == 1)
               (void)r.receive(0, 0);
             cudaStreamSynchronize(r.on[0]);
           });
  CHECK(standin::found(finding::deadlock));
  CHECK(somebody_waits({"ncclSend to 1", "stalled by an injected fault"}));
}

TEST_CASE("a rank that dies is silent, or noticed, as configured") {
  for (bool noticed : {false, true}) {
    standin::configuration how =
      with({.function = "ncclGroupEnd", .call = 2, .rank = 1, .action = fault_action::death});
    how.peers_notice_death = noticed;
    std::vector<standin::outcome> outcomes;
    auto const results = ring(how, 3, &outcomes);
    CHECK(outcomes[1].died);
    CHECK(standin::has_died(1));
    CHECK(!standin::has_died(0));
    for (std::size_t rank : {0u, 2u}) {
      CHECK(!outcomes[rank].died);
      CHECK(!results[rank].reached);
      CHECK(results[rank].expired == !noticed);
      CHECK((results[rank].nccl == ncclRemoteError) == noticed);
    }
    CHECK(!standin::found(finding::deadlock));
  }
}

TEST_CASE("what a rank enqueued before its death no longer starts") {
  for (bool dies : {false, true}) {
    auto how = with({.function = "cudaEventRecord", .action = fault_action::death});
    if (!dies)
      how.faults.clear();
    standin::configure(how);
    unsigned char* memory = nullptr;
    standin::run_ranks(2, [&](int rank) {
      if (rank == 1) {
        standin::wait_until([&] { return memory != nullptr; }, "the memory");
        standin::clock::sleep_for(1ms);
        return;
      }
      void* fresh = nullptr;
      cudaStream_t s{};
      cudaEvent_t e{};
      cudaMalloc(&fresh, 8);
      cudaStreamCreate(&s);
      cudaEventCreate(&e);
      cudaMemsetAsync(fresh, 1, 8, s);
      memory = static_cast<unsigned char*>(fresh);
      CHECK(cudaEventRecord(e, s) == (dies ? cudaErrorDevicesUnavailable : cudaSuccess));
      cudaStreamSynchronize(s);
    });
    CHECK(int{memory[0]} == (dies ? 0xFF : 1));
    CHECK(standin::summary() == "");
  }
}

TEST_CASE("an asynchronous error of a communicator shows at its query") {
  auto const results = ring(with({.function = "ncclGroupEnd",
                                  .call = 2,
                                  .rank = 0,
                                  .action = fault_action::asynchronous_error}),
                            2);
  CHECK(results[0].nccl == ncclRemoteError);
  CHECK(!results[0].expired);
  CHECK(results[1].expired);
}

namespace {

// A ring waits with a deadline, so that nobody waits for ever, but where the program sets up what
// it needs with calls that block.
void check_only_set_up_waits() {
  for (standin::report const& found : standin::reports()) {
    if (found.kind != finding::deadlock)
      continue;
    int setting_up = 0;
    for (std::string const& line : found.waits) {
      CAPTURE(line);
      auto const in = line.find(" waits in ");
      if (line.find("rank ") != 0 || in == std::string::npos)
        continue;
      std::string const call = line.substr(in + 10);
      CHECK((call.find("the creation of a communicator") == 0 ||
             call.find("ncclGroupEnd, connecting ") == 0 ||
             call.find("cudaStreamSynchronize(") == 0));
      ++setting_up;
    }
    CHECK(setting_up > 0);
  }
}

} // namespace

// Whatever fails, wherever: all ranks come to an end.
TEST_CASE("every call of the ring fails once in every way, and every rank ends") {
  ring({}, 2);
  std::uint64_t const calls = standin::total_calls();
  REQUIRE(calls > 40);
  CHECK(standin::summary() == "");
  for (fault_action action : {fault_action::error,
                              fault_action::stall,
                              fault_action::death,
                              fault_action::asynchronous_error}) {
    for (std::uint64_t call = 1; call <= calls; ++call) {
      CAPTURE(call);
      ring(with({.call = call, .action = action}), 2);
      check_only_set_up_waits();
    }
  }
}

TEST_CASE("sleepers wake in the order of their clocks") {
  standin::configure({});
  std::vector<int> order;
  std::vector<standin::clock::duration> ends(3);
  standin::run_ranks(3, [&](int rank) {
    for (int i = 0; i < 2; ++i) {
      standin::clock::sleep_for(std::chrono::milliseconds(10 * (3 - rank)));
      order.push_back(rank);
    }
    ends[static_cast<std::size_t>(rank)] = standin::clock::now().time_since_epoch();
  });
  CHECK(order == std::vector{2, 1, 2, 0, 1, 0});
  CHECK(ends[0] >= 60ms);
  CHECK(ends[0] < 61ms);
}

TEST_CASE("a poll that can never succeed is found") {
  standin::configure(with({.function = "cudaMemsetAsync", .action = fault_action::stall}));
  void* p = nullptr;
  cudaStream_t s{};
  cudaMalloc(&p, 8);
  cudaStreamCreate(&s);
  cudaMemsetAsync(p, 1, 8, s);
  while (cudaStreamQuery(s) == cudaErrorNotReady) {
  }
  CHECK(standin::found(finding::deadlock));
}

namespace {

// Two communicators on two unordered streams.
void two_lanes(bool same_order) {
  standin::run_ranks(2, [&](int rank) { static_cast<void>(rank); });
  auto const ids = unique_ids(2);
  standin::run_ranks(2, [&](int rank) {
    rank_resources r(rank, 2, ids);
    for (std::size_t i : {0u, 1u}) {
      std::size_t const lane = same_order || rank == 0 ? i : 1 - i;
      ncclAllReduce(
        r.buffer[lane], r.buffer[2 + lane], 4, ncclFloat, ncclSum, r.comm[lane], r.on[lane]);
    }
    cudaDeviceSynchronize();
  });
}

} // namespace

// Where one kernel fits, unordered communicators deadlock in some orders even when issued in the
// same order.
TEST_CASE("the search through all orders finds the deadlock that most orders miss") {
  standin::configuration how;
  auto const roomy = standin::explore(how, [] { two_lanes(false); });
  CHECK(roomy.complete);
  CHECK(roomy.faulty == 0);
  how.resident_nccl_kernels = 1;
  for (bool same_order : {false, true}) {
    auto const tight = standin::explore(how, [&] { two_lanes(same_order); });
    CHECK(tight.complete);
    CHECK(tight.deadlocks > 0);
    CHECK(tight.deadlocks < tight.runs);
    REQUIRE(!tight.first.empty());
    CHECK(tight.first.front().text.find("waits for room on device") != std::string::npos);
  }
  how.resident_nccl_kernels = 2;
  CHECK(standin::explore(how, [] { two_lanes(false); }).deadlocks == 0);
}

TEST_CASE("the full search visits every order of independent operations up to their states") {
  // Two streams of three fills each: a grid of 4 x 4 progress states; all but those on the far
  // edges have a choice.
  auto const program = [] {
    void* p = nullptr;
    cudaStream_t s[2]{};
    cudaMalloc(&p, 64);
    for (int i = 0; i < 2; ++i)
      cudaStreamCreateWithFlags(&s[i], cudaStreamNonBlocking);
    for (int i = 0; i < 2; ++i)
      for (int k = 0; k < 3; ++k)
        cudaMemsetAsync(static_cast<char*>(p) + 32 * i, k, 32, s[i]);
    cudaDeviceSynchronize();
  };
  standin::configuration how;
  how.reduce = false;
  auto const full = standin::explore(how, program);
  CHECK(full.complete);
  CHECK(full.faulty == 0);
  CHECK(full.states == 9);
  how.reduce = true;
  auto const reduced = standin::explore(how, program);
  CHECK(reduced.complete);
  CHECK(reduced.runs == 1);
}
