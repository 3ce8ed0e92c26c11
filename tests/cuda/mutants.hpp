// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The executors with one planted bug each, as mutants.py writes them.

#include <cstddef>
#include <string>
#include <tests/cuda/nccl.hpp>
#include <tests/cuda/planted_bug.hpp>
#include <tests/cuda/streams.hpp>
#include <vector>

std::vector<std::string> names_of_mutants();

struct mutant {
  std::string name; //!< what is wrong; the first has nothing wrong
  int bug;

  [[nodiscard]] streams_result on_streams(streams_case const& of) const {
    planted_bug = bug;
    return run_on_streams(of);
  }
  [[nodiscard]] nccl_result on_ranks(nccl_case const& of) const {
    planted_bug = bug;
    return run_on_ranks(of);
  }
};

inline std::vector<mutant> all_mutants() {
  std::vector<mutant> all;
  for (std::string const& name : names_of_mutants())
    all.push_back({name, static_cast<int>(all.size())});
  return all;
}
