// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Life of communicators, and collectives.
#include <doctest/doctest.h>

#include <cstring>

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
