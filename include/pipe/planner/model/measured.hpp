// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Costs of measured steps: of passes and of messages, on one clock. Header for
//! pipelining::costs_of, message_samples, fit_links and on_one_clock.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/timetable/cost_table.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <span>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! The middle of some numbers, which one late pass does not move; 0 of none.
[[nodiscard]] inline double median(std::vector<double> values) {
  if (values.empty())
    return 0;
  auto const middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

//! The time of messages from one device to another: a latency, and a time per byte.
struct measured_link {
  int from = 0;                //!< the device that sends
  int to = 0;                  //!< the device that receives
  double latency = 0;          //!< seconds
  double seconds_per_byte = 0; //!< one over the bandwidth; 0: as long, whatever the size

  //! The time of a message.
  [[nodiscard]] constexpr double seconds(double bytes) const noexcept {
    return latency + bytes * seconds_per_byte;
  }

  friend constexpr bool operator==(measured_link const&, measured_link const&) = default;
};

} // namespace detail

//! @brief A message that its reader waited for.
struct message_sample {
  int from = 0;       //!< device of the pass that made it
  int to = 0;         //!< device of the pass that read it
  double bytes = 0;   //!< what `bytes_of` says
  double seconds = 0; //!< from the end of the one to the start of the other
};

//! @brief The messages of steps that ran whose time their readers show.
//!
//! A reader has waited for a message where its device had ended everything before the message was
//! made. Of several messages to one pass the last that was made counts.
//! @param measured as `trace` of a runner gives them; of any extents, also different ones.
//! @param bytes_of `bytes_of(pass)`: the bytes of the message that a pass makes.
//! @complexity O(n) for n passes
[[nodiscard]] std::vector<message_sample> message_samples(std::span<timetable_view const> measured,
                                                          auto const& bytes_of) {
  std::vector<message_sample> samples;
  for (timetable_view const& table : measured) {
    std::vector<std::vector<int>> const makers = detail::makers_of(table);
    for (int device = 0; device < table.over.extents.devices; ++device)
      for (int i = table.offsets[device]; i < table.offsets[device + 1]; ++i) {
        double made = i == table.offsets[device] ? 0 : table.ends[i - 1]; // the device is free
        int latest = -1;
        for (int const maker : makers[static_cast<std::size_t>(i)])
          if (table.ends[maker] >= made) {
            latest = maker;
            made = table.ends[maker];
          }
        if (latest < 0 || table.starts[i] < made)
          continue;
        int const from = device_of(table, table.passes[latest]);
        if (from != device)
          samples.push_back({from,
                             device,
                             static_cast<double>(bytes_of(table.passes[latest])),
                             table.starts[i] - made});
      }
  }
  return samples;
}

namespace detail {

//! How long messages took in steps that ran: the median over those that their reader waited
//! for, whatever their edge and size.
//! @param measured as for `message_samples`. @return 0 where nobody waited for a message
//! @complexity O(n) for n passes
[[nodiscard]] inline double message_seconds(std::span<timetable_view const> measured) {
  std::vector<double> waits;
  for (message_sample const& each : message_samples(measured, [](pass const&) { return 0; }))
    waits.push_back(each.seconds);
  return median(std::move(waits));
}

} // namespace detail

//! @brief Latency and time per byte of every edge that somebody waited at.
//!
//! Of messages of one size nobody can tell the two apart: all of their time is latency then. Run
//! with two numbers of chunks, or two sizes of microbatches, and give the samples of both.
//! @return by sender, then by receiver; neither number is negative
//! @complexity O(n log n + E B^2) for n samples, E edges and B different sizes
//! @source the median of the slopes between sizes (Theil 1950, Sen 1968), of the median time of
//! each size: late messages do not move it.
[[nodiscard]] inline std::vector<detail::measured_link>
fit_links(std::span<message_sample const> samples) {
  struct size {
    double bytes;
    double seconds;
  };
  std::map<std::tuple<int, int, double>, std::vector<double>> times;
  for (message_sample const& each : samples)
    times[{each.from, each.to, each.bytes}].push_back(each.seconds);
  std::map<std::pair<int, int>, std::vector<size>> edges;
  for (auto const& [key, waits] : times)
    edges[{std::get<0>(key), std::get<1>(key)}].push_back(
      {std::get<2>(key), detail::median(waits)});
  std::vector<detail::measured_link> result;
  for (auto const& [edge, sizes] : edges) {
    detail::measured_link fitted{edge.first, edge.second, 0, 0};
    std::vector<double> slopes;
    for (std::size_t i = 0; i < sizes.size(); ++i)
      for (std::size_t j = i + 1; j < sizes.size(); ++j)
        slopes.push_back((sizes[j].seconds - sizes[i].seconds) / (sizes[j].bytes - sizes[i].bytes));
    fitted.seconds_per_byte = std::max(0.0, detail::median(slopes));
    std::vector<double> rests;
    for (size const& each : sizes)
      rests.push_back(each.seconds - each.bytes * fitted.seconds_per_byte);
    fitted.latency = std::max(0.0, detail::median(rests));
    result.push_back(fitted);
  }
  return result;
}

