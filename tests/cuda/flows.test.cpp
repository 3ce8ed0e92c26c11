// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Flows by chance on the executors for CUDA: each engine has its stream, and what every pass reads
// is what a sequential interpreter says, in every order that streams may run in; on the stand-in.
#include <doctest/doctest.h>

#include <iostream>
#include <simulators/cuda/standin.hpp>
#include <tests/cuda/flows.hpp>
#include <tests/support/asked_flows.hpp>
#include <tests/support/expert_overlap.hpp>
#include <tests/support/random_flows.hpp>

namespace {

constexpr unsigned tried = 1'000;

void check_flow(support::interpreted_plan const& plan, unsigned seed, bool ranks) {
  for (bool const graph : {false, true}) {
    CAPTURE(graph);
    standin::configure(
      seed % 3 == 0   ? standin::configuration{.execution = standin::order::lazy}
      : seed % 3 == 1 ? standin::configuration{.execution = standin::order::eager}
                      : standin::configuration{.execution = standin::order::random, .seed = seed});
    flow_result const found = run_flow({plan.work, ranks, graph});
    CHECK(found.failure == "");
    CHECK(found.findings == "");
    CHECK(found.read == plan.expected);
  }
}

void check_flows(bool ranks) {
  int ran = 0;
  for (unsigned seed = 0; seed < tried; ++seed) {
    CAPTURE(seed);
    if (auto const plan = support::interpreted_by_chance(seed)) {
      check_flow(*plan, seed, ranks);
      ++ran;
    }
  }
  std::cout << "random flows on " << (ranks ? "NCCL" : "streams") << ": " << ran << " of " << tried
            << " ran\n";
  CHECK(ran >= 250);
}

} // namespace

TEST_CASE("whatever is declared runs on streams as interpreted") {
  check_flows(false);
}

TEST_CASE("whatever is declared runs over NCCL as interpreted") {
  check_flows(true);
}

TEST_CASE("experts on the network run on streams and over NCCL as interpreted") {
  auto const plan = support::overlap::interpreted({2}, 4, 8);
  for (bool const ranks : {false, true})
    for (unsigned seed = 0; seed < 3; ++seed)
      check_flow(plan, seed, ranks);
}

TEST_CASE("flows that users asked for run on streams and over NCCL as interpreted") {
  for (support::asked::asked_plan const& one : support::asked::plans())
    for (bool const ranks : {false, true})
      for (unsigned seed = 0; seed < 3; ++seed) {
        CAPTURE(one.name);
        CAPTURE(ranks);
        check_flow(one.of, seed, ranks);
      }
}
