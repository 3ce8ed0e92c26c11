// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What a communication policy costs a plan. Header for pipelining::detail::bill.

#include <pipe/plan/connection_rounds.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/view/call_counts.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! The bill of a policy for one plan.
struct bill {
  char const* policy = "";          //!< its name
  int communicators = 0;            //!< of the whole pipeline
  int communicators_per_device = 0; //!< of the device with the most: its lanes
  int connect_rounds = 0;           //!< before the first step
  int messages = 0;                 //!< of one iteration; each is sent once and received once
  int groups = 0;                   //!< of several messages, each counted at both of its ends
  int group_messages = 0;           //!< messages in the largest group
  call_count calls;                 //!< of all devices
};

//! Makes the bill of a plan.
//! @complexity O(n log E) for n items and E pairs of devices.
[[nodiscard]] inline bill make_bill(plan_view work) {
  bill result;
  result.policy = work.policy;
  result.calls = count_calls(work);
  std::vector<device_pair> const pairs = connect_rounds(work);
  for (device_pair const& pair : pairs)
    result.connect_rounds = std::max(result.connect_rounds, pair.round + 1);
  std::vector<std::int64_t> keys;
  for (device_pair const& pair : pairs) {
    if (pair.up)
      keys.push_back(work.key(pair.one, pair.other));
    if (pair.down)
      keys.push_back(work.key(pair.other, pair.one));
  }
  std::sort(keys.begin(), keys.end());
  result.communicators = static_cast<int>(std::unique(keys.begin(), keys.end()) - keys.begin());
  for (int device = 0; device < work.over.extents.devices; ++device) {
    result.communicators_per_device = std::max(result.communicators_per_device, work.lanes[device]);
    auto const steps = work.program_of(device);
    int const count = static_cast<int>(steps.size());
    for (item const& step : steps)
      result.messages += step.what == operation::send ? 1 : 0;
    for (int first = 0; first < count;) {
      int const end = end_of_group(steps, first);
      if (steps[static_cast<std::size_t>(first)].what != operation::run) {
        result.groups += end - first > 1 ? 1 : 0;
        result.group_messages = std::max(result.group_messages, end - first);
      }
      first = end;
    }
  }
  return result;
}

} // namespace detail

//! @brief The bill in one line.
[[nodiscard]] inline std::string describe(detail::bill const& costs) {
  auto const count = [](int number, char const* thing) {
    return std::to_string(number) + " " + thing + (number == 1 ? "" : "s");
  };
  return std::string("policy ") + costs.policy + ": " + count(costs.communicators, "communicator") +
         ", at most " + std::to_string(costs.communicators_per_device) +
         " on a device, connected in " + count(costs.connect_rounds, "round") + "; " +
         count(costs.messages, "message") + ", " + count(costs.groups / 2, "mirrored group") +
         "; " + count(costs.calls.total(), "call") + " for " + std::to_string(costs.calls.passes) +
         " passes";
}

} // namespace pipelining::inline v0_3
