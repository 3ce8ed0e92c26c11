// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Passes that take longer the more keys their queries attend to. Header for
//! pipelining::attention_cost and pipelining::attention_part_cost.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/schedule/slim_pipe.hpp>
#include <pipe/timetable/cost.hpp>

#include <optional>

namespace pipelining::inline v0_3 {

//! @brief A cost model of chunks under causal attention: to the time that `linear` gives comes that
//! of the attention to all chunks before it and to half of its own, and to what the pass takes over
//! from another device or without what it gives away.
//!
//! What is exchanged travels next to the passes, and takes no time of its own: a lower bound, and
//! that of the paper.
//! @pre with an exchange: extents and passes are those of SlimPipe.
struct attention_cost {
  uniform_cost linear{}; //!< what does not depend on the number of keys
  double forward = 0;    //!< attention of the queries of one chunk to the keys of one chunk
  double backward = 0;   //!< likewise, in a backward pass or in the half for the inputs
  shape extents{};       //!< of the timetable
  std::optional<attention_exchange> exchange{}; //!< none: every device does its own attention

  [[nodiscard]] constexpr double duration(pass const& what) const {
    role const is = detail::kinds_of_training[what.kind].is;
    bool const is_forward = is == role::forward;
    bool const attends = is_forward || is == role::backward || is == role::input;
    double const taken = attends && exchange ? exchange->of(extents, what).chunks : 0;
    double const keys = attends ? what.chunk + 0.5 + taken : 0;
    return linear.duration(what) + keys * (is_forward ? forward : backward);
  }
  [[nodiscard]] constexpr double latency() const { return linear.latency(); }
};

//! @brief The same for SlimPipeExchange, whose stages are parts of passes: here a device that gives
//! attention away waits for what comes back.
template <class Schedule>
struct attention_part_cost {
  Schedule schedule{};            //!< whose stages they are
  shape extents{};                //!< of the timetable
  uniform_cost linear{};          //!< of a chunk on a layer, but for attention
  double forward = 0;             //!< attention of the queries of one chunk to the keys of one
  double backward = 0;            //!< likewise, in a backward pass or in the half for the inputs
  double projection_share = 0.25; //!< of `linear`; the rest is that of `after_attention`

  [[nodiscard]] constexpr double duration(pass const& what) const {
    exchange_stage const part = schedule.stage_at(extents, what.stage);
    role const is = detail::kinds_of_training[what.kind].is;
    double const keys = is == role::forward ? forward : is == role::weights ? 0 : backward;
    switch (part.part) {
    case layer_part::projection: return projection_share * linear.duration(what);
    case layer_part::attention: return (part.chunk + 0.5 - part.taken) * keys;
    case layer_part::taken_attention: return part.taken * keys;
    case layer_part::after_attention: return (1 - projection_share) * linear.duration(what);
    }
    return 0;
  }
  [[nodiscard]] constexpr double latency() const { return linear.latency(); }
};

} // namespace pipelining::inline v0_3
