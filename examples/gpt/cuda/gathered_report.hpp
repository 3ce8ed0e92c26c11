// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A run on GPUs whose weights are gathered: where they lie, and bytes planned and measured.

#include <pipe/flow/shape.hpp>
#include <pipe/flow/slot_class.hpp>
#include <pipe/timetable/timetable.hpp>

#include <stdexcept>

#include "../options.hpp"
#include "../system.hpp"
#include "gpu_run.hpp"

namespace gpt {

//! Where the weights lie that are gathered, if any are.
[[nodiscard]] inline weights_home home_of(options const& o) {
  return o.adapted == registry::adapter::weights_on_host ? weights_home::host
                                                         : weights_home::shards;
}

//! @param replicas of the pipeline
//! @throws std::invalid_argument for what gathered weights do not go with
inline void check_gathered(options const& o, pp::timetable_view table, int replicas) {
  if (!registry::gathers_weights(o.adapted)) {
    return;
  }
  bool const on_host = home_of(o) == weights_home::host;
  if (o.clip != 0 && on_host) {
    throw std::invalid_argument(
      "with weights-on-host the host steps on what lies there, but --clip wants all gradients on "
      "GPUs; leave it out");
  }
  if (o.clip != 0 && replicas > 1) {
    throw std::invalid_argument("where replicas share the weights, no GPU has the gradients of a "
                                "whole stage, which --clip wants; leave it out");
  }
  if (on_host && table.over.extents.routes() > 1) {
    throw std::invalid_argument(
      "weights-on-host wants one copy of every stage, but this schedule has two; choose another");
  }
}

//! Slots of whole weights and gradients, planned beside measured, where they are gathered.
//! @param made the plan and its sizes. @param ran when each pass of the last step ran
template <class Plan>
void report_gathered(options const& o, Plan const& made, pp::timetable_view ran) {
  static constexpr named_pool pools[] = {{"weights", pp::slot_class::weights},
                                         {"gradients", pp::slot_class::full_gradients}};
  if (registry::gathers_weights(o.adapted)) {
    report_pools(o, "Whole weights and gradients in slots", *made.first, ran, made.sizes, pools);
  }
}

} // namespace gpt
