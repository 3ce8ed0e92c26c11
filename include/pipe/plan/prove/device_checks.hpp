// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The checks of a proof that look at one device after the other.

#include <pipe/flow/pass.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/scratch.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/proof.hpp>
#include <pipe/plan/prove/messages.hpp>
#include <pipe/plan/prove/slots.hpp>
#include <pipe/plan/prove/steps.hpp>
#include <pipe/timetable/metrics.hpp>

#include <cstddef>

namespace pipelining::inline v0_3::detail {

//! Memory for the checks of devices.
struct device_space {
  message_ends ends; //!< of all devices
  steps_run ran;     //!< of all devices
  reused_scratch<first_on_lane> lanes{};
  reused_scratch<int> next_messages{};
  slot_space slots{};
};

//! Looks at one device. Checks after a failed one are left out: they rely on it, and it is told
//! before them.
constexpr void check_device(plan_view const& work,
                            data_uses const& uses,
                            int device,
                            device_space& space,
                            device_finding& found) {
  auto const check = [&found](device_check what, auto const& look) {
    if (what < found.what)
      found.add({what, look()});
  };
  check(device_check::form, [&] { return check_form(work, device); });
  check(device_check::exchanges, [&] { return check_exchanges(work, device); });
  if (device_check::lanes < found.what)
    found.add(enter_messages(work,
                             device,
                             space.ends,
                             space.lanes.get(work.lanes[device], {}),
                             space.next_messages.get(2 * work.over.extents.devices, 0)));
  check(device_check::ran_twice, [&] { return enter_passes(work, device, space.ran); });
  check(device_check::layout, [&] { return check_layout(work, device); });
  check(device_check::slots, [&] { return check_slots(work, uses, device, space.slots); });
}

//! Before a device validates, it runs only forward passes that can run again. It waits only for
//! messages that come even where the iteration begins again.
//! @complexity O(n) for n items where the messages that a device receives before it validates come
//! from one device after the other, as those to its lowest stage do.
constexpr proof check_validation(plan_view const& work) noexcept {
  for (int device = 0; device < work.over.extents.devices; ++device) {
    int const end = behind_validation(work, device);
    auto const steps = work.program_of(device);
    int sender = device; // of the message before
    int early = 0;       // messages that come from there
    for (int i = 0; i < end; ++i) {
      item const& step = steps[static_cast<std::size_t>(i)];
      bool const receives = step.what == operation::receive;
      if (receives && work.message_of(step).peer != sender) {
        sender = work.message_of(step).peer;
        early = sent_early(work, sender, device);
      }
      bool const runs = step.what == operation::run && step.about != subject::validation;
      if ((runs && (step.about != subject::pass || !may_run_again(work.over, device, step.work))) ||
          (receives && work.message_of(step).sequence >= early))
        return {proof::rule::not_validated, device, i};
    }
  }
  return {};
}

} // namespace pipelining::inline v0_3::detail
