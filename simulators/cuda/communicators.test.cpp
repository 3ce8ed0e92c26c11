// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Life of communicators, and collectives.
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "ranks.hpp"

namespace {

using standin::finding;

} // namespace

TEST_CASE("creation is collective: a missing rank is named") {
  standin::configure({});
  auto const ids = unique_ids(1);
  standin::run_ranks(2, [&](int rank) {
    ncclComm_t comm{};
    cudaSetDevice(rank);
    if (rank == 0)
      CHECK(ncclCommInitRank(&comm, 2, ids[0], 0) == ncclSystemError);
  });
  CHECK(standin::found(finding::deadlock));
  CHECK(somebody_waits({"rank 0 in ncclCommInitRank", "waits for rank 1"}));
}

TEST_CASE("one device holds one rank of a communicator") {
  for (bool shared : {false, true}) {
    standin::configuration how;
    how.allow_shared_device = shared;
    standin::configure(how);
    auto const ids = unique_ids(1);
    std::vector<ncclResult_t> codes(2);
    standin::run_ranks(2, [&](int rank) {
      ncclComm_t comm{};
      codes[static_cast<std::size_t>(rank)] = ncclCommInitRank(&comm, 2, ids[0], rank);
    });
    CHECK(standin::found(finding::misuse) == !shared);
    CHECK((codes[1] == ncclSuccess) == shared);
  }
}

TEST_CASE("without blocking: in progress until all have come, and of no use before") {
  standin::configure({});
  auto const ids = unique_ids(1);
  standin::run_ranks(2, [&](int rank) {
    cudaSetDevice(rank);
    ncclConfig_t how = NCCL_CONFIG_INITIALIZER;
    how.blocking = 0;
    how.commName = "lane";
    ncclComm_t comm{};
    ncclResult_t state = ncclCommInitRankConfig(&comm, 2, ids[0], rank, &how);
    CHECK(state == ncclInProgress);
    for (int polls = 0; state == ncclInProgress; ++polls) {
      REQUIRE(polls < 1000);
      CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
    }
    CHECK(state == ncclSuccess);
    int count = 0, user = -1, device = -1;
    ncclCommCount(comm, &count);
    ncclCommUserRank(comm, &user);
    ncclCommCuDevice(comm, &device);
    CHECK(count == 2);
    CHECK(user == rank);
    CHECK(device == rank);
    cudaStream_t s{};
    void* p = nullptr;
    cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    cudaMalloc(&p, 64);
    cudaMemsetAsync(p, rank, 64, s);
    CHECK((rank == 0 ? ncclSend(p, 64, ncclInt8, 1, comm, s)
                     : ncclRecv(p, 64, ncclInt8, 0, comm, s)) == ncclInProgress);
    do
      CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
    while (state == ncclInProgress);
    CHECK(cudaStreamSynchronize(s) == cudaSuccess);
    CHECK(*static_cast<char*>(p) == 0);
    CHECK(ncclCommFinalize(comm) == ncclInProgress);
    do
      ncclCommGetAsyncError(comm, &state);
    while (state == ncclInProgress);
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
  });
  CHECK(standin::summary() == "");
}

TEST_CASE("a communicator used while in progress is refused and reported") {
  standin::configure({});
  auto const ids = unique_ids(1);
  ncclConfig_t how = NCCL_CONFIG_INITIALIZER;
  how.blocking = 0;
  ncclComm_t comm{};
  CHECK(ncclCommInitRankConfig(&comm, 2, ids[0], 0, &how) == ncclInProgress);
  void* p = nullptr;
  cudaMalloc(&p, 64);
  CHECK(ncclSend(p, 64, ncclInt8, 1, comm, nullptr) == ncclInvalidArgument);
  CHECK(standin::found(finding::misuse));
}

