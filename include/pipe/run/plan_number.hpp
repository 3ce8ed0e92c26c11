// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The plans of one runner. Header for pipelining::plan_number.

#include <pipe/flow/shape.hpp>
#include <pipe/plan/plan.hpp>

#include <cstddef>
#include <stdexcept>
#include <string>

namespace pipelining::inline v0_3 {

//! @brief The number of one plan of a runner. `add` returns it; 0 is the plan that the runner was
//! made with.
struct plan_number {
  int index = 0; //!< in the order in which the runner was given them

  friend constexpr bool operator==(plan_number, plan_number) = default;
};

namespace detail {

//! Checks that a plan can share the stages and devices of a runner.
//! @throws std::invalid_argument with one sentence.
inline void check_addition(plan_view const& first, plan_view const& added) {
  auto const differ = [](char const* what, int has, int was) {
    throw std::invalid_argument("run: the plans of a runner have the same devices and stages, but "
                                "this one has " +
                                std::to_string(has) + what + " instead of " + std::to_string(was) +
                                "; make another runner for it");
  };
  if (added.over.extents.devices != first.over.extents.devices)
    differ(" devices", added.over.extents.devices, first.over.extents.devices);
  if (added.over.extents.stages() != first.over.extents.stages())
    differ(" stages", added.over.extents.stages(), first.over.extents.stages());
}

//! Checks that a runner has a plan of this number.
//! @throws std::invalid_argument with one sentence.
inline void check_number(plan_number which, std::size_t plans) {
  if (which.index < 0 || static_cast<std::size_t>(which.index) >= plans)
    throw std::invalid_argument("run: this runner has no plan " + std::to_string(which.index) +
                                "; it has " + std::to_string(plans) +
                                ", and add gives the numbers of those after the first");
}

} // namespace detail

} // namespace pipelining::inline v0_3
