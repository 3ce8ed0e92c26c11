// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Times of steps, as the benchmarks of runners print them.

#include <pipe/plan/plan.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <vector>

namespace benchmark {

//! Prints the least and the median time of a step, over the passes of a device, in microseconds.
//! @param step does one step @param prints false: only does the steps
template <class Step>
void print_steps(char const* name, pipelining::plan const& work, bool prints, Step step) {
  constexpr int repeats = 2001;
  int const passes = 2 * work.over.extents.microbatches;
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    auto const start = std::chrono::steady_clock::now();
    step();
    std::chrono::duration<double, std::micro> const taken =
      std::chrono::steady_clock::now() - start;
    times.push_back(taken.count() / passes);
  }
  std::sort(times.begin(), times.end());
  if (prints)
    std::printf("{\"runner\": \"%s\", \"devices\": %d, \"microbatches\": %d, \"least\": %.4f, "
                "\"median\": %.4f}\n",
                name,
                work.over.extents.devices,
                work.over.extents.microbatches,
                times.front(),
                times[times.size() / 2]);
}

//! The word of a command line at a place, as a number from 1 on.
//! @throws std::invalid_argument with the usage
inline int number_at(int count, char** words, int index, int otherwise, char const* usage) {
  int const given = index < count ? std::atoi(words[index]) : otherwise;
  if (given < 1)
    throw std::invalid_argument(usage);
  return given;
}

} // namespace benchmark