TEST_CASE("abort frees the aborting rank and tells nobody") {
  std::vector<cudaError_t> codes(2);
  standin::configuration connected;
  connected.lazy_connect = false;
  on_ranks(connected, 2, 1, [&](rank_resources& r) {
    (void)r.receive(1, 1 - r.rank); // both receive: a deadlock
    if (r.rank == 0) {
      CHECK(ncclCommAbort(r.comm[0]) == ncclSuccess);
      codes[0] = cudaStreamSynchronize(r.on[0]);
      CHECK(ncclSend(r.buffer[0], 1, ncclInt8, 1, r.comm[0], r.on[0]) == ncclInvalidArgument);
    } else {
      codes[1] = cudaStreamSynchronize(r.on[0]);
    }
  });
  CHECK(codes[1] != cudaSuccess);
  CHECK(standin::found(finding::deadlock));

  on_ranks(connected, 2, 1, [&](rank_resources& r) {
    (void)r.receive(1, 1 - r.rank);
    CHECK(ncclCommAbort(r.comm[0]) == ncclSuccess);
    CHECK(cudaStreamSynchronize(r.on[0]) == cudaSuccess);
    cudaMemcpyAsync(r.buffer[2], r.buffer[1], r.bytes, cudaMemcpyDeviceToDevice, r.on[0]);
    cudaStreamSynchronize(r.on[0]);
  });
  CHECK(standin::found(finding::deadlock) == false);
}

TEST_CASE("what an aborted receive leaves is garbage and its use is reported") {
  on_ranks({}, 2, 2, [&](rank_resources& r) {
    ncclGroupStart();
    (void)r.send(0, 1 - r.rank);
    (void)r.receive(1, 1 - r.rank);
    ncclGroupEnd();
    cudaStreamSynchronize(r.on[0]);
    if (r.rank == 0)
      return;
    (void)r.receive(1, 0);
    cudaStreamQuery(r.on[0]);
    cudaStreamQuery(r.on[0]);
    CHECK(ncclCommAbort(r.comm[0]) == ncclSuccess);
    cudaMemcpyAsync(r.buffer[2], r.buffer[1], r.bytes, cudaMemcpyDeviceToDevice, r.on[0]);
    CHECK(cudaStreamSynchronize(r.on[0]) == cudaSuccess);
  });
  CHECK(standin::found(finding::uninitialised_read));
}

namespace {

enum class after_receives { abort, message, nothing };

// Rank 1 receives into buffers 4 and 5, the second of which it starts when the first has ended, and
// reads a buffer. Nobody has written 4 to 6 before.
void read_after_receives(after_receives what, std::size_t buffer) {
  standin::configuration eager;
  eager.execution = standin::order::eager;
  eager.lazy_connect = false;
  on_ranks(eager, 2, 1, [&](rank_resources& r) {
    for (int i = 0; i < 3; ++i) {
      void* memory = nullptr;
      cudaMalloc(&memory, r.bytes);
      r.buffer.push_back(static_cast<unsigned char*>(memory));
    }
    if (r.rank == 1) {
      (void)r.receive(4, 0);
      (void)r.receive(5, 0);
      std::size_t const stream = what == after_receives::nothing ? 1 : 0;
      cudaMemcpyAsync(
        r.buffer[2], r.buffer[buffer], r.bytes, cudaMemcpyDeviceToDevice, r.on[stream]);
    }
    if (r.rank == 1 && what == after_receives::abort)
      CHECK(ncclCommAbort(r.comm[0]) == ncclSuccess);
    if (r.rank == 0 && what != after_receives::abort) {
      (void)r.send(0, 1);
      (void)r.send(0, 1);
    }
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
  });
}

} // namespace

// On a device such work runs, and its results are thrown away.
TEST_CASE(
  "work that stood after receives when they were aborted may read what these leave, and no more") {
  for (std::size_t const buffer : {4, 5}) {
    read_after_receives(after_receives::abort, buffer);
    CHECK(standin::summary() == "");
    read_after_receives(after_receives::message, buffer);
    CHECK(standin::summary() == "");
    read_after_receives(after_receives::nothing, buffer);
    CHECK(standin::found(finding::uninitialised_read));
  }
  read_after_receives(after_receives::abort, 6);
  CHECK(standin::found(finding::uninitialised_read));
}

TEST_CASE("a destroyed communicator is gone; destroying none is fine") {
  on_ranks({}, 2, 1, [](rank_resources& r) {
    CHECK(ncclCommFinalize(r.comm[0]) == ncclSuccess);
    CHECK(ncclCommDestroy(r.comm[0]) == ncclSuccess);
    CHECK(ncclCommDestroy(nullptr) == ncclSuccess);
    if (r.rank == 0)
      CHECK(r.send(0, 1) == ncclInvalidArgument);
  });
  CHECK(standin::found(finding::misuse));
  CHECK(standin::reports().size() == 1);
}

