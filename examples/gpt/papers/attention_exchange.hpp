// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The GPT on SlimPipeExchange: devices take over attention of each other. The same pieces
//! run in a pipeline, or on one device one after the other.

#include <pipe/planner/registry/named_schedules.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "../system.hpp"
#include "exchanged_stage.hpp"

namespace gpt {

//! A stage on the host. One of those of a layer stands for its weights.
struct exchanged_piece
    : exchanged_stage<host_machine<float>, trained_on_host<exchanged_layer<host_machine<float>>>> {
  using layer = trained_on_host<exchanged_layer<host_machine<float>>>;
  using exchanged_stage<host_machine<float>, layer>::exchanged_stage;

  void run_half(pp::pass_kind kind, pp::composite_half const& given, int half) {
    gpt::run_half(*this, kind, given, half);
  }
  void set_batch(batch const& pieces) {
    if (auto* const of = leading())
      of->set_batch(pieces);
  }
  void update(adamw const& optimizer, std::int64_t step) {
    if (auto* const of = leading())
      of->update(optimizer, step);
  }
  template <class Visit>
  void for_each_parameter(Visit visit) {
    if (auto* const of = leading())
      of->for_each_parameter(visit);
  }
};

using exchange_sizes = exchanged_slot_sizes<host_machine<float>>;

//! What the slots of such stages take.
[[nodiscard]] inline sizes_of_plan exchange_slots(model_size const& size,
                                                  exchange_schedule const& schedule) {
  return [=](pp::timetable_view table, auto const&) {
    static constexpr named_pool shown[] = {{"activations", pp::slot_class::activation}};
    return plan_sizes(exchange_sizes(size, schedule, table.over.extents), shown);
  };
}

//! All stages. @param work by device
[[nodiscard]] inline stages_by_way<exchanged_piece>
make_exchanged(model_size const& size,
               exchange_schedule const& schedule,
               pp::timetable_view table,
               std::uint64_t seed,
               std::vector<host::device_work<float>>& work) {
  using layer = exchanged_piece::layer;
  exchange_sizes const slots(size, schedule, table.over.extents);
  std::vector<std::shared_ptr<layer>> at_home(static_cast<std::size_t>(size.layers));
  return make_by_way<exchanged_piece>(table, {}, [&](std::size_t, int number, int device) {
    auto const what = slots.stage(number);
    std::shared_ptr<layer> taken;
    auto& of = is_taken(what) ? taken : at_home[static_cast<std::size_t>(what.layer)];
    if (!of) {
      auto* const own = &work[static_cast<std::size_t>(device)];
      of = std::make_shared<layer>(
        seed, stage_start<host_machine<float>>{size, slots.held(what), slots.cut, own});
    }
    return std::make_unique<exchanged_piece>(what, of);
  });
}

//! A GPT of as many layers as the schedule has stages, on the threads of this process.
struct exchanged_pipeline : model_on_threads<copies_of<exchanged_piece>> {
  //! @param table of this schedule, or of all its stages on one device
  exchanged_pipeline(model_size const& size,
                     exchange_schedule const& schedule,
                     pp::timetable_view table,
                     std::uint64_t seed,
                     decltype(plan_maker::lower) lower = lower_by<pp::communicators::one>)
      : model_on_threads(
          table,
          whole_lengths(size, table),
          {exchange_slots(size, schedule), false, lower},
          [&](auto& shared) { return make_exchanged(size, schedule, table, seed, shared); }) {}
};

//! SlimPipe's exchange of attention; see system.hpp.
struct exchange_system {
  static constexpr char const* one_device_has = " that splits attention alike";
  static constexpr char const* in_slots =
    "Activations, with queries and keys of other devices, in slots";

  static exchange_schedule schedule(options const& o) {
    auto const chosen = choice_of(o, name_of(o));
    return {{chosen.chunks.value_or(chosen.devices), chosen.stages_per_device.value_or(1)}, {}};
  }
  //! @throws std::invalid_argument where layers are no stages, or an option does not go with it
  static pp::dynamic_timetable plan(options const& o) {
    check_system(o, "the exchange of attention");
    auto table = registry::make_named_timetable(choice_of(o, name_of(o)), unit_costs);
    auto const layers = schedule(o).inside(table.over.extents).stages();
    if (layers != o.size.layers) {
      throw std::invalid_argument("the exchange of attention has a layer in every stage, " +
                                  std::to_string(layers) + " of them, but the model has " +
                                  std::to_string(o.size.layers) +
                                  "; choose --layers, a multiple of --devices");
    }
    return table;
  }
  static exchanged_pipeline pipeline(options const& o, pp::timetable_view table) {
    return {o.size, schedule(o), table, seed_of(o)};
  }
  static exchanged_pipeline one_device(options const& o, pp::timetable_view table) {
    return pipeline(o, on_one_device(table));
  }
};

} // namespace gpt
