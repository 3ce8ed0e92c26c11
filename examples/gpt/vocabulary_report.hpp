// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What a run with the vocabulary in shards ends with: bytes planned and measured, and one
//! device beside it.

#include <pipe/search/with_vocabulary.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstdint>
#include <cstdio>
#include <random>
#include <stdexcept>
#include <vector>

#include "../support/named_schedules.hpp"
#include "options.hpp"
#include "report.hpp"
#include "single_device.hpp"
#include "text.hpp"
#include "vocabulary.hpp"

namespace gpt {

//! Of the chosen adapter, as with_vocabulary has them.
[[nodiscard]] inline int barriers_of(options const& o) {
  return o.adapted == examples::adapter::vocabulary_1   ? 1
         : o.adapted == examples::adapter::vocabulary_2 ? 2
                                                        : pp::interlaced;
}

//! The timetable of the chosen schedule with its shards.
//! @throws std::invalid_argument where there is none, or an option does not go with shards
inline pp::dynamic_timetable check_vocabulary(options const& o) {
  if (o.clip != 0 || !o.costs.empty() || !o.further_counts.empty()) {
    throw std::invalid_argument(
      "the vocabulary in shards (--with vocabulary-...) goes with none of "
      "--clip, --costs and several --chunk-counts; leave them out");
  }
  auto table = examples::make_named_timetable(choice_of(o, name_of(o)), unit_costs);
  if (table.view().first_units != nullptr || adds_from_last(table)) {
    throw std::invalid_argument("the vocabulary in shards wants sequences of equal length, whose "
                                "gradients add up from the first microbatch on, as those of " +
                                o.schedule + " do not");
  }
  check_order(table, name_of(o));
  (void)cut_around(o.size, table, barriers_of(o)); // refuses more chunks than tokens
  return table;
}

inline void report_vocabulary(options const& o, std::vector<piece_bytes> const& all) {
  std::printf("\nActivations of layers and logits of the output layer's shards in slots (%s): what "
              "the plan reserves, and\nthe most that was in use in the last step",
              name_of(o).c_str());
  static constexpr byte_row<piece_bytes> rows[] = {
    {"activations, planned", &piece_bytes::planned_activations},
    {"activations, measured", &piece_bytes::measured_activations},
    {"logits, planned", &piece_bytes::planned_logits},
    {"logits, measured", &piece_bytes::measured_logits}};
  print_kilobytes<piece_bytes>(rows, all);
}

//! One step from the first weights, held against one device with all shards. Returns false where a
//! gradient, or the loss, differs.
inline bool
check_vocabulary_bits(options const& o, text_to_learn const& text, pp::timetable_view table) {
  auto const seed = static_cast<std::uint64_t>(o.seed);
  std::mt19937_64 random(seed + 1);
  auto const pieces = random_batch(text.bytes, o.microbatches, o.size.sequence, random);
  sharded_pipeline model(o.size, table, barriers_of(o), seed);
  sharded_device alone(o.size, cut_around(o.size, table, barriers_of(o)), seed);
  bool const same = model.step(pieces) == alone.step(pieces);
  return report_held(
           o, " that has all shards", gradients_of(model.stages()), gradients_of(alone.stages())) &&
         same;
}

} // namespace gpt
