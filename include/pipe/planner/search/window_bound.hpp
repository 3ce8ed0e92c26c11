// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A bound on the makespan from windows of one device under a memory limit: in each, as many
//! activations as fit go out and come back. Header for pipelining::detail::least_in_windows.

#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/cost_table.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! The passes of one device with one stage, and the rest of the pipeline as waits between them.
//! Microbatches are alike, so that each kind of pass runs in their order.
struct window_device {
  double head = 0; //!< no forward pass starts before it
  double forward = 0;
  double input = 0;
  double weights = 0;
  double round_trip = 0; //!< from the start of a forward pass to that of its gradient of the input
  double elsewhere = 0;  //!< that so much longer for each microbatch in between
  double tail = 0;       //!< from the end of the last gradient of the input to the end of all
};

//! A way to run the first passes of each kind.
struct window_state {
  double now = 0;               //!< the end of the last pass
  double returns = 0;           //!< the last gradient of the input did not start before it
  double until = 0;             //!< all has not ended before it
  std::vector<double> starts{}; //!< of forward passes whose gradients are to come

  //! Whether every way to go on from the other is one from here, and ends no later.
  [[nodiscard]] bool beats(window_state const& other) const {
    return now <= other.now && returns <= other.returns && until <= other.until &&
           std::equal(starts.begin(), starts.end(), other.starts.begin(), std::less_equal<>());
  }
};

//! The least time in which one device can run all passes with so many activations at a time.
//!
//! Walks over all orders of its passes, as counts of forward passes, gradients of inputs and
//! gradients of weights; of ways to the same counts it keeps those that no other beats. Where they
//! are too many, some are replaced by one that beats them all, which keeps the bound a bound.
class device_windows {
public:
  device_windows(window_device const& of, int microbatches, int limit)
      : of_(of), count_(microbatches), limit_(limit), now_(cells()), before_(cells()) {}

  [[nodiscard]] double least() {
    for (int f = 0; f <= count_; ++f) {
      std::swap(now_, before_);
      for (int i = std::max(0, f - limit_); i <= f; ++i)
        for (int w = std::max(0, f - limit_); w <= i; ++w)
          fill(f, i, w);
    }
    double least = std::numeric_limits<double>::infinity();
    for (window_state const& each : cell(now_, count_, count_, count_))
      least = std::min(least, std::max(each.now, each.until));
    return least;
  }

private:
  using states = std::vector<window_state>;

  [[nodiscard]] std::size_t cells() const {
    return static_cast<std::size_t>(limit_ + 1) * static_cast<std::size_t>(limit_ + 1);
  }
  //! Of those with so many forward passes. @pre f - limit <= w <= i <= f
  [[nodiscard]] states& cell(std::vector<states>& all, int f, int i, int w) const {
    return all[static_cast<std::size_t>((f - i) * (limit_ + 1) + f - w)];
  }
  void fill(int f, int i, int w) {
    states made;
    if (f == 0)
      made.push_back({of_.head});
    if (f > i && f - w <= limit_) // the last one was a forward pass
      for (window_state const& each : cell(before_, f - 1, i, w)) {
        window_state& next = made.emplace_back(each);
        next.starts.push_back(each.now);
        next.now += of_.forward;
      }
    if (i > w && f - (i - 1) <= limit_) // or a gradient of an input
      for (window_state const& each : cell(now_, f, i - 1, w)) {
        window_state& next = made.emplace_back(each);
        next.returns = std::max(each.returns + of_.elsewhere, each.starts.front() + of_.round_trip);
        next.now = std::max(each.now, next.returns) + of_.input;
        next.until = i == count_ ? next.now + of_.tail : 0;
        next.starts.erase(next.starts.begin());
      }
    if (w > 0 && f - (w - 1) <= limit_) // or one of weights
      for (window_state const& each : cell(now_, f, i, w - 1)) {
        made.push_back(each);
        made.back().now += of_.weights;
      }
    cell(now_, f, i, w) = best_of(std::move(made));
  }
  [[nodiscard]] static states best_of(states made) {
    constexpr std::size_t most = 16;
    std::ranges::sort(made, {}, &window_state::now);
    states kept;
    for (window_state& each : made) {
      if (std::ranges::any_of(kept, [&](window_state const& one) { return one.beats(each); }))
        continue;
      if (kept.size() < most) {
        kept.push_back(std::move(each));
        continue;
      }
      window_state& all = kept.back(); // ends no later
      all.returns = std::min(all.returns, each.returns);
      all.until = std::min(all.until, each.until);
      for (std::size_t k = 0; k < all.starts.size(); ++k)
        all.starts[k] = std::min(all.starts[k], each.starts[k]);
    }
    return kept;
  }

