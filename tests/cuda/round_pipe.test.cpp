// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RoundPipe on the executors for CUDA: weights come from pinned memory of the host into slots of
// two stages on a stream of their own, and gradients go back; on the stand-in.
#include <pipe/plan/lower.hpp>
#include <pipe/planner/cut/round_stages.hpp>
#include <pipe/schedule/round_pipe.hpp>
#include <pipe/timetable/adapt/with_sharded_weights.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <simulators/cuda/standin.hpp>
#include <tests/cuda/round_pipe.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

using word = std::uint64_t;

//! The gradients of all layers, one microbatch after the other.
std::vector<word> on_one_device(int layers, int microbatches) {
  std::vector<word> gradients(static_cast<std::size_t>(layers));
  for (int m = 0; m < microbatches; ++m) {
    std::vector<word> x{static_cast<word>(m) + 7};
    for (std::size_t layer = 0; layer < gradients.size(); ++layer)
      x.push_back(x.back() * (2 * layer + 3));
    word back = x.back();
    for (std::size_t layer = gradients.size(); layer-- > 0;) {
      gradients[layer] += back * x[layer];
      back *= 2 * layer + 3;
    }
  }
  return gradients;
}

round_case case_of(int devices, int layers) {
  std::vector<pp::layer_cost> const costs(static_cast<std::size_t>(layers), {1, 1, 1});
  auto const cut = pp::round_stages::best(costs, devices);
  pp::RoundPipe<> const schedule{static_cast<int>(cut.forward.size()),
                                 static_cast<int>(cut.backward.size())};
  auto const table =
    pp::make_timetable(pp::with_sharded_weights<pp::RoundPipe<>>{schedule}, {devices, devices + 2});
  pp::uniform_sizes const sizes{.message = 8 * layers, .activation = 8 * layers};
  return {.work = pp::lower(table, sizes), .forward = cut.forward, .backward = cut.backward};
}

} // namespace

TEST_CASE("gradients of weights that are loaded from the host are those of one device") {
  for (int const devices : {1, 2, 3})
    for (int const layers : {5, 9}) {
      round_case what = case_of(devices, layers);
      auto const expected = on_one_device(layers, what.work.over.extents.microbatches);
      for (int device = 0; device < devices; ++device)
        CHECK(what.work.layout(device, pp::slot_class::weights).count <= 2);
      for (auto const order : {standin::order::lazy, standin::order::eager, standin::order::random})
        for (bool const ranks : {false, true})
          for (bool const graph : {false, true}) {
            if (ranks && devices == 1)
              continue; // no messages
            CAPTURE(devices);
            CAPTURE(layers);
            CAPTURE(static_cast<int>(order));
            CAPTURE(ranks);
            CAPTURE(graph);
            what.ranks = ranks;
            what.graph = graph;
            what.several_gpus = !what.several_gpus;
            standin::configure({.execution = order, .seed = 71});
            auto const result = run_round(what);
            CHECK(result.failure == "");
            CHECK(result.findings == "");
            CHECK(result.gradients == expected);
            standin::report_leaks();
            CHECK(standin::summary() == "");
          }
    }
}

TEST_CASE("weights that are loaded without a wait overwrite those of a stage that runs") {
  round_case what = case_of(2, 9);
  standin::configure({});
  CHECK(run_round(what).findings == "");
  // Without what a load waits for, the slot of the stage before the last one is still in use.
  int dropped = 0;
  for (pp::item& step : what.work.items)
    if (what.work.over.declared[step.work.kind].calls == pp::stage_call::gather_weights) {
      dropped += step.wait_count;
      step.wait_count = 0;
    }
  CHECK(dropped > 0);
  standin::configure({});
  CHECK(run_round(what).findings != "");
}
