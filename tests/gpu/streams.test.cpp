// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Virtual devices of one GPU against one device that runs the same passes in turn, bit for bit.
#include <pipe/schedule/seq1f1b.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <tests/cuda/schedules.hpp>
#include <tests/gpu/machine.hpp>
#include <tests/gpu/streams.hpp>
#include <vector>

namespace {

void check_plan(named_plan const& plan, bool graph, unsigned longest_wait) {
  CAPTURE(plan.name);
  CAPTURE(graph);
  CAPTURE(longest_wait);
  machine::begin();
  stream_case what{.work = plan.work, .graph = graph, .longest_wait = longest_wait};
  auto const result = run_on_gpu(what);
  auto const steps = static_cast<std::uint64_t>(what.steps);
  for (std::string const& failure : result.failures)
    CHECK(failure == "");
  REQUIRE(result.gradients.size() == plan.expected.gradients.size());
  for (std::size_t s = 0; s < result.gradients.size(); ++s)
    CHECK(result.gradients[s] == steps * plan.expected.gradients[s]);
  CHECK(result.losses == steps * plan.expected.losses);
  CHECK(machine::findings() == "");
}

} // namespace

TEST_CASE("a small pipeline") { // for tools that make every kernel slow
  std::vector<named_plan> plans;
  add_plans<pipelining::Seq1F1B<2>>(plans, "Seq1F1B", 2, 2);
  for (bool const graph : {false, true})
    check_plan(plans[1], graph, 0);
}

TEST_CASE("streams compute what one device computes, eagerly and as a graph") {
  auto const plans = test_plans();
  // On the model one policy of each schedule; tests/cuda has the others.
  for (std::size_t i = 0; i < plans.size(); i += machine::on_model() ? 3 : 1)
    for (bool const graph : {false, true})
      check_plan(plans[i], graph, 0);
}

TEST_CASE("kernels that take their time, each another one, change no bit") {
  auto const plans = test_plans();
  for (std::size_t i = 1; i < plans.size(); i += machine::on_model() ? 6 : 1)
    for (bool const graph : {false, true})
      check_plan(plans[i], graph, machine::on_model() ? 3'000 : 60'000);
}

TEST_CASE("eight devices and long messages") {
  bool const tiny = machine::on_model();
  for (named_plan const& plan : large_plans(tiny ? 4 : 8, tiny ? 4 : 32, tiny ? 33 : 2049))
    for (bool const graph : {false, true})
      check_plan(plan, graph, 0);
}
