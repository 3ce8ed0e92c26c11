// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Every bug planted behind complete gradients is found by one of the checks of training.test.cpp or
// plans.test.cpp.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdio>
#include <string>
#include <tests/cuda/training_mutants.hpp>
#include <tests/cuda/training_plans.hpp>
#include <tests/simulators/cuda/standin.hpp>
#include <vector>

namespace {

//! What is wrong with a result; empty when nothing is.
std::string verdict(training_result const& result, std::vector<support::trained> const& expected) {
  if (!standin::reports().empty())
    return standin::name_of(standin::reports().front().kind);
  if (!result.failure.empty())
    return result.failure.substr(0, result.failure.find('\n'));
  for (std::size_t s = 0; s < expected.size(); ++s)
    if (!support::same_bits(result.stages[s], expected[s]))
      return "wrong numbers";
  return {};
}

std::vector<standin::configuration> orders() {
  return {{.execution = standin::order::eager},
          {.execution = standin::order::lazy},
          {.execution = standin::order::random, .seed = 41}};
}

std::string check(training_mutant const& what, training_plan const& plan) {
  std::string found;
  auto const note = [&found](std::string const& where, std::string const& wrong) {
    if (found.empty() && !wrong.empty())
      found = where + wrong;
  };
  for (bool const graph : {false, true})
    for (standin::configuration const& how : orders()) {
      if (!found.empty())
        return found;
      standin::configure(how);
      auto const result = what.on_streams({.work = plan.work, .graph = graph});
      note("streams: ", verdict(result, plan.expected));
      if (!graph && result.pairs != 9 * pairs_of(plan.work))
        note("streams: ", "pairs in turn");
      standin::configure(how);
      note("ranks: ", verdict(what.on_ranks({.work = plan.work, .graph = graph}), plan.expected));
    }
  return found;
}

std::string check_replicas(training_mutant const& what, training_plan const& plan) {
  auto const extents = plan.work.view().extents;
  auto const stages = pipelining::stages(extents);
  std::vector<support::trained> expected[2]{support::untrained(stages), support::untrained(stages)};
  support::train_replicas(expected, extents.microbatches, 9);
  standin::configure({.execution = standin::order::eager});
  auto const wrong = verdict(what.on_ranks({.work = plan.work, .replicas = 2}), expected[0]);
  return wrong.empty() ? wrong : "replicas: " + wrong;
}

std::string check_several(training_mutant const& what, several_plans const& plans) {
  for (bool const graph : {false, true})
    for (bool const ranks : {false, true})
      for (standin::configuration const& how : orders()) {
        training_case one = plans.what;
        one.graph = graph;
        standin::configure(how);
        auto const result = ranks ? what.on_ranks(one) : what.on_streams(one);
        auto wrong = verdict(result, plans.expected.stages);
        if (wrong.empty() && differences(result, plans.expected) > 0)
          wrong = "wrong totals";
        if (!wrong.empty())
          return (ranks ? "several plans on ranks: " : "several plans on streams: ") + wrong;
      }
  return {};
}

std::string check_early(training_mutant const& what, early_plans const& plans) {
  for (bool const ranks : {false, true})
    for (standin::configuration const& how : orders()) {
      standin::configure(how);
      auto const wrong =
        verdict(ranks ? what.on_ranks(plans.what) : what.on_streams(plans.what), plans.expected);
      if (!wrong.empty())
        return (ranks ? "early steps on ranks: " : "early steps on streams: ") + wrong;
    }
  return {};
}

} // namespace

TEST_CASE("every bug behind complete gradients is found, and none where there is none") {
  auto const plans = training_plans();
  auto const several = all_several_plans();
  auto const early = all_early_plans();
  auto const mutants = all_training_mutants();
  REQUIRE(mutants.size() > 8);
  for (std::size_t i = 0; i < mutants.size(); ++i) {
    std::string by;
    for (training_plan const& plan : plans) {
      by = check(mutants[i], plan);
      if (by.empty())
        by = check_replicas(mutants[i], plan);
      if (!by.empty())
        break;
    }
    for (several_plans const& each : several)
      if (by.empty())
        by = check_several(mutants[i], each);
    for (early_plans const& each : early)
      if (by.empty())
        by = check_early(mutants[i], each);
    CAPTURE(by);
    std::printf("%-50s %s\n", mutants[i].name.c_str(), by.empty() ? "survives" : by.c_str());
    CAPTURE(mutants[i].name);
    CHECK(by.empty() == (i == 0));
  }
}
