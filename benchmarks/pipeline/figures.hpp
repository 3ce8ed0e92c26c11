// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief From times of passes to the figures that the benchmark of the stream runner prints.

#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "spin.hpp"

namespace figures {

namespace pp = pipelining;

inline double median(std::vector<double> numbers) {
  if (numbers.empty())
    return 0;
  auto const middle = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
  std::nth_element(numbers.begin(), middle, numbers.end());
  return *middle;
}

//! @brief The planned timetable with the times at which its passes ran, in microseconds from the
//! first start on.
inline pp::dynamic_timetable measured(pp::dynamic_timetable plan, std::vector<stamp> const& ran) {
  std::uint64_t first = ~std::uint64_t{0};
  for (pp::pass const& what : plan.passes)
    first =
      std::min(first, ran[static_cast<std::size_t>(pp::detail::pass_index(plan.over, what))].start);
  for (std::size_t i = 0; i < plan.passes.size(); ++i) {
    stamp const& at =
      ran[static_cast<std::size_t>(pp::detail::pass_index(plan.over, plan.passes[i]))];
    plan.starts[i] = static_cast<double>(at.start - first) / 1000;
    plan.ends[i] = static_cast<double>(at.end - first) / 1000;
  }
  return plan;
}

//! @brief How long passes start after the last thing that they wait for, medians in microseconds.
struct delays {
  double own = 0;     //!< after the pass before it on its device
  double message = 0; //!< after a pass of another device
};

inline delays delays_of(pp::timetable_view ran) {
  std::vector<int> entries(static_cast<std::size_t>(ran.over.pass_indices()), -1);
  for (int i = 0; i < ran.size(); ++i)
    entries[static_cast<std::size_t>(pp::detail::pass_index(ran.over, ran.passes[i]))] = i;
  std::vector<double> own;
  std::vector<double> message;
  for (int device = 0; device < ran.over.extents.devices; ++device)
    for (int i = ran.offsets[device]; i < ran.offsets[device + 1]; ++i) {
      double before = i > ran.offsets[device] ? ran.ends[i - 1] : -1;
      bool crossed = false;
      pp::detail::dependency_list const needed(ran.over, ran.passes[i]);
      for (int k = 0; k < needed.count; ++k) {
        int const entry = entries[static_cast<std::size_t>(needed.index(k))];
        if (entry < 0 || ran.ends[entry] <= before)
          continue;
        before = ran.ends[entry];
        crossed = pp::device_of(ran, needed[k].stage, ran.passes[i].microbatch) != device;
      }
      if (before >= 0)
        (crossed ? message : own).push_back(ran.starts[i] - before);
    }
  return {median(own), median(message)};
}

//! @brief The repeat whose span is the median.
inline pp::dynamic_timetable typical(pp::dynamic_timetable const& plan, spin_times const& times) {
  std::vector<pp::dynamic_timetable> all;
  std::vector<double> spans;
  for (std::vector<stamp> const& each : times.passes) {
    all.push_back(measured(plan, each));
    spans.push_back(pp::span_of(all.back()));
  }
  double const middle = median(spans);
  for (std::size_t i = 0; i < all.size(); ++i)
    if (spans[i] == middle)
      return all[i];
  return plan;
}

} // namespace figures
