// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief How many chunks each microbatch has, for schedules of sequences of unequal length. Header
//! for pipelining::listed_chunks and pipelining::fixed_chunks.

#include <pipe/flow/pass.hpp>
#include <pipe/schedule/block/walk.hpp>
#include <pipe/schedule/schedule.hpp>

#include <concepts>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! Says how many chunks a microbatch has: `counts(microbatch)`, at least 1.
template <class Counts>
concept chunk_counts = copyable<Counts> && requires(Counts const counts, int microbatch) {
  { counts(microbatch) } -> std::convertible_to<int>;
};

//! All microbatches have as many. @tparam Chunks how many, or `dynamic`.
template <int Chunks = dynamic>
struct equal_chunks {
  static_assert(Chunks == dynamic || Chunks >= 1, "a sequence has at least one chunk");

  static constexpr bool equal = true; //!< as many in every microbatch
  parameter<Chunks> chunks{};

  //! The chunks of a microbatch.
  [[nodiscard]] constexpr int operator()(int) const noexcept { return chunks; }
};

//! Counts that only the extents say: a schedule of them has no `chunks_of`, so that all
//! that wants equal counts takes it.
template <class Counts>
concept equal_chunk_counts = chunk_counts<Counts> && requires {
  requires Counts::equal;
};

[[noreturn]] inline void refuse_count(std::size_t counts, int microbatch) {
  throw std::invalid_argument("chunk counts: there are " + std::to_string(counts) +
                              " counts and none for microbatch " + std::to_string(microbatch) +
                              "; give one per microbatch");
}

//! The chunks of all microbatches together.
[[nodiscard]] constexpr int count_chunks(chunk_counts auto const& counts, int microbatches) {
  int sum = 0;
  for (int microbatch = 0; microbatch < microbatches; ++microbatch)
    sum += counts(microbatch);
  return sum;
}

//! The chunks of the microbatch that has the most.
[[nodiscard]] constexpr int most_chunks(chunk_counts auto const& counts, int microbatches) {
  int most = 0;
  for (int microbatch = 0; microbatch < microbatches; ++microbatch)
    most = counts(microbatch) > most ? counts(microbatch) : most;
  return most;
}

//! Visits the units of one stage, one per step: microbatches in order, the chunks of one
//! first to last on forward walks and last to first on backward walks.
//!
//! @complexity O(1) per step, without divisions.
template <chunk_counts Counts>
class chunk_walk {
public:
  //! @param counts must outlive the walk.
  constexpr chunk_walk(Counts const& counts, int microbatches, int stage, direction way)
      : counts_(&counts), microbatches_(microbatches), stage_(stage), way_(way) {
    enter();
  }

  //! The pass of this kind on the unit; goes to the next unit.
  //! @pre `!ended()`
  [[nodiscard]] constexpr pass take(pass_kind kind) {
    int const chunk = way_ == direction::forward ? done_ : count_ - 1 - done_;
    pass const what = row_writer::make(kind, stage_, microbatch_, chunk);
    if (++done_ == count_) {
      ++microbatch_;
      enter();
    }
    return what;
  }
  //! True when every unit has been visited.
  [[nodiscard]] constexpr bool ended() const noexcept { return microbatch_ == microbatches_; }
  //! The microbatch of the unit that comes next.
  [[nodiscard]] constexpr int microbatch() const noexcept { return microbatch_; }

private:
  constexpr void enter() {
    done_ = 0;
    count_ = ended() ? 0 : (*counts_)(microbatch_);
  }

  Counts const* counts_;
  int microbatches_;
  int stage_;
  direction way_;
  int microbatch_ = 0;
  int done_ = 0;  // chunks of the microbatch
  int count_ = 0; // and how many it has
};

} // namespace detail

//! @brief One number per microbatch, known when the program runs.
struct listed_chunks {
  std::vector<int> of; //!< [M]

  //! @throws std::invalid_argument for a microbatch that the list does not have.
  [[nodiscard]] int operator()(int microbatch) const {
    if (std::cmp_greater_equal(microbatch, of.size()))
      detail::refuse_count(of.size(), microbatch);
    return of[static_cast<std::size_t>(microbatch)];
  }
};

//! @brief One number per microbatch, known to the compiler.
template <int... Chunks>
struct fixed_chunks {
  //! @throws std::invalid_argument for a microbatch that the list does not have.
  [[nodiscard]] constexpr int operator()(int microbatch) const {
    constexpr int of[] = {Chunks...};
    if (microbatch >= static_cast<int>(sizeof...(Chunks)))
      detail::refuse_count(sizeof...(Chunks), microbatch);
    return of[microbatch];
  }
};

} // namespace pipelining::inline v0_3
