// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Chunk counts of microbatches for tests. Header for random_counts and read_counts.

#include <istream>
#include <random>
#include <vector>

namespace support {

//! @brief One to `microbatches` counts of 1 to `chunks`.
inline std::vector<int>
random_counts(std::mt19937& random, unsigned microbatches, unsigned chunks) {
  std::vector<int> counts(1 + random() % microbatches);
  for (int& count : counts)
    count = static_cast<int>(1 + random() % chunks);
  return counts;
}

//! @brief Counts as golden files write them: "4,8,4".
inline std::vector<int> read_counts(std::istream& in) {
  std::vector<int> counts;
  for (int count = 0; in >> count;) {
    counts.push_back(count);
    if (in.peek() != ',')
      break;
    in.ignore();
  }
  return counts;
}

} // namespace support
