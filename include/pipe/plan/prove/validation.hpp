// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The part of the proof that looks at what comes before the optimizer's step of the plan
//! before is validated: all of it can run again, and no message of it is lost.

#include <pipe/flow/pass.hpp>
#include <pipe/plan/early_passes.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/proof.hpp>
#include <pipe/timetable/iterations.hpp>

#include <cstddef>

namespace pipelining::inline v0_3::detail {

//! Before a device validates it runs forward passes alone that can run again, and waits for no
//! message that its sender would not send where the iteration begins again.
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
      if (receives && step.peer != sender) {
        sender = step.peer;
        early = sent_early(work, sender, device);
      }
      bool const runs = step.what == operation::run && step.about != subject::validation;
      if ((runs && (step.about != subject::pass || !may_run_again(work.over, device, step.work))) ||
          (receives && step.sequence >= early))
        return {plan_rule::not_validated, device, i};
    }
  }
  return {};
}

} // namespace pipelining::inline v0_3::detail
