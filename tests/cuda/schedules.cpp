// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Compiled once for all programs: schedules take long.
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/seq1f1b_interleaved.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/schedule/zero_bubble_v.hpp>

#include <string>
#include <tests/cuda/schedules.hpp>
#include <utility>
#include <vector>

namespace pp = pipelining;

std::vector<named_plan> test_plans() {
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

std::vector<named_plan> large_plans(int devices, int microbatches, int words) {
  std::vector<named_plan> plans;
  auto const add = [&]<class Schedule>(std::string const& name, Schedule const&) {
    auto const table = pp::make_timetable<Schedule>({devices, microbatches});
    pp::uniform_sizes sizes = message_words;
    sizes.message = 8 * words;
    pp::plan work = pp::lower<pp::communicator_per_pair>(table, sizes);
    REQUIRE(pp::prove(work));
    auto const extents = work.view().extents;
    plans.push_back(
      {name,
       std::move(work),
       support::run_sequentially(pp::stages(extents), extents.microbatches, extents.chunks)});
  };
  add("1F1B", pp::OneFOneB{});
  add("Seq1F1B", pp::Seq1F1B<2>{});
  add("V-Half", pp::VHalf{});
  add("ZB-H1", pp::ZeroBubbleH1{});
  add("interleaved", pp::Interleaved<2>{});
  add("DualPipeV", pp::DualPipeV<>{});
  return plans;
}
