// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What stages hold at run time, counted by the stages, against the constants of the plan.
#include <pipe/plan/lower.hpp>
#include <pipe/plan/other_plans.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/chimera.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_stage_graph.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <tests/support/placements.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

struct held {
  int now = 0;
  int peak = 0;
  void take() { peak = std::max(peak, ++now); }
  void give() { --now; }
};

//! Activations and weight inputs that a device holds; a device's stages run on its thread only.
struct counters {
  held activations;
  held weight_inputs;
  int forwards = 0;
};

struct counting_stage {
  static constexpr bool takes_chunks = true;
  std::vector<counters>* devices = nullptr;
  bool keeps = true; //!< an activation for a backward pass, longer than forward itself takes

  [[nodiscard]] counters& here(pp::context const& where) const {
    return (*devices)[static_cast<std::size_t>(where.device)];
  }
  void forward(pp::context const& where, pp::input, pp::output) {
    here(where).activations.take();
    if (!keeps)
      here(where).activations.give();
    ++here(where).forwards;
  }
  void backward(pp::context const& where, pp::input, pp::output) { here(where).activations.give(); }
  void backward_input(pp::context const& where, pp::input, pp::output) {
    here(where).weight_inputs.take();
  }
  void backward_weight(pp::context const& where) {
    here(where).weight_inputs.give();
    here(where).activations.give();
  }
};

//! @param frozen so many first stages keep nothing
void check_peaks(pp::plan const& work, int frozen = 0) {
  std::vector<counters> devices(work.lanes.size());
  std::vector<counting_stage> stages(static_cast<std::size_t>(work.over.extents.stages()),
                                     counting_stage{&devices});
  for (int stage = 0; stage < frozen; ++stage)
    stages[static_cast<std::size_t>(stage)].keeps = false;
  pp::thread_runner runner(work, stages);
  for (int step = 0; step < 3; ++step)
    runner.step();
  for (std::size_t device = 0; device < devices.size(); ++device) {
    int const number = static_cast<int>(device);
    auto const slots = [&](pp::slot_class of) { return work.layout(number, of).count; };
    CHECK(devices[device].activations.peak == slots(pp::slot_class::activation));
    CHECK(devices[device].activations.now == 0);
    CHECK(devices[device].weight_inputs.peak == slots(pp::slot_class::weight_input));
  }
}

} // namespace

TEST_CASE("what is held at run time peaks at the plan's constants") {
  for (int const devices : {1, 2, 4})
    for (int const microbatches : {1, 3, 7}) {
      pp::pipeline_size const size{devices, microbatches};
      check_peaks(pp::lower(pp::make_timetable<pp::GPipe>(size)));
      check_peaks(pp::lower<pp::communicators::per_edge>(pp::make_timetable<pp::OneFOneB>(size)));
      check_peaks(pp::lower<pp::communicators::one>(pp::make_timetable<pp::Seq1F1B<2>>(size)));
      check_peaks(pp::lower(pp::make_timetable<pp::ZeroBubbleH1>(size)));
    }
}

TEST_CASE(
  "the same where stages are frozen, lie on devices in turn or next to others, or have copies") {
  for (int const frozen : {1, 2, 3}) {
    std::vector<int> prefix{0, 1, 2};
    prefix.resize(static_cast<std::size_t>(frozen));
    check_peaks(
      pp::lower(pp::make_timetable(pp::with_frozen_stages<pp::OneFOneB>{{}, prefix}, {4, 16})),
      frozen);
    check_peaks(
      pp::lower(pp::make_timetable(pp::with_frozen_stages<pp::ZeroBubbleH1>{{}, prefix}, {4, 16})),
      frozen);
  }
  for (int const devices : {2, 3, 4}) {
    check_peaks(pp::lower(pp::make_timetable<support::second_in_turn>({devices, 12})));
    check_peaks(pp::lower(pp::make_timetable<support::ends_together>({devices, 7})));
  }
  check_peaks(pp::lower(pp::make_timetable<pp::DualPipe<>>({4, 10})));
  check_peaks(pp::lower(pp::make_timetable<pp::Chimera>({4, 8})));
}

TEST_CASE("an evaluation runs the forward passes and nothing else") {
  pp::plan const work = pp::lower_evaluation(pp::make_timetable<pp::Seq1F1B<2>>({3, 4}));
  std::vector<counters> devices(3);
  std::vector<counting_stage> stages(3, counting_stage{&devices});
  pp::thread_runner runner(work, stages);
  runner.step();
  for (counters const& device : devices) {
    CHECK(device.forwards == 4 * 2);
    CHECK(device.activations.now == 4 * 2); // no backward pass gave any back
  }
}
