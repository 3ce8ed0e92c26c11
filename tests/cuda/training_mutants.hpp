// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The executors with one bug each after complete gradients, as training_mutants.py writes
//! them.

#include <string>
#include <tests/cuda/planted_bug.hpp>
#include <tests/cuda/training.hpp>
#include <vector>

std::vector<std::string> names_of_training_mutants();

struct training_mutant {
  std::string name; //!< what is wrong; the first has nothing wrong
  int bug;

  [[nodiscard]] training_result on_streams(training_case const& of) const {
    planted_bug = bug;
    return train_on_streams(of);
  }
  [[nodiscard]] training_result on_ranks(training_case const& of) const {
    planted_bug = bug;
    return train_on_ranks(of);
  }
};

inline std::vector<training_mutant> all_training_mutants() {
  std::vector<training_mutant> all;
  for (std::string const& name : names_of_training_mutants())
    all.push_back({name, static_cast<int>(all.size())});
  return all;
}
