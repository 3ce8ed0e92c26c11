// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The executors with one bug each behind complete gradients, as training_mutants.py writes
//! them.

#include <string>
#include <tests/cuda/training.hpp>
#include <vector>

struct training_mutant {
  std::string name; //!< what is wrong; the first has nothing wrong
  training_result (*on_streams)(training_case const&);
  training_result (*on_ranks)(training_case const&);
};

std::vector<training_mutant> all_training_mutants();
