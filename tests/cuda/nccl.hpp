// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What the test of the NCCL runner asks of the object that nvcc makes.

#include <pipe/plan/plan.hpp>
#include <pipe/timetable/timetable.hpp>

#include <chrono>
#include <cstdint>
#include <simulators/cuda/standin.hpp>
#include <string>
#include <vector>

struct nccl_case {
  pipelining::plan work{};
  pipelining::plan const* other_work = nullptr; //!< the plan of rank 1, if not `work`
  bool graph = false;
  bool guarded = false; //!< the checked mode
  int overrunning_stage =
    -1; //!< a stage whose forward of microbatch 1 writes beyond its activation, in the last step
  int overrun_by = 4;           //!< bytes from its end; negative: from its start
  bool overruns_output = false; //!< not its activation
  //! A stage whose forward of microbatch 1 writes its output alone in the last step, but for so
  //! many bytes at its end.
  int leaving_stage = -1;
  int leaves_bytes = 0;
  int max_blocks = 8;
  bool one_message_stream = false;
  bool watched = true;
  bool checked = false;
  int unchecked_rank = -1;  //!< a rank that does not agree to that
  int other_seed_rank = -1; //!< a rank whose text says another seed
  int run_ahead = 16;
  int steps = 3;
  std::chrono::nanoseconds deadline = std::chrono::seconds(1);
  std::chrono::nanoseconds abort_deadline = std::chrono::milliseconds(300);
  int failing_stage = -1; //!< a stage whose forward of microbatch 1 throws in step `failing_step`
  int failing_step = 1;
  int ending_rank = -1;     //!< a rank that ends the run in place of its second step
  bool end_together = true; //!< before they close, ranks wait for each other outside of the runner
  bool all_reduce = false;  //!< a communicator of the program sums over all ranks before each step
  bool registered = true;   //!< and the runner knows of it
  int registered_twice = 0; //!< and of another one with so many blocks at most; 0: of no other
  int moved_step = -1;      //!< the step that rank 1 makes in another thread than the others
  std::vector<int> world_ranks{};
  std::string unfit_key{}; //!< the store of rank 1 refuses it
  int freeze_after = -1;   //!< the step after which nothing may be set up any more
  int timed_ranks = 0; //!< so many ranks, from the first one on, ask for the trace of every step
};

//! @brief What one rank has to tell.
struct rank_report {
  std::string failure{}; //!< of the step or the runner that threw
  std::string nested{};  //!< of the exception in it
  int failed_device = -1;
  bool ended = false; //!< came to the end of its program, with or without a failure
  standin::clock::time_point end{};
};

struct nccl_result {
  std::vector<std::uint64_t> gradients{}; //!< [stages]
  std::uint64_t losses = 0;
  std::vector<rank_report> ranks{};
  std::vector<standin::outcome> outcomes{};
  std::string findings{}; //!< of the stand-in after the last step of the last rank
  std::uint64_t seen = 0; //!< what the backward of that microbatch has found as its activation
  std::vector<pipelining::dynamic_timetable> traces{}; //!< of the last rank
};

//! @brief Runs a plan with one rank per device on the stand-in as it is configured.
nccl_result run_on_ranks(nccl_case const& what);
