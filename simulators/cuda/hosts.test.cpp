// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Host threads: turns, order between them, threads that nobody has announced.
#include <doctest/doctest.h>

#include <stdexcept>
#include <thread>

#include "ranks.hpp"

namespace {

using standin::finding;

} // namespace

TEST_CASE("what ranks do is ordered after the start and before the end of run_ranks") {
  standin::configure({});
  void* host = nullptr;
  cudaMallocHost(&host, 64);
  standin::host_write(host, 64);
  standin::run_ranks(
    2, [&](int rank) { standin::host_write(static_cast<char*>(host) + 32 * rank, 32); });
  standin::host_read(host, 64);
  CHECK(standin::summary() == "");
}

TEST_CASE("ranks that touch the same host memory are not ordered with each other") {
  standin::configure({});
  void* host = nullptr;
  cudaMallocHost(&host, 64);
  standin::run_ranks(2, [&](int) { standin::host_write(host, 64); });
  CHECK(standin::found(finding::write_conflict));
}

TEST_CASE("ranks are processes: each has pageable memory of its own at an address") {
  static char pageable[64];
  standin::configure({});
  standin::run_ranks(2, [&](int rank) {
    cudaSetDevice(rank);
    void* device = nullptr;
    cudaMalloc(&device, 64);
    cudaMemset(device, 0, 64);
    cudaDeviceSynchronize();
    cudaStream_t on = nullptr;
    cudaStreamCreate(&on);
    cudaMemcpyAsync(pageable, device, 64, cudaMemcpyDeviceToHost, on);
    cudaStreamSynchronize(on);
    cudaStreamDestroy(on);
    cudaFree(device);
  });
  CHECK(standin::summary() == "");
}

TEST_CASE("only one rank runs at any moment, in the same order every time") {
  auto const run = [](std::uint64_t seed) {
    standin::configuration how;
    how.execution = standin::order::random;
    how.seed = seed;
    standin::configure(how);
    int inside = 0;
    std::string order;
    standin::run_ranks(3, [&](int rank) {
      cudaSetDevice(rank);
      for (int i = 0; i < 4; ++i) {
        CHECK(++inside == 1);
        order += static_cast<char>('0' + rank);
        --inside;
        int current = -1;
        cudaGetDevice(&current);
        CHECK(current == rank);
      }
    });
    CHECK(standin::counters().stolen_turns == 0);
    return order;
  };
  CHECK(run(5) == run(5));
  CHECK(run(5) != run(6));
}

namespace {

//! Initialised by whoever comes first, who waits for the other rank meanwhile.
int made_once(bool const& other_has_come) {
  static int const value = [&] {
    CHECK(standin::wait_until([&] { return other_has_come; }, "the other rank"));
    int count = 0;
    cudaGetDeviceCount(&count);
    return count;
  }();
  return value;
}

} // namespace

TEST_CASE(
  "a rank that comes to a static variable while another one initialises it lets that go on") {
  standin::configure({.devices = 4});
  bool second_has_come = false;
  std::vector<int> got(2);
  standin::run_ranks(2, [&](int rank) {
    second_has_come = second_has_come || rank == 1;
    got[static_cast<std::size_t>(rank)] = made_once(second_has_come);
  });
  CHECK(got == std::vector{4, 4});
  CHECK(standin::summary() == "");
  CHECK(standin::counters().stolen_turns == 0);
}

TEST_CASE("an exception of a rank is caught and told, and the others go on") {
  standin::configure({});
  auto const ends = standin::run_ranks(2, [](int rank) {
    int count = 0;
    cudaGetDeviceCount(&count);
    if (rank == 0)
      throw std::runtime_error("out of luck");
    cudaGetDeviceCount(&count);
  });
  CHECK(ends[0].threw);
  CHECK(ends[0].what == "out of luck");
  CHECK(!ends[1].threw);
}

TEST_CASE("a condition that never holds is a deadlock, and is named") {
  standin::configure({});
  standin::run_ranks(2, [](int rank) {
    if (rank == 1)
      CHECK(!standin::wait_until([] { return false; }, "a miracle"));
  });
  CHECK(somebody_waits({"rank 1 waits in a miracle"}));
}

// After a deadlock a thread that joins another leaves the model, and the other may be the last in
// it.
TEST_CASE("the last thread in the model may end while another has not yet come back") {
  for (auto const execution : {standin::order::lazy, standin::order::eager, standin::order::random})
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      standin::configuration how;
      how.execution = execution;
      how.seed = seed;
      standin::configure(how);
      bool joined = false;
      standin::run_ranks(1, [&](int) {
        standin::clock::thread helper = standin::clock::start(
          [] { CHECK(!standin::wait_until([] { return false; }, "a miracle")); });
        helper.join();
        joined = true;
      });
      CHECK(joined);
      CHECK(somebody_waits({"waits in a miracle"}));
    }
}

