// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Tables of a plan: the calls of CUDA and NCCL that it makes, what its policy costs, and
//! its memory. Header for pipelining::describe_calls and describe_memory.

#include <pipe/flow/array_of.hpp>
#include <pipe/plan/connection_rounds.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

namespace pipelining::inline v0_3 {

namespace detail {

//! The calls of CUDA and NCCL that the host makes in one iteration, without the launches of stages.
//! There is one stream for passes, one for every lane and one for every engine that copies. Each
//! device has one thread.
struct call_count {
  int passes = 0;      //!< passes that stages launch for
  int waits = 0;       //!< cudaStreamWaitEvent before a pass or a group
  int records = 0;     //!< cudaEventRecord after a step that others wait for
  int messages = 0;    //!< ncclSend, ncclRecv, and ncclBroadcast for those of one exchange
  int group_marks = 0; //!< ncclGroupStart and ncclGroupEnd, where a group has several messages
  int joins = 0;       //!< records and waits at the start and the end of the iteration
  int copies = 0;      //!< cudaMemcpyAsync to the host and back
  int groups = 0;      //!< no calls: groups of several messages, each counted at both of its ends

  //! All calls but what stages launch.
  [[nodiscard]] constexpr int total() const noexcept {
    return waits + records + messages + group_marks + joins + copies;
  }
  //! Calls for each pass, the mean.
  [[nodiscard]] constexpr double per_pass() const noexcept {
    return passes > 0 ? static_cast<double>(total()) / passes : 0;
  }
  friend constexpr bool operator==(call_count const&, call_count const&) = default;
};

//! Adds the calls of one device.
//! @complexity O(n) for the n items of the device.
inline void add_calls(plan const& work, int device, call_count& calls) {
  auto const steps = work.program_of(device);
  int const count = static_cast<int>(steps.size());
  owned<bool> waited(count, false);
  int streams = 0; // next to that of passes
  for (int first = 0; first < count;) {
    int const end = end_of_group(steps, first);
    item const& head = steps[static_cast<std::size_t>(first)];
    bool const message = head.what != operation::run;
    int const enqueued = message && is_broadcast(work, head) ? 1 : end - first;
    if (message)
      calls.messages += enqueued;
    else if (is_copy(work.over.declared, head))
      calls.copies += 1;
    else if (head.about == subject::pass &&
             work.over.declared[head.work.kind].calls != stage_call::copy)
      calls.passes += end - first;
    streams = std::max(streams, head.stream());
    calls.group_marks += message && enqueued > 1 ? 2 : 0;
    calls.groups += message && end - first > 1 ? 1 : 0;
    for (int i = first; i < end; ++i)
      for (int const wait : work.waits_of(steps[static_cast<std::size_t>(i)])) {
        ++calls.waits;
        calls.records += waited[wait] ? 0 : 1;
        waited[wait] = true;
      }
    first = end;
  }
  // At the start one event that all other streams wait for; at the end one event of each of them.
  calls.joins += streams > 0 ? 1 + 3 * streams : 0;
}
[[nodiscard]] inline call_count count_calls(plan const& work, int device) {
  call_count calls;
  add_calls(work, device, calls);
  return calls;
}

//! The calls of all devices.
//! @complexity O(n) for all items.
[[nodiscard]] inline call_count count_calls(plan const& work) {
  call_count sum;
  for (int device = 0; device < work.over.extents.devices; ++device)
    add_calls(work, device, sum);
  return sum;
}

//! The bill of a policy for one plan.
struct bill {
  char const* policy = "";          //!< its name
  int communicators = 0;            //!< of the whole pipeline
  int communicators_per_device = 0; //!< of the device with the most: its lanes
  int connect_rounds = 0;           //!< before the first step
  int messages = 0;                 //!< of one iteration; each is sent once and received once
  call_count calls;                 //!< of all devices
};

//! Makes the bill of a plan.
//! @complexity O(n log E) for n items and E pairs of devices.
[[nodiscard]] inline bill make_bill(plan const& work) {
  bill result;
  result.policy = work.policy;
  result.calls = count_calls(work);
  std::set<std::int64_t> keys;
  for (device_pair const& pair : connect_rounds(work)) {
    result.connect_rounds = std::max(result.connect_rounds, pair.round + 1);
    if (pair.up)
      keys.insert(work.key(pair.one, pair.other));
    if (pair.down)
      keys.insert(work.key(pair.other, pair.one));
  }
  result.communicators = static_cast<int>(keys.size());
  for (int device = 0; device < work.over.extents.devices; ++device) {
    result.communicators_per_device =
      std::max(result.communicators_per_device, work.lanes_of(device));
    for (item const& step : work.program_of(device))
      result.messages += step.what == operation::send ? 1 : 0;
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
         count(costs.messages, "message") + ", " + count(costs.calls.groups / 2, "mirrored group") +
         "; " + count(costs.calls.total(), "call") + " for " + std::to_string(costs.calls.passes) +
         " passes";
}

namespace detail {

//! A cell of a table, on the right of its column.
[[nodiscard]] inline std::string cell(std::size_t width, std::string const& text) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}
[[nodiscard]] inline std::string cell(std::size_t width, std::int64_t value) {
  return cell(width, std::to_string(value));
}

[[nodiscard]] inline std::string calls_line(std::string const& name, call_count const& calls) {
  std::string line = cell(6, name);
  for (int const value : {calls.passes,
                          calls.waits,
                          calls.records,
                          calls.messages,
                          calls.group_marks,
                          calls.joins,
                          calls.copies,
                          calls.total()})
    line += cell(10, value);
  auto const thousandths = static_cast<std::int64_t>(calls.per_pass() * 1000 + 0.5);
  std::string const digits = std::to_string(1000 + thousandths % 1000).substr(1);
  return line + cell(10, std::to_string(thousandths / 1000) + "." + digits) + "\n";
}

} // namespace detail

//! @brief The bill of a plan's policy, and a table of the CUDA and NCCL calls of every device.
//! @complexity O(n log E) for n items and E pairs of devices.
[[nodiscard]] inline std::string describe_calls(plan const& work) {
  std::string text = describe(detail::make_bill(work)) + "\n" + detail::cell(6, "device");
  for (char const* const name :
       {"passes", "waits", "records", "messages", "groups", "joins", "copies", "calls", "per pass"})
    text += detail::cell(10, name);
  text += "\n";
  for (int device = 0; device < work.over.extents.devices; ++device)
    text += detail::calls_line(std::to_string(device), detail::count_calls(work, device));
  return text + detail::calls_line("all", detail::count_calls(work));
}

//! @brief The memory map of a plan: for every device and class the slots, their bytes, where they
//! begin, and the pass at which all are in use.
//! @complexity O(P).
[[nodiscard]] inline std::string describe_memory(plan const& work) {
  std::string text =
    "device  class              slots  bytes of a slot        offset  all in use at\n";
  for (int device = 0; device < work.over.extents.devices; ++device) {
    for (int of = 0; of < detail::slot_classes; ++of) {
      detail::slot_layout const& layout = work.layout(device, static_cast<slot_class>(of));
      if (layout.count == 0)
        continue;
      std::string name = detail::word(static_cast<slot_class>(of));
      name.resize(17, ' ');
      item const& peak = work.program_of(device)[static_cast<std::size_t>(layout.peak_item)];
      text += detail::cell(6, device) + "  " + name + detail::cell(7, layout.count) +
              detail::cell(17, layout.bytes) + detail::cell(14, layout.offset) + "  " +
              detail::describe_subject(peak, work) + "\n";
    }
    text += detail::cell(6, device) + "  arena of " + std::to_string(work.arena_bytes_of(device)) +
            " bytes\n";
  }
  return text;
}

} // namespace pipelining::inline v0_3
