// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief How NCCL runs a plan, and the environment that it needs. Header for
//! pipelining::cuda::nccl_options.

#include <pipe/cuda/nccl_error.cuh>

#include <nccl.h>

#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace pipelining::inline v0_3::cuda {

//! @brief A communicator of the program that uses the runner.
//!
//! It cannot wait in circles with the runner's if all kernels of NCCL fit on the GPU at once, and
//! one thread of each rank enqueues for both, in an order that is the same on all ranks which share
//! both. The runner counts blocks as they are given here, and refuses what does not fit next to one
//! of its own kernels; and a step by another thread than the first one's. It cannot see in which
//! order the program enqueues, how many kernels of other communicators there are, or how long its
//! passes keep the SMs.
struct registered_communicator {
  ncclComm_t handle = nullptr; //!< the communicator; not owned
  int max_blocks = 0; //!< ncclConfig_t::maxCTAs with which it was made; 0: none, counted as 64
};

//! @brief Options of ranks with one GPU each.
struct nccl_options {
  int gpu = 0; //!< the CUDA device of this process, such as launch_environment::local_rank
  //! Launch the whole iteration as one CUDA graph, captured at the first step after `warm_up` eager
  //! ones. The same on all ranks.
  bool graph = false;
  int warm_up = 2; //!< eager steps before the graph
  //! The longest that a step, a connection or another wait for a rank may take. Time in which the
  //! process was suspended does not count (countdown).
  std::chrono::nanoseconds deadline = std::chrono::seconds(60);
  //! After a failure, and when communicators are closed: the longest that these and the streams of
  //! this rank may take to end. Past it they are abandoned. A pass or a hook that has not
  //! returned after the deadline and twice as long as this ends its process with
  //! run_error::hung_status, since it runs on the caller's own thread; where one rank has no
  //! communicator, after the deadline.
  std::chrono::nanoseconds abort_deadline = std::chrono::seconds(10);
  //! Blocks of a kernel of NCCL at most: each holds an SM while it waits. NCCL takes the next power
  //! of two, and NCCL_MAX_CTAS in the environment instead. 0 leaves it to NCCL: up to 64.
  int max_blocks = 8;
  //! All messages of this rank go through one stream, in the order of the plan, so that one kernel
  //! of NCCL at most is on the GPU. Chosen by itself for graphs, whose branches have no order, and
  //! where the lanes' kernels do not all fit on the GPU.
  bool one_message_stream = false;
  //! Name passes and messages for profilers: ranges of NVTX. Costs nothing where none listens.
  bool ranges = true;
  //! A report of a failure names the item at which a rank stood. That takes an event for every pass
  //! and every group of messages, and as many nodes in a graph; off, a report may not know
  //! the item.
  bool watched = true;
  //! Every message has a header with its name, the number of the step and a checksum, and what
  //! arrives is compared with it on the GPU: a message that was corrupted or is another one ends
  //! the step with a report. For debugging: a kernel and a small message more at both ends of each
  //! message. The same on all ranks; needs the runner to be compiled by nvcc.
  bool checked = false;
  //! Items of the plan that may be on the streams of this rank before the host waits for the first
  //! of them. The queue of a GPU holds about a thousand launches, and a host that finds it full
  //! sits in a call that no deadline ends: choose it so that as many items launch fewer kernels.
  int run_ahead = 16;
  //! The program's own communicators on this GPU, such as those of tensor or data parallelism.
  //! Their kernels count where lanes are to fit on the GPU, and the runner refuses those that leave
  //! no room for one of its own, unless NCCL_LAUNCH_ORDER_IMPLICIT=1 is set, by which the program
  //! vouches for one order of launches on all ranks. One thread makes all steps then. A failure
  //! aborts them together with the runner's: one kernel may stand after another of them. After a
  //! step that has thrown they are no more; else they stay the program's, to be destroyed after the
  //! runner.
  std::vector<registered_communicator> communicators = {};
  //! The numbers of the ranks of this pipeline in the whole run, where they are others than here:
  //! [devices], or empty. Reports name them.
  std::vector<int> world_ranks = {};
  //! The checked mode, as stream_options::guarded.
  bool guarded = false;
  //! Two events more for every pass, so that `nccl_runner::trace` tells when it began and ended.
  //! The same on all ranks.
  bool timed = false;
  //! The types of the elements in messages, such as "bf16"; compared between ranks.
  std::string elements = {};
  //! All that must be the same on all ranks, as mpi_options::about.
  std::string about = {};
  //! Tells the runners of one store apart; the same on all ranks, and used once.
  std::string name = "run";
};

