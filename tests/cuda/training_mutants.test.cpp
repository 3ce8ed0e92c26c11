// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Every bug planted after complete gradients is found by one of the checks of training.test.cpp or
// plans.test.cpp.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdio>
#include <simulators/cuda/standin.hpp>
#include <string>
#include <tests/cuda/killers.hpp>
#include <tests/cuda/training_mutants.hpp>
#include <tests/cuda/training_plans.hpp>
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

std::string check_on_streams(training_mutant const& what, training_plan const& plan, bool graph) {
  for (standin::configuration const& how : orders()) {
    standin::configure(how);
    auto const result = what.on_streams({.work = plan.work, .graph = graph});
    auto const wrong = verdict(result, plan.expected);
    if (!wrong.empty())
      return wrong;
    if (!graph && result.pairs != 9 * pairs_of(plan.work))
      return "pairs in turn";
  }
  return {};
}

std::string check_on_ranks(training_mutant const& what, training_plan const& plan, bool graph) {
  for (standin::configuration const& how : orders()) {
    standin::configure(how);
    auto const wrong = verdict(what.on_ranks({.work = plan.work, .graph = graph}), plan.expected);
    if (!wrong.empty())
      return wrong;
  }
  return {};
}

std::string check_replicas(training_mutant const& what, training_plan const& plan) {
  auto const extents = plan.work.over.extents;
  auto const stages = extents.stages();
  std::vector<support::trained> expected[2]{support::untrained(stages), support::untrained(stages)};
  support::train_replicas(expected, extents.microbatches, 9);
  standin::configure({.execution = standin::order::eager});
  return verdict(what.on_ranks({.work = plan.work, .replicas = 2}), expected[0]);
}

std::string
check_several(training_mutant const& what, several_plans const& plans, bool ranks, bool graph) {
  for (standin::configuration const& how : orders()) {
    training_case one = plans.what;
    one.graph = graph;
    standin::configure(how);
    auto const result = ranks ? what.on_ranks(one) : what.on_streams(one);
    auto const wrong = verdict(result, plans.expected.stages);
    if (!wrong.empty())
      return wrong;
    if (differences(result, plans.expected) > 0)
      return "wrong totals";
  }
  return {};
}

std::string check_early(training_mutant const& what, early_plans const& plans, bool ranks) {
  for (standin::configuration const& how : orders()) {
    standin::configure(how);
    auto const wrong =
      verdict(ranks ? what.on_ranks(plans.what) : what.on_streams(plans.what), plans.expected);
    if (!wrong.empty())
      return wrong;
  }
  return {};
}

killers<training_mutant> checks() {
  killers<training_mutant> all;
  using mutant = training_mutant;
  auto const where = [](bool ranks, bool graph) {
    return std::string(ranks ? "ranks" : "streams") + (graph ? ", graph" : "");
  };
  for (training_plan const& plan : training_plans()) {
    for (bool const graph : {false, true}) {
      all.add(where(false, graph) + ": " + plan.name,
              [=](mutant const& m) { return check_on_streams(m, plan, graph); });
      all.add(where(true, graph) + ": " + plan.name,
              [=](mutant const& m) { return check_on_ranks(m, plan, graph); });
    }
    all.add("replicas: " + plan.name, [=](mutant const& m) { return check_replicas(m, plan); });
  }
  for (bool const ranks : {false, true}) {
    for (several_plans const& plans : all_several_plans())
      for (bool const graph : {false, true})
        all.add("several plans on " + where(ranks, graph),
                [=](mutant const& m) { return check_several(m, plans, ranks, graph); });
    for (early_plans const& plans : all_early_plans())
      all.add("early steps on " + where(ranks, false),
              [=](mutant const& m) { return check_early(m, plans, ranks); });
  }
  return all;
}

} // namespace

TEST_CASE("every bug behind complete gradients is found, and none where there is none") {
  auto all = checks();
  auto const mutants = all_training_mutants();
  REQUIRE(mutants.size() > 8);
  for (std::size_t i = 0; i < mutants.size(); ++i) {
    std::string const by = all.find(mutants[i]);
    CAPTURE(by);
    std::printf("%-50s %s\n", mutants[i].name.c_str(), by.empty() ? "survives" : by.c_str());
    CAPTURE(mutants[i].name);
    CHECK(by.empty() == (i == 0));
  }
}
