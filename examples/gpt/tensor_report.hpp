// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A run with stages in shards: what it refuses, and bytes and sums, planned and measured.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/slot_class.hpp>
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstdint>
#include <cstdio>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "options.hpp"
#include "report.hpp"
#include "system.hpp"
#include "tensor_device.hpp"
#include "tensor_parallel.hpp"

namespace gpt {

//! Sums over the shards that a device waits for.
struct sums_of_device {
  std::int64_t sums = 0;
  std::int64_t exposed_sums = 0;
  std::int64_t planned_alone = 0; //!< passes all of whose sums are exposed
  std::int64_t measured_alone = 0;
};

//! Passes of a device that have sums and nothing beside these: forward passes and gradients of
//! inputs that are in no braid.
[[nodiscard]] inline std::int64_t passes_alone(pp::timetable_view table, int device) {
  std::int64_t count = 0;
  for (int i = table.offsets[device]; i < table.offsets[device + 1]; ++i) {
    pp::pass const& what = table.passes[i];
    bool const braided =
      what.overlapped || (i + 1 < table.offsets[device + 1] && table.passes[i + 1].overlapped);
    bool const sums =
      what.kind == pp::pass_kind::forward || what.kind == pp::pass_kind::backward_input;
    count += sums && !braided ? 1 : 0;
  }
  return count;
}

//! Tensor parallelism; see system.hpp.
struct tensor_system {
  static constexpr char const* one_device_has = " that has all shards";

  //! @throws std::invalid_argument where stages cannot be in shards, or an option does not go with
  //! these
  static pp::dynamic_timetable plan(options const& o) {
    check_system(o, "tensor parallelism (--tensor)");
    auto const refuse = [](std::string const& why) {
      throw std::invalid_argument("stages in shards (--tensor) " + why);
    };
    if (o.adapted != registry::adapter::none) {
      refuse("go into no adapter; leave --with out");
    }
    auto const shards = shards_of_stages(o);
    if (o.size.key_heads % shards != 0) {
      refuse("want the heads of keys and values, " + std::to_string(o.size.key_heads) +
             ", to be a multiple of the " + std::to_string(shards) + " shards");
    }
    auto table = registry::make_named_timetable(choice_of(o, name_of(o)), unit_costs);
    auto const& named = registry::find_schedule(o.schedule);
    pp::pipeline_view const over = table.over;
    if (named.traits.weights_travel || over.extents.chunks > 1 || over.first_units != nullptr ||
        over.holders != nullptr || over.extents.routes() > 1) {
      refuse("want a schedule over whole sequences with one copy of every stage, which " +
             o.schedule + " is not; take stp, 1f1b or a V shape");
    }
    for (int stage = 0; stage < table.over.extents.stages(); ++stage) {
      (void)weight_order(table, stage);
    }
    return table;
  }
  static tensor_pipeline pipeline(options const& o, pp::timetable_view table) {
    return {o.size, table, shards_of_stages(o), seed_of(o)};
  }
  static tensor_device one_device(options const& o, pp::timetable_view table) {
    return {o.size, table, shards_of_stages(o), seed_of(o)};
  }
  static void report(options const& o, pp::timetable_view, tensor_pipeline const& model) {
    report_shard(o, model.plan(), model.trace(), model.sizes(), model.counts());
  }
  //! @param ran when each pass of a step of `work` ran. @param counts by device
  static void report_shard(options const& o,
                           pp::plan_view const& work,
                           pp::timetable_view const& ran,
                           shard_sizes const& sizes,
                           std::span<sum_counts const> counts) {
    static constexpr named_pool pools[] = {{"activations", pp::slot_class::activation},
                                           {"for weights", pp::slot_class::weight_input}};
    report_pools(
      o, "Slots of a shard of " + std::to_string(shards_of_stages(o)), work, ran, sizes, pools);
    std::vector<sums_of_device> all;
    for (sum_counts const& found : counts) {
      int const device = static_cast<int>(all.size());
      all.push_back({found.made, found.exposed, passes_alone(ran, device), found.exposed_passes});
    }
    std::printf("\nSums over the shards in a step; exposed: waited for with nothing done beside");
    using row = byte_row<sums_of_device>;
    static constexpr row sums[] = {{"sums", &sums_of_device::sums},
                                   {"exposed", &sums_of_device::exposed_sums},
                                   {"passes alone, planned", &sums_of_device::planned_alone},
                                   {"passes alone, measured", &sums_of_device::measured_alone}};
    print_rows<sums_of_device>("", sums, all, 1, 0);
  }
};

} // namespace gpt