// Or it would come to its deadline while others have hardly begun.
TEST_CASE("a thread that asks again and again does not run ahead of one that can go on") {
  for (auto const execution : {standin::order::lazy, standin::order::eager, standin::order::random})
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      standin::configuration how;
      how.execution = execution;
      how.lazy_connect = false;
      how.seed = seed;
      CAPTURE(static_cast<int>(execution));
      CAPTURE(seed);
      on_ranks(how, 2, 1, [](rank_resources const& r) {
        auto const start = standin::clock::now();
        if (r.rank == 0) {
          int device = 0;
          for (int call = 0; call < 200; ++call)
            cudaGetDevice(&device);
          (void)r.send(0, 1);
          cudaStreamSynchronize(r.on[0]);
        } else {
          (void)r.receive(1, 0);
          while (cudaStreamQuery(r.on[0]) == cudaErrorNotReady) {
          }
        }
        CHECK(standin::clock::now() < start + std::chrono::milliseconds(1));
      });
      CHECK(standin::summary() == "");
    }
}

TEST_CASE("threads that nobody has announced take part too") {
  standin::configuration how;
  how.expect_more_threads = true;
  standin::configure(how);
  auto const ids = unique_ids(1);
  std::vector<int> got(2, -1);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      rank_resources r(rank, 2, ids);
      ncclGroupStart();
      (void)r.send(0, 1 - rank);
      (void)r.receive(1, 1 - rank);
      ncclGroupEnd();
      cudaStreamSynchronize(r.on[0]);
      got[static_cast<std::size_t>(rank)] = r.buffer[1][0];
    });
  }
  for (std::thread& t : threads)
    t.join();
  CHECK(got == std::vector{16, 0});
  CHECK(standin::summary() == "");
}

// Several streams in one launch queue wait for each other's launches, in the order of the host.
TEST_CASE("shared launch queues deadlock a receive ahead of the send it depends on") {
  for (int queues : {0, 1}) {
    standin::configuration how;
    how.lazy_connect = false;
    how.hardware_queues = queues;
    on_ranks(how, 2, 2, [](rank_resources& r) {
      cudaEvent_t arrived{};
      cudaEventCreate(&arrived);
      if (r.rank == 0) {
        (void)r.receive(1, 1, 0, 0);
        cudaEventRecord(arrived, r.on[0]);
        cudaStream_t third{};
        cudaStreamCreateWithFlags(&third, cudaStreamNonBlocking);
        cudaStreamWaitEvent(third, arrived, 0); // stands in the queue before the send
        ncclSend(r.buffer[0], 8, ncclInt8, 1, r.comm[1], r.on[1]);
        cudaDeviceSynchronize();
      } else {
        ncclRecv(r.buffer[1], 8, ncclInt8, 0, r.comm[1], r.on[1]);
        cudaEventRecord(arrived, r.on[1]);
        cudaStreamWaitEvent(r.on[0], arrived, 0);
        (void)r.send(0, 0, 0, 0);
        cudaDeviceSynchronize();
      }
    });
    CHECK(standin::found(finding::deadlock) == (queues == 1));
  }
}

TEST_CASE("a rank has a context on the devices that it has made current or used") {
  standin::configure({});
  standin::run_ranks(2, [](int rank) {
    int device = -1;
    cudaGetDevice(&device);
    CHECK(device == 0);
    CHECK(standin::contexts_of_rank(rank).empty());
    cudaSetDevice(rank + 2);
    CHECK(standin::contexts_of_rank(rank) == std::vector{rank + 2});
  });
}

TEST_CASE("what a thread does before it rings is ordered before what the other one does then") {
  for (bool const rings : {true, false}) {
    standin::configure({});
    void* shared = nullptr;
    CHECK(cudaMallocHost(&shared, 64) == cudaSuccess);
    standin::run_ranks(1, [&](int) {
      standin::clock::doorbell bell;
      auto helper = standin::clock::start([&] {
        bell.wait_until(rings ? standin::clock::time_point::max()
                              : standin::clock::time_point(std::chrono::milliseconds(2)));
        standin::host_write(shared, 64);
      });
      standin::clock::sleep_for(std::chrono::milliseconds(1));
      standin::host_write(shared, 64);
      if (rings)
        bell.ring();
      helper.join();
    });
    CHECK(standin::found(standin::finding::write_conflict) == !rings);
  }
}

TEST_CASE("a thread of a rank sleeps until it is rung for, and one that is left behind ends") {
  standin::configure({});
  std::vector<int> order;
  standin::run_ranks(1, [&](int) {
    standin::clock::doorbell bell;
    auto helper = standin::clock::start([&] {
      bell.wait_until(standin::clock::time_point::max());
      order.push_back(2);
      bell.wait_until(standin::clock::now() + std::chrono::seconds(1));
      order.push_back(3);
    });
    standin::clock::sleep_for(std::chrono::milliseconds(1));
    order.push_back(1);
    bell.ring();
    helper.join();
    order.push_back(4);
    standin::clock::start([&] {
      CHECK(!standin::wait_until([] { return false; }, "what never comes"));
      order.push_back(5);
    }).detach();
  });
  CHECK(order == std::vector{1, 2, 3, 4, 5});
  CHECK(standin::summary() == "");
  CHECK(standin::counters().stolen_turns == 0);
}