namespace detail {

//! The least times from the end of a pass to the start of one that reads it, by the devices of
//! both, [P x P]; infinite where no message goes.
[[nodiscard]] inline std::vector<double> least_gaps(timetable_view step) {
  auto const devices = static_cast<std::size_t>(step.over.extents.devices);
  std::vector<double> gaps(devices * devices, HUGE_VAL);
  for (int i = 0; std::vector<int> const& makers : makers_of(step)) {
    auto const to = static_cast<std::size_t>(device_of(step, step.passes[i]));
    for (int const maker : makers) {
      auto const from = static_cast<std::size_t>(device_of(step, step.passes[maker]));
      double& gap = gaps[from * devices + to];
      gap = std::min(gap, step.starts[i] - step.ends[maker]);
    }
    ++i;
  }
  return gaps;
}

} // namespace detail

//! @brief A step on the clock of device 0, where every device had a clock of its own, such as over
//! MPI and NCCL, where the clocks of all ranks begin with their steps.
//!
//! The fastest messages there and back between two devices are taken for equally long. A device
//! that sends nothing there or nothing back keeps its clock. Then all times are moved so that
//! nothing starts before 0.
//! @param step with measured times
//! @complexity O(n + P^2) for n passes
//! @source Mills, "Internet time synchronization", IEEE Transactions on Communications 1991: the
//! offset of two clocks from the least delays both ways.
[[nodiscard]] inline dynamic_timetable on_one_clock(dynamic_timetable step) {
  auto const devices = static_cast<std::size_t>(step.over.extents.devices);
  std::vector<double> const gaps = detail::least_gaps(step);
  std::vector<double> ahead(devices); // of the clock of device 0
  std::vector<bool> known(devices);
  for (std::size_t first = 0; first < devices; ++first) {
    if (known[first])
      continue;
    std::vector<std::size_t> reached{first};
    known[first] = true;
    for (std::size_t next = 0; next < reached.size(); ++next)
      for (std::size_t other = 0; other < devices; ++other) {
        double const there = gaps[reached[next] * devices + other];
        double const back = gaps[other * devices + reached[next]];
        if (known[other] || !(there < HUGE_VAL && back < HUGE_VAL))
          continue;
        ahead[other] = ahead[reached[next]] + (there - back) / 2;
        known[other] = true;
        reached.push_back(other);
      }
  }
  double least = HUGE_VAL;
  for (std::size_t i = 0; i < step.passes.size(); ++i) {
    double const early = ahead[static_cast<std::size_t>(device_of(step, step.passes[i]))];
    step.starts[i] -= early;
    step.ends[i] -= early;
    least = std::min(least, step.starts[i]);
  }
  for (std::size_t i = 0; i < step.passes.size(); ++i) {
    step.starts[i] -= least;
    step.ends[i] -= least;
  }
  return step;
}

//! @brief The times of steps that ran as a cost model: of every kind, stage and chunk the median
//! over microbatches and steps, of messages the median of those that somebody waited for.
//!
//! Kinds are the kinds of the flow. Half of a fused backward pass counts as a pass for the input,
//! half as a pass for the weights.
//! @param measured tables of the same extents with measured times, as `trace` of a runner gives
//! them. @return what no step has, is 0
//! @throws std::invalid_argument without steps, for steps of different extents and for passes that
//! did not run
//! @complexity O(n) for n passes
[[nodiscard]] inline cost_table costs_of(std::span<timetable_view const> measured) {
  if (measured.empty())
    throw std::invalid_argument("costs_of: give at least one measured step");
  shape const& extents = measured.front().over.extents;
  cost_table result(
    *measured.front().over.declared, extents, {0, 0, 0, detail::message_seconds(measured)});
  std::map<std::tuple<pass_kind, int, int>, std::vector<double>> samples;
  for (timetable_view const& table : measured) {
    if (!(table.over.extents == extents))
      throw std::invalid_argument("costs_of: the steps are of pipelines of different extents");
    for (int i = 0; i < table.size(); ++i) {
      pass const& what = table.passes[i];
      double const time = table.ends[i] - table.starts[i];
      if (!(table.starts[i] >= 0 && time >= 0))
        throw std::invalid_argument("costs_of: a pass has no measured time; give whole steps");
      if (!result.takes_halves(what.kind)) {
        samples[{what.kind, what.stage, what.chunk}].push_back(time);
        continue;
      }
      for (cost_table::timed_kind const& half : result.kinds())
        if (!half.in_groups && (half.is == role::input || half.is == role::weights))
          samples[{half.kind, what.stage, what.chunk}].push_back(time / 2);
    }
  }
  for (cost_table::timed_kind const& each : result.kinds())
    for (int stage = 0; stage < extents.stages(); ++stage)
      for (int chunk = 0; chunk < extents.chunks; ++chunk)
        result.set(each.kind, stage, chunk, detail::median(samples[{each.kind, stage, chunk}]));
  return result;
}

} // namespace pipelining::inline v0_3
