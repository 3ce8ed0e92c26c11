// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The plans with which the executors for CUDA train.

#include <pipe/plan/lower.hpp>
#include <pipe/plan/other_plans.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/plan/sizes.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/chimera.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <tests/cuda/training.hpp>
#include <tests/support/early_training.hpp>
#include <tests/support/paired_weights.hpp>
#include <tests/support/placements.hpp>
#include <tests/support/training.hpp>
#include <utility>
#include <vector>

inline constexpr pipelining::uniform_sizes training_sizes{
  .message = 4,
  .activation = 4,
  .weight_input = 4,
  .tied_bytes = 4,
  .totals_bytes = sizeof(support::training_row),
  .copied_gradient = sizeof(support::copied_row)};
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
//! that are no neighbours; composite passes, some of which complete gradients.
inline std::vector<training_plan> training_plans() {
  namespace pp = pipelining;
  std::vector<training_plan> plans;
  auto const add = [&plans](std::string name, pp::plan work) {
    pp::shape const extents = work.over.extents;
    auto expected = support::untrained(extents.stages());
    support::train_sequentially(expected, extents.microbatches, 9);
    plans.push_back({std::move(name), std::move(work), std::move(expected)});
  };
  auto const straight = pp::make_timetable<pp::OneFOneB>({4, 6});
  add("1F1B 4x6 per pair", pp::lower(straight, training_sizes));
  add("1F1B 4x6 per edge", pp::lower<pp::communicators::per_edge>(straight, training_sizes));
  add("1F1B 2x4 in one lane",
      pp::lower<pp::communicators::one>(pp::make_timetable<pp::OneFOneB>({2, 4}), training_sizes));
  add("V-Half 3x5 per pair", pp::lower(pp::make_timetable<pp::VHalf>({3, 5}), training_sizes));
  add("interleaved 2x4 per edge",
      pp::lower<pp::communicators::per_edge>(pp::make_timetable<pp::Interleaved<2>>({2, 4}),
                                             training_sizes));
  add("DualPipeV 2x5 per pair",
      pp::lower(pp::make_timetable<pp::DualPipeV<>>({2, 5}), training_sizes));
  add("both ends on one of three devices x4",
      pp::lower(pp::make_timetable<support::ends_together>({3, 4}), training_sizes));
  add("weight gradients in pairs 2x3",
      pp::lower(pp::make_timetable<support::paired_weights>({2, 3}), training_sizes));
  return plans;
}

//! @brief Several copies of stages: both ends of a tie on one device, or a stage on two in turn.
inline std::vector<training_plan> copied_plans() {
  namespace pp = pipelining;
  std::vector<training_plan> plans;
  auto const add = [&plans](std::string name, pp::plan work) {
    int const stages = work.over.extents.stages();
    support::trained_copies expected(static_cast<std::size_t>(work.over.extents.devices),
                                     support::untrained(stages));
    support::train_copies(work.over, expected, 9);
    training_plan made{std::move(name), std::move(work), {}};
    for (int s = 0; s < stages; ++s)
      made.expected.push_back(expected[static_cast<std::size_t>(pp::device_of(made.work.over, s))]
                                      [static_cast<std::size_t>(s)]);
    plans.push_back(std::move(made));
  };
  add("DualPipe 2x4 per pair",
      pp::lower(pp::make_timetable<pp::DualPipe<>>({2, 4}), training_sizes));
  add("DualPipe 4x8 per edge",
      pp::lower<pp::communicators::per_edge>(pp::make_timetable<pp::DualPipe<>>({4, 8}),
                                             training_sizes));
  add("Chimera 4x4 in one lane",
      pp::lower<pp::communicators::one>(pp::make_timetable<pp::Chimera>({4, 4}), training_sizes));
  add("BitPipe 2x4 per pair", pp::lower(pp::make_timetable<pp::BitPipe>({2, 4}), training_sizes));
  add("the second of two stages on two devices in turn x6",
      pp::lower(pp::make_timetable<support::second_in_turn>({3, 6}), training_sizes));
  return plans;
}

//! @brief Composite passes of all devices.
inline int pairs_of(pipelining::plan const& work) {
  return static_cast<int>(
    std::count_if(work.items.begin(), work.items.end(), [](pipelining::item const& step) {
      return step.what == pipelining::operation::run && step.work.overlapped;
    }));
}

//! Plans of one runner, and what threads make of them.
struct several_plans {
  std::string name;
  training_case what;
  training_result expected; //!< stages and rows
};

