// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Whatever is declared runs on threads, under delays by chance, as a sequential interpreter of the
// flow has it, or ends in a sentence. No flow ends in memory of others, and none in a plan that
// cannot be proven. PIPELINING_TEST_EVERYTHING=1 in the environment asks for 100,000 flows, and
// PIPELINING_TEST_SEED=N for flow N alone.
#include <pipe/plan/lower.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <tests/support/asked_flows.hpp>
#include <tests/support/beginning_stage.hpp>
#include <tests/support/expert_overlap.hpp>
#include <tests/support/flow_interpreter.hpp>
#include <tests/support/random_flows.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

// What all passes of a plan read in one step.
support::digests read_on_threads(pp::plan const& work) {
  auto model = support::beginning_model(work, 1);
  pp::thread_runner runner(work, model);
  runner.step();
  return support::read_by(model);
}

// How far a flow came.
enum class end { declared, ordered, lowered, ran, count };

struct outcome {
  end at = end::ran;
  std::string sentence{};
  bool compared = false;  // with the interpreter
  int kinds = 0;          // of the flow
  int begun = 0;          // passes that stages began, and finished later
  bool elsewhere = false; // stages read other chunks than their own
};

outcome try_flow(unsigned seed) {
  support::dice chance(seed);
  outcome result{end::declared, {}};
  try {
    support::random_pipeline const made(chance);
    result.at = end::ordered;
    for (pp::kind_of_pass const& kind : support::given_orders::declared.kinds)
      result.kinds += kind.exists() ? 1 : 0;
    auto const table = made.timetable(chance);
    CHECK(pp::verify(table));
    result.at = end::lowered;
    pp::plan const work = pp::lower(table, support::eight_bytes{});
    CHECK(pp::prove(work));
    result.elsewhere = work.over.view().graph().names_chunks();
    result.at = end::ran;
    auto model = support::beginning_model(work, static_cast<unsigned>(chance.below(1 << 20)));
    pp::thread_runner runner(work, model);
    runner.step();
    for (support::beginning_stage& stage : model)
      stage.read.clear();
    runner.step();
    result.at = end::count;
    result.compared = support::is_performed(work.over.declared);
    if (result.compared)
      CHECK(support::read_by(model) == support::interpret(table, made.edges()));
    for (support::beginning_stage const& stage : model) {
      CHECK(stage.under_way.empty());
      result.begun += stage.began;
    }
  } catch (std::invalid_argument const& refusal) {
    result.sentence = refusal.what();
  } catch (std::length_error const& refusal) { // more passes than the rows can have
    result.sentence = refusal.what();
  } catch (std::logic_error const& fault) {
    result.sentence = fault.what();
    FAIL_CHECK(fault.what());
  }
  return result;
}

} // namespace

TEST_CASE("whatever is declared runs, or is refused in a sentence") {
  char const* const seed = std::getenv("PIPELINING_TEST_SEED");
  unsigned const first = seed != nullptr ? static_cast<unsigned>(std::atoi(seed)) : 0;
  unsigned const flows = seed != nullptr                                        ? 1
                         : std::getenv("PIPELINING_TEST_EVERYTHING") != nullptr ? 100'000
                                                                                : 2'000;
  std::map<std::string, int> sentences;
  int ends[static_cast<int>(end::count) + 1]{};
  int compared = 0;
  int elsewhere = 0; // of those that ran, with edges to other chunks
  int begun = 0;     // of those that ran, with passes that stages began and finished
  int large = 0;     // of those that ran, with more kinds than letters
  // The first have found a fault before: waits for two engines, slots of the host alone, an order
  // of effects, a pool on both memories.
  std::vector<unsigned> seeds{12'075, 20'350, 16'229, 57'378};
  if (seed != nullptr)
    seeds.clear();
  for (unsigned i = first; i < first + flows; ++i)
    seeds.push_back(i);
  for (unsigned const i : seeds) {
    CAPTURE(i);
    outcome const found = try_flow(i);
    ++ends[static_cast<int>(found.at)];
    compared += found.compared ? 1 : 0;
    elsewhere += found.at == end::count && found.elsewhere ? 1 : 0;
    begun += found.at == end::count && found.begun > 0 ? 1 : 0;
    large += found.at == end::count && found.kinds > 26 ? 1 : 0;
    ++sentences[std::to_string(static_cast<int>(found.at)) + " " + found.sentence];
    CHECK(found.at != end::lowered);
    CHECK(found.at != end::ran);
  }
  std::cout << "random flows: " << flows << ", refused by declare " << ends[0]
            << ", by the order of passes " << ends[1] << ", ran " << ends[4] << " (as interpreted "
            << compared << ", of more than 26 kinds " << large << ", across chunks " << elsewhere
            << ", with passes begun " << begun << ")\n";
  if (std::getenv("PIPELINING_TEST_SENTENCES") != nullptr)
    for (auto const& [sentence, count] : sentences)
      std::cout << count << " x " << sentence << '\n';
  if (seed == nullptr)
    CHECK(large >= 10);
  if (seed == nullptr)
    CHECK(begun >= 200);
  if (seed == nullptr)
    CHECK(elsewhere >= 60);
  if (seed == nullptr)
    CHECK(ends[static_cast<int>(end::count)] * 10 >= static_cast<int>(flows) * 3); // a third runs
}

TEST_CASE("experts on the network take the times of a simulation apart, and run as interpreted") {
  struct figures {
    int devices, layers, microbatches;
    support::overlap::times cost;
    double merged, plain; // of an event simulation of Megatron's order, without timetables
  };
  for (figures const& of : {figures{1, 4, 4, {4, 2, 4, 0}, 366, 420},
                            figures{4, 2, 8, {4, 2, 4, 1}, 748, 590},
                            figures{3, 3, 7, {5, 6, 4, 2}, 1201.5, 1153},
                            figures{8, 2, 32, {4, 3, 4, 0}, 2966, 2320}})
    for (bool const merged : {true, false}) {
      CAPTURE(of.devices);
      CAPTURE(merged);
      support::overlap::combined const how{of.layers, merged};
      CHECK(pp::makespan(pp::make_timetable(how, {of.devices, of.microbatches}, of.cost)) ==
            (merged ? of.merged : of.plain));
      auto const [work, expected] = support::overlap::interpreted(how, of.devices, of.microbatches);
      CHECK(pp::prove(work));
      CHECK(read_on_threads(work) == expected);
    }
}

TEST_CASE("flows that users asked for run on threads as interpreted") {
  for (support::asked::asked_plan const& one : support::asked::plans()) {
    CAPTURE(one.name);
    CHECK(pp::prove(one.of.work));
    CHECK(read_on_threads(one.of.work) == one.of.expected);
  }
}

TEST_CASE("a pass frees what the network reads only where something says that it is after it") {
  CHECK_NOTHROW((void)support::asked::on_network(false, true));
  CHECK_THROWS_WITH_AS(
    (void)support::asked::on_network(false, false),
    "flow: kind 'backward' and datum 'routed': it frees what another kind of the unit may read "
    "later, and nothing that each unit has made says when; let that kind make a wanted datum that "
    "lies nowhere, and this one follow it",
    std::invalid_argument);
}
