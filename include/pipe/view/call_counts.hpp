// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief How many calls of CUDA and NCCL a plan takes. Header for pipelining::detail::count_calls.

#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/exchange.hpp>
#include <pipe/plan/lower/scratch.hpp>
#include <pipe/plan/plan.hpp>

#include <algorithm>
#include <cstddef>

namespace pipelining::inline v0_3::detail {

//! What the host asks of CUDA and NCCL in one iteration, beside what stages launch
//! themselves. One stream for passes, one for every lane and one for every engine that copies; one
//! thread per device.
struct call_count {
  int passes = 0;      //!< passes that stages launch for
  int waits = 0;       //!< cudaStreamWaitEvent before a pass or a group
  int records = 0;     //!< cudaEventRecord behind what is waited for
  int messages = 0;    //!< ncclSend, ncclRecv, and ncclBroadcast for those of one exchange
  int group_marks = 0; //!< ncclGroupStart and ncclGroupEnd, where a group has several messages
  int joins = 0;       //!< records and waits at the start and the end of the iteration
  int copies = 0;      //!< cudaMemcpyAsync to the host and back

  //! All calls but what stages launch.
  [[nodiscard]] constexpr int total() const noexcept {
    return waits + records + messages + group_marks + joins + copies;
  }
  //! Calls for each pass, the mean.
  [[nodiscard]] constexpr double per_pass() const noexcept {
    return passes > 0 ? static_cast<double>(total()) / passes : 0;
  }
  //! Adds the calls of another device.
  constexpr call_count& operator+=(call_count const& other) noexcept {
    passes += other.passes;
    waits += other.waits;
    records += other.records;
    messages += other.messages;
    group_marks += other.group_marks;
    joins += other.joins;
    copies += other.copies;
    return *this;
  }
  friend constexpr bool operator==(call_count const&, call_count const&) = default;
};

//! The calls of one device.
//! @complexity O(n) for the n items of the device.
[[nodiscard]] constexpr call_count count_calls(plan_view work, int device) {
  auto const steps = work.program_of(device);
  int const count = static_cast<int>(steps.size());
  scratch<bool> waited(count, false);
  call_count calls;
  int streams = 0; // beside that of passes
  for (int first = 0; first < count;) {
    int const end = end_of_group(steps, first);
    item const& head = steps[static_cast<std::size_t>(first)];
    bool const message = head.what != operation::run;
    int const enqueued = message && is_broadcast(work.over, head) ? 1 : end - first;
    if (message)
      calls.messages += enqueued;
    else if (is_copy(*work.over.declared, head))
      calls.copies += 1;
    else if (head.about == subject::pass &&
             (*work.over.declared)[head.work.kind].calls != stage_call::copy)
      calls.passes += end - first;
    streams = std::max(streams, stream_of(head));
    calls.group_marks += message && enqueued > 1 ? 2 : 0;
    for (int i = first; i < end; ++i)
      for (int const wait : work.waits_of(steps[static_cast<std::size_t>(i)])) {
        ++calls.waits;
        calls.records += waited.data[wait] ? 0 : 1;
        waited.data[wait] = true;
      }
    first = end;
  }
  // At the start one event that all other streams wait for; at the end one event of each of them.
  calls.joins = streams > 0 ? 1 + 3 * streams : 0;
  return calls;
}

//! The calls of all devices.
//! @complexity O(n) for all items.
[[nodiscard]] constexpr call_count count_calls(plan_view work) {
  call_count sum;
  for (int device = 0; device < work.over.extents.devices; ++device)
    sum += count_calls(work, device);
  return sum;
}

} // namespace pipelining::inline v0_3::detail
