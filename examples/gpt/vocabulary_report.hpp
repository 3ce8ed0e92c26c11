// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A run with the vocabulary in shards: what it refuses, and bytes, planned and measured.

#include <pipe/flow/slot_class.hpp>
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/timetable/adapt/with_vocabulary.hpp>
#include <pipe/timetable/timetable.hpp>

#include <stdexcept>

#include "options.hpp"
#include "report.hpp"
#include "system.hpp"
#include "vocabulary.hpp"

namespace gpt {

//! Of the chosen adapter, as with_vocabulary has them.
[[nodiscard]] inline int barriers_of(options const& o) {
  return o.adapted == registry::adapter::vocabulary_1   ? 1
         : o.adapted == registry::adapter::vocabulary_2 ? 2
                                                        : pp::interlaced;
}

//! The vocabulary in shards; see system.hpp.
struct vocabulary_system {
  static constexpr char const* one_device_has = " that has all shards";

  //! @throws std::invalid_argument where there are none, or an option does not go with these
  static pp::dynamic_timetable plan(options const& o) {
    check_system(o, "the vocabulary in shards (--with vocabulary-...)");
    auto table = registry::make_named_timetable(choice_of(o, name_of(o)), unit_costs);
    if (table.view().over.first_units != nullptr || adds_from_last(table)) {
      throw std::invalid_argument("the vocabulary in shards wants sequences of equal length, whose "
                                  "gradients add up from the first microbatch on, as those of " +
                                  o.schedule + " do not");
    }
    check_order(table, name_of(o));
    (void)cut_around(o.size, table, barriers_of(o)); // refuses more chunks than tokens
    return table;
  }
  static sharded_pipeline pipeline(options const& o, pp::timetable_view table) {
    return {o.size, table, barriers_of(o), seed_of(o)};
  }
  static sharded_device one_device(options const& o, pp::timetable_view table) {
    return {o.size, cut_around(o.size, table, barriers_of(o)), seed_of(o)};
  }
  static void report(options const& o, pp::timetable_view, sharded_pipeline const& model) {
    report_slots(o, model.plan(), model.trace(), model.sizes());
  }
  //! @param ran when each pass of a step of `work` ran
  static void report_slots(options const& o,
                           pp::plan_view const& work,
                           pp::timetable_view const& ran,
                           piece_sizes const& sizes) {
    static constexpr named_pool pools[] = {{"activations", pp::slot_class::activation},
                                           {"logits", pp::slot_class::logits}};
    report_pools(o,
                 "Activations of layers and logits of the output layer's shards in slots",
                 work,
                 ran,
                 sizes,
                 pools);
  }
};

} // namespace gpt
