// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A run whose devices take over attention of each other: bytes planned and measured.

#include <pipe/flow/shape.hpp>
#include <pipe/flow/slot_class.hpp>
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "exchanged_layers.hpp"
#include "options.hpp"
#include "report.hpp"
#include "system.hpp"
#include "tools/support/exchange_on_one_device.hpp"

namespace gpt {

//! SlimPipe's exchange of attention; see system.hpp.
struct exchange_system {
  static constexpr char const* one_device_has = " that splits attention alike";

  //! A stage is a layer.
  static registry::schedule_choice choice(options const& o) {
    auto result = choice_of(o, name_of(o));
    (void)registry::arrange(result); // refuses other schedules than slimpipe
    if (!result.stages_per_device) {
      result.stages_per_device =
        static_cast<int>(std::max(o.size.layers / o.devices, std::int64_t{1}));
    }
    return result;
  }
  static exchange_schedule schedule(options const& o) {
    auto const chosen = choice(o);
    return {{chosen.chunks.value_or(chosen.devices), *chosen.stages_per_device}, {}};
  }
  //! @throws std::invalid_argument where layers are no stages, or an option does not go with it
  static pp::dynamic_timetable plan(options const& o) {
    check_system(o, "the exchange of attention");
    auto table = registry::make_named_timetable(choice(o), unit_costs);
    auto const layers = schedule(o).inside(table.over.extents).stages();
    if (layers != o.size.layers) {
      throw std::invalid_argument("the exchange of attention has a layer in every stage, " +
                                  std::to_string(layers) + " of them, but the model has " +
                                  std::to_string(o.size.layers) +
                                  "; choose --layers, a multiple of --devices");
    }
    return table;
  }
  static exchanged_pipeline<> pipeline(options const& o, pp::timetable_view table) {
    return {o.size, schedule(o), table, seed_of(o)};
  }
  //! The stages of a timetable on its first device, with the microbatches of o.lengths.
  static pp::dynamic_timetable on_one_device(options const& o, pp::timetable_view table) {
    examples::exchange_on_one_device<exchange_schedule> const alone{schedule(o)};
    return pp::make_timetable(alone,
                              {table.over.extents.devices, static_cast<int>(o.lengths.size())});
  }
  static exchanged_pipeline<> one_device(options const& o, pp::timetable_view table) {
    return {o.size, schedule(o), on_one_device(o, table), seed_of(o)};
  }
  static void report(options const& o, pp::timetable_view, exchanged_pipeline<> const& model) {
    static constexpr named_pool pools[] = {{"activations", pp::slot_class::activation}};
    report_pools(o,
                 "Activations, with queries and keys of other devices, in slots",
                 model.plan(),
                 model.trace(),
                 model.sizes(),
                 pools);
  }
};

} // namespace gpt