TEST_CASE("splitting makes communicators per color, in order of keys") {
  on_ranks({}, 4, 1, [](rank_resources& r) {
    ncclComm_t child{};
    int const color = r.rank == 3 ? NCCL_SPLIT_NOCOLOR : r.rank % 2;
    CHECK(ncclCommSplit(r.comm[0], color, -r.rank, &child, nullptr) == ncclSuccess);
    CHECK((child == nullptr) == (r.rank == 3));
    if (!child)
      return;
    int size = 0, rank = -1;
    ncclCommCount(child, &size);
    ncclCommUserRank(child, &rank);
    CHECK(size == (r.rank == 1 ? 1 : 2));
    CHECK(rank == (r.rank == 0 ? 1 : 0));
  });
  CHECK(standin::summary() == "");
}

// Children that share the parent's resources share its lane, so they are no help against a blocked
// receive.
TEST_CASE("a split communicator is a lane of its own only without splitShare") {
  for (int share : {0, 1}) {
    standin::configuration connected;
    connected.lazy_connect = false;
    on_ranks(connected, 2, 1, [&](rank_resources& r) {
      ncclConfig_t how = NCCL_CONFIG_INITIALIZER;
      how.splitShare = share;
      ncclComm_t child{};
      REQUIRE(ncclCommSplit(r.comm[0], 0, r.rank, &child, &how) == ncclSuccess);
      if (r.rank == 0) {
        (void)r.receive(1, 1, 0);
        ncclSend(r.buffer[0], 8, ncclInt8, 1, child, r.on[1]);
      } else {
        ncclRecv(r.buffer[1], 8, ncclInt8, 0, child, r.on[0]);
        (void)r.send(1, 0, 0);
      }
      cudaDeviceSynchronize();
    });
    CHECK(standin::found(finding::deadlock) == (share == 1));
  }
}

namespace {

template <class Body>
void with_floats(int ranks, std::vector<float> const& expected, Body body) {
  standin::for_each_machine(
    {}, 2, [&](standin::configuration const& how, std::string const& machine) {
      CAPTURE(machine);
      on_ranks(how, ranks, 1, [&](rank_resources& r) {
        std::vector<float> mine{
          1.0f + static_cast<float>(r.rank), 10.0f, -2.0f * static_cast<float>(r.rank), 0.5f};
        cudaMemcpyAsync(r.buffer[0], mine.data(), 16, cudaMemcpyHostToDevice, r.on[0]);
        std::size_t const count = body(r);
        std::vector<float> got(count);
        cudaMemcpyAsync(got.data(), r.buffer[1], 4 * count, cudaMemcpyDeviceToHost, r.on[0]);
        cudaStreamSynchronize(r.on[0]);
        std::size_t const offset =
          expected.size() > count ? static_cast<std::size_t>(r.rank) * count : 0;
        for (std::size_t i = 0; i < count; ++i)
          CHECK(got[i] == expected[offset + i]);
      });
      CHECK(standin::summary() == "");
    });
}

} // namespace

TEST_CASE("collectives compute what they are named for") {
  with_floats(2, {3, 20, -2, 1}, [](rank_resources& r) {
    CHECK(ncclAllReduce(r.buffer[0], r.buffer[1], 4, ncclFloat, ncclSum, r.comm[0], r.on[0]) ==
          ncclSuccess);
    return std::size_t{4};
  });
  with_floats(2, {1.5f, 10, -1, 0.5f}, [](rank_resources& r) {
    ncclAllReduce(r.buffer[0], r.buffer[1], 4, ncclFloat, ncclAvg, r.comm[0], r.on[0]);
    return std::size_t{4};
  });
  with_floats(2, {2, 10, -2, 0.5f}, [](rank_resources& r) {
    ncclBroadcast(r.buffer[0], r.buffer[1], 4, ncclFloat, 1, r.comm[0], r.on[0]);
    return std::size_t{4};
  });
  with_floats(2, {1, 10, 0, 0.5f, 2, 10, -2, 0.5f}, [](rank_resources& r) {
    ncclAllGather(r.buffer[0], r.buffer[1], 4, ncclFloat, r.comm[0], r.on[0]);
    return std::size_t{8};
  });
  with_floats(2, {3, 20, -2, 1}, [](rank_resources& r) {
    ncclReduceScatter(r.buffer[0], r.buffer[1], 2, ncclFloat, ncclSum, r.comm[0], r.on[0]);
    return std::size_t{2};
  });
}

