// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The executors with one planted bug each, as mutants.py writes them.

#include <string>
#include <tests/cuda/nccl.hpp>
#include <tests/cuda/streams.hpp>
#include <vector>

struct mutant {
  std::string name; //!< what is wrong; the first has nothing wrong
  streams_result (*on_streams)(streams_case const&);
  nccl_result (*on_ranks)(nccl_case const&);
};

std::vector<mutant> all_mutants();
