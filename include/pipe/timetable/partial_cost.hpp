// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Recomputation and copies of a part of an activation. Header for
//! pipelining::detail::partial_cost.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/training_kinds.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>

#include <stdexcept>

namespace pipelining::inline v0_3 {

namespace detail {

//! A cost model whose recomputes and copies are of a part of the activation: they take the
//! `share(pass)`, 0 to 1, of the time that `of` gives them. `peak_device_bytes` counts the memory.
//! @throws std::invalid_argument (duration) for a share that is not between 0 and 1.
template <cost_model Cost, class Share>
struct partial_cost {
  Cost of{};     //!< the times of whole activations
  Share share{}; //!< of a recompute or a copy

  //! The time of a pass of training.
  [[nodiscard]] constexpr double duration(pass const& what) const {
    return duration(kinds_of_training, what);
  }
  //! The time of a pass of a flow: less where only a share is recomputed or copied.
  [[nodiscard]] constexpr double duration(flow const& declared, pass const& what) const {
    double const whole = time_of(of, declared, what);
    stage_call const calls = declared[what.kind].calls;
    if (calls != stage_call::recompute && !is_copy(declared[what.kind]))
      return whole;
    double const part = share(what);
    if (!(part >= 0 && part <= 1))
      throw std::invalid_argument("partial_cost: the share of an activation that is recomputed or "
                                  "copied must be between 0 and 1");
    return part * whole;
  }
  [[nodiscard]] constexpr double latency() const { return of.latency(); }
  [[nodiscard]] constexpr group_times groups() const { return groups_of(of); }
  [[nodiscard]] constexpr double
  pair_duration(flow const& declared, pass const& first, pass const& second) const {
    return detail::pair_duration(of, declared, first, second);
  }
};

} // namespace detail

} // namespace pipelining::inline v0_3