TEST_CASE("in a broadcast in place the root only reads") {
  for (int const reader : {0, 1}) {
    on_ranks({}, 2, 1, [reader](rank_resources& r) {
      if (r.rank == reader) // next to the broadcast
        cudaMemcpyAsync(r.buffer[1], r.buffer[0], 16, cudaMemcpyDeviceToDevice, r.on[1]);
      ncclBroadcast(r.buffer[0], r.buffer[0], 4, ncclFloat, 0, r.comm[0], r.on[0]);
      cudaStreamSynchronize(r.on[0]);
      cudaStreamSynchronize(r.on[1]);
    });
    CHECK((standin::summary() == "") == (reader == 0));
  }
}

TEST_CASE("ranks that call different collectives are reported") {
  on_ranks({}, 2, 1, [](rank_resources& r) {
    ncclAllReduce(
      r.buffer[0], r.buffer[1], r.rank == 0 ? 4 : 5, ncclFloat, ncclSum, r.comm[0], r.on[0]);
    cudaStreamSynchronize(r.on[0]);
  });
  CHECK(standin::found(finding::mismatch));
  CHECK(standin::found(finding::deadlock));
}

TEST_CASE("a collective one rank does not call is a deadlock that names it") {
  on_ranks({}, 3, 1, [](rank_resources& r) {
    if (r.rank != 1)
      ncclAllReduce(r.buffer[0], r.buffer[1], 4, ncclFloat, ncclSum, r.comm[0], r.on[0]);
    cudaStreamSynchronize(r.on[0]);
  });
  CHECK(standin::found(finding::deadlock));
  CHECK(somebody_waits({"ncclAllReduce", "waits for rank 1 of its communicator"}));
}

namespace {

//! Two communicators with a receive that nobody answers on each, the second after the first one.
void receive_twice(rank_resources const& r) {
  (void)r.receive(1, 1 - r.rank, 0, 0);
  (void)r.receive(2, 1 - r.rank, 0, 1);
}

standin::configuration connected() {
  standin::configuration how;
  how.lazy_connect = false;
  return how;
}

} // namespace

TEST_CASE("abort waits for what stands before the communicator's last kernel") {
  on_ranks(connected(), 2, 2, [](rank_resources& r) {
    receive_twice(r);
    if (r.rank == 0)
      CHECK(ncclCommAbort(r.comm[1]) == ncclSystemError);
  });
  CHECK(standin::found(finding::deadlock));
  CHECK(somebody_waits({"rank 0 waits in the end of communicator 1, after its last kernel"}));
}

TEST_CASE("aborts of one group are carried out together") {
  on_ranks(connected(), 2, 2, [](rank_resources& r) {
    receive_twice(r);
    ncclGroupStart();
    CHECK(ncclCommAbort(r.comm[1]) == ncclSuccess);
    CHECK(ncclCommAbort(r.comm[0]) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclSuccess);
    CHECK(cudaStreamSynchronize(r.on[0]) == cudaSuccess);
  });
  CHECK(standin::summary() == "");
}

TEST_CASE("finalize waits for nobody else") {
  on_ranks({}, 2, 1, [](rank_resources& r) {
    if (r.rank == 0)
      CHECK(ncclCommFinalize(r.comm[0]) == ncclSuccess);
  });
  CHECK(standin::summary() == "");
}

namespace {

//! A communicator without blocking, of which each call is settled.
ncclComm_t unblocking(ncclUniqueId const& id, int rank) {
  ncclConfig_t how = NCCL_CONFIG_INITIALIZER;
  how.blocking = 0;
  ncclComm_t comm{};
  (void)ncclCommInitRankConfig(&comm, 2, id, rank, &how);
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress)
    (void)ncclCommGetAsyncError(comm, &state);
  return comm;
}

} // namespace

