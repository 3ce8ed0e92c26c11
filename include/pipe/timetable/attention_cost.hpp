// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Passes that take longer the more keys their queries attend to. Header for
//! pipelining::attention_cost.

#include <pipe/core/pass.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/schedule/attention_exchange.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>

#include <optional>

namespace pipelining::inline v0_2 {

//! @brief A cost model of chunks under causal attention: to the time that `linear` gives comes that
//! of the attention to all chunks before it and to half of its own, and to what the pass takes over
//! from another device or without what it gives away.
//!
//! What is exchanged travels beside the passes, and takes no time of its own: a lower bound, and
//! that of the paper.
//! @pre with an exchange: extents and passes are those of SlimPipe.
struct attention_cost {
  uniform_cost linear{}; //!< what does not depend on the number of keys
  double forward = 0;    //!< attention of the queries of one chunk to the keys of one chunk
  double backward = 0;   //!< likewise, in a backward pass or in the half for the inputs
  shape extents{};       //!< of the timetable
  std::optional<attention_exchange> exchange{}; //!< none: every device does its own attention

  [[nodiscard]] constexpr double duration(pass const& what) const {
    bool const is_forward = what.kind == pass_kind::forward;
    bool const attends =
      is_forward || what.kind == pass_kind::backward || what.kind == pass_kind::backward_input;
    double const taken = attends && exchange ? exchange->of(extents, what).chunks : 0;
    double const keys = attends ? what.chunk + 0.5 + taken : 0;
    return linear.duration(what) + keys * (is_forward ? forward : backward);
  }
  [[nodiscard]] constexpr double latency() const { return linear.latency(); }
};

} // namespace pipelining::inline v0_2
