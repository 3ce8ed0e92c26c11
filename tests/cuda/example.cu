// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/run/store.hpp>

#include <cuda_runtime.h>

#include <arpa/inet.h>
#include <cstddef>
#include <examples/nccl/train.cuh>
#include <exception>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <tests/cuda/example.hpp>
#include <tests/simulators/cuda/standin.hpp>
#include <vector>

namespace {

namespace pp = pipelining;

//! Ends a connection of this program to a port, as the kernel does for a process that is killed.
//! The ranks connect one after the other, so the number of a connection is that of its rank.
void end_connection(int port, int which) {
  for (int number = 3; number < 256; ++number) {
    sockaddr_in peer{};
    socklen_t length = sizeof peer;
    if (::getpeername(number, reinterpret_cast<sockaddr*>(&peer), &length) == 0 &&
        ntohs(peer.sin_port) == port && which-- == 0)
      (void)::shutdown(number, SHUT_RDWR);
  }
}

//! The stand-in's clock, which ends one rank when that has looked at it often enough.
struct ending_clock : standin::clock {
  static inline thread_local int looks_left = -1;
  static inline thread_local int rank = 0;
  static inline int port = 0;

  static time_point now() {
    if (looks_left > 0 && --looks_left == 0) {
      end_connection(port, rank);
      int count = 0;
      (void)cudaRuntimeGetVersion(&count); // does not return: see the fault
    }
    return standin::clock::now();
  }
};

} // namespace

example_result run_example(example_case const& what) {
  example_result result;
  result.failures.resize(static_cast<std::size_t>(what.ranks));
  pp::store_server server({});
  int arrived = 0;
  (void)standin::run_ranks(what.ranks, [&](int rank) {
    // One after the other, so that connections have the order of the ranks.
    (void)standin::wait_until([&] { return arrived == rank; }, "its turn");
    pp::launch_environment const here{
      .rank = rank, .size = what.ranks, .local_rank = rank, .port = server.port()};
    ++arrived;
    ending_clock::port = server.port();
    ending_clock::rank = rank;
    ending_clock::looks_left = rank == what.ending_rank ? what.looks_before : -1;
    example::options chosen{.microbatches = what.microbatches,
                            .steps = what.steps,
                            .graph = what.graph,
                            .deadline = std::chrono::seconds(600),
                            .failing_step = what.failing_step,
                            .serves = false};
    try {
      auto const losses = example::train<ending_clock>(here, chosen);
      if (!losses.empty())
        result.losses = losses;
    } catch (std::exception const& failure) {
      result.failures[static_cast<std::size_t>(rank)] = failure.what();
    }
  });
  return result;
}
