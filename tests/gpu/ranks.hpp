// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What the tests of the NCCL runner on a GPU ask of the object that nvcc makes.

#include <pipe/cluster/store.hpp>
#include <pipe/plan/plan.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

struct rank_case {
  pipelining::plan work{};
  int rank = 0;
  pipelining::store_address where{};
  std::string name = "run"; //!< of the runner; used once per store
  bool graph = false;
  int steps = 3;
  int dies_at = -1; //!< the step in which this process kills itself
  std::chrono::nanoseconds deadline = std::chrono::seconds(40);
};

struct rank_result {
  std::vector<std::uint64_t> gradients{}; //!< [stages], 0 for those of other ranks
  std::uint64_t losses = 0;
  bool connected = false;
  std::string failure{};
};

//! @brief Runs one rank of a plan on GPU 0, against the other ranks in their own processes.
rank_result run_rank(rank_case const& what);
