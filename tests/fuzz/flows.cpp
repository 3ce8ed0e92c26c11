// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Flows, pipelines and orders of which a fuzzer chooses every part: each is refused in a sentence,
// or is verified, lowered, proven and run, and reads what an interpreter of the flow reads.
#include <pipe/plan/lower.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/timetable/verify.hpp>

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <tests/support/flow_interpreter.hpp>
#include <tests/support/random_flows.hpp>
#include <vector>

#include "file_readers.hpp"
#include "reader.hpp"

namespace pp = pipelining;

namespace fuzz {
namespace {

//! Computes in its slots.
struct reading_stage {
  pp::pipeline_view over{};
  support::digests read{};

  void perform(pp::pass_kind kind, pp::context const& where, pp::input, pp::output) {
    pp::pass const what = support::pass_of(kind, where);
    read[support::key_of(what)] = support::compute_in_slots(over, what, where);
  }
  void forward(pp::context const&, pp::input, pp::output) {}
  void backward(pp::context const&, pp::input, pp::output) {}
  void backward_input(pp::context const&, pp::input, pp::output) {}
  void backward_weight(pp::context const&) {}
};

//! What passes read in a step on threads.
support::digests run_on_threads(pp::plan const& work) {
  std::vector<reading_stage> model(static_cast<std::size_t>(work.over.extents.stages()));
  for (reading_stage& stage : model)
    stage.over = work.over;
  pp::thread_runner runner(pp::plan(work), model, {.deadline = std::chrono::seconds(5)});
  runner.step();
  support::digests all;
  for (reading_stage& stage : model)
    all.merge(stage.read);
  return all;
}

} // namespace

void read_flow(std::string_view choices) {
  support::dice chance(1);
  chance.chosen = choices;
  std::optional<pp::dynamic_timetable> table;
  support::edge_list edges;
  // Rows have a most length, too, which std::length_error names.
  if (!takes<std::length_error>([&] {
        (void)takes<std::invalid_argument>([&] {
          support::random_pipeline const made(chance);
          edges = made.edges();
          table = made.timetable(chance);
        });
      }) ||
      !table)
    return;
  check(static_cast<bool>(pp::verify(*table)), "a timetable breaks a rule");
  pp::plan const work = pp::lower(*table, support::eight_bytes{});
  check(static_cast<bool>(pp::prove(work)), "a plan is not proven");
  support::digests const all = run_on_threads(work);
  if (support::is_performed(work.over.declared))
    check(all == support::interpret(*table, edges),
          "passes read something else than the flow says");
}

} // namespace fuzz
