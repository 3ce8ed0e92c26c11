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
#include "tools/support/exchange_on_one_device.hpp"

namespace gpt {

//! A GPT of as many layers as the schedule has stages, on the threads of this process.
//! @tparam Policy of the plan
template <class Policy = pp::communicators::one>
class exchanged_pipeline {
public:
  using layer = trained_on_host<exchanged_layer<host_machine<float>>>;

  //! @param table of this schedule, or of all its stages on one device
  exchanged_pipeline(model_size const& size,
                     exchange_schedule const& schedule,
                     pp::timetable_view table,
                     std::uint64_t seed)
      : work_(static_cast<std::size_t>(table.over.extents.devices)),
        sizes_(size, schedule, table.over.extents) {
    layers_.reserve(static_cast<std::size_t>(size.layers)); // which stay where they are
    for (int number = 0; number < table.over.extents.stages(); ++number) {
      auto& work = work_[static_cast<std::size_t>(pp::device_of(table, number))];
      auto const what = sizes_.stage(number);
      if (static_cast<std::size_t>(what.layer) == layers_.size())
        layers_.emplace_back(seed, sizes_.start(sizes_.held(what.layer), work));
      auto& mine = layers_[static_cast<std::size_t>(what.layer)];
      pieces_.emplace_back(
        sizes_, number, std::shared_ptr<layer>(std::shared_ptr<void>(), &mine), work);
    }
    plan_ = pp::lower<Policy>(table, sizes_);
    runner_ = std::make_unique<pp::thread_runner<std::vector<piece>>>(plan_, pieces_);
  }
  exchanged_pipeline(exchanged_pipeline const&) = delete;
  exchanged_pipeline& operator=(exchanged_pipeline const&) = delete;

  double step(batch const& pieces) {
    for (auto& each : layers_)
      each.set_batch(pieces);
    runner_->step();
    return layers_.back().loss();
  }
  void update(adamw const& optimizer, std::int64_t step) {
    for (auto& each : layers_)
      each.update(optimizer, step);
  }
  [[nodiscard]] std::vector<layer>& stages() { return layers_; }
  [[nodiscard]] pp::dynamic_timetable trace() const { return runner_->trace(); }
  [[nodiscard]] pp::plan_view plan() const { return plan_.view(); }
  [[nodiscard]] auto const& sizes() const { return sizes_; }

private:
  using piece = called_on_host<exchanged_stage<host_machine<float>>>;

  std::vector<host::device_work<float>> work_; // by device
  exchanged_slot_sizes<host_machine<float>> sizes_;
  std::vector<layer> layers_;
  std::vector<piece> pieces_;
  pp::plan plan_;
  std::unique_ptr<pp::thread_runner<std::vector<piece>>> runner_;
};

//! SlimPipe's exchange of attention; see system.hpp.
struct exchange_system {
  static constexpr char const* one_device_has = " that splits attention alike";
  static constexpr char const* in_slots =
    "Activations, with queries and keys of other devices, in slots";
  static constexpr named_pool pools[] = {{"activations", pp::slot_class::activation}};

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
};

} // namespace gpt
