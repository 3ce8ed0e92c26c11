// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Where the passes of vocabulary shards stand among those of a schedule.

#include <pipe/core/pass.hpp>
#include <pipe/core/pipeline.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/schedule/schedule.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pipelining::inline v0_2 {
namespace detail {

//! A cost model for the stages inside the shards.
template <cost_model Cost>
struct cost_inside {
  Cost const& of;
  int shards;

  [[nodiscard]] double duration(pass what) const {
    what.stage = static_cast<std::uint16_t>(what.stage + shards);
    return of.duration(what);
  }
  [[nodiscard]] double latency() const { return of.latency(); }
};

//! The times of the passes of a schedule in which every pass takes some time, so that what waits
//! for another starts later.
template <cost_model Cost>
class virtual_times {
public:
  virtual_times(shape const& extents, Cost const& cost, std::vector<std::vector<pass>> const& rows)
      : over_{extents}, starts_(static_cast<std::size_t>(pass_indices(over_)), -1), ends_(starts_) {
    double longest = 0;
    for (auto const& row : rows)
      for (pass const& what : row)
        longest = std::max(longest, cost.duration(what));
    shortest_ = longest > 0 ? longest / 1024 : 1;
    std::vector<std::size_t> next(rows.size());
    std::vector<double> free_from(rows.size());
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t device = 0; device < rows.size(); ++device)
        for (; next[device] < rows[device].size(); ++next[device], moved = true) {
          pass const& what = rows[device][next[device]];
          double const start = ready(what, static_cast<int>(device), cost.latency());
          if (start < 0)
            break;
          auto const at = static_cast<std::size_t>(pass_index(over_, what));
          starts_[at] = std::max(start, free_from[device]);
          ends_[at] = free_from[device] = starts_[at] + duration(cost, what);
        }
    }
    for (auto const& row : rows) {
      double work = 0;
      for (pass const& what : row)
        work += duration(cost, what);
      interval_ = std::max(interval_, work / units(over_));
    }
  }
  [[nodiscard]] double start(pass const& what) const { return at(starts_, what); }
  [[nodiscard]] double end(pass const& what) const { return at(ends_, what); }
  //! The work of a unit on the device that has most.
  [[nodiscard]] double interval() const { return interval_; }

private:
  [[nodiscard]] double duration(Cost const& cost, pass const& what) const {
    return std::max(cost.duration(what), shortest_);
  }
  [[nodiscard]] double at(std::vector<double> const& times, pass const& what) const {
    return times[static_cast<std::size_t>(pass_index(over_, what))];
  }
  //! When all that a pass waits for is there, or -1.
  [[nodiscard]] double ready(pass const& what, int device, double latency) const {
    dependency_list const needed = dependencies(over_, what);
    double latest = 0;
    for (int k = 0; k < needed.count; ++k) {
      double const ended = ends_[static_cast<std::size_t>(needed.index(k))];
      if (ended < 0)
        return -1;
      bool const here = device_of(over_.extents, needed.stage(k), what.microbatch) == device;
      latest = std::max(latest, here ? ended : ended + latency);
    }
    return latest;
  }

  pipeline over_;
  std::vector<double> starts_;
  std::vector<double> ends_;
  double shortest_ = 0;
  double interval_ = 0;
};

//! The rows of a schedule.
template <class Schedule, cost_model Cost>
[[nodiscard]] std::vector<std::vector<pass>>
rows_of(Schedule const& inner, shape const& extents, Cost const& cost) {
  int const capacity = row_capacity(extents);
  auto const devices = static_cast<std::size_t>(extents.devices);
  std::vector<std::vector<pass>> rows(devices,
                                      std::vector<pass>(static_cast<std::size_t>(capacity)));
  std::vector<row_writer> writers;
  for (auto& row : rows)
    writers.push_back({row.data(), capacity});
  if constexpr (closed_form_schedule<Schedule>)
    for (std::size_t device = 0; device < devices; ++device)
      inner.order(extents, static_cast<int>(device), writers[device]);
  else
    inner.generate(extents, cost, writers.data());
  for (std::size_t device = 0; device < devices; ++device)
    rows[device].resize(static_cast<std::size_t>(writers[device].count));
  return rows;
}

//! A pass and when its turn is.
struct timed_pass {
  double time;
  int rank; // among equal times
  pass what;
};

//! When the shards of the output layer have their turns: for every unit `logits`, when the last
//! forward pass of the schedule has ended, and their gradients, an interval later or before the
//! next logits, so that a shard holds one set of logits.
class logits_turns {
public:
  template <class Times>
  logits_turns(shape const& within, Times const& times) : interval_(times.interval()) {
    for (int microbatch = 0; microbatch < within.microbatches; ++microbatch)
      for (int chunk = 0; chunk < within.chunks; ++chunk)
        made_.push_back(
          times.end(row_writer::make(pass_kind::forward, stages(within) - 1, microbatch, chunk)));
    sorted_ = made_;
    std::sort(sorted_.begin(), sorted_.end());
  }
  [[nodiscard]] double logits(int unit) const { return made_[static_cast<std::size_t>(unit)]; }
  [[nodiscard]] double gradient(int unit) const {
    double const latest = logits(unit) + interval_;
    auto const next = std::upper_bound(sorted_.begin(), sorted_.end(), logits(unit));
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
  cost_inside<Cost> const inside{cost, shards};
  auto const inner_rows = rows_of(inner, within, inside);
  virtual_times<cost_inside<Cost>> const times(within, inside, inner_rows);
  double const interval = times.interval();
  logits_turns const turns(within, times);
  for (int device = 0; device < shards; ++device) {
    std::vector<timed_pass> row;
    for (pass what : inner_rows[static_cast<std::size_t>(device)]) {
      bool const forward = what.kind == pass_kind::forward;
      double const time = times.start(what) + (forward ? 0 : barriers * interval);
      what.stage = static_cast<std::uint16_t>(what.stage + shards);
      what.overlapped = false;
      row.push_back({time, 3, what});
    }
    for (int unit = 0; unit < units(within); ++unit) {
      auto const shard = [&](pass_kind kind, int stage) {
        return row_writer::make(kind, stage, unit / within.chunks, unit % within.chunks);
      };
      double const read = times.start(shard(pass_kind::forward, 0));
      double const returned = times.end(shard(pass_kind::backward, 0)) + barriers * interval;
      int const output = shards + stages(within) + device;
      row.push_back({read - interval, 0, shard(pass_kind::embed, device)});
      row.push_back({turns.logits(unit), 2, shard(pass_kind::logits, output)});
      row.push_back({turns.gradient(unit), 1, shard(pass_kind::logits_gradient, output)});
      row.push_back({returned + interval, 0, shard(pass_kind::embed_gradient, device)});
    }
    std::stable_sort(row.begin(), row.end(), [](timed_pass const& one, timed_pass const& other) {
      return one.time != other.time ? one.time < other.time : one.rank < other.rank;
    });
    for (timed_pass const& one : row)
      rows[device].push(one.what);
  }
}

} // namespace detail
} // namespace pipelining::inline v0_2
