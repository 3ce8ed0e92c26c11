// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Building blocks from real times instead of slots. Header for
//! pipelining::detail::continuous_block.

#include <pipe/schedule/block/building_block.hpp>
#include <pipe/schedule/block/v_search.hpp>

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! Times of passes and messages in steps of a grid, the same on every device.
struct grid_times {
  int forward = 1;         //!< steps
  int backward_input = 1;  //!< steps
  int backward_weight = 1; //!< steps
  int latency = 0;         //!< steps between two devices

  //! The work that a device has per microbatch: no interval is shorter.
  [[nodiscard]] constexpr int busy() const noexcept {
    return 2 * (forward + backward_input + backward_weight);
  }
  //! The least steps that a device holds the two activations of a microbatch, in sum. Meanwhile the
  //! microbatch crosses every link twice on its way forward, and twice on its way back.
  [[nodiscard]] constexpr int lives(int devices) const noexcept {
    return (2 * devices + 1) * (forward + backward_input) + 4 * (devices - 1) * latency +
           2 * backward_weight;
  }
};

//! A building block on a grid: the start of each pass of microbatch 0.
struct continuous_block {
  int devices = 0;           //!< P
  int interval = 0;          //!< grid steps from one microbatch to the next
  int peak = 0;              //!< most activations of one stage that a device holds
  std::vector<int> starts{}; //!< [P][leg::count] in grid steps; empty when none exists

  //! When a device starts a leg, in grid steps.
  [[nodiscard]] int start(int device, int at) const {
    return starts[static_cast<std::size_t>(device * leg::count + at)];
  }
};

//! The places of the passes of one device in the interval: starts after the start of
//! `forward_down`.
struct device_pattern {
  int start[leg::count];
  std::int64_t weight_wait; //!< from the backward passes to the ends of their weight gradients

  friend constexpr bool operator==(device_pattern const&, device_pattern const&) = default;
  friend constexpr auto operator<=>(device_pattern const&, device_pattern const&) = default;
};

//! The continuous block of least mean memory by dynamic programming over the devices.
class block_planner {
public:
  block_planner(int devices, grid_times const& times, int interval)
      : devices_(devices), times_(times), interval_(interval),
        up_forward_(wrap(-2 * (times.forward + times.latency))),
        down_backward_(wrap(times.backward_input - times.forward)),
        up_backward_(wrap(-times.forward - times.backward_input - 2 * times.latency)) {}

  [[nodiscard]] continuous_block plan() {
    find_patterns();
    continuous_block result{.devices = devices_, .interval = interval_};
    if (patterns_.empty())
      return result;
    std::size_t const count = patterns_.size();
    auto const rows = static_cast<std::size_t>(devices_);
    std::vector<std::uint32_t> from(rows * count);
    std::vector<std::int64_t> cost(count);
    for (std::size_t i = 0; i < count; ++i)
      cost[i] = loss_cost(patterns_[i]) + patterns_[i].weight_wait;
    for (int device = 1; device < devices_; ++device)
      cost = extend(device, cost, from.data() + static_cast<std::size_t>(device) * count);
    for (std::size_t i = 0; i < count; ++i)
      cost[i] += turn_cost(patterns_[i]);
    auto const best =
      static_cast<std::size_t>(std::min_element(cost.begin(), cost.end()) - cost.begin());
    std::vector<std::size_t> chosen(rows, best);
    for (std::size_t row = rows - 1; row > 0; --row)
      chosen[row - 1] = from[row * count + chosen[row]];
    lay_out(chosen, result);
    return result;
  }

private:
  //! The wait of each leg beyond pass and message, from one device to the next.
  using hop = std::array<int, 4>;

  [[nodiscard]] int wrap(int value) const noexcept {
    int const rest = value % interval_;
    return rest < 0 ? rest + interval_ : rest;
  }
  //! The smallest value from `least` on with this residue.
  [[nodiscard]] int at_least(int residue, int least) const noexcept {
    return least + wrap(residue - least);
  }

  //! All ways to lay the four passes out so that both weight gradients still fit; idle time beyond
  //! the work of the device lies in at most two places.
  void find_patterns() {
    int order[3] = {leg::forward_up, leg::backward_down, leg::backward_up};
    int const idle = interval_ - times_.busy();
    if (idle < 0)
      return;
    do {
      for (int first = 0; first < 4; ++first)
        for (int second = first; second < 4; ++second)
          for (int here = 0; here < 4; ++here)
            for (int there = here; there < 4; ++there)
              for (int part = there == here ? idle : 1; part <= (there == here ? idle : idle - 1);
                   ++part) {
                int gaps[4] = {0, 0, 0, 0};
                gaps[first] += times_.backward_weight;
                gaps[second] += times_.backward_weight;
                gaps[here] += part;
                gaps[there] += there == here ? 0 : idle - part;
                add_pattern(order, gaps);
              }
    } while (std::next_permutation(order, order + 3));
    std::sort(patterns_.begin(), patterns_.end());
    patterns_.erase(std::unique(patterns_.begin(), patterns_.end()), patterns_.end());
  }

