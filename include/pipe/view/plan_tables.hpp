// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Plans for people: what each device calls, and what lies in its memory. Header for
//! pipelining::describe_calls and pipelining::describe_memory.

#include <pipe/plan/describe.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/view/call_counts.hpp>
#include <pipe/view/policy_cost.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace pipelining::inline v0_3 {

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
[[nodiscard]] inline std::string describe_calls(plan_view work) {
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
[[nodiscard]] inline std::string describe_memory(plan_view work) {
  std::string text =
    "device  class              slots  bytes of a slot        offset  all in use at\n";
  for (int device = 0; device < work.over.extents.devices; ++device) {
    for (int of = 0; of < slot_classes; ++of) {
      detail::slot_layout const& layout = work.layout(device, static_cast<slot_class>(of));
      if (layout.count == 0)
        continue;
      std::string name = word(static_cast<slot_class>(of));
      name.resize(17, ' ');
      item const& peak = work.program_of(device)[static_cast<std::size_t>(layout.peak_item)];
      text += detail::cell(6, device) + "  " + name + detail::cell(7, layout.count) +
              detail::cell(17, layout.bytes) + detail::cell(14, layout.offset) + "  " +
              detail::describe_subject(peak, work.over) + "\n";
    }
    text += detail::cell(6, device) + "  arena of " + std::to_string(work.arena_bytes[device]) +
            " bytes\n";
  }
  return text;
}

} // namespace pipelining::inline v0_3
