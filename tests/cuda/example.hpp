// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The example examples/nccl on the stand-in, with ranks that are threads and a store that
//! is real.

#include <string>
#include <vector>

struct example_case {
  int ranks = 2;
  int microbatches = 4;
  int steps = 4;
  bool graph = false;
  bool mixed = false;
  int failing_step = -1; //!< the last rank throws there
  int ending_rank = -1;  //!< that the stand-in lets die: its connection closes, as a process's does
  int sigterm_at = -1;   //!< comes when ranks have launched so many kernels
  std::string checkpoint{};  //!< the folder of checkpoints
  int every = 2;             //!< steps between two of them
  std::string launcher = ""; //!< torchrun or Slurm: ranks read what it puts into the environment
  int restarts = 0;          //!< how often it has started them again
};

struct example_result {
  std::vector<float> losses{};               //!< of the last rank
  std::vector<std::vector<float>> weights{}; //!< [ranks], as the optimizer has them
  std::vector<std::string> failures{};       //!< [ranks]
  std::vector<int> began{};                  //!< [ranks] the steps that they had done
};

example_result run_example(example_case const& what);
