// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Where the passes of vocabulary shards stand among those of a schedule.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/sort_stably.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! A cost model for the stages inside the shards, in which every pass takes some time, so that what
//! waits for another starts later.
template <cost_model Cost>
struct cost_inside {
  Cost const& of;
  int shards;
  double least = 0; //!< that a pass takes

  [[nodiscard]] double duration(pass what) const {
    what.stage = static_cast<std::uint16_t>(what.stage + shards);
    return std::max(of.duration(what), least);
  }
  [[nodiscard]] double latency() const { return of.latency(); }
  [[nodiscard]] std::span<double const> links() const { return links_of(of); }
};

//! A schedule alone, both halves of its composite passes apart.
template <class Schedule, cost_model Cost>
[[nodiscard]] dynamic_timetable
timed_alone(Schedule const& inner, shape const& extents, cost_inside<Cost> cost) {
  device_orders orders = make_orders(inner, {extents.devices, extents.microbatches}, cost);
  double longest = 0;
  for (pass& what : orders.passes) {
    what.overlapped = false;
    longest = std::max(longest, cost.duration(what));
  }
  cost.least = longest > 0 ? longest / 1024 : 1;
  return simulate(std::move(orders), cost);
}

//! The work of a unit on the device that has most.
[[nodiscard]] inline double interval_of(timetable_view const& table) {
  double most = 0;
  for (int device = 0; device < table.over.extents.devices; ++device) {
    double work = 0;
    for (int i = table.offsets[device]; i < table.offsets[device + 1]; ++i)
      work += table.ends[i] - table.starts[i];
    most = std::max(most, work / units(table.over));
  }
  return most;
}

//! The starts or the ends of a timetable, by the number of the pass.
[[nodiscard]] inline std::vector<double> by_pass(timetable_view const& table, double const* times) {
  std::vector<double> result(static_cast<std::size_t>(pass_indices(table.over)));
  for (int i = 0; i < table.size(); ++i)
    result[static_cast<std::size_t>(pass_index(table.over, table.passes[i]))] = times[i];
  return result;
}

//! A pass and when its turn is.
struct timed_pass {
  double time;
  int rank; // among equal times
  pass what;
};

//! When the shards of the output layer have their turns: for every unit `logits`, when the last
//! forward pass of the schedule has ended, and their gradients, an interval later or before the
//! next logits, so that a shard holds one set of logits; or at once, where no barrier is between.
class logits_turns {
public:
  //! @param made the ends of the last forward passes, by unit
  //! @param interval 0: at once
  logits_turns(std::vector<double> made, double interval)
      : interval_(interval), made_(std::move(made)), sorted_(made_) {
    std::sort(sorted_.begin(), sorted_.end());
  }
  [[nodiscard]] double logits(std::size_t unit) const { return made_[unit]; }
  [[nodiscard]] double gradient(std::size_t unit) const {
    double const latest = made_[unit] + interval_;
    auto const next = std::upper_bound(sorted_.begin(), sorted_.end(), made_[unit]);
    return next == sorted_.end() ? latest : std::min(*next, latest);
  }

private:
  double interval_;
  std::vector<double> made_;
  std::vector<double> sorted_;
};

//! The order around any other schedule. Every pass gets a turn: those of the schedule when they
//! would run alone, but those that are not forward `barriers` intervals later, which is behind the
//! gradients of the logits that they wait for; `embed` an interval before the first forward pass
//! reads it, `embed_gradient` an interval after the last backward pass. What waits for another has
//! a later turn, so rows in the order of turns never wait in a circle.
//! @source own derivation
template <class Schedule, cost_model Cost>
void write_vocabulary_rows(
  Schedule const& inner, shape const& within, Cost const& cost, int barriers, row_writer* rows) {
  int const shards = within.devices;
  dynamic_timetable const alone = timed_alone(inner, within, cost_inside<Cost>{cost, shards});
  timetable_view const table = alone;
  double const interval = interval_of(table);
  std::vector<double> const starts = by_pass(table, table.starts);
  std::vector<double> const ends = by_pass(table, table.ends);
  // The passes of a stage stand one unit behind the other.
  auto const of_stage = [&](std::vector<double> const& times, pass_kind kind, int stage) {
    auto const first = times.begin() + pass_index(table.over, row_writer::make(kind, stage, 0));
    return std::vector<double>(first, first + units(within));
  };
  std::vector<double> const read = of_stage(starts, pass_kind::forward, 0);
  std::vector<double> const returned = of_stage(ends, pass_kind::backward, 0);
  logits_turns const turns(of_stage(ends, pass_kind::forward, stages(within) - 1),
                           barriers == 0 ? 0 : interval);
  for (int device = 0; device < shards; ++device) {
    std::vector<timed_pass> row;
    for (int i = table.offsets[device]; i < table.offsets[device + 1]; ++i) {
      pass what = table.passes[i];
      bool const forward = what.kind == pass_kind::forward;
      double const time = table.starts[i] + (forward ? 0 : barriers * interval);
      what.stage = static_cast<std::uint16_t>(what.stage + shards);
      row.push_back({time, 3, what});
    }
    int const output = shards + stages(within) + device;
    for (std::size_t unit = 0; unit < read.size(); ++unit) {
      auto const push = [&](double time, int rank, pass_kind kind, int stage) {
        auto const number = static_cast<int>(unit);
        row.push_back(
          {time,
           rank,
           row_writer::make(kind, stage, number / within.chunks, number % within.chunks)});
      };
      push(read[unit] - interval, 0, pass_kind::embed, device);
      push(turns.logits(unit), 2, pass_kind::logits, output);
      push(turns.gradient(unit), barriers == 0 ? 2 : 1, pass_kind::logits_gradient, output);
      push(returned[unit] + (barriers + 1) * interval, 0, pass_kind::embed_gradient, device);
    }
    detail::sort_stably(row, [](timed_pass const& one, timed_pass const& other) {
      return one.time != other.time ? one.time < other.time : one.rank < other.rank;
    });
    for (timed_pass const& one : row)
      rows[device].push(one.what);
  }
}

} // namespace pipelining::inline v0_3::detail