namespace detail {

//! The most blocks that a kernel of a communicator may have.
[[nodiscard]] inline int most_blocks(int chosen) {
  constexpr int most = 64; // channels of NCCL
  if (char const* const text = std::getenv("NCCL_MAX_CTAS"))
    if (int const forced = std::atoi(text); forced > 0)
      chosen = forced;
  int blocks = 1;
  while (blocks < most && (chosen <= 0 || blocks < chosen))
    blocks *= 2;
  return blocks;
}

//! The blocks of the program's own communicators together, one kernel of each.
[[nodiscard]] inline int registered_blocks(nccl_options const& options) {
  int blocks = 0;
  for (registered_communicator const& each : options.communicators)
    blocks += most_blocks(each.max_blocks);
  return blocks;
}

//! True when a variable of the environment has this value.
[[nodiscard]] inline bool environment_has(char const* name, std::string_view value) {
  char const* const text = std::getenv(name);
  return text != nullptr && value == text;
}

//! Refuses communicators of the program whose kernels leave no room for one of the runner's: each
//! could hold its SMs while it waits for a rank where the other one does.
//! @param lanes of this rank; without one it has no kernels of NCCL.
inline void check_room(nccl_options const& options, int lanes, int processors) {
  if (options.communicators.empty() || environment_has("NCCL_LAUNCH_ORDER_IMPLICIT", "1"))
    return;
  int const registered = registered_blocks(options);
  int const own = lanes > 0 ? most_blocks(options.max_blocks) : 0;
  if (registered + own <= processors)
    return;
  throw std::invalid_argument(
    "nccl: kernels of the " + std::to_string(options.communicators.size()) +
    " registered communicators may take " + std::to_string(registered) +
    " SMs and one of the runner " + std::to_string(own) + ", but GPU " +
    std::to_string(options.gpu) + " has " + std::to_string(processors) +
    ", so ranks could wait for each other in circles; make them with a lower ncclConfig_t::maxCTAs "
    "and register that as max_blocks, or set NCCL_MAX_CTAS, or set NCCL_LAUNCH_ORDER_IMPLICIT=1 if "
    "all ranks enqueue for all communicators in one order");
}

//! Refuses settings that let NCCL and this runner wait for each other in circles or without a
//! deadline, and a mix of two versions of NCCL. @throws std::invalid_argument
inline void check_environment() {
  int version = 0;
  cuda::check(ncclGetVersion(&version), "ncclGetVersion");
  if (version / 100 != NCCL_VERSION_CODE / 100)
    throw std::invalid_argument("nccl: compiled with version " + std::to_string(NCCL_VERSION_CODE) +
                                ", but running with " + std::to_string(version) +
                                "; major and minor must be equal");
  if (environment_has("NCCL_LAUNCH_MODE", "GROUP"))
    throw std::invalid_argument("nccl: NCCL_LAUNCH_MODE=GROUP lets ranks wait for each other at "
                                "every launch; unset it");
  if (environment_has("CUDA_LAUNCH_BLOCKING", "1"))
    throw std::invalid_argument("nccl: CUDA_LAUNCH_BLOCKING=1 lets the host wait for a message "
                                "before it posts the next one; unset it");
  // Read as NCCL reads it; it takes the place of ncclConfig_t::blocking.
  char const* const blocking = std::getenv("NCCL_COMM_BLOCKING");
  if (blocking != nullptr && std::strtoll(blocking, nullptr, 0) == 1)
    throw std::invalid_argument(
      "nccl: NCCL_COMM_BLOCKING=1 lets calls of NCCL wait for other ranks "
      "without a deadline; unset it");
}

} // namespace detail
} // namespace pipelining::inline v0_3::cuda