  void add_pattern(int const* order, int const* gaps) {
    device_pattern one{};
    int now = times_.forward;
    int free[8];
    int room = 0;
    for (int i = 0; i < 4; ++i) {
      for (int k = 0; k < 2 && (k + 1) * times_.backward_weight <= gaps[i]; ++k)
        free[room++] = now + k * times_.backward_weight;
      now += gaps[i];
      if (i == 3)
        break;
      one.start[order[i]] = now;
      now += order[i] == leg::forward_up ? times_.forward : times_.backward_input;
    }
    one.weight_wait = std::numeric_limits<std::int64_t>::max();
    int const down = one.start[leg::backward_down];
    int const up = one.start[leg::backward_up];
    for (int i = 0; i < room; ++i)
      for (int k = 0; k < room; ++k) {
        if (i == k)
          continue;
        int const first = at_least(free[i] - down, times_.backward_input);
        int const second = at_least(free[k] - up, times_.backward_input);
        if (first + second + 2 * times_.backward_weight >= one.weight_wait)
          continue;
        one.weight_wait = first + second + 2 * times_.backward_weight;
        one.start[leg::weight_down] = first;
        one.start[leg::weight_up] = second;
      }
    if (room >= 2)
      patterns_.push_back(one);
  }

  //! The wait for the turn at the loss counts in both stages of every device.
  [[nodiscard]] std::int64_t loss_cost(device_pattern const& on) const {
    return std::int64_t{2} * devices_ *
           at_least(on.start[leg::backward_down] - on.start[leg::forward_up], times_.forward);
  }
  //! The turns on the last device count in the outer stage of every device.
  [[nodiscard]] std::int64_t turn_cost(device_pattern const& on) const {
    return std::int64_t{devices_} *
           (at_least(on.start[leg::forward_up], times_.forward) +
            at_least(on.start[leg::backward_up] - on.start[leg::backward_down],
                     times_.backward_input));
  }

  //! The waits between two devices that keep the fewest activations alive. Moving the lower device
  //! as a whole changes nothing until a wait wraps round, so two places suffice: at once, or so
  //! much later that `down_backward` is none. Later is better where `up_forward` gives that time:
  //! the wait of both falls by an interval, and counts on more stages than those of the others.
  [[nodiscard]] hop between(device_pattern const& above, device_pattern const& below) const {
    auto const residue = [interval = interval_](int value) { // from -interval to 2 interval - 1
      return value < 0 ? value + interval : value >= interval ? value - interval : value;
    };
    auto const wait = [&](int which, int links) {
      return residue(above.start[which] - below.start[which] + links);
    };
    int const up_forward = wait(leg::forward_up, up_forward_);
    int const up_backward = wait(leg::backward_up, up_backward_);
    int const later = wait(leg::backward_down, down_backward_);
    if (up_forward < later)
      return {0, up_forward, residue(-later), up_backward};
    return {later, up_forward - later, 0, residue(up_backward - later)};
  }
  //! The waits between device - 1 and device, weighed by the stages on which they keep activations
  //! alive.
  [[nodiscard]] std::int64_t cost_of(int device, hop const& waits) const {
    return std::int64_t{device} * (waits[leg::forward_down] + waits[leg::backward_up]) +
           (std::int64_t{2} * devices_ - device) *
             (waits[leg::forward_up] + waits[leg::backward_down]);
  }

  //! The least sum of `cost` and waits for each pattern of a device, and the pattern above that
  //! it is from.
  [[nodiscard]] std::vector<std::int64_t>
  extend(int device, std::vector<std::int64_t> const& cost, std::uint32_t* from) const {
    // The cheapest first: no wait costs less than nothing, so the rest is out once one costs more.
    std::vector<std::pair<std::int64_t, std::uint32_t>> cheap;
    for (std::int64_t const each : cost)
      cheap.emplace_back(each, static_cast<std::uint32_t>(cheap.size()));
    std::sort(cheap.begin(), cheap.end());
    std::vector<std::int64_t> next;
    for (std::size_t to = 0; to < cost.size(); ++to) {
      std::int64_t best = std::numeric_limits<std::int64_t>::max();
      for (auto const& [before, number] : cheap) {
        if (before >= best)
          break;
        std::int64_t const sum =
          before + cost_of(device, between(patterns_[number], patterns_[to]));
        if (sum >= best)
          continue;
        best = sum;
        from[to] = number;
      }
      next.push_back(best + patterns_[to].weight_wait);
    }
    return next;
  }

