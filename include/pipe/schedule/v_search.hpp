// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Searches the order of a V shape for real costs. Header for pipelining::detail::v_search.

#include <pipe/schedule/building_block.hpp>
#include <pipe/schedule/v_hand_order.hpp>
#include <pipe/schedule/v_timeline.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace pipelining::inline v0_1 {

//! @brief How much a search may do: passes placed, counted over all its attempts. A pass takes
//! about 25 ns.
//!
//! The default keeps pipelines of up to a few thousand passes below a tenth of a second; larger
//! ones get `search_effort_per_pass` times their number of passes.
inline constexpr std::int64_t search_effort = std::int64_t{1} << 21;
inline constexpr std::int64_t search_effort_per_pass = 8;

namespace detail {

//! What a search minimises: a weighted sum of span and makespan.
struct v_weights {
  std::int64_t span = 1;
  std::int64_t makespan = 2;
};

//! Where memory suffices for no bubble at all, the span is what schedules are known by; elsewhere
//! span and makespan go together.
[[nodiscard]] constexpr v_weights weights_for(v_problem const& problem) noexcept {
  return problem.limit >= 2 * problem.devices ? v_weights{8, 1} : v_weights{1, 2};
}

//! Looks for the best order of a timeline's passes: many starts, the sweeps on each, then noise on
//! the durations of some units and sweeps again. The same input gives the same result everywhere.
class v_search {
public:
  v_search(v_timeline& line, v_weights weights)
      : line_(line), weights_(weights),
        passes_(std::int64_t{line.problem.devices} * line.problem.row()),
        left_(std::max(search_effort, search_effort_per_pass * passes_)) {
    for (int device = 0; device < line.problem.devices; ++device) {
      std::int64_t busy = 0;
      std::int64_t before = 0;
      for (int at = 0; at < line.problem.legs; ++at)
        for (int chunk = 0; chunk < line.problem.chunks; ++chunk)
          busy += time(at, device, chunk) * (line.problem.units / line.problem.chunks);
      for (int other = 0; other < device; ++other)
        before += time(leg::forward_down, other, 0) + line.problem.latency;
      least_span_ = std::max(least_span_, busy);
      least_makespan_ = std::max(least_makespan_, busy + before);
    }
  }

  //! Leaves the best order found in the timeline, timed. The rows that it has now are one start.
  //! @param block scratch for other starts
  //! @param shakes false: only the starts, as unit costs need no more once a block fits the limit
  void run(building_block& block, bool shakes) {
    codes_ const rows = copy();
    start_by_hand();
    restore(rows);
    start_here();
    bool const found = start_from_blocks(block);
    finish(shakes || !found);
  }

private:
  using codes_ = std::vector<std::uint32_t>;
  struct result {
    std::int64_t value = std::numeric_limits<std::int64_t>::max();
    codes_ codes;
  };

  //! Takes the rows of the timeline as a start and improves them by sweeps.
  void start_here() {
    codes_ const rows = copy();
    for (deadline const keep : {deadline::both, deadline::span}) {
      if (done())
        return;
      restore(rows);
      forwards();
      settle(keep);
    }
  }

  //! Takes the hand-made zero-bubble order as a start where the limit allows it, and accepts
  //! nothing from then on whose span or makespan is longer.
  void start_by_hand() {
    v_problem const& problem = line_.problem;
    if (problem.limit < 2 * problem.devices || problem.chunks > 1 || problem.fused())
      return;
    for (int device = 0; device < problem.devices; ++device)
      write_zero_bubble_v(line_, device);
    forwards();
    most_span_ = line_.span;
    most_makespan_ = line_.makespan;
    keep_if_best();
    start_here();
  }

  //! Tries the blocks that hold no more than the limit and almost as much, the most promising
  //! first. False when no block fits.
  bool start_from_blocks(building_block& block) {
    std::vector<std::pair<std::int64_t, stride_block>> ranked;
    for (stride_block const& plan : candidates(block)) {
      if (done() || left_ < 8 * passes_)
        break;
      write(plan, block);
      forwards();
      ranked.emplace_back(value(), plan);
    }
    std::stable_sort(
      ranked.begin(), ranked.end(), [](auto const& a, auto const& b) { return a.first < b.first; });
    constexpr std::size_t most = 8;
    if (ranked.size() > most)
      ranked.resize(most);
    for (auto const& [rank, plan] : ranked) {
      if (done())
        break;
      write(plan, block);
      start_here();
    }
    return !ranked.empty();
  }

  //! Spends the effort that is left on the best results so far and leaves the best of all in the
  //! timeline, timed.
  void finish(bool shakes) {
    std::stable_sort(
      pool_.begin(), pool_.end(), [](auto const& a, auto const& b) { return a.value < b.value; });
    constexpr std::size_t most = 4;
    if (pool_.size() > most)
      pool_.resize(most);
    for (std::uint64_t round = 0; shakes && !pool_.empty() && !done(); ++round)
      shake(pool_[static_cast<std::size_t>(round % pool_.size())], round);
    restore(best_.codes);
    sweep_forwards(line_);
  }