  window_device of_;
  int count_;
  int limit_;
  std::vector<states> now_;    // by passes that wait for their gradients, of inputs and of weights
  std::vector<states> before_; // with a forward pass fewer
};

//! The times of a device with one stage in a chain of such devices.
//! @param time `time(role, stage)`. @param message `message(from, to)`, between stages
[[nodiscard]] window_device
window_of(int stage, int stages, auto const& time, auto const& message) {
  window_device of{.forward = time(role::forward, stage),
                   .input = time(role::input, stage),
                   .weights = time(role::weights, stage),
                   .round_trip = time(role::forward, stage),
                   .tail = time(role::weights, stage)};
  double back = 0; // from the end of a gradient here to the end of the same before
  for (int before = stage - 1; before >= 0; --before) {
    of.head += time(role::forward, before) + message(before, before + 1);
    back += message(before + 1, before) + time(role::input, before);
    of.tail = std::max(of.tail, back + time(role::weights, before));
  }
  for (int after = stage + 1; after < stages; ++after) {
    double const both = time(role::forward, after) + time(role::input, after);
    of.round_trip += message(after - 1, after) + both + message(after, after - 1);
    of.elsewhere = both; // of the last stage: there and back again takes all of the trip
  }
  return of;
}

//! Whether the bound knows such pipelines: a stage on each device, all microbatches alike.
[[nodiscard]] bool has_windows(pipeline_view const& over, cost_model auto const& cost) {
  shape const& extents = over.extents;
  if (!is_of_training(*over.declared) || over.edges != nullptr || over.first_units != nullptr ||
      extents.chunks != 1 || extents.stages() != extents.devices || extents.routes() != 1)
    return false;
  for (int stage = 0; stage < extents.stages(); ++stage)
    for (role const is : {role::forward, role::input, role::weights})
      for (int i = 1; i < extents.microbatches; ++i)
        if (pass what = row_writer::make(training.kind_with(is), stage, i);
            double{cost.duration(what)} !=
            double{cost.duration(row_writer::make(what.kind, stage, 0))})
          return false;
  return true;
}

//! The time that no order can beat in which no device holds more activations than `limit`; 0 where
//! the bound does not know such a pipeline, or is too much work.
//! @complexity O(P M limit^3)
//! @source own derivation
[[nodiscard]] double
least_in_windows(pipeline_view const& over, cost_model auto const& cost, int limit) {
  shape const& extents = over.extents;
  constexpr double most_work = 1e8;
  double const held = std::min(limit, extents.microbatches);
  if (!has_windows(over, cost) ||
      extents.devices * extents.microbatches * held * held * held > most_work)
    return 0;
  (void)checked_links(cost, extents.devices);
  auto const time = [&](role is, int stage) {
    return double{cost.duration(row_writer::make(training.kind_with(is), stage, 0))};
  };
  auto const message = [&](int from, int to) {
    return message_time(cost, extents.devices, device_of(over, from), device_of(over, to));
  };
  double least = 0;
  for (int stage = 0; stage < extents.stages(); ++stage)
    least = std::max(least,
                     device_windows(window_of(stage, extents.stages(), time, message),
                                    extents.microbatches,
                                    static_cast<int>(held))
                       .least());
  return least;
}

} // namespace pipelining::inline v0_3::detail
