// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What the test of weights that lie on the host asks of the object that nvcc makes.

#include <pipe/plan/plan.hpp>

#include <cstdint>
#include <string>
#include <vector>

//! Layers y = w x, modulo 2^64, with w = 2 l + 3 for layer l; half the square of the output as
//! loss.
struct round_case {
  pipelining::plan work{};
  std::vector<int> forward{};  //!< layers of each stage that goes forward, from the first one on
  std::vector<int> backward{}; //!< of each that goes back, from the last layers on
  bool ranks = false;          //!< over NCCL
  bool graph = false;
  bool several_gpus = false; //!< of streams
  int steps = 3;             //!< of streams; ranks run one
};

struct round_result {
  std::vector<std::uint64_t> gradients{}; //!< [layers], on the host, of the last step
  std::string failure{};
  std::string findings{}; //!< of the stand-in after the last step
};

//! @brief Runs a plan whose stages load their weights from pinned memory of the host.
round_result run_round(round_case const& what);
