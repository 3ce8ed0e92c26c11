// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Plans for iterations of different sizes. Header for pipelining::plan_cache.

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief Remembers which plan a runner has for which size, the sizes that were asked for last.
//!
//! Chunk counts, numbers of microbatches and lengths may change from iteration to iteration: each
//! size is lowered once, and its plan is run again when the size comes back. Where there is no room
//! for a further one, the plan that has not been asked for longest gives its place to the new one.
//! Knows neither plans nor runners; over MPI every rank keeps one and asks for the same sizes.
//!
//! @tparam Size the sizes that a plan depends on, compared by `==`: chunk counts of microbatches,
//! for example.
//! @tparam Number the runner's number for the plan: plan_number, or plan_number::post_validated.
template <class Size, class Number>
class plan_cache {
public:
  //! @param most plans at a time.
  //! @throws std::invalid_argument where that is 0.
  explicit plan_cache(std::size_t most) : most_(most) {
    if (most == 0)
      throw std::invalid_argument("run: a cache of plans needs room for one plan at least");
  }

  //! @brief The plan of a size.
  //! @param make called where there is none: `make(nullptr)` gives the runner a further plan,
  //! `make(&number)` one in the place of that number, and both return the number of the new one.
  //! What it throws is passed on; the plan whose place it was to take is forgotten then.
  //! @complexity O(n) comparisons for n plans that are kept.
  template <class Make>
  Number get(Size const& size, Make make) {
    auto const found = std::find_if(
      entries_.begin(), entries_.end(), [&size](entry const& each) { return each.size == size; });
    if (found != entries_.end()) {
      ++reused_;
      std::rotate(found, found + 1, entries_.end()); // the last is the one asked for last
      return entries_.back().number;
    }
    bool const full = entries_.size() == most_;
    if (full) {
      Number const oldest = entries_.front().number;
      entries_.erase(entries_.begin());
      entries_.push_back({size, make(&oldest)});
      ++dropped_;
    } else {
      Number const* const none = nullptr;
      entries_.push_back({size, make(none)});
    }
    ++made_;
    return entries_.back().number;
  }

  //! @brief Plans that were made.
  [[nodiscard]] long made() const noexcept { return made_; }
  //! @brief Plans that were there already.
  [[nodiscard]] long reused() const noexcept { return reused_; }
  //! @brief Plans that have given their place to others.
  [[nodiscard]] long dropped() const noexcept { return dropped_; }
  //! @brief Plans that are kept.
  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }

private:
  struct entry {
    Size size;
    Number number;
  };

  std::size_t most_;
  std::vector<entry> entries_; // least recently asked for first
  long made_ = 0;
  long reused_ = 0;
  long dropped_ = 0;
};

} // namespace pipelining::inline v0_3
