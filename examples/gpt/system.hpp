// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Systems that are more than a schedule of stages: what their runs have in common. They
//! have no costs of stages, nor other schedules beside them.
//!
//! A system is a type with static functions of the options: `plan`, the verified timetable;
//! `pipeline` and `one_device`, models that make the same splits; `report`, what is to be said of a
//! run; and the words `one_device_has`. A model has `step`, and its parameters by `stages()` or by
//! `for_each_parameter`; a pipeline has `update` and `trace`, too.

#include <pipe/flow/slot_class.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstdint>
#include <cstdio>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "options.hpp"
#include "parameter.hpp"
#include "report.hpp"
#include "slot_use.hpp"
#include "text.hpp"

namespace gpt {

//! @param what the system, for the message
//! @throws std::invalid_argument for an option that no system goes with
inline void check_system(options const& o, std::string const& what) {
  if (o.clip != 0 || !o.costs.empty() || !o.further_counts.empty()) {
    throw std::invalid_argument(
      what + " goes with none of --clip, --costs and several --chunk-counts; leave them out");
  }
}

//! Of the first weights of a run.
[[nodiscard]] inline std::uint64_t seed_of(options const& o) {
  return static_cast<std::uint64_t>(o.seed);
}

//! A pool of slots, by the name that reports have for it.
struct named_pool {
  char const* name;
  pp::slot_class of;
};

//! Bytes of slots, planned beside measured. @param what lies in them
//! @param ran when each pass of a step of `work` ran. @param sizes of the plan
template <class Sizes>
void report_pools(options const& o,
                  std::string const& what,
                  pp::plan_view const& work,
                  pp::timetable_view const& ran,
                  Sizes const& sizes,
                  std::span<named_pool const> pools) {
  std::printf("\n%s (%s): what the plan reserves, and the most that was in use in the last step",
              what.c_str(),
              name_of(o).c_str());
  std::vector<device_row> rows;
  for (named_pool const& each : pools) {
    std::vector<std::int64_t> planned;
    std::vector<std::int64_t> measured;
    for (int device = 0; device < ran.over.extents.devices; ++device) {
      auto const use = slot_use_of(work, ran, sizes, device, each.of);
      planned.push_back(use.planned);
      measured.push_back(use.measured);
    }
    rows.push_back({std::string(each.name) + ", planned", std::move(planned)});
    rows.push_back({std::string(each.name) + ", measured", std::move(measured)});
  }
  print_device_rows("kB", rows, 1e3, 1);
}

//! All gradients of a model.
template <class Model>
[[nodiscard]] std::vector<float> all_gradients_of(Model& model) {
  std::vector<float> all;
  auto const add = [&all](parameter<float>& p) {
    all.insert(all.end(), p.gradient.begin(), p.gradient.end());
  };
  if constexpr (requires { model.stages(); }) {
    for (auto& each : model.stages()) {
      each.for_each_parameter(add);
    }
  } else {
    model.for_each_parameter(add);
  }
  return all;
}

//! One step from the first weights, held against one device. Returns false where a gradient, or the
//! loss, differs.
template <class System>
bool check_system_bits(options const& o, text_to_learn const& text, pp::timetable_view table) {
  std::mt19937_64 random(seed_of(o) + 1);
  auto const pieces = random_batch(text.bytes, o.microbatches, o.size.sequence, random);
  auto&& model = System::pipeline(o, table);
  auto&& alone = System::one_device(o, table);
  bool const same = model.step(pieces) == alone.step(pieces);
  auto const gradients = all_gradients_of(model);
  auto const expected = all_gradients_of(alone);
  auto const different = differences(gradients, expected);
  std::printf(
    "\nOne step of %s: %lld devices, %lld microbatches, held against one device%s: %zu of "
    "%zu gradients differ\n",
    name_of(o).c_str(),
    static_cast<long long>(o.devices),
    static_cast<long long>(o.microbatches),
    System::one_device_has,
    different,
    expected.size());
  return same && different == 0;
}

} // namespace gpt
