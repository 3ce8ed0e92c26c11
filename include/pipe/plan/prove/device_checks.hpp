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

//! The checks of a device, in the order in which their findings are told.
enum class device_check {
  form,
  exchanges,
  lanes,
  sent_twice,
  sequences,
  ran_twice,
  layout,
  slots,
  none
};

//! Memory for the checks of devices.
struct device_space {
  message_ends ends; //!< of all devices, for `sent_twice`
  steps_run ran;     //!< of all devices, for `ran_twice`
  reused_scratch<first_on_lane> lanes{};
  reused_scratch<int> next_messages{};
  slot_space slots{};
};

constexpr proof check_device(plan_view const& work,
                             data_uses const& uses,
                             device_check what,
                             int device,
                             device_space& space) {
  switch (what) {
  case device_check::form: return check_form(work, device);
  case device_check::exchanges: return check_exchanges(work, device);
  case device_check::lanes:
    return check_lanes(work, device, space.lanes.get(work.lanes[device], {}));
  case device_check::sent_twice: return enter_messages(work, device, space.ends);
  case device_check::sequences:
    return check_sequences(work, device, space.next_messages.get(2 * work.over.extents.devices, 0));
  case device_check::ran_twice: return enter_passes(work, device, space.ran);
  case device_check::layout: return check_layout(work, device);
  case device_check::slots: return check_slots(work, uses, device, space.slots);
  case device_check::none: break;
  }
  return {};
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
