// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The trace of a run whose ranks have each their own times. Header for
//! pipelining::detail::gather_trace.

#include <pipe/cluster/failure_origin.hpp>
#include <pipe/cluster/store.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/between_steps.hpp>
#include <pipe/timetable/timetable.hpp>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! The passes of all ranks with the times at which they ran, each in seconds of its own rank.
//! Collective: every rank leaves its times in the store.
//! @param key tells the traces of one store apart. @param now becomes the rank that is waited for.
//! @param time `time(item, end)` is when the item of that number of this rank began, or ended where
//! `end` is true.
//! @throws run_stop where a rank has sent other times; what the store's get does.
//! @complexity O(P) values from the store, of two numbers for each pass.
template <run_store Store, class Time>
[[nodiscard]] dynamic_timetable gather_trace(Store& line,
                                             std::string const& key,
                                             int rank,
                                             plan const& ran,
                                             std::chrono::nanoseconds deadline,
                                             rank_standing& now,
                                             Time time) {
  std::string own;
  (void)trace_of(ran, [&](int device, std::size_t item, bool end) {
    if (device == rank) {
      double const seconds = time(item, end);
      own.append(reinterpret_cast<char const*>(&seconds), sizeof seconds);
    }
    return 0.0;
  });
  line.set(key + std::to_string(rank), own);
  std::vector<std::string> times;
  for (int other = 0; other < ran.over.extents.devices; ++other) {
    now = {"waits for the times of rank " + std::to_string(other), {other}};
    times.push_back(line.get(key + std::to_string(other), deadline));
  }
  std::vector<std::size_t> read(times.size());
  return trace_of(ran, [&](int device, std::size_t, bool) {
    std::string const& all = times[static_cast<std::size_t>(device)];
    std::size_t& at = read[static_cast<std::size_t>(device)];
    double seconds = 0;
    if (all.size() < at + sizeof seconds)
      throw run_stop{"a rank has sent times of other passes than those of the plan"};
    std::memcpy(&seconds, all.data() + at, sizeof seconds);
    at += sizeof seconds;
    return seconds;
  });
}

} // namespace pipelining::inline v0_3::detail
