// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief How long messages took, from device to device. Header for pipelining::message_sample,
//! message_samples, message_seconds, pipelining::detail::measured_link and fit_links.

#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
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

//! What messages from one device to another take: a latency, and a time per byte.
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
template <class BytesOf>
[[nodiscard]] std::vector<message_sample> message_samples(std::span<timetable_view const> measured,
                                                          BytesOf const& bytes_of) {
  std::vector<message_sample> samples;
  for (timetable_view const& table : measured) {
    std::vector<int> entries(static_cast<std::size_t>(pass_indices(table.over)), -1);
    for (int i = 0; i < table.size(); ++i)
      entries[static_cast<std::size_t>(detail::pass_index(table.over, table.passes[i]))] = i;
    for (int device = 0; device < table.over.extents.devices; ++device)
      for (int i = table.offsets[device]; i < table.offsets[device + 1]; ++i) {
        double made = i == table.offsets[device] ? 0 : table.ends[i - 1]; // the device is free
        int latest = -1;
        detail::dependency_list const needed = dependencies(table.over, table.passes[i]);
        for (int k = 0; k < needed.count; ++k) {
          int const entry = entries[static_cast<std::size_t>(needed.index(k))];
          if (entry >= 0 && table.ends[entry] >= made) {
            latest = entry;
            made = table.ends[entry];
          }
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

//! @brief How long messages took in steps that ran: the median over those that their reader waited
//! for, whatever their edge and size.
//! @param measured as for `message_samples`. @return 0 where nobody waited for a message
//! @complexity O(n) for n passes
[[nodiscard]] inline double message_seconds(std::span<timetable_view const> measured) {
  std::vector<double> waits;
  for (message_sample const& each : message_samples(measured, [](pass const&) { return 0; }))
    waits.push_back(each.seconds);
  return detail::median(std::move(waits));
}

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

} // namespace pipelining::inline v0_3
