// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The messages that are one exchange of a group of stages.

#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/stage_graph.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>

#include <cstdint>

namespace pipelining::inline v0_3::detail {

//! @brief The number of values of `exchange_of`.
[[nodiscard]] constexpr int exchange_indices(pipeline_view const& over) noexcept {
  return over.pass_indices() * over.declared->data_count;
}

//! @brief A dense number for the exchange that the message for a reader of `maker` is part of, or
//! `nothing` where neither end is a stage of a group.
//!
//! An exchange is all messages that carry one datum of one unit between a group of stages and those
//! before or after it, or within the group: a broadcast to the group, a gather from it, or an
//! all-gather.
//! @pre reader_of(over, maker, number).stage is a stage.
[[nodiscard]] constexpr int
exchange_of(pipeline_view const& over, pass const& maker, int number) noexcept {
  if (over.edges == nullptr)
    return nothing;
  product_reader const reader = reader_of(over, maker, number);
  pass first = maker; // that names it
  if (over.in_group(maker.stage))
    first.stage = static_cast<std::uint16_t>(neighbour(over, maker.stage, group_step, 0).stage);
  else if (!over.in_group(reader.stage))
    return nothing;
  return pass_index(over, first) * over.declared->data_count + reader.product;
}

//! @brief True for a message of an exchange that brings the same from one device to all others.
//! @param step one of its ends.
[[nodiscard]] constexpr bool is_broadcast(plan_view const& work, item const& step) noexcept {
  int const exchange = work.message_of(step).exchange;
  if (exchange == nothing || work.over.in_group(step.work.stage))
    return false;
  int receivers = 0;
  for (int number = 0; number < readers(work.over, step.work); ++number)
    if (receiver(work.over, step.work, number) != nothing &&
        exchange_of(work.over, step.work, number) == exchange)
      ++receivers;
  return receivers == work.over.extents.devices - 1;
}

} // namespace pipelining::inline v0_3::detail