TEST_CASE("without blocking a group is launched later, and what follows at once comes before it") {
  standin::configure(connected());
  auto const ids = unique_ids(1);
  standin::run_ranks(2, [&](int rank) {
    cudaSetDevice(rank);
    ncclComm_t const comm = unblocking(ids[0], rank);
    cudaStream_t s{};
    void* p = nullptr;
    cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    cudaMalloc(&p, 64);
    cudaMemsetAsync(p, 1 + rank, 64, s);
    CHECK((rank == 0 ? ncclSend(p, 64, ncclInt8, 1, comm, s)
                     : ncclRecv(p, 64, ncclInt8, 0, comm, s)) == ncclInProgress);
    cudaEvent_t early{};
    cudaEventCreateWithFlags(&early, cudaEventDisableTiming);
    cudaEventRecord(early, s);
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress)
      (void)ncclCommGetAsyncError(comm, &state);
    cudaStream_t other{};
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    cudaStreamWaitEvent(other, early);
    if (rank == 1)
      cudaMemsetAsync(p, 9, 64, other); // thought to be after the message
    cudaStreamSynchronize(other);
    cudaStreamSynchronize(s);
  });
  CHECK(standin::found(finding::write_conflict));
}

TEST_CASE("the environment decides whether calls of a communicator block, if it says 0 or 1") {
  struct choice {
    char const* forced;
    int chosen;
    bool blocks;
  };
  for (choice const& each : {choice{"1", 0, true},
                             choice{"0x1", 0, true},
                             choice{"0", 1, false},
                             choice{"0", NCCL_CONFIG_UNDEF_INT, false},
                             choice{"2", 0, false},
                             choice{"2", 1, true},
                             choice{"", 0, false}}) {
    CAPTURE(std::string(each.forced));
    CAPTURE(each.chosen);
    setenv("NCCL_COMM_BLOCKING", each.forced, 1);
    standin::configure({});
    auto const ids = unique_ids(1);
    standin::run_ranks(2, [&](int rank) {
      cudaSetDevice(rank);
      ncclConfig_t how = NCCL_CONFIG_INITIALIZER;
      how.blocking = each.chosen;
      ncclComm_t comm{};
      CHECK(ncclCommInitRankConfig(&comm, 2, ids[0], rank, &how) ==
            (each.blocks ? ncclSuccess : ncclInProgress));
    });
    unsetenv("NCCL_COMM_BLOCKING");
  }
}

TEST_CASE("without blocking, destroy waits for the communicator's stream all the same") {
  standin::configure(connected());
  auto const ids = unique_ids(1);
  bool sent = false;
  standin::run_ranks(2, [&](int rank) {
    cudaSetDevice(rank);
    ncclComm_t const comm = unblocking(ids[0], rank);
    cudaStream_t s{};
    void* p = nullptr;
    cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    cudaMalloc(&p, 64);
    cudaMemsetAsync(p, rank, 64, s);
    if (rank == 1) {
      standin::clock::sleep_for(std::chrono::milliseconds(1));
      sent = true;
    }
    ncclResult_t state =
      rank == 0 ? ncclRecv(p, 64, ncclInt8, 1, comm, s) : ncclSend(p, 64, ncclInt8, 0, comm, s);
    CHECK(state == ncclInProgress);
    while (state == ncclInProgress)
      (void)ncclCommGetAsyncError(comm, &state);
    CHECK((rank == 1 || !sent));
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
    CHECK(sent);
    CHECK(*static_cast<char*>(p) == 1);
  });
  CHECK(standin::summary() == "");
}

TEST_CASE("abort joins a launch that waits for room, and so for other communicators") {
  for (bool const last : {true, false}) {
    CAPTURE(last);
    standin::configuration how = connected();
    how.launch_depth = 2;
    standin::configure(how);
    auto const ids = unique_ids(2);
    standin::run_ranks(2, [&](int rank) {
      cudaSetDevice(rank);
      ncclComm_t const one = unblocking(ids[0], rank);
      ncclComm_t const other = unblocking(ids[1], rank);
      if (rank != 0)
        return;
      cudaStream_t s{};
      void* p = nullptr;
      cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
      cudaMalloc(&p, 64);
      (void)ncclRecv(p, 64, ncclInt8, 1, one, s);
      ncclResult_t state = ncclInProgress;
      while (state == ncclInProgress)
        (void)ncclCommGetAsyncError(one, &state);
      cudaEvent_t full{};
      cudaEventCreateWithFlags(&full, cudaEventDisableTiming);
      cudaEventRecord(full, s);
      (void)ncclRecv(p, 64, ncclInt8, 1, other, s);
      (void)ncclCommGetAsyncError(other, &state);
      CHECK(state == ncclInProgress);
      ncclGroupStart();
      for (ncclComm_t const comm : {last ? one : other, last ? other : one})
        (void)ncclCommAbort(comm);
      (void)ncclGroupEnd();
    });
    CHECK(standin::found(finding::deadlock) == !last);
  }
}

