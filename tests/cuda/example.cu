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

//! The stand-in's clock. Whoever looks at it first after a rank has died ends its connection.
struct ending_clock : standin::clock {
  static inline int port = 0;
  static inline int rank = -1; //!< may die

  static time_point now() {
    if (rank >= 0 && standin::has_died(rank)) {
      end_connection(port, rank);
      rank = -1;
    }
    return standin::clock::now();
  }
};

} // namespace

example_result run_example(example_case const& what) {
  example_result result;
  result.failures.resize(static_cast<std::size_t>(what.ranks));
  result.weights.resize(static_cast<std::size_t>(what.ranks));
  pp::store_server server({});
  ending_clock::port = server.port();
  ending_clock::rank = what.ending_rank;
  (void)standin::run_ranks(what.ranks, [&](int rank) {
    // One after the other, so that connections have the order of the ranks: one that uses CUDA has
    // been let in.
    (void)standin::wait_until([&] { return rank == 0 || standin::calls_of_rank(rank - 1) > 0; },
                              "its turn");
    pp::launch_environment const here{
      .rank = rank, .size = what.ranks, .local_rank = rank, .port = server.port()};
    example::options chosen{.microbatches = what.microbatches,
                            .steps = what.steps,
                            .graph = what.graph,
                            .mixed = what.mixed,
                            .deadline = std::chrono::seconds(600),
                            .failing_step = what.failing_step,
                            .serves = false};
    try {
      auto const trained = example::train<ending_clock>(here, chosen);
      if (!trained.losses.empty())
        result.losses = trained.losses;
      result.weights[static_cast<std::size_t>(rank)] = trained.weights;
    } catch (std::exception const& failure) {
      result.failures[static_cast<std::size_t>(rank)] = failure.what();
    }
  });
  return result;
}
