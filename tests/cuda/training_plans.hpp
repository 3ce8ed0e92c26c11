// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The plans with which the executors for CUDA train.

#include <pipe/plan/lower.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/plan/sizes.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <string>
#include <tests/support/training.hpp>
#include <utility>
#include <vector>

inline constexpr pipelining::uniform_sizes training_sizes{.message = 4,
                                                          .activation = 4,
                                                          .weight_input = 4,
                                                          .tied_bytes = 4,
                                                          .totals_bytes =
                                                            sizeof(support::training_row)};
inline constexpr pipelining::uniform_sizes training_sizes_of_chunks{.message = 4,
                                                                    .activation = 4,
                                                                    .sequence = 4,
                                                                    .sequence_gradient = 4,
                                                                    .tied_bytes = 4,
                                                                    .totals_bytes = 12};

struct training_plan {
  std::string name;
  pipelining::plan work;
  std::vector<support::trained> expected; //!< after nine steps
};

//! @brief Tied ends on two neighbours, far apart, and on one device; split backward passes; rows
//! that are no neighbours.
inline std::vector<training_plan> training_plans() {
  namespace pp = pipelining;
  std::vector<training_plan> plans;
  auto const add = [&plans](std::string name, pp::plan work) {
    pp::shape const extents = work.view().extents;
    auto expected = support::untrained(pp::stages(extents));
    support::train_sequentially(expected, extents.microbatches, 9);
    plans.push_back({std::move(name), std::move(work), std::move(expected)});
  };
  auto const straight = pp::make_timetable<pp::OneFOneB>({4, 6});
  add("1F1B 4x6 per pair", pp::lower(straight, training_sizes));
  add("1F1B 4x6 per edge", pp::lower<pp::communicator_per_edge>(straight, training_sizes));
  add("1F1B 2x4 in one lane",
      pp::lower<pp::one_communicator>(pp::make_timetable<pp::OneFOneB>({2, 4}), training_sizes));
  add("V-Half 3x5 per pair", pp::lower(pp::make_timetable<pp::VHalf>({3, 5}), training_sizes));
  add("interleaved 2x4 per edge",
      pp::lower<pp::communicator_per_edge>(pp::make_timetable<pp::Interleaved<2>>({2, 4}),
                                           training_sizes));
  return plans;
}
