// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The part of the proof that looks at what comes before the optimizer's step of the plan
//! before is validated: all of it can run again, and no message of it is lost.

#include <pipe/core/pass.hpp>
#include <pipe/plan/early_passes.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/proof.hpp>
#include <pipe/timetable/iterations.hpp>

#include <cstddef>

namespace pipelining::inline v0_2::detail {

//! Before a device validates it runs forward passes alone that can run again, and waits for no
//! message that its sender would not send where the iteration begins again.
constexpr proof check_validation(plan_view const& work) noexcept {
  for (int device = 0; device < work.extents.devices; ++device) {
    int const end = behind_validation(work, device);
    auto const steps = work.program_of(device);
    for (int i = 0; i < end; ++i) {
      item const& step = steps[static_cast<std::size_t>(i)];
      bool const runs = step.what == operation::run && step.about != subject::validation;
      if ((runs &&
           (step.about != subject::pass || !may_run_again(work.over(), device, step.work))) ||
          (step.what == operation::receive && !arrives_early(work, device, step)))
        return {plan_rule::not_validated, device, i};
    }
  }
  return {};
}

} // namespace pipelining::inline v0_2::detail
