// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A flow with more kinds than there are letters, none of which has one: timed by the compiler and
// by the program, drawn, written and read, lowered, proven and run.
#include <pipe/flow/declare.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/planner/model/cost_file.hpp>
#include <pipe/planner/model/measured.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost_table.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/verify.hpp>
#include <pipe/view/csv.hpp>
#include <pipe/view/html.hpp>
#include <pipe/view/json.hpp>
#include <pipe/view/svg.hpp>
#include <pipe/view/text.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace pp = pipelining;

namespace {

using enum pp::does;
using pp::of_stage;

constexpr int steps = 20; // on the way forth, and as many on the way back

constexpr std::uint8_t pool(pp::slot_class of) {
  return static_cast<std::uint8_t>(of);
}
enum data : std::uint8_t { output, gradient, kept, back, first_mark };

constexpr pp::flow_word numbered(char const* word, int number) {
  char const digits[] = {
    static_cast<char>('0' + number / 10), static_cast<char>('0' + number % 10), '\0'};
  return pp::flow_word::of(word, digits);
}

// Each step marks that it has run, and waits for the mark of the one before it.
constexpr pp::kind_of_pass step_of(bool forth, int number) {
  auto const mark = static_cast<std::uint8_t>(first_mark + number + (forth ? 0 : steps));
  std::uint8_t const held = forth ? kept : back;
  pp::kind_of_pass kind = pp::declare_kind(numbered(forth ? "forth" : "back", number),
                                           pp::engine::compute,
                                           pp::stage_call::perform,
                                           {{makes, mark}});
  auto const add = [&kind](pp::effect const& one) { kind.effects[kind.effect_count++] = one; };
  if (number > 0)
    add({reads, static_cast<std::uint8_t>(mark - 1)});
  else
    add({reads, forth ? output : gradient, forth ? of_stage::before : of_stage::after});
  if (number == 0 && !forth) // which waits for nobody else on the last stage
    add({reads, first_mark + steps - 1});
  add({number == 0 ? makes : forth || number + 1 < steps ? reads : frees, held});
  if (number + 1 == steps) {
    add({makes, forth ? output : gradient});
    if (!forth)
      add({frees, kept});
  }
  return kind.with_role(forth ? pp::role::forward : pp::role::backward);
}

constexpr pp::flow many = [] {
  std::array<pp::datum, first_mark + 2 * steps> data{};
  data[output] = {.word = "output",
                  .pool = pool(pp::slot_class::output),
                  .arrives_in = pool(pp::slot_class::received_input),
                  .wanted = true};
  data[gradient] = {.word = "gradient",
                    .pool = pool(pp::slot_class::input_gradient),
                    .arrives_in = pool(pp::slot_class::received_gradient),
                    .wanted = true};
  data[kept] = {.word = "kept", .wanted = true};
  data[back] = {.word = "back", .pool = pool(pp::slot_class::weight_input), .wanted = true};
  std::array<pp::kind_of_pass, 2 * steps> kinds{};
  for (int i = 0; i < 2 * steps; ++i) {
    data[static_cast<std::size_t>(first_mark + i)] = {
      .word = numbered("mark", i), .lives = pp::residence::nowhere, .wanted = true};
    kinds[static_cast<std::size_t>(i)] = step_of(i < steps, i % steps);
  }
  return pp::declare(data, kinds);
}();
static_assert(many.kind_count == 40);
constexpr pp::pass_kind last_forth = many.kind_named("forth19");
constexpr pp::pass_kind last_back = many.kind_named("back19");

struct ManySteps {
  static constexpr pp::flow const& declared = many;
  static constexpr pp::shape arrange(int devices, int microbatches) {
    return {.devices = devices, .microbatches = microbatches};
  }
  static constexpr void order(pp::shape const& extents, int device, auto&& out) {
    for (int way = 0; way < 2; ++way)
      for (int microbatch = 0; microbatch < extents.microbatches; ++microbatch)
        for (int i = way * steps; i < (way + 1) * steps; ++i)
          out.push(pp::row_writer::make(static_cast<pp::pass_kind>(i), device, microbatch));
  }
};

// What a stage does with a number on the way forth and back.
constexpr std::uint64_t change(std::uint64_t value, int kind, int stage) {
  return value * 3 + static_cast<std::uint64_t>(kind * 7 + stage);
}
struct stage_of_steps {
  std::uint64_t total = 0;

  void perform(pp::pass_kind kind, pp::context const& at, pp::input in, pp::output) {
    auto const value = [&](data of) -> std::uint64_t& {
      return at.buffer_of(many, kind, of).as<std::uint64_t>()[0];
    };
    int const number = pp::detail::index_of(kind);
    bool const forth = number < steps;
    std::uint64_t& held = value(forth ? kept : back);
    std::uint64_t const given = in.data != nullptr
                                  ? in.as<std::uint64_t>()[0]
                                  : static_cast<std::uint64_t>(at.microbatch + (forth ? 1 : 100));
    held = change(number % steps == 0 ? given : held, number, at.stage);
    if (kind == last_forth && !at.last_stage())
      value(output) = held;
    if (kind != last_back)
      return;
    total += held * value(kept);
    if (!at.first_stage())
      value(gradient) = held;
  }
};

} // namespace