  [[nodiscard]] std::int64_t time(int at, int device, int chunk) const {
    return line_.durations[(at * line_.problem.devices + device) * line_.problem.chunks + chunk];
  }
  [[nodiscard]] std::int64_t value() const {
    constexpr std::int64_t too_long = std::int64_t{1} << 60;
    bool const good = line_.span <= most_span_ && line_.makespan <= most_makespan_;
    return weights_.span * line_.span + weights_.makespan * line_.makespan + (good ? 0 : too_long);
  }
  [[nodiscard]] bool done() const {
    return left_ <= 0 ||
           best_.value <= weights_.span * least_span_ + weights_.makespan * least_makespan_;
  }
  [[nodiscard]] codes_ copy() const { return {line_.codes, line_.codes + passes_}; }
  void restore(codes_ const& rows) { std::copy(rows.begin(), rows.end(), line_.codes); }
  void write(stride_block const& plan, building_block& block) {
    static_cast<void>(lay_out(plan, block));
    wait_for_sequence(block, line_.problem.chunks);
    repeat(block, line_);
  }

  void keep_if_best() {
    if (value() < best_.value) {
      best_.value = value();
      best_.codes = copy();
    }
  }
  void forwards() {
    sweep_forwards(line_);
    left_ -= passes_;
    keep_if_best();
  }
  void both(deadline keep) {
    sweep_both(line_, keep);
    left_ -= 2 * passes_;
    keep_if_best();
  }

  //! Sweeps until nothing improves any more.
  void settle(deadline keep) {
    result own;
    for (int idle = 0; idle < 2 && !done(); keep = deadline::both) {
      both(keep);
      if (value() < own.value) {
        own = {value(), copy()};
        idle = 0;
      } else {
        ++idle;
      }
    }
    pool_.push_back(std::move(own));
  }

  //! One attempt to get out of a dead end: sweeps with noise, then true ones.
  void shake(result& own, std::uint64_t round) {
    std::uint64_t const random = next_random();
    int const units = line_.problem.units;
    int const width = std::max(2, line_.problem.devices / 2) << (random >> 60 & 1U);
    auto const place = static_cast<int>(random >> 40 & 0xfffffU);
    switch (random >> 33 & 3U) {
    case 0: line_.noise_first = place % width; break;
    case 1: line_.noise_first = units - width - place % width; break;
    default: line_.noise_first = place % units - width / 2; break;
    }
    line_.noise_last = line_.noise_first + width;
    if (round % 5 == 4) {
      line_.noise_first = 0;
      line_.noise_last = units;
    }
    std::int64_t const unit_time =
      time(leg::forward_down, 0, 0) + least_span_ / std::max(2 * units, 1) / 2;
    restore(own.codes);
    forwards();
    line_.noise = unit_time * static_cast<std::int64_t>(1 + round % 3) / 8;
    begin_backwards(line_, round % 2 == 0 ? deadline::span : deadline::both);
    advance_sweep<true>(line_, everything());
    if (round % 4 >= 2)
      line_.noise = 0;
    begin_forwards(line_);
    advance_sweep<false>(line_, everything());
    line_.noise = 0;
    left_ -= 2 * passes_;
    forwards();
    both(deadline::both);
    both(deadline::both);
    if (value() <= own.value)
      own = {value(), copy()};
  }

  [[nodiscard]] int everything() const { return static_cast<int>(passes_) + 1; }
  [[nodiscard]] std::uint64_t next_random() {
    random_ = random_ * 6364136223846793005U + 1442695040888963407U;
    return random_;
  }

  //! The families that won somewhere in a sweep over all places and strides, at the largest size
  //! that fits the limit.
  [[nodiscard]] std::vector<stride_block> candidates(building_block& block) const {
    constexpr int places[][3] = {{1, 2, 3},
                                 {5, 2, 1},
                                 {3, 2, 5},
                                 {3, 4, 5},
                                 {1, 2, 5},
                                 {1, 4, 3},
                                 {3, 4, 1},
                                 {1, 2, 4},
                                 {2, 3, 4},
                                 {4, 2, 1},
                                 {5, 3, 1}};
    std::vector<stride_block> found;
    int const steps = std::max(1, block.devices - 1);
    for (auto const& place : places)
      for (int first = 1; first <= 5; ++first)
        for (int rest = 1; rest <= first; ++rest) {
          int taken = 0;
          for (int devices = steps; devices >= (first == rest ? steps : 1) && taken < 2;
               --devices) {
            stride_block const plan{{0, place[0], place[1], place[2]}, first, rest, devices};
            if (!lay_out(plan, block))
              continue;
            wait_for_sequence(block, line_.problem.chunks);
            int const peak = peak_of(block);
            if (peak > line_.problem.limit || peak + 2 < line_.problem.limit)
              continue;
            found.push_back(plan);
            ++taken;
          }
        }
    return found;
  }

  v_timeline& line_;
  v_weights weights_;
  std::int64_t passes_;
  std::int64_t left_;
  std::int64_t least_span_ = 0;
  std::int64_t least_makespan_ = 0;
  std::int64_t most_span_ = std::numeric_limits<std::int64_t>::max();
  std::int64_t most_makespan_ = std::numeric_limits<std::int64_t>::max();
  std::uint64_t random_ = 1;
  result best_;
  std::vector<result> pool_;
};

} // namespace detail
} // namespace pipelining::inline v0_1
