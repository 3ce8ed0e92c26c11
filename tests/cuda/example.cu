// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/cluster/store.hpp>

#include <cuda_runtime.h>

#include <arpa/inet.h>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <examples/nccl/train.cuh>
#include <exception>
#include <netinet/in.h>
#include <optional>
#include <simulators/cuda/standin.hpp>
#include <string>
#include <sys/socket.h>
#include <tests/cuda/example.hpp>
#include <thread>
#include <utility>
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

//! The stand-in's clock. Whoever looks at it first after a rank has died ends its connection, and
//! whoever does after a number of launches sends SIGTERM.
struct ending_clock : standin::clock {
  static inline int port = 0;
  static inline int rank = -1;       //!< may die
  static inline int sigterm_at = -1; //!< so many launches
  static inline bool ending = false; //!< SIGTERM has come

  static time_point now() {
    if (sigterm_at >= 0 &&
        standin::calls_of("cudaLaunchKernel") >= static_cast<std::uint64_t>(sigterm_at)) {
      sigterm_at = -1;
      ending = true;
      (void)std::raise(SIGTERM);
    }
    if (rank >= 0 && standin::has_died(rank)) {
      end_connection(port, rank);
      rank = -1;
    }
    return standin::clock::now();
  }
  //! The store's server, which tells the others of it, is a thread of the machine, and needs
  //! time of the machine's.
  static void sleep_for(duration length) {
    if (ending)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    standin::clock::sleep_for(length);
  }
};

//! What a launcher puts into the environment of its processes, which the threads here share: each
//! sets it before it reads. Nothing else of this program runs between the two.
pp::launch_environment started_by(example_case const& what, int rank, int port) {
  bool const torchrun = what.launcher == "torchrun";
  std::vector<std::pair<char const*, std::string>> values{{"MASTER_ADDR", "127.0.0.1"}};
  auto const add = [&](char const* name, int value) {
    values.emplace_back(name, std::to_string(value));
  };
  // Torchrun serves on its port itself, so the store takes the next one.
  add("MASTER_PORT", torchrun ? port - 1 : port);
  add(torchrun ? "RANK" : "SLURM_PROCID", rank);
  add(torchrun ? "WORLD_SIZE" : "SLURM_NTASKS", what.ranks);
  add(torchrun ? "LOCAL_RANK" : "SLURM_LOCALID", rank);
  add(torchrun ? "TORCHELASTIC_RUN_ID" : "SLURM_JOB_ID", 77);
  add(torchrun ? "TORCHELASTIC_RESTART_COUNT" : "SLURM_RESTART_COUNT", what.restarts);
  if (!torchrun) { // a task, not the script
    add("SLURM_STEP_NUM_TASKS", what.ranks);
    add("SLURM_STEP_ID", 0);
  }
  for (auto const& [name, value] : values)
    ::setenv(name, value.c_str(), 1);
  pp::launch_environment const read = pp::read_launch_environment();
  for (auto const& [name, value] : values)
    ::unsetenv(name);
  return read;
}

//! This program takes SIGTERM as the example does.
class kept_termination {
public:
  kept_termination() { example::keep_termination_for_later(); }
  kept_termination(kept_termination const&) = delete;
  kept_termination& operator=(kept_termination const&) = delete;
  ~kept_termination() {
    (void)std::signal(SIGTERM, SIG_DFL);
    example::detail::was_asked_to_end = 0;
  }
};

} // namespace

example_result run_example(example_case const& what) {
  example_result result;
  result.failures.resize(static_cast<std::size_t>(what.ranks));
  result.weights.resize(static_cast<std::size_t>(what.ranks));
  result.began.resize(static_cast<std::size_t>(what.ranks));
  pp::store_address address;
  if (!what.launcher.empty())
    address.job = started_by(what, 0, 2).job; // any port of which the one before is one, too
  pp::store_server server(address);
  ending_clock::port = server.port();
  ending_clock::rank = what.ending_rank;
  std::optional<kept_termination> kept;
  if (what.sigterm_at >= 0)
    kept.emplace();
  ending_clock::sigterm_at = what.sigterm_at;
  ending_clock::ending = false;
  (void)standin::run_ranks(what.ranks, [&](int rank) {
    // One after the other, so that connections have the order of the ranks: one that uses CUDA has
    // been let in.
    (void)standin::wait_until([&] { return rank == 0 || standin::calls_of_rank(rank - 1) > 0; },
                              "its turn");
    pp::launch_environment const here = what.launcher.empty()
                                          ? pp::launch_environment{.rank = rank,
                                                                   .size = what.ranks,
                                                                   .local_rank = rank,
                                                                   .port = server.port()}
                                          : started_by(what, rank, server.port());
    example::options chosen{.microbatches = what.microbatches,
                            .steps = what.steps,
                            .graph = what.graph,
                            .mixed = what.mixed,
                            .deadline = std::chrono::seconds(600),
                            .failing_step = what.failing_step,
                            .serves = false,
                            .checkpoint = what.checkpoint,
                            .every = what.every};
    try {
      auto const trained = example::train<ending_clock>(here, chosen);
      if (!trained.losses.empty())
        result.losses = trained.losses;
      result.weights[static_cast<std::size_t>(rank)] = trained.weights;
      result.began[static_cast<std::size_t>(rank)] = trained.began;
    } catch (std::exception const& failure) {
      result.failures[static_cast<std::size_t>(rank)] = failure.what();
    }
  });
  return result;
}
