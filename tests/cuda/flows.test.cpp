// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Flows by chance on the executors for CUDA: each engine has its stream, and what every pass reads
// is what a sequential interpreter says, in every order that streams may run in; on the stand-in.
#include <pipe/plan/lower.hpp>

#include <doctest/doctest.h>

#include <iostream>
#include <simulators/cuda/standin.hpp>
#include <stdexcept>
#include <tests/cuda/flows.hpp>
#include <tests/support/random_flows.hpp>

namespace pp = pipelining;

namespace {

constexpr unsigned tried = 1'000;

void check_flow(unsigned seed, bool ranks) {
  support::dice chance(seed);
  support::random_pipeline const made(chance);
  auto const table = made.timetable(chance);
  pp::plan const work = pp::lower(table, support::eight_bytes{});
  if (!support::is_performed(work.over.declared))
    throw std::invalid_argument("not all kinds call perform");
  support::digests const expected = support::interpret(table);
  for (bool const graph : {false, true}) {
    CAPTURE(graph);
    standin::configure(
      seed % 3 == 0   ? standin::configuration{.execution = standin::order::lazy}
      : seed % 3 == 1 ? standin::configuration{.execution = standin::order::eager}
                      : standin::configuration{.execution = standin::order::random, .seed = seed});
    flow_result const found = run_flow({work, ranks, graph});
    CHECK(found.failure == "");
    CHECK(found.findings == "");
    CHECK(found.read == expected);
  }
}

void check_flows(bool ranks) {
  int ran = 0;
  for (unsigned seed = 0; seed < tried; ++seed) {
    CAPTURE(seed);
    try {
      check_flow(seed, ranks);
      ++ran;
    } catch (std::invalid_argument const&) { // refused, as other tests look at
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
