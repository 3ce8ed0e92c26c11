// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief How long passes and messages take. Header for pipelining::uniform_cost and
//! pipelining::cost_table.

#include <pipe/core/pass.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/schedule/schedule.hpp>

#include <cstddef>
#include <stdexcept>
#include <vector>

namespace pipelining::inline v0_1 {

//! @brief One time per kind, the same on every stage and for every chunk. The default is the
//! papers' unit cost.
//!
//! A fused `backward` takes `backward_input + backward_weight`. Times are of one pass of one stage
//! (of one chunk where there are chunks), in any one unit.
struct uniform_cost {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double communication = 0;
  //! Time of an overlapped pair of a forward and a backward pass; negative: the sum of the two.
  double overlapped_pair = -1;

  [[nodiscard]] constexpr double duration(pass const& what) const noexcept {
    switch (what.kind) {
    case pass_kind::forward: return forward;
    case pass_kind::backward: return backward_input + backward_weight;
    case pass_kind::backward_input: return backward_input;
    case pass_kind::backward_weight: return backward_weight;
    }
    return 0;
  }
  [[nodiscard]] constexpr double latency() const noexcept { return communication; }
  [[nodiscard]] constexpr double pair_duration(pass const& first,
                                               pass const& second) const noexcept {
    return overlapped_pair < 0 ? duration(first) + duration(second) : overlapped_pair;
  }
};

//! @brief One time per kind, stage and chunk: what a measurement gives.
class cost_table {
public:
  //! @brief Every pass takes what `base` says, until `set` says otherwise.
  //! @complexity O(S C) time and memory.
  cost_table(shape const& extents, uniform_cost const& base)
      : chunks_(extents.chunks), latency_(base.communication), stages_(stages(extents)) {
    for (double const time : {base.forward, base.backward_input, base.backward_weight})
      times_.insert(
        times_.end(), static_cast<std::size_t>(stages_) * static_cast<std::size_t>(chunks_), time);
  }

  //! @brief Sets the time of one kind on one stage for one chunk.
  //! @throws std::out_of_range when stage or chunk do not exist, std::invalid_argument for a
  //! negative time or for the
  //!         fused `backward`, whose time is the sum of its halves.
  void set(pass_kind kind, int stage, int chunk, double time) {
    if (kind == pass_kind::backward)
      throw std::invalid_argument(
        "cost_table::set: a fused backward takes the sum of backward_input and "
        "backward_weight; set those two");
    if (!(time >= 0))
      throw std::invalid_argument("cost_table::set: a time must not be negative");
    times_.at(index(kind, stage, chunk)) = time;
  }

  //! @brief Multiplies the times of one kind by one factor per chunk, on all stages.
  //! @param factors one factor per chunk; 1 keeps the time.
  void scale_chunks(pass_kind kind, std::vector<double> const& factors) {
    for (int stage = 0; stage < stages_; ++stage)
      for (int chunk = 0; chunk < chunks_; ++chunk)
        times_.at(index(kind, stage, chunk)) *= factors.at(static_cast<std::size_t>(chunk));
  }

  [[nodiscard]] double duration(pass const& what) const {
    if (what.kind != pass_kind::backward)
      return times_[index(what.kind, what.stage, what.chunk)];
    return times_[index(pass_kind::backward_input, what.stage, what.chunk)] +
           times_[index(pass_kind::backward_weight, what.stage, what.chunk)];
  }
  [[nodiscard]] double latency() const noexcept { return latency_; }

private:
  [[nodiscard]] std::size_t index(pass_kind kind, int stage, int chunk) const {
    if (stage < 0 || stage >= stages_ || chunk < 0 || chunk >= chunks_)
      throw std::out_of_range("cost_table: no such stage or chunk in this table");
    int const row = kind == pass_kind::forward ? 0 : kind == pass_kind::backward_input ? 1 : 2;
    return static_cast<std::size_t>((row * stages_ + stage) * chunks_ + chunk);
  }

  int chunks_;
  double latency_;
  int stages_;
  std::vector<double> times_;
};

static_assert(cost_model<uniform_cost>);
static_assert(cost_model<cost_table>);

//! @brief The time of an overlapped pair: what the cost model says of pairs, else the sum of the
//! two passes.
template <cost_model Cost>
[[nodiscard]] constexpr double
pair_duration(Cost const& cost, pass const& first, pass const& second) {
  if constexpr (requires { cost.pair_duration(first, second); })
    return cost.pair_duration(first, second);
  else
    return cost.duration(first) + cost.duration(second);
}

} // namespace pipelining::inline v0_1
