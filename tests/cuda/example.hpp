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
};

struct example_result {
  std::vector<float> losses{};               //!< of the last rank
  std::vector<std::vector<float>> weights{}; //!< [ranks], as the optimizer has them
  std::vector<std::string> failures{};       //!< [ranks]
};

example_result run_example(example_case const& what);