//! @brief How many stages and rows differ in any bit.
inline int differences(training_result const& one, training_result const& other) {
  int count = one.rows.size() == other.rows.size() ? 0 : 1;
  for (std::size_t s = 0; s < other.stages.size(); ++s)
    count += support::same_bits(one.stages[s], other.stages[s]) ? 0 : 1;
  for (std::size_t step = 0; count == 0 && step < other.rows.size(); ++step) {
    auto const& a = one.rows[step];
    auto const& b = other.rows[step];
    count += a.size() == b.size() &&
                 (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0)
               ? 0
               : 1;
  }
  return count;
}

//! @brief What threads make of a case.
inline training_result train_on_threads(training_case const& what) {
  namespace pp = pipelining;
  auto model = support::training_model(what.work.over.extents.stages());
  pp::thread_runner runner(what.work, model);
  training_result result;
  for (std::size_t step = 0; step < what.turns.size(); ++step) {
    for (given_plan const& each : what.given)
      if (each.before_step == static_cast<int>(step)) {
        if (each.instead_of < 0)
          (void)runner.add(each.work);
        else
          (void)runner.replace({each.instead_of}, each.work);
      }
    runner.step({what.turns[step]});
    result.rows.emplace_back();
    pp::totals const all = runner.totals();
    for (int stage = 0; stage < all.rows; ++stage)
      result.rows.back().push_back(all.row<support::training_row>(stage)[0]);
  }
  for (auto const& stage : model)
    result.stages.push_back(stage.numbers);
  return result;
}

//! @brief Training, evaluation and other sizes and schedules in turn; memory that grows while
//! graphs are there, plans that are replaced, and plans without totals.
inline std::vector<several_plans> all_several_plans() {
  namespace pp = pipelining;
  std::vector<several_plans> all;
  auto const add = [&all](std::string name, training_case what) {
    what.steps = static_cast<int>(what.turns.size());
    training_result expected = train_on_threads(what);
    all.push_back({std::move(name), std::move(what), std::move(expected)});
  };
  auto const small = pp::make_timetable<pp::OneFOneB>({3, 4});
  auto const large = pp::make_timetable<pp::OneFOneB>({3, 9});
  auto const halves = pp::make_timetable<pp::ZeroBubbleH1>({3, 5});
  pp::uniform_sizes wide = training_sizes;
  wide.message = 4000;
  wide.activation = 400;
  add("1F1B and others",
      {.work = pp::lower(small, training_sizes),
       .given = {{pp::lower_evaluation(small, training_sizes)},
                 {pp::lower(large, wide), 4},
                 {pp::lower_evaluation(large, pp::uniform_sizes{.message = 4, .activation = 4}), 6},
                 {pp::lower(halves, training_sizes), 8, 2},
                 {pp::lower(halves, wide), 11, 0}},
       .turns = {0, 0, 1, 0, 2, 0, 3, 2, 2, 0, 1, 0, 0, 2, 3, 0}});
  auto const v = pp::make_timetable<pp::VHalf>({2, 5});
  add("V-Half and its evaluation",
      {.work = pp::lower<pp::communicators::per_edge>(v, training_sizes),
       .given = {{pp::lower_evaluation(v, training_sizes)},
                 {pp::lower<pp::communicators::one>(v, training_sizes), 3}},
       .turns = {0, 1, 0, 2, 1, 2, 0, 2}});
  return all;
}

//! Plans that step early and validate, and what one device makes of them.
struct early_plans {
  std::string name;
  training_case what;
  std::vector<support::trained> expected;
};

//! @brief Devices that end one after the other and all at once, rows that are no neighbours.
inline std::vector<early_plans> all_early_plans() {
  namespace pp = pipelining;
  constexpr int steps = 13;
  std::vector<early_plans> all;
  auto const add = [&all]<class Policy>(std::string name, pp::timetable_view table, Policy) {
    auto plans = pp::lower_post_validated<Policy>(table, training_sizes);
    int const stages = table.over.extents.stages();
    auto expected = support::untrained(stages, 64);
    support::train_planted(expected, table.over.extents.microbatches, 0, steps);
    all.push_back({std::move(name),
                   {.work = std::move(plans.first),
                    .given = {{std::move(plans.steady)}, {std::move(plans.last)}},
                    .early = true,
                    .steps = steps},
                   std::move(expected)});
  };
  add("ZB-H2 3x6", pp::make_timetable<pp::ZeroBubbleH2>({3, 6}), pp::communicators::per_pair{});
  add("1F1B 2x4", pp::make_timetable<pp::OneFOneB>({2, 4}), pp::communicators::one{});
  add("interleaved 2x4",
      pp::make_timetable<pp::Interleaved<2>>({2, 4}),
      pp::communicators::per_edge{});
  return all;
}
