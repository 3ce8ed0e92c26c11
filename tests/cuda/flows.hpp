// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What the test of flows by chance asks of the object that nvcc makes.

#include <pipe/plan/plan.hpp>

#include <string>
#include <tests/support/flow_interpreter.hpp>

struct flow_case {
  pipelining::plan work{};
  bool ranks = false; //!< over NCCL
  bool graph = false;
};

struct flow_result {
  support::digests read{}; //!< by all passes, in the last of three steps
  std::string failure{};
  std::string findings{}; //!< of the stand-in after the last step
};

//! @brief Runs a plan whose passes compute in their slots when their stream comes to them.
flow_result run_flow(flow_case const& what);
