// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The totals that one plan leaves to the next. Header for
//! pipelining::detail::carried_totals.

#include <pipe/plan/plan.hpp>
#include <pipe/run/arena.hpp>
#include <pipe/run/context.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! Brings the rows of all stages from where one plan has left them to where the next one
//! reads them, on the last device, which has them all: plans of a runner share its memory, but each
//! lays it out in its own way, and a plan that is added may move it.
class carried_totals {
public:
  //! Before a step.
  //! @throws std::invalid_argument when the step before has stepped early and this one does not
  //! validate it, or the other way round.
  void check(plan_view const& next) const {
    if (pending_ && !validates(next.validation))
      throw std::invalid_argument(
        "run: the optimizer's step of the iteration before is not validated yet, and this plan "
        "would not do it; run the plan that was lowered with step_validation::last before it");
    if (validates(next.validation) && (!pending_ || bytes_ != next.totals_bytes))
      throw std::invalid_argument(
        "run: this plan validates an optimizer's step of the iteration before, but the last step "
        "that came to its end took none early, or has rows of another size; run the plan that was "
        "lowered with step_validation::next");
  }
  //! When the memory is the plan's.
  //! @return what its totals on the last device are to hold; empty where it validates nothing.
  [[nodiscard]] std::span<std::byte const> hand_on(plan_view const& next) {
    pending_ = false;
    return validates(next.validation) ? std::span<std::byte const>(rows_)
                                      : std::span<std::byte const>();
  }
  //! The same, into memory of the host. @param now its slots on the last device.
  void put(arena const& now) {
    std::span<std::byte const> const rows = hand_on(now.work);
    if (!rows.empty())
      std::memcpy(
        now.memory + now.place({.of = slot_class::totals, .index = 0}), rows.data(), rows.size());
  }
  //! When the step has come to its end. @param now slots of its plan on the last device.
  //! @param again its iteration begins again, so it has not stepped.
  void take(arena const& now, bool again) {
    if (!steps_early(now.work.validation) || again)
      return;
    pending_ = true;
    bytes_ = now.work.totals_bytes;
    totals const rows = now.readable_totals();
    rows_.assign(rows.data, rows.data + rows.rows * rows.stride);
  }
  //! True while a step waits for its validation.
  [[nodiscard]] bool pending() const noexcept { return pending_; }

private:
  std::vector<std::byte> rows_;
  std::int64_t bytes_ = 0; // of a row
  bool pending_ = false;
};

} // namespace pipelining::inline v0_3::detail
