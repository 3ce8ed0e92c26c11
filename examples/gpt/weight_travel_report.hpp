// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A run with weights that travel: bytes planned and measured.

#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstdint>
#include <cstdio>
#include <vector>

#include "options.hpp"
#include "report.hpp"
#include "single_device.hpp"
#include "system.hpp"
#include "weight_travel.hpp"

namespace gpt {

//! Bytes planned beside measured.
inline void report_travelled(options const& o, std::vector<travelled_bytes> const& all) {
  std::printf("\nWhat stays and what travels (%s), planned, and measured in the last step",
              name_of(o).c_str());
  static constexpr byte_row<travelled_bytes> rows[] = {
    {"activations, planned", &travelled_bytes::planned_activations},
    {"activations, measured", &travelled_bytes::measured_activations},
    {"weights sent, planned", &travelled_bytes::planned_sent},
    {"weights sent, measured", &travelled_bytes::measured_sent},
    {"slots for weights", &travelled_bytes::weight_slots}};
  print_kilobytes<travelled_bytes>(rows, all);
  std::printf("  sent: weights forward, and weights and gradients backward, of the whole model "
              "for each microbatch but the last\n");
}

//! WeiPipe: no stages on devices; see system.hpp.
struct travelling_system {
  static constexpr char const* one_device_has = "";

  //! @throws std::invalid_argument for options that it does not have
  static pp::dynamic_timetable plan(options const& o) {
    check_system(o, o.schedule);
    return registry::make_named_timetable(choice_of(o, name_of(o)), unit_costs);
  }
  static travelling_model pipeline(options const& o, pp::timetable_view) {
    return {o.size, static_cast<int>(o.devices), static_cast<int>(o.microbatches), seed_of(o)};
  }
  static single_device<float> one_device(options const& o, pp::timetable_view) {
    return {o.size, 1, cut_whole(o.lengths), seed_of(o)};
  }
  static void report(options const& o, pp::timetable_view, travelling_model const& model) {
    report_travelled(o, model.bytes());
  }
};

} // namespace gpt