TEST_CASE("the compiler and the program time and verify a flow of 40 kinds alike") {
  constexpr auto early = pp::timetable<ManySteps, 2, 3>;
  static_assert(pp::verify(early));
  static_assert(pp::makespan(early) == 3 * 60 + 20 + 40); // the other device begins, and ends
  auto const late = pp::make_timetable(ManySteps{}, {2, 3});
  CHECK(pp::verify(late));
  REQUIRE(late.passes.size() == 2 * 3 * 40);
  pp::timetable_view const view = early;
  for (std::size_t i = 0; i < late.passes.size(); ++i) {
    CHECK(late.passes[i] == view.passes[i]);
    CHECK(late.starts[i] == view.starts[i]);
    CHECK(late.ends[i] == view.ends[i]);
  }
  pp::device_orders missing = pp::make_orders(ManySteps{}, {2, 3});
  missing.passes[37].kind = missing.passes[36].kind; // back17 stands twice, and back18 nowhere
  CHECK_FALSE(pp::verify(pp::simulate(missing, pp::uniform_cost{})));
}

struct one_long_step {
  static double duration(pp::pass const& what) {
    return what.kind == many.kind_named("forth05") ? 8 : 1;
  }
  static double latency() { return 0; }
};

TEST_CASE("kinds without letters are drawn, and stand in files by their words") {
  auto const table = pp::make_timetable(ManySteps{}, {2, 2});
  std::string text;
  pp::write_csv(text, table);
  CHECK(text.find("\n0,forth00,0,0,0,0,1\n") != std::string::npos);
  CHECK(text.find(",back19,1,1,0,") != std::string::npos);
  text.clear();
  auto odd = pp::make_timetable(ManySteps{}, {1, 1});
  odd.over.declared.kinds[0].word = "forth, \"first\"";
  pp::write_csv(text, odd);
  CHECK(text.find("\n0,\"forth, \"\"first\"\"\",0,0,0,0,1\n") != std::string::npos);
  text.clear();
  pp::write_json(text, table, {.schedule = "many"});
  CHECK(text.find("{\"kind\":\"forth07\",\"stage\":1") != std::string::npos);
  text.clear();
  pp::write_svg(text, table, {.schedule = "many"});
  CHECK(text.find("forth13") != std::string::npos);
  text.clear();
  pp::write_text(text, table, {.schedule = "many"}, {.width = 80});
  CHECK(text.find("F forth00, F forth01") != std::string::npos);
  CHECK(text.find("B back19") != std::string::npos);
  CHECK(text.find("device 0 |F0 F0 F0 F0 ") != std::string::npos); // no room for words
  text.clear();
  pp::write_text(
    text, pp::make_timetable(ManySteps{}, {1, 1}, one_long_step{}), {}, {.width = 2000});
  CHECK(text.find(" F0 forth050-") != std::string::npos); // the word, and the microbatch
}

TEST_CASE("times of one's own kinds stand in cost files by their words") {
  pp::shape const extents = ManySteps::arrange(2, 2);
  pp::cost_table costs(many, extents, {.communication = 0.25});
  REQUIRE(costs.kinds().size() == 40);
  for (int i = 0; i < 40; ++i)
    for (int stage = 0; stage < 2; ++stage)
      costs.set(static_cast<pp::pass_kind>(i), stage, 0, i + stage / 8.0);
  std::string file = pp::write_costs(extents, costs);
  pp::cut_costs const read = pp::read_costs(file, many);
  CHECK(read.times.latency() == 0.25);
  for (int i = 0; i < 40; ++i)
    for (int stage = 0; stage < 2; ++stage)
      CHECK(read.times.duration(pp::row_writer::make(static_cast<pp::pass_kind>(i), stage, 0)) ==
            i + stage / 8.0);
  auto const refusal = [&file](pp::flow const& of) -> std::string {
    try {
      (void)pp::read_costs(file, of);
    } catch (std::invalid_argument const& found) {
      return found.what();
    }
    return "";
  };
  CHECK(refusal(pp::training).starts_with("costs, line "));
  file.replace(file.find("forth04"), 7, "froth04");
  CHECK(refusal(many).starts_with("costs, line 15: 'froth04' is no entry of a file of costs"));
  auto const table = pp::make_timetable(ManySteps{}, {2, 2}, costs);
  pp::timetable_view const measured[] = {table};
  pp::cost_table const found = pp::costs_of(measured);
  CHECK(found.duration(pp::row_writer::make(last_back, 1, 0)) == 39.125);
}

TEST_CASE("threads run a flow of 40 kinds as a program in its order does") {
  constexpr int microbatches = 4;
  auto const table = pp::make_timetable(ManySteps{}, {3, microbatches});
  auto const plan =
    pp::lower(table, pp::uniform_sizes{.message = 8, .activation = 8, .weight_input = 8});
  CHECK(pp::prove(plan));
  std::vector<stage_of_steps> stages(3);
  pp::thread_runner runner(plan, stages);
  runner.step();

  std::array<std::uint64_t, 3> totals{};
  for (int m = 0; m < microbatches; ++m) {
    std::array<std::uint64_t, 3> held{};
    auto value = static_cast<std::uint64_t>(m + 1);
    for (int stage = 0; stage < 3; ++stage) {
      for (int kind = 0; kind < steps; ++kind)
        value = change(value, kind, stage);
      held[static_cast<std::size_t>(stage)] = value;
    }
    value = static_cast<std::uint64_t>(m + 100);
    for (int stage = 2; stage >= 0; --stage) {
      for (int kind = steps; kind < 2 * steps; ++kind)
        value = change(value, kind, stage);
      totals[static_cast<std::size_t>(stage)] += value * held[static_cast<std::size_t>(stage)];
    }
  }
  for (std::size_t stage = 0; stage < 3; ++stage)
    CHECK(stages[stage].total == totals[stage]);
}