TEST_CASE("to make a communicator on a lost device fails, and leaves a group open") {
  standin::configure(
    {.faults = {{.function = "cudaMemset", .action = standin::fault_action::asynchronous_error}}});
  auto const ids = unique_ids(1);
  void* p = nullptr;
  cudaMalloc(&p, 64);
  (void)cudaMemset(p, 0, 64);
  CHECK(cudaDeviceSynchronize() == cudaErrorUnknown);
  ncclComm_t comm{};
  CHECK(ncclCommInitRank(&comm, 1, ids[0], 0) == ncclUnhandledCudaError);
  CHECK(standin::summary() == "");
  CHECK(ncclGroupEnd() == ncclSuccess); // of the group that nobody here has begun
  CHECK(standin::summary() == "");
  CHECK(ncclGroupEnd() == ncclInvalidUsage);
  CHECK(standin::found(finding::misuse));
}

namespace {

//! A kernel that waits for a message of a second communicator, which therefore needs room next to
//! it it.
bool both_fit(int processors, int cap) {
  standin::configuration how = connected();
  how.execution = standin::order::eager;
  how.processors = processors;
  how.blocks_take_processors = true;
  standin::configure(how);
  auto const ids = unique_ids(2);
  standin::run_ranks(2, [&](int rank) {
    rank_resources r(rank, 2, {});
    for (ncclUniqueId const& id : ids) {
      ncclConfig_t chosen = NCCL_CONFIG_INITIALIZER;
      if (cap > 0)
        chosen.maxCTAs = cap;
      ncclComm_t made{};
      (void)ncclCommInitRankConfig(&made, 2, id, rank, &chosen);
      r.comm.push_back(made);
    }
    if (rank == 0) {
      (void)r.receive(1, 1, 0, 0);
      (void)r.send(0, 1, 1, 1);
    } else {
      (void)r.receive(1, 0, 0, 1);
      (void)r.send(0, 0, 0, 0);
    }
    cudaDeviceSynchronize();
  });
  return !standin::found(finding::deadlock);
}

} // namespace

TEST_CASE("a kernel takes as many processors as the next power of two of its cap of blocks") {
  using caps = std::vector<std::pair<int, int>>;
  for (auto const& [cap, blocks] : caps{{1, 1}, {4, 4}, {5, 8}, {12, 16}, {0, 64}, {200, 64}}) {
    CAPTURE(cap);
    CHECK(both_fit(2 * blocks, cap));
    CHECK(!both_fit(2 * blocks - 1, cap));
  }
  // The environment counts, whatever the program says.
  setenv("NCCL_MAX_CTAS", "3", 1);
  CHECK(both_fit(8, 32));
  CHECK(!both_fit(7, 1));
  for (char const* const ignored : {"0", "-4"}) {
    setenv("NCCL_MAX_CTAS", ignored, 1);
    CHECK(both_fit(8, 4));
    CHECK(!both_fit(7, 4));
  }
  unsetenv("NCCL_MAX_CTAS");
  CHECK(!both_fit(8, 32));
}

TEST_CASE("what a communicator has sent is lost if it is destroyed before the other end has it") {
  for (bool const waits : {true, false}) {
    CAPTURE(waits);
    bool destroyed = false;
    bool received = false;
    standin::configuration how = connected();
    how.buffered_bytes = 1024;
    on_ranks(how, 2, 1, [&](rank_resources& r) {
      if (r.rank == 0) {
        (void)r.send(0, 1);
        CHECK(cudaStreamSynchronize(r.on[0]) == cudaSuccess);
        if (waits)
          CHECK(standin::wait_until([&] { return received; }, "the other end"));
        CHECK(ncclCommDestroy(r.comm[0]) == ncclSuccess);
        destroyed = true;
        return;
      }
      if (!waits)
        CHECK(standin::wait_until([&] { return destroyed; }, "the other end"));
      (void)r.receive(1, 0);
      CHECK(cudaStreamSynchronize(r.on[0]) == cudaSuccess);
      received = true;
    });
    CHECK(standin::summary().empty() == waits);
    if (!waits)
      CHECK(standin::reports().front().text.find("before rank 1 has received 256 bytes") !=
            std::string::npos);
  }
}
