// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The schedules that the executors for CUDA are tested with.

#include <pipe/plan/lower.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/plan/sizes.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/seq1f1b_interleaved.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/schedule/zero_bubble_v.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <tests/support/arithmetic_stage.hpp>
#include <utility>
#include <vector>

inline constexpr pipelining::uniform_sizes message_words{
  .message = 24, .activation = 8, .weight_input = 8, .sequence = 8, .sequence_gradient = 8};

struct named_plan {
  std::string name;
  pipelining::plan work;
  support::sequential_result expected;
};

//! @brief Adds the plans of one timetable under all policies.
inline void add_plans(std::vector<named_plan>& plans,
                      std::string const& name,
                      pipelining::dynamic_timetable const& table) {
  namespace pp = pipelining;
  auto add = [&]<class Policy>(Policy) {
    pp::plan work = pp::lower<Policy>(table, message_words);
    REQUIRE(pp::prove(work));
    auto const extents = work.view().extents;
    plans.push_back(
      {name + " " + std::to_string(extents.devices) + "x" + std::to_string(extents.microbatches) +
         ", communicators per " + Policy::name,
       std::move(work),
       support::run_sequentially(pp::stages(extents), extents.microbatches, extents.chunks)});
  };
  add(pp::one_communicator{});
  add(pp::communicator_per_pair{});
  add(pp::communicator_per_edge{});
}

//! @brief The same for a schedule of the compiler.
template <class Schedule>
void add_plans(std::vector<named_plan>& plans,
               std::string const& name,
               int devices,
               int microbatches) {
  add_plans(plans, name, pipelining::make_timetable<Schedule>({devices, microbatches}));
}

//! @brief Every kind of timetable: one flow and two per edge, the ring, the turn-around, split
//! backward, chunks, composite passes.
inline std::vector<named_plan> test_plans() {
  namespace pp = pipelining;
  std::vector<named_plan> plans;
  add_plans<pp::GPipe>(plans, "GPipe", 3, 4);
  add_plans<pp::OneFOneB>(plans, "1F1B", 2, 3);
  add_plans<pp::OneFOneB>(plans, "1F1B", 4, 6);
  add_plans<pp::Seq1F1B<2>>(plans, "Seq1F1B", 3, 4);
  add_plans<pp::VHalf>(plans, "V-Half", 3, 5);
  add_plans<pp::VMin>(plans, "V-Min", 3, 5);
  add_plans<pp::ZeroBubbleH1>(plans, "ZB-H1", 4, 6);
  add_plans<pp::Interleaved<2>>(plans, "interleaved", 2, 4);
  add_plans<pp::Interleaved<2>>(plans, "interleaved", 4, 4);
  add_plans<pp::Seq1F1BInterleaved<2, 2>>(plans, "interleaved Seq1F1B", 2, 4);
  add_plans<pp::ZeroBubbleV>(plans, "ZB-V", 3, 6);
  add_plans<pp::DualPipeV<>>(plans, "DualPipeV", 2, 5);
  return plans;
}
