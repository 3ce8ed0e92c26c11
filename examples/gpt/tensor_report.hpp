// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What a run with stages in shards ends with: bytes and sums, planned and measured, and one
//! device beside it.

#include <pipe/core/pass.hpp>
#include <pipe/model/device_memory.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "../support/named_schedules.hpp"
#include "options.hpp"
#include "report.hpp"
#include "tensor_device.hpp"
#include "tensor_parallel.hpp"
#include "text.hpp"

namespace gpt {

//! The timetable of the chosen schedule.
//! @throws std::invalid_argument where stages cannot be in shards, or the option does not go with
//! another one
inline pp::dynamic_timetable check_tensor(options const& o) {
  auto const refuse = [](std::string const& why) {
    throw std::invalid_argument("stages in shards (--tensor) " + why);
  };
  if (o.adapted != examples::adapter::none || o.clip != 0 || !o.costs.empty() ||
      !o.further_counts.empty()) {
    refuse("go with none of --with, --clip, --costs and several --chunk-counts; leave them out");
  }
  auto const shards = shards_of_stages(o);
  if (o.size.key_heads % shards != 0) {
    refuse("want the heads of keys and values, " + std::to_string(o.size.key_heads) +
           ", to be a multiple of the " + std::to_string(shards) + " shards");
  }
  auto table = examples::make_named_timetable(choice_of(o, name_of(o)), unit_costs);
  if (examples::find_schedule(o.schedule).weights_travel || table.extents.chunks > 1 ||
      table.view().first_units != nullptr || table.extents.where == pp::placement::bidirectional ||
      table.extents.where == pp::placement::custom) {
    refuse("want a schedule over whole sequences with one copy of every stage, which " +
           o.schedule + " is not; take stp, 1f1b or a V shape");
  }
  for (int stage = 0; stage < pp::stages(table.extents); ++stage) {
    (void)weight_order(table, stage);
  }
  return table;
}

//! What a device of a shard was planned to hold and to wait for, and what came of it.
struct shard_report {
  std::int64_t planned_activations = 0; //!< bytes of slots
  std::int64_t measured_activations = 0;
  std::int64_t planned_weight_inputs = 0;
  std::int64_t measured_weight_inputs = 0;
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

//! By device, of a shard in the last step.
//! @param work what `ran`. @param counts by device
[[nodiscard]] inline std::vector<shard_report>
shard_reports(pp::plan_view const& work,
              pp::timetable_view ran,
              shard_sizes const& sizes,
              std::vector<sum_counts> const& counts) {
  std::vector<shard_report> all;
  for (int device = 0; device < ran.extents.devices; ++device) {
    auto const planned = [&](pp::slot_class of) {
      return work.layout(device, of).count * work.layout(device, of).bytes;
    };
    auto const measured = [&](pp::slot_class of) {
      return static_cast<std::int64_t>(
        pp::peak_slot_bytes(ran, device, of, [&](pp::pass const& what) {
          return static_cast<double>(sizes.bytes(of, what));
        }));
    };
    auto const& found = counts[static_cast<std::size_t>(device)];
    all.push_back({planned(pp::slot_class::activation),
                   measured(pp::slot_class::activation),
                   planned(pp::slot_class::weight_input),
                   measured(pp::slot_class::weight_input),
                   found.made,
                   found.exposed,
                   passes_alone(ran, device),
                   found.exposed_passes});
  }
  return all;
}

inline void report_tensor(options const& o, std::vector<shard_report> const& all) {
  std::printf("\nA shard of %lld (%s): what the plan reserves, and the most that was in use in the "
              "last step",
              static_cast<long long>(shards_of_stages(o)),
              name_of(o).c_str());
  using row = byte_row<shard_report>;
  static constexpr row bytes[] = {{"activations, planned", &shard_report::planned_activations},
                                  {"activations, measured", &shard_report::measured_activations},
                                  {"for weights, planned", &shard_report::planned_weight_inputs},
                                  {"for weights, measured", &shard_report::measured_weight_inputs}};
  print_kilobytes<shard_report>(bytes, all);
  std::printf("\nSums over the shards in a step; exposed: waited for with nothing done beside");
  static constexpr row sums[] = {{"sums", &shard_report::sums},
                                 {"exposed", &shard_report::exposed_sums},
                                 {"passes alone, planned", &shard_report::planned_alone},
                                 {"passes alone, measured", &shard_report::measured_alone}};
  print_rows<shard_report>("", sums, all, 1, 0);
}

//! One step from the first weights, held against one device with all shards. Returns false where a
//! gradient differs.
inline bool check_shards(options const& o, text_to_learn const& text, pp::timetable_view table) {
  auto const seed = static_cast<std::uint64_t>(o.seed);
  std::mt19937_64 random(seed + 1);
  auto const pieces = random_batch(text.bytes, o.microbatches, o.size.sequence, random);
  auto const gradients = [&pieces](auto&& model) {
    model.step(pieces);
    std::vector<float> all;
    model.for_each_parameter(
      [&](parameter<float>& p) { all.insert(all.end(), p.gradient.begin(), p.gradient.end()); });
    return all;
  };
  auto const shards = shards_of_stages(o);
  return report_held(o,
                     " that has all shards",
                     gradients(tensor_pipeline(o.size, table, shards, seed)),
                     gradients(tensor_device(o.size, table, shards, seed)));
}

} // namespace gpt
