// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Searches the order of a repeated block for real costs, from its own order and, for a V,
//! from others. Header for pipelining::detail::search_effort and pipelining::detail::leg.

#include <pipe/schedule/block/building_block.hpp>
#include <pipe/schedule/block/timeline.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! The six passes of a unit on a device of a V. Device d holds stage d, whose passes lie on
//! the legs down (forward) and up (backward), and stage 2P - 1 - d, whose passes lie on the other
//! two.
namespace leg {
inline constexpr int forward_down = 0;  //!< forward of stage d
inline constexpr int forward_up = 1;    //!< forward of stage 2P - 1 - d
inline constexpr int backward_down = 2; //!< backward_input of stage 2P - 1 - d
inline constexpr int backward_up = 3;   //!< backward_input of stage d
inline constexpr int weight_down = 4;   //!< weight gradient of the stage of `backward_down`
inline constexpr int weight_up = 5;     //!< weight gradient of the stage of `backward_up`
inline constexpr int count = 6;         //!< how many legs there are
} // namespace leg

//! How much a search may do: passes placed, counted over all its attempts. A pass takes
//! about 25 ns.
//!
//! The default keeps pipelines of up to a few thousand passes below a tenth of a second; larger
//! ones get `search_effort_per_pass` times their number of passes.
inline constexpr std::int64_t search_effort = std::int64_t{1} << 21;
//! Passes placed for every pass of a pipeline too large for `search_effort`.
inline constexpr std::int64_t search_effort_per_pass = 8;

//! The line of a leg on a device of a V, see `building_block`.
[[nodiscard]] constexpr int v_line(int devices, int leg_number, int device) noexcept {
  bool const deep = leg_number == leg::forward_up || leg_number == leg::backward_down ||
                    leg_number == leg::weight_down;
  return leg_number / 2 * 2 * devices + (deep ? 2 * devices - 1 - device : device);
}

//! Appends the next unit of a leg to a row, unless the units have run out.
struct leg_writer {
  timeline& line;
  int device;
  int* codes;
  int next[leg::count] = {};

  constexpr void push(int at) {
    if (next[at] < line.units) {
      *codes = line.code(v_line(line.problem.devices(), at, device), next[at]);
      ++codes;
    }
    ++next[at];
  }
  constexpr void push(int at, int times) {
    for (int i = 0; i < times; ++i)
      push(at);
  }
};

//! The order of Zero Bubble's hand-made V on one device, written for max(2P - 1, M) microbatches of
//! which those from M on are left out.
constexpr void write_zero_bubble_v(timeline& line, int device) {
  int const devices = line.problem.devices();
  int const units = line.units;
  int const most = units > 2 * devices - 1 ? units : 2 * devices - 1;
  leg_writer row{line, device, line.codes + line.first[device]};
  row.push(leg::forward_down, 2 * (devices - device) - 1);
  for (int i = 0; i < device; ++i) {
    row.push(leg::forward_up);
    row.push(leg::forward_down);
  }
  for (int i = 0; i < devices - device; ++i) {
    row.push(leg::forward_up);
    row.push(leg::backward_down);
    row.push(leg::weight_down);
  }
  while (row.next[leg::forward_up] < row.next[leg::forward_down] ||
         row.next[leg::forward_down] < most) {
    if (row.next[leg::forward_down] < most)
      row.push(leg::forward_down);
    row.push(leg::backward_up);
    row.push(leg::weight_up);
    row.push(leg::forward_up);
    row.push(leg::backward_down);
    row.push(leg::weight_down);
  }
  for (int i = 0; i < device; ++i) {
    row.push(leg::backward_up);
    row.push(leg::backward_down);
  }
  for (int i = 0; i < devices - device; ++i) {
    row.push(leg::backward_up);
    row.push(leg::weight_up);
  }
  row.push(leg::weight_down, most - row.next[leg::weight_down]);
  row.push(leg::weight_up, most - row.next[leg::weight_up]);
}

//! Blocks of a V of interval 6 in which the passes of device 0 lie at given places and the legs
//! down advance by one stride on the first devices and by another on the rest, while the legs up
//! advance by one slot. Each pass takes the first slot of its place that its input allows.
struct stride_block {
  int places[4]; //!< on device 0, modulo 6, by leg
  int first_stride;
  int stride;
  int first_devices;
};

[[nodiscard]] constexpr bool lay_out(stride_block const& plan, building_block& block) {
  constexpr int interval = leg::count;
  block.interval = interval;
  clear(block, 0);
  int before = -1;
  for (int at = 0; at <= leg::backward_up; ++at) {
    auto const next = [&](int position, int now, int, int) {
      int const first = position < plan.first_devices ? position : plan.first_devices;
      int const moved = at % 2 == 0 ? plan.first_stride * first + plan.stride * (position - first)
                                    : position + 1 - block.extents.devices;
      int const ahead = (plan.places[at] + moved - now - 1) % interval;
      return now + 1 + (ahead < 0 ? ahead + interval : ahead);
    };
    if (!lay_leg(block, at, before, next))
      return false;
    before = end_of_leg(block, at);
  }
  return place_weights(block);
}

