// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A kind of pass that the library does not know is declared here, in one file, and is simulated,
// verified, lowered, proven and run: a recompute that waits for the gradient.
#include <pipe/flow/declare.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <tests/support/arithmetic_stage.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

using pp::does;
using pp::of_stage;

// The data, numbered as they are declared below.
enum data : std::uint8_t { output, gradient, weights, activation, working, discarded };

constexpr pp::flow late_recompute = pp::declare(
  {{.word = "output",
    .pool = static_cast<std::uint8_t>(pp::slot_class::output),
    .arrives_in = static_cast<std::uint8_t>(pp::slot_class::received_input),
    .wanted = true},
   {.word = "gradient",
    .pool = static_cast<std::uint8_t>(pp::slot_class::input_gradient),
    .arrives_in = static_cast<std::uint8_t>(pp::slot_class::received_gradient),
    .wanted = true},
   {.word = "weight gradient", .lives = pp::residence::nowhere, .wanted = true},
   {.word = "activation", .wanted = true},
   {.word = "working activation"},
   {.word = "discarded output", .pool = static_cast<std::uint8_t>(pp::slot_class::output)}},
  {{pp::pass_kind::checkpointed_forward,
    pp::declare_kind('F',
                     "light forward",
                     pp::engine::compute,
                     pp::stage_call::forward,
                     {{does::reads, output, of_stage::before},
                      {does::makes, working},
                      {does::frees, working},
                      {does::makes, output}})},
   {pp::pass_kind::forward, // the last stage keeps everything
    pp::declare_kind(
      'E',
      "keeping forward",
      pp::engine::compute,
      pp::stage_call::forward,
      {{does::reads, output, of_stage::before}, {does::makes, activation}, {does::makes, output}})},
   {pp::pass_kind::recompute, // reads the gradient only to wait for it
    pp::declare_kind('R',
                     "late recompute",
                     pp::engine::compute,
                     pp::stage_call::recompute,
                     {{does::reads, gradient, of_stage::after},
                      {does::makes, activation},
                      {does::makes, discarded},
                      {does::frees, discarded}})},
   {pp::pass_kind::backward,
    pp::declare_kind('B',
                     "backward",
                     pp::engine::compute,
                     pp::stage_call::backward,
                     {{does::reads, gradient, of_stage::after},
                      {does::frees, activation},
                      {does::makes, gradient},
                      {does::makes, weights}})}});

template <class Rule>
struct late_recompute_1f1b : pp::with_recompute<pp::OneFOneB, Rule> {
  static constexpr pp::flow declared = late_recompute;
};

// Remembers its inputs itself: the late recompute is handed the gradient.
struct remembering_stage : support::arithmetic_stage {
  std::vector<std::uint64_t> inputs = std::vector<std::uint64_t>(64);

  void forward(pp::context const& where, pp::input in, pp::output out) {
    support::arithmetic_stage::forward(where, in, out);
    inputs[static_cast<std::size_t>(where.microbatch)] = word(where.activation);
  }
  void recompute(pp::context const& where, pp::input) {
    word(where.activation) = inputs[static_cast<std::size_t>(where.microbatch)];
  }
};

template <class Schedule>
void check_golden(std::istringstream& line, pp::pipeline_size size, double f, double b) {
  auto const table = pp::make_timetable(Schedule{}, size, pp::uniform_cost{f, b / 2, b / 2});
  double makespan = 0;
  line >> makespan;
  CHECK(pp::makespan(table) == makespan);
  CHECK(pp::verify(table));
  for (int device = 0; device < size.devices; ++device)
    CHECK(pp::peak_activation_chunks(table, device) == 1);

  std::vector<remembering_stage> model(static_cast<std::size_t>(size.devices));
  for (std::size_t s = 0; s < model.size(); ++s)
    model[s].weight = s + 3;
  pp::thread_runner runner(
    pp::lower(table, pp::uniform_sizes{.message = 24, .activation = 8, .weight_input = 8}), model);
  runner.step();
  auto const expected = support::run_sequentially(size.devices, size.microbatches, 1);
  for (std::size_t s = 0; s < model.size(); ++s)
    CHECK(model[s].gradient == expected.gradients[s]);
  CHECK(pp::verify(runner.trace()));
}

} // namespace

TEST_CASE("a kind of one's own takes the times of the golden file, and runs") {
  std::ifstream golden("golden/families/recompute.txt");
  REQUIRE(golden);
  int lines = 0;
  for (std::string text; std::getline(golden, text);) {
    if (text.empty() || text[0] == '#')
      continue;
    CAPTURE(text);
    std::istringstream line(text);
    pp::pipeline_size size;
    double f = 0;
    double b = 0;
    double kept = 0;
    bool last_keeps = false;
    bool early = false;
    line >> size.devices >> size.microbatches >> f >> b >> kept >> last_keeps >> early;
    if (early)
      continue;
    ++lines;
    if (last_keeps)
      check_golden<late_recompute_1f1b<pp::recompute::all_but_last>>(line, size, f, b);
    else
      check_golden<late_recompute_1f1b<pp::recompute::all>>(line, size, f, b);
  }
  CHECK(lines == 13);
}
