// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief Makes one plan with sizes: order, times, verification, lowering and proof; or runs a plan
//! of stages that do nothing. What instructions_test.py counts.
//!
//! usage: planning CASE
//!        planning --compiler

#include <pipe/flow/stage_graph.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/sizes.hpp>
#include <pipe/run/called_runner.hpp>
#include <pipe/run/context.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/adapt/with_stage_graph.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <cstddef>
#include <cstdio>
#include <string_view>
#include <vector>

namespace pp = pipelining;

namespace {

constexpr pp::pipeline_size size{16, 128};

//! A chain of stages in which each stage of the first half also feeds its mirror image.
std::vector<pp::stage_edge> u_net() {
  std::vector<pp::stage_edge> edges;
  for (int stage = 0; stage + 1 < size.devices; ++stage)
    edges.push_back({stage, stage + 1});
  for (int stage = 0; stage + 1 < size.devices / 2; ++stage)
    edges.push_back({stage, size.devices - 1 - stage});
  return edges;
}

template <pp::schedule Schedule>
int plan(Schedule const& schedule) {
  pp::plan const work =
    pp::lower(pp::make_timetable(schedule, size),
              pp::uniform_sizes{.message = 4096, .activation = 65536, .weight_input = 8192});
  std::printf("%zu items\n", work.items.size());
  return 0;
}

struct idle_stage {
  int passes = 0;

  void forward(pp::context const&, pp::input, pp::output) { ++passes; }
  void backward(pp::context const&, pp::input, pp::output) { ++passes; }
  void backward_input(pp::context const&, pp::input, pp::output) { ++passes; }
  void backward_weight(pp::context const&) { ++passes; }
  void forward_backward(pp::composite_half const&, pp::composite_half const&, idle_stage& other) {
    ++passes;
    ++other.passes;
  }
};

//! So many steps that they outweigh the plan.
template <pp::schedule Schedule>
int step() {
  pp::plan const work = pp::lower(pp::make_timetable<Schedule>({4, 32}),
                                  pp::uniform_sizes{.message = 8, .activation = 16});
  std::vector<idle_stage> stages(static_cast<std::size_t>(work.over.extents.stages()));
  pp::called_runner runner(work, stages);
  for (int i = 0; i < 40; ++i)
    runner.step();
  std::printf("%d passes\n", stages[0].passes);
  return 0;
}

} // namespace

int main(int count, char** words) {
  std::string_view const asked = count == 2 ? words[1] : "";
  if (asked == "--compiler") {
#ifdef __clang__
    std::printf("clang++ %d.%d\n", __clang_major__, __clang_minor__);
#else
    std::printf("g++ %d.%d\n", __GNUC__, __GNUC_MINOR__);
#endif
    return 0;
  }
  if (asked == "one stage")
    return plan(pp::OneFOneB{});
  if (asked == "two stages")
    return plan(pp::Interleaved<2>{});
  if (asked == "halves")
    return plan(pp::ZeroBubbleH1{});
  if (asked == "v of halves")
    return plan(pp::ZeroBubbleV{});
  if (asked == "pairs")
    return plan(pp::DualPipeV<>{});
  if (asked == "with copies")
    return plan(pp::with_offload<pp::OneFOneB>{});
  if (asked == "graph")
    return plan(pp::with_stage_graph<pp::OneFOneB>{{}, u_net()});
  if (asked == "steps")
    return step<pp::OneFOneB>();
  if (asked == "steps of pairs")
    return step<pp::DualPipeV<>>();
  std::fputs("planning: no such case\n", stderr);
  return 2;
}