//! Lays out the stride block with the most activations up to the limit. On device 0 the four passes
//! lie in a row; with odd strides no two passes of a device ever share a slot, so that strides can
//! be chosen freely. Returns false when even strides of 1 hold too much.
[[nodiscard]] constexpr bool lay_out_largest(int limit, building_block& block) {
  int const steps = block.extents.devices > 1 ? block.extents.devices - 1 : 1;
  // Larger strides never hold less, so that bisection finds the largest that fit.
  auto const fits = [&](int number) {
    int const stride = 1 + number / steps * 2;
    return lay_out({{0, 1, 2, 3}, stride + 2, stride, number % steps}, block) &&
           peak_of(block) <= limit;
  };
  int good = -1;
  for (int bad = 2 * steps + 1; bad - good > 1;) {
    int const middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good >= 0 && fits(good);
}

//! Weights of span and makespan in the sum that a search minimises.
struct v_weights {
  std::int64_t span = 1;
  std::int64_t makespan = 2;
  bool trades = false; //!< the makespan may exceed the hand-made one by as much as the span gains
};

//! Where memory suffices for no bubble at all, the span is what schedules are known by; elsewhere
//! span and makespan go together.
[[nodiscard]] constexpr v_weights weights_for(timeline_problem const& problem) noexcept {
  return problem.limit >= problem.extents.stages() ? v_weights{8, 1} : v_weights{1, 2};
}

//! Keeps the `most` entries with the least `value(entry)`, in the order of their values and, among
//! equals, in the order that they had.
template <class Entries, class Value>
void keep_least(Entries& all, std::size_t most, Value value) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::size_t at = std::min(i, most);
    if (at < i) // the one there is left out
      std::swap(all[at], all[i]);
    for (; at > 0 && value(all[at]) < value(all[at - 1]); --at)
      std::swap(all[at], all[at - 1]);
  }
  while (all.size() > most)
    all.pop_back();
}

//! Looks for the best order of a timeline's passes: many starts, the sweeps on each, then noise on
//! the durations of some units and sweeps again. The same input gives the same result everywhere.
class v_search {
public:
  v_search(timeline& line, v_weights weights)
      : line_(line), weights_(weights), passes_(line.problem.passes()),
        left_(std::max(search_effort, search_effort_per_pass * passes_)),
        layouts_left_(search_effort / (6 * line.stages)) {
    std::vector<std::int64_t> busy(static_cast<std::size_t>(line.problem.devices()));
    for (int at = 0; at < line.lines; ++at)
      for (int i = 0; i < line.times; ++i)
        busy[static_cast<std::size_t>(line.device[at % line.stages])] +=
          line.durations[at * line.times + i] * (line.units / line.times);
    owned<bool> const seen(busy.size(), false);
    std::int64_t before = 0;
    for (int stage = 0; stage < line.stages; ++stage) {
      auto const device = static_cast<std::size_t>(line.device[stage]);
      if (!seen[device]) { // the first stage of a device waits for all before it
        least_span_ = std::max(least_span_, busy[device]);
        least_makespan_ = std::max(least_makespan_, busy[device] + before);
      }
      seen[device] = true;
      before += line.durations[stage * line.times];
      if (stage + 1 < line.stages && line.device[stage] != line.device[stage + 1])
        before += line.problem.latency;
    }
  }