  //! Turns patterns and waits into starts.
  void lay_out(std::vector<std::size_t> const& chosen, continuous_block& result) const {
    int const last = devices_ - 1;
    std::vector<hop> hops;
    for (std::size_t i = 1; i < chosen.size(); ++i)
      hops.push_back(between(patterns_[chosen[i - 1]], patterns_[chosen[i]]));
    result.starts.assign(chosen.size() * leg::count, 0);
    auto const at = [&](int device, int which) -> int& {
      return result.starts[static_cast<std::size_t>(device * leg::count + which)];
    };
    // A leg begins one turn after the leg before it, on the same device, and follows the links.
    for (int which = leg::forward_down; which <= leg::backward_up; ++which) {
      bool const down = which % 2 == 0;
      if (which > 0) {
        int const* const start = patterns_[down ? chosen.front() : chosen.back()].start;
        int const least = which == leg::backward_up ? times_.backward_input : times_.forward;
        at(down ? 0 : last, which) =
          at(down ? 0 : last, which - 1) + at_least(start[which] - start[which - 1], least);
      }
      int const length = which < leg::backward_down ? times_.forward : times_.backward_input;
      for (int i = 0; i < last; ++i) {
        int const above = down ? i : last - 1 - i; // the upper device of the link
        at(down ? above + 1 : above, which) =
          at(down ? above : above + 1, which) + length + times_.latency +
          hops[static_cast<std::size_t>(above)][static_cast<std::size_t>(which)];
      }
    }
    for (int device = 0; device <= last; ++device) {
      device_pattern const& own = patterns_[chosen[static_cast<std::size_t>(device)]];
      for (int const which : {leg::weight_down, leg::weight_up})
        at(device, which) = at(device, which - 2) + own.start[which];
      result.peak = std::max(result.peak, held_by(result.starts.data() + device * leg::count));
    }
  }

  //! Activations that a device holds in the steady state, at the most.
  [[nodiscard]] int held_by(int const* slots) const {
    int most = 0;
    for (int const now : {slots[leg::forward_down], slots[leg::forward_up]}) {
      auto const begun = [&](int slot) { return floor_divide(now - slot, interval_); };
      int const freed = begun(slots[leg::weight_up] + times_.backward_weight) +
                        begun(slots[leg::weight_down] + times_.backward_weight);
      most =
        std::max(most, begun(slots[leg::forward_down]) + begun(slots[leg::forward_up]) - freed);
    }
    return most;
  }

  int devices_;
  grid_times times_;
  int interval_;
  // What waits have in common, whatever the patterns of the two devices.
  int up_forward_;
  int down_backward_;
  int up_backward_;
  std::vector<device_pattern> patterns_;
};

//! The building block of least mean memory for real times: a modulo schedule.
//!
//! Every device repeats its six passes each `interval` steps; the planner chooses, device by
//! device, their cyclic order and phases, and the waits on the four links between neighbours. A
//! wait keeps activations alive on all devices that it separates from the turn, so the sum of waits
//! with these weights is the memory, and dynamic programming over the devices finds its least
//! value among the patterns considered (idle time of a device in at most two places).
//!
//! @param times of passes and messages in grid steps, all devices alike.
//! @param interval grid steps per microbatch, at least `times.busy()`.
//! @return the block; without starts when the interval is too short.
//! @throws std::invalid_argument for fewer than one device, times below 1 or a negative latency.
//! @complexity O(P V^2) time for V patterns: about 60 at the shortest interval, about 60 more for
//! each idle step and place.
//! @source own derivation, see docs/explanation/v_shapes.md; the question is left open by Qi et
//! al., NeurIPS 2024 ("continuous offsets").
[[nodiscard]] inline continuous_block
plan_continuous_block(int devices, grid_times const& times, int interval) {
  if (devices < 1 || times.forward < 1 || times.backward_input < 1 || times.backward_weight < 1 ||
      times.latency < 0)
    throw std::invalid_argument(
      "plan_continuous_block: it needs at least one device, times of at least one grid step, and "
      "a latency that is not negative");
  return block_planner(devices, times, interval).plan();
}

} // namespace pipelining::inline v0_3::detail
