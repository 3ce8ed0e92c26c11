// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A run with weights that lie on the host: bytes of those that are loaded, planned and
//! measured.

#include <pipe/flow/slot_class.hpp>
#include <pipe/planner/cut/round_stages.hpp>
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstdint>

#include "host_weights.hpp"
#include "options.hpp"
#include "report.hpp"
#include "single_device.hpp"
#include "system.hpp"

namespace gpt {

//! RoundPipe: devices take stages in turn; see system.hpp.
struct round_system {
  static constexpr char const* one_device_has = "";

  //! As many stages as asked for; those that are not, as in the list that takes least.
  static pp::round_stages list(options const& o) {
    auto best = best_list(o.size, o.devices);
    if (o.forward_stages == 0 && o.backward_stages == 0) {
      return best;
    }
    auto const given = [](std::int64_t asked, auto const& runs) {
      return asked != 0 ? asked : static_cast<std::int64_t>(runs.size());
    };
    return even_list(
      o.size, given(o.forward_stages, best.forward), given(o.backward_stages, best.backward));
  }
  //! @throws std::invalid_argument for options that it does not have
  static pp::dynamic_timetable plan(options const& o) {
    check_system(o, o.schedule);
    auto choice = choice_of(o, name_of(o));
    auto const stages = list(o);
    choice.forward_stages = static_cast<int>(stages.forward.size());
    choice.backward_stages = static_cast<int>(stages.backward.size());
    return registry::make_named_timetable(choice, unit_costs);
  }
  static round_model pipeline(options const& o, pp::timetable_view table) {
    return {o.size, list(o), table, seed_of(o)};
  }
  static single_device<float> one_device(options const& o, pp::timetable_view) {
    return {o.size, 1, cut_whole(o.lengths), seed_of(o)};
  }
  static void report(options const& o, pp::timetable_view, round_model const& model) {
    static constexpr named_pool pools[] = {{"weights", pp::slot_class::weights},
                                           {"gradients", pp::slot_class::full_gradients}};
    report_pools(o,
                 "Weights and gradients loaded from the host",
                 model.plan(),
                 model.trace(),
                 model.sizes(),
                 pools);
  }
};

} // namespace gpt