  //! Leaves the best order found in the timeline, timed. The rows that it has now are one start.
  //! @param block scratch for other starts
  //! @param shakes false: only the starts, as unit costs need no more once a block fits the limit
  //! @param no_longer accepts nothing whose makespan is longer than that of the rows
  void run(building_block& block, bool shakes, bool no_longer = false) {
    codes_ const rows = copy();
    if (no_longer) {
      forwards();
      most_makespan_ = line_.makespan;
    }
    start_by_hand();
    restore(rows);
    start_here();
    bool const found = start_from_blocks(block);
    finish(shakes || !found);
  }

private:
  using codes_ = std::vector<int>;
  struct ranked_block {
    std::int64_t value;
    stride_block plan;
  };
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
    timeline_problem const& problem = line_.problem;
    if (!is_v() || problem.limit < line_.stages || line_.chunks > 1 || problem.fused)
      return;
    for (int device = 0; device < problem.devices(); ++device)
      write_zero_bubble_v(line_, device);
    forwards();
    if (line_.makespan > most_makespan_)
      return;
    most_span_ = line_.span;
    most_makespan_ = line_.makespan;
    keep_if_best();
    start_here();
  }

  //! Tries the blocks that hold no more than the limit and almost as much, the most promising
  //! first. False when no block fits.
  bool start_from_blocks(building_block& block) {
    if (!is_v())
      return false;
    block.fused = false; // the candidates leave room for gradients of weights either way
    block.freeing = 1;
    owned_list<ranked_block> ranked = candidates(block);
    std::size_t count = 0;
    for (; count < ranked.size() && !done() && left_ >= 8 * passes_; ++count) {
      write(ranked[count].plan, block);
      forwards();
      ranked[count].value = value();
    }
    keep_least(ranked, std::min<std::size_t>(8, count), [](auto const& one) { return one.value; });
    for (ranked_block const& one : ranked) {
      if (done())
        break;
      write(one.plan, block);
      start_here();
    }
    return !ranked.empty();
  }

  //! Spends the effort that is left on the best results so far and leaves the best of all in the
  //! timeline, timed.
  void finish(bool shakes) {
    keep_least(pool_, 4, [](auto const& one) { return one.value; });
    shaking_ = true;
    for (std::uint64_t round = 0; shakes && !pool_.empty() && !done(); ++round)
      shake(pool_[round % pool_.size()], round);
    restore(best_.codes);
    sweep_forwards(line_);
  }

  [[nodiscard]] bool is_v() const {
    shape const& extents = line_.problem.extents;
    return extents.where == placement::wave && extents.stages_per_device == 2;
  }
  [[nodiscard]] std::int64_t value() const {
    constexpr std::int64_t too_long = std::int64_t{1} << 60;
    std::int64_t const gain = weights_.trades ? most_span_ - line_.span : 0;
    bool const good = line_.span <= most_span_ && line_.makespan - gain <= most_makespan_;
    return weights_.span * line_.span + weights_.makespan * line_.makespan + (good ? 0 : too_long);
  }
  [[nodiscard]] bool done() const {
    return left_ <= 0 ||
           best_.value <= weights_.span * least_span_ + weights_.makespan * least_makespan_;
  }
  [[nodiscard]] codes_ copy() const { return {line_.codes.data, line_.codes.data + passes_}; }
  void restore(codes_ const& rows) { std::copy(rows.begin(), rows.end(), line_.codes.data); }
  void write(stride_block const& plan, building_block& block) {
    static_cast<void>(lay_out(plan, block));
    wait_for_sequence(block);
    repeat(block, line_);
  }

  void keep_if_best() {
    if (value() < best_.value) {
      best_.value = value();
      best_.codes = copy();
      // Where something has been found, more may be near.
      std::int64_t const more = std::min(total_ / 2 - left_, spare_);
      if (shaking_ && more > 0) {
        left_ += more;
        spare_ -= more;
      }
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
    int const units = line_.units;
    int const width = std::max(2, line_.problem.devices() / 2) << (random >> 60 & 1U);
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
    std::int64_t const unit_time = line_.durations[0] + least_span_ / std::max(2 * units, 1) / 2;
    restore(own.codes);
    forwards();
    line_.noise = unit_time * static_cast<std::int64_t>(1 + round % 3) / 8;
    begin_backwards(line_, round % 2 == 0 ? deadline::span : deadline::both);
    sweep<true>(line_);
    if (round % 4 >= 2)
      line_.noise = 0;
    begin_forwards(line_);
    sweep<false>(line_);
    line_.noise = 0;
    left_ -= 2 * passes_;
    forwards();
    both(deadline::both);
    both(deadline::both);
    if (value() <= own.value)
      own = {value(), copy()};
  }

  [[nodiscard]] std::uint64_t next_random() {
    random_ = random_ * 6364136223846793005U + 1442695040888963407U;
    return random_;
  }

  //! The families that won somewhere in a sweep over all places and strides, at the largest size
  //! that fits the limit.
  [[nodiscard]] owned_list<ranked_block> candidates(building_block& block) {
    constexpr int places[] = {123, 521, 325, 345, 125, 143, 341, 124, 234, 421, 531};
    owned_list<ranked_block> found;
    int const steps = std::max(1, block.extents.devices - 1);
    for (int const place : places)
      for (int first = 1; first <= 5; ++first)
        for (int rest = 1; rest <= first; ++rest) {
          int taken = 0;
          for (int devices = steps;
               devices >= (first == rest ? steps : 1) && taken < 2 && layouts_left_ > 0;
               --devices, --layouts_left_) {
            stride_block const plan{
              {0, place / 100, place / 10 % 10, place % 10}, first, rest, devices};
            if (!lay_out(plan, block))
              continue;
            wait_for_sequence(block);
            int const peak = peak_of(block);
            if (peak > line_.problem.limit || peak + 2 < line_.problem.limit)
              continue;
            found.push_back({std::numeric_limits<std::int64_t>::max(), plan});
            ++taken;
          }
        }
    return found;
  }

  timeline& line_;
  v_weights weights_;
  std::int64_t passes_;
  std::int64_t left_;
  std::int64_t layouts_left_; //!< so many cost as much as `search_effort`
  std::int64_t least_span_ = 0;
  std::int64_t least_makespan_ = 0;
  std::int64_t most_span_ = std::numeric_limits<std::int64_t>::max();
  std::int64_t most_makespan_ = std::numeric_limits<std::int64_t>::max();
  std::uint64_t random_ = 1;
  result best_;
  std::int64_t total_ = left_;
  std::int64_t spare_ = 2 * left_;
  bool shaking_ = false;
  owned_list<result> pool_;
};

} // namespace detail
} // namespace pipelining::inline v0_3
