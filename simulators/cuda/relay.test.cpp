// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A program compiled by nvcc, with its kernels as PTX, on the stand-in.
#include "relay.hpp"

#include <doctest/doctest.h>

#include <set>

#include "ranks.hpp"

namespace {

using standin::finding;

struct relay_run {
  std::vector<float> result{};
  std::vector<int> codes{};
};

relay_run run(standin::configuration const& machine, relay_options const& how) {
  standin::configure(machine);
  auto const ids = unique_ids(1);
  relay_run seen;
  seen.codes.assign(static_cast<std::size_t>(how.ranks), -1);
  standin::run_ranks(how.ranks, [&](int rank) {
    seen.codes[static_cast<std::size_t>(rank)] = run_relay(how, rank, ids[0], seen.result);
  });
  return seen;
}

// Every rank maps x to 2 x + 1; a graph that runs twice does so on the last rank's own data no
// second time.
float expected(relay_options const& how, int i) {
  float x = static_cast<float>(i % 17);
  for (int rank = 0; rank < how.ranks; ++rank)
    x = 2.0f * x + 1.0f;
  return x;
}

} // namespace

TEST_CASE("a program compiled by nvcc runs on every machine, eager and as a graph") {
  for (bool graph : {false, true}) {
    relay_options how;
    how.graph = graph;
    standin::for_each_machine(
      {}, 3, [&](standin::configuration const& machine, std::string const& name) {
        CAPTURE(name);
        relay_run const seen = run(machine, how);
        CHECK(seen.codes == std::vector<int>(3, 0));
        REQUIRE(seen.result.size() == 500);
        bool same = true;
        for (int i = 0; i < 500; ++i)
          same = same && seen.result[static_cast<std::size_t>(i)] == expected(how, i);
        CHECK(same);
        CHECK(standin::summary() == "");
        standin::report_leaks();
        CHECK(standin::summary() == "");
        CHECK(standin::counters().kernels == (graph ? 30 + 15 : 15));
        CHECK(standin::counters().stolen_turns == 0);
      });
  }
}

TEST_CASE("every planted mistake is found on every machine") {
  std::set<std::string> missed;
  for (int planted = 1; planted < static_cast<int>(mistake::last); ++planted) {
    relay_options how;
    how.planted = static_cast<mistake>(planted);
    standin::for_each_machine(
      {}, 2, [&](standin::configuration const& machine, std::string const& name) {
        run(machine, how);
        if (standin::reports().empty())
          missed.insert(std::to_string(planted) + " on " + name);
      });
  }
  for (std::string const& m : missed)
    MESSAGE(m);
  CHECK(missed.empty());
}

TEST_CASE("whatever call fails, in whatever way, every rank comes to an end") {
  for (bool graph : {false, true}) {
    relay_options how;
    how.graph = graph;
    how.microbatches = 3;
    run({}, how);
    std::uint64_t const calls = standin::total_calls();
    int unnoticed = 0;
    int stuck = 0;
    for (auto action : {standin::fault_action::error,
                        standin::fault_action::stall,
                        standin::fault_action::death,
                        standin::fault_action::asynchronous_error}) {
      for (std::uint64_t call = 1; call <= calls; call += 7) {
        CAPTURE(call);
        standin::configuration machine;
        machine.faults.push_back({.call = call, .action = action});
        relay_run const seen = run(machine, how);
        bool const failed = std::count(seen.codes.begin(), seen.codes.end(), 0) < 3;
        // The program has no deadlines, so ranks whose peer has gone end by the verdict that they
        // wait for ever; where nobody has failed, nobody has waited so.
        stuck += standin::found(finding::deadlock) ? 1 : 0;
        CHECK((failed || !standin::found(finding::deadlock)));
        if (action == standin::fault_action::error)
          unnoticed += failed ? 0 : 1;
      }
    }
    CHECK(unnoticed == 0);
    CHECK(stuck > 0);
  }
}

TEST_CASE("a small relay is right in every order of its operations") {
  for (int resident : {0, 1}) {
    standin::configuration machine;
    machine.resident_nccl_kernels = resident;
    relay_options how;
    how.ranks = 2;
    how.microbatches = 2;
    how.elements = 2;
    auto const program = [&] {
      auto const ids = unique_ids(1);
      std::vector<float> result;
      standin::run_ranks(2, [&](int rank) { CHECK(run_relay(how, rank, ids[0], result) == 0); });
      CHECK(result == std::vector{3.0f, 7.0f, 11.0f, 15.0f});
    };
    auto const seen = standin::explore(machine, program, 5000);
    CHECK(seen.complete);
    CHECK(seen.faulty == 0);
    CHECK((seen.runs > 1) == (resident == 1));
    machine.reduce = false;
    auto const all = standin::explore(machine, program, 5000);
    CHECK(all.complete);
    CHECK(all.faulty == 0);
    CHECK(all.runs > seen.runs);
  }
}
