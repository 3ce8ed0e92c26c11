// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A GPU that runs one attention kernel: multiprocessors, the order of blocks, rings of
//! stages, an L2 that forgets, memory, what surrounds a piece, and waits for sums in a kept order.
//!
//! Times are whole picoseconds, so that all compilers give the same figures.

#include <cstdint>
#include <map>
#include <string>

#include "work.hpp"

namespace whole_gpu {

//! @brief The frozen constants, by name; constants.txt gives units and sources.
class constants {
public:
  //! @throws std::runtime_error where the file cannot be read or a line has no number
  explicit constants(std::string const& path);
  //! @throws std::runtime_error where there is none
  [[nodiscard]] std::int64_t at(std::string const& name) const;

private:
  std::map<std::string, std::int64_t> values_;
};

//! @brief Times of one kernel, in picoseconds, and rates, in bytes each microsecond.
struct speeds {
  std::int64_t visit = 0;   //!< one pass of the loop
  std::int64_t masked = 0;  //!< one where each pair is asked for
  std::int64_t start = 0;   //!< of a block, to its first pass
  std::int64_t between = 0; //!< pieces of a block
  std::int64_t end = 0;     //!< of a piece, after its last pass
  std::int64_t hand_on = 0; //!< from a sum to the next block that waited for it
  std::int64_t memory_rate = 0;
  std::int64_t cache_rate = 0;
  std::int64_t cache_bytes = 0; //!< that the L2 keeps
};

//! @brief Time between two pieces of a block.
//! @param late     the same where the next piece is asked for once results have left
//! @param early    where it is asked for before
//! @param products first ones of a piece
[[nodiscard]] constexpr std::int64_t
between_pieces(handover of, std::int64_t late, std::int64_t early, std::int64_t products) {
  switch (of) {
  case handover::late: return late;
  case handover::early: return early;
  case handover::overlapped: return early < products ? 0 : early - products;
  }
  return late;
}

//! @brief What came out.
struct outcome {
  std::int64_t picoseconds = 0;  //!< from the first block to the last
  std::int64_t memory_bytes = 0; //!< between memory and L2
  std::int64_t busiest = 0;      //!< visits of the multiprocessor that has most
};

//! @brief Runs a kernel. @param slots blocks that run at a time
[[nodiscard]] outcome simulate(work const& of, int slots, speeds const& s);

} // namespace whole_gpu
