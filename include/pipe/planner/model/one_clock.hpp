// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Measured steps whose devices had clocks of their own. Header for
//! pipelining::on_one_clock.

#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! The least times from the end of a pass to the start of one that reads it, by the devices of
//! both, [P x P]; infinite where no message goes.
[[nodiscard]] inline std::vector<double> least_gaps(timetable_view step) {
  auto const devices = static_cast<std::size_t>(step.over.extents.devices);
  std::vector<double> gaps(devices * devices, HUGE_VAL);
  std::vector<int> entries(static_cast<std::size_t>(pass_indices(step.over)), -1);
  for (int i = 0; i < step.size(); ++i)
    entries[static_cast<std::size_t>(pass_index(step.over, step.passes[i]))] = i;
  for (int i = 0; i < step.size(); ++i) {
    auto const to = static_cast<std::size_t>(device_of(step, step.passes[i]));
    dependency_list const needed = dependencies(step.over, step.passes[i]);
    for (int k = 0; k < needed.count; ++k) {
      int const maker = entries[static_cast<std::size_t>(needed.index(k))];
      if (maker < 0)
        continue;
      auto const from = static_cast<std::size_t>(device_of(step, step.passes[maker]));
      double& gap = gaps[from * devices + to];
      gap = std::min(gap, step.starts[i] - step.ends[maker]);
    }
  }
  return gaps;
}

} // namespace detail

//! @brief A step on the clock of device 0, where every device had a clock of its own, such as over
//! MPI and NCCL, where those of all ranks begin with their steps.
//!
//! The fastest messages there and back between two devices are taken for equally long. What sends
//! nothing there or nothing back keeps its clock. Then all is moved so that nothing starts before
//! 0.
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

} // namespace pipelining::inline v0_3
