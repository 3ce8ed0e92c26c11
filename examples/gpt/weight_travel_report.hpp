// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What a run with weights that travel ends with: bytes planned and measured, one device
//! beside it, files.

#include <pipe/io/timetable_details.hpp>
#include <pipe/io/trace.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "../support/named_schedules.hpp"
#include "options.hpp"
#include "plot.hpp"
#include "report.hpp"
#include "single_device.hpp"
#include "text.hpp"
#include "training.hpp"
#include "weight_travel.hpp"

namespace gpt {

//! The timetable of the chosen schedule, with groups of layers as stages.
//! @throws std::invalid_argument for options that it does not have
inline pp::dynamic_timetable check_travelling(options const& o) {
  if (!o.costs.empty()) {
    throw std::invalid_argument(o.schedule + " has no stages on devices whose costs --costs could "
                                             "write; leave it out");
  }
  if (o.clip != 0) {
    throw std::invalid_argument(o.schedule + " has no stages whose rows --clip could add up; leave "
                                             "it out");
  }
  return examples::by_groups(examples::make_named_timetable(choice_of(o, name_of(o)), unit_costs));
}

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

//! One step from the first weights, held against one device. Returns false where a gradient
//! differs.
inline bool check_travelled(options const& o, text_to_learn const& text) {
  auto const seed = static_cast<std::uint64_t>(o.seed);
  std::mt19937_64 random(seed + 1);
  auto const pieces = random_batch(text.bytes, o.microbatches, o.size.sequence, random);
  auto const expected = gradients_of_one_device(o, pieces);
  travelling_model model(
    o.size, static_cast<int>(o.devices), static_cast<int>(o.microbatches), seed);
  model.step(pieces);
  return report_held(o, "", gradients_of(model.stages()), expected);
}

} // namespace gpt
