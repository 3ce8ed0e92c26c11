// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What the test of the stream runner asks of the object that nvcc makes.

#include <pipe/plan/plan.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstdint>
#include <string>
#include <vector>

struct streams_case {
  pipelining::plan work{};
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
  int run_ahead = 16;
  int steps = 3;
  std::vector<int> gpus{}; //!< as in pipelining::cuda::stream_options
  std::int64_t deadline_ns = 60'000'000'000;
  int failing_stage = -1; //!< a stage whose forward of microbatch 1 throws, once
  int failing_step = 0;
  int freeze_after = -1; //!< the step after which nothing may be set up any more
  bool timed = false;    //!< the trace of every step is kept
};

struct streams_result {
  std::vector<std::uint64_t> gradients{}; //!< [stages]
  std::uint64_t losses = 0;
  std::string failure{};      //!< the text of the first failure
  std::string nested{};       //!< of the exception in it
  std::string last_failure{}; //!< the text of the last one
  std::string through_host{}; //!< pairs of GPUs whose messages the host copies, as "0-1"
  std::string findings{};     //!< of the stand-in after the last step
  std::uint64_t calls = 0;    //!< of CUDA until then
  std::uint64_t seen = 0;     //!< what the backward of that microbatch has found as its activation
  std::vector<pipelining::dynamic_timetable> traces{};
};

//! @brief Runs a plan on streams with the kernels of kernel_stage. After a failure that is not a
//! stage's nothing is read from the GPU, nor freed: it may be busy for ever.
//! @throws what the runner throws, except from a step
streams_result run_on_streams(streams_case const& what);
