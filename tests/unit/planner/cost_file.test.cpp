// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/planner/model/cost_file.hpp>
#include <pipe/planner/model/measured.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace pp = pipelining;

namespace {

constexpr pp::pass_kind all_kinds[] = {pp::pass_kind::forward,
                                       pp::pass_kind::backward_input,
                                       pp::pass_kind::backward_weight,
                                       pp::pass_kind::recompute,
                                       pp::pass_kind::copy_out,
                                       pp::pass_kind::copy_in};

double time_of(pp::cost_table const& costs, pp::pass_kind kind, int stage, int chunk = 0) {
  return costs.duration(pp::row_writer::make(kind, stage, 0, chunk));
}

//! Times without short decimals, of every kind.
pp::cost_table random_costs(pp::shape const& extents, unsigned seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> times(1e-7, 3e-3);
  pp::cost_table table(extents, {.communication = times(random)});
  for (pp::pass_kind const kind : all_kinds)
    for (int stage = 0; stage < extents.stages(); ++stage)
      for (int chunk = 0; chunk < extents.chunks; ++chunk)
        table.set(kind, stage, chunk, times(random));
  return table;
}

constexpr char const* whole_file = R"({"pipelining_costs": 1,
"communication": 0.5,
"forward": [
[1, 2],
[3, 4]],
"backward_input": [
[2, 3],
[4, 5]],
"backward_weight": [
[1, 1],
[1, 1]]}
)";

//! The file above with one piece of its text replaced.
std::string with(std::string const& old, std::string const& now) {
  std::string text = whole_file;
  std::size_t const at = text.find(old);
  REQUIRE(at != std::string::npos);
  return text.replace(at, old.size(), now);
}

std::string refusal_of(std::string const& text) {
  try {
    (void)pp::read_costs(text);
  } catch (std::invalid_argument const& error) {
    return error.what();
  }
  return "it was read";
}

} // namespace

TEST_CASE("costs come back from a file with all their bits") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    pp::shape const extents{.devices = 1 + static_cast<int>(seed % 5),
                            .chunks = 1 + static_cast<int>(seed % 3),
                            .stages_per_device = 2};
    pp::cost_table const costs = random_costs(extents, seed);
    pp::cut_costs const read = pp::read_costs(pp::write_costs(extents, costs));
    CHECK(read.stages == extents.stages());
    CHECK(read.chunks == extents.chunks);
    CHECK(read.times.latency() == costs.latency());
    pp::cost_table const same = pp::costs_for(read, extents);
    for (pp::pass_kind const kind : all_kinds)
      for (int stage = 0; stage < extents.stages(); ++stage)
        for (int chunk = 0; chunk < extents.chunks; ++chunk) {
          CHECK(time_of(read.times, kind, stage, chunk) == time_of(costs, kind, stage, chunk));
          CHECK(time_of(same, kind, stage, chunk) == time_of(costs, kind, stage, chunk));
        }
  }
}

TEST_CASE("the file is the one that the documentation shows") {
  pp::cut_costs const read = pp::read_costs(whole_file);
  CHECK(pp::write_costs({.devices = 2, .chunks = 2}, read.times)
          .starts_with(std::string(whole_file).substr(0, std::string(whole_file).size() - 2)));
  CHECK(read.times.latency() == 0.5);
  CHECK(time_of(read.times, pp::pass_kind::forward, 1, 0) == 3);
  CHECK(time_of(read.times, pp::pass_kind::backward, 0, 1) == 4);
  // Nobody has said how long these take.
  CHECK(time_of(read.times, pp::pass_kind::recompute, 1, 0) == 3);
  CHECK(time_of(read.times, pp::pass_kind::copy_out, 1, 0) == 0);
}

TEST_CASE("a step that ran comes back by way of a file") {
  pp::with_recompute<pp::Seq1F1B<2>> const schedule;
  pp::pipeline_size const size{3, 4};
  pp::shape const extents = schedule.arrange(3, 4);
  pp::dynamic_timetable const step = pp::make_timetable(schedule, size, random_costs(extents, 3));
  std::vector<pp::timetable_view> const steps{step};
  pp::cost_table const fitted = pp::costs_of(steps);
  pp::cut_costs const read = pp::read_costs(pp::write_costs(extents, fitted));
  CHECK(pp::make_timetable(schedule, size, read.times).ends ==
        pp::make_timetable(schedule, size, fitted).ends);
}

TEST_CASE("microbatches with times of their own, bytes and unit come back from a file") {
  for (unsigned seed = 0; seed < 10; ++seed) {
    CAPTURE(seed);
    pp::shape const extents{.devices = 1 + static_cast<int>(seed % 4),
                            .microbatches = 2 + static_cast<int>(seed % 3),
                            .chunks = 1 + static_cast<int>(seed % 2)};
    pp::cut_costs costs{extents.devices,
                        extents.chunks,
                        random_costs(extents, seed).by_microbatch(extents.microbatches)};
    std::mt19937_64 random(seed);
    auto const bytes = [&random](int count) {
      std::vector<double> all;
      for (int i = 0; i < count; ++i)
        all.push_back(static_cast<double>(1 + random() % 1000000));
      return all;
    };
    for (int stage = 0; stage < extents.devices; ++stage)
      for (int i = 0; i < extents.microbatches; ++i)
        for (int chunk = 0; chunk < extents.chunks; ++chunk)
          costs.times.set(pp::row_writer::make(pp::pass_kind::forward, stage, i, chunk),
                          1e-3 * static_cast<double>(1 + random() % 1000));
    costs.in_seconds = seed % 2 == 0;
    if (seed % 3 > 0)
      costs.memory = {bytes(extents.devices * extents.chunks), {}, bytes(extents.devices)};
    if (seed % 3 > 1)
      costs.memory.weight_input = bytes(extents.devices * extents.chunks);
    std::string const text = pp::write_costs(costs);
    pp::cut_costs const read = pp::read_costs(text);
    CHECK(pp::write_costs(read) == text);
    CHECK(read.times.microbatches() == extents.microbatches);
    CHECK(read.in_seconds == costs.in_seconds);
    CHECK(read.memory == costs.memory);
    CHECK(pp::memory_for(read, extents) == costs.memory);
    pp::cost_table const same = pp::costs_for(read, extents);
    for (pp::pass_kind const kind : all_kinds)
      for (int stage = 0; stage < extents.devices; ++stage)
        for (int i = 0; i < extents.microbatches; ++i)
          for (int chunk = 0; chunk < extents.chunks; ++chunk) {
            pp::pass const what = pp::row_writer::make(kind, stage, i, chunk);
            CHECK(read.times.duration(what) == costs.times.duration(what));
            CHECK(same.duration(what) == costs.times.duration(what));
          }
    CHECK_THROWS_WITH_AS(
      (void)pp::costs_for(read, {.devices = extents.devices, .microbatches = 17}),
      ("costs: the file has the times of " + std::to_string(extents.microbatches) +
       " microbatches one by one, and this pipeline has 17")
        .c_str(),
      std::invalid_argument);
  }
}

TEST_CASE("a file says what its microbatches take, in which unit, and what stages hold") {
  pp::cut_costs const read = pp::read_costs(R"({"pipelining_costs": 1,
"unit": "ms",
"microbatches": 2,
"communication": 0.5,
"forward": [[1, 2], [3, 4]],
"backward_input": [[2, 3], [4, 5]],
"backward_weight": [[1, 1], [1, 1]],
"activation_bytes": [[100], [300]],
"resident_bytes": [[7], [9]]})");
  CHECK(read.chunks == 1);
  CHECK(read.in_seconds);
  CHECK(read.times.latency() == 0.5e-3);
  auto const forward = [](pp::cost_table const& costs, int stage, int microbatch) {
    return costs.duration(pp::row_writer::make(pp::pass_kind::forward, stage, microbatch));
  };
  CHECK(forward(read.times, 0, 0) == 1e-3);
  CHECK(forward(read.times, 0, 1) == 2e-3);
  CHECK(forward(read.times, 1, 1) == 4e-3);
  // As one stage: everything together. As four: halves.
  pp::shape const one{.devices = 1, .microbatches = 2};
  CHECK(forward(pp::costs_for(read, one), 0, 1) == doctest::Approx(6e-3));
  CHECK(pp::memory_for(read, one) == pp::stage_memory{{400}, {}, {16}});
  pp::shape const four{.devices = 4, .microbatches = 2, .chunks = 2};
  CHECK(forward(pp::costs_for(read, four), 3, 0) == doctest::Approx(0.75e-3));
  CHECK(pp::memory_for(read, four) ==
        pp::stage_memory{{25, 25, 25, 25, 75, 75, 75, 75}, {}, {3.5, 3.5, 4.5, 4.5}});
}

TEST_CASE("another cut of the same model does the same work") {
  pp::cut_costs const measured{4, 2, random_costs({.devices = 4, .chunks = 2}, 5)};
  auto const work = [](pp::cost_table const& costs, int stages, int chunks, pp::pass_kind kind) {
    double sum = 0;
    for (int stage = 0; stage < stages; ++stage)
      for (int chunk = 0; chunk < chunks; ++chunk)
        sum += time_of(costs, kind, stage, chunk);
    return sum;
  };
  for (int const stages : {1, 2, 3, 4, 5, 8, 12})
    for (int const chunks : {1, 2, 3, 7}) {
      pp::cost_table const other = pp::costs_for(measured, {.devices = stages, .chunks = chunks});
      CHECK(other.latency() == measured.times.latency());
      for (pp::pass_kind const kind : all_kinds)
        CHECK(work(other, stages, chunks, kind) ==
              doctest::Approx(work(measured.times, 4, 2, kind)).epsilon(1e-12));
    }
  // Whole stages and chunks are added up, halves are halves.
  pp::cost_table const halves = pp::costs_for(measured, {.devices = 2, .chunks = 4});
  pp::pass_kind const forward = pp::pass_kind::forward;
  CHECK(time_of(halves, forward, 1, 3) ==
        doctest::Approx(
          (time_of(measured.times, forward, 2, 1) + time_of(measured.times, forward, 3, 1)) / 2));
  // Stage 1 of 3 is the last two thirds of stage 1 of 4 and the first two of stage 2.
  pp::cost_table const thirds = pp::costs_for(measured, {.devices = 3, .chunks = 2});
  CHECK(time_of(thirds, forward, 1, 0) == doctest::Approx((time_of(measured.times, forward, 1, 0) +
                                                           time_of(measured.times, forward, 2, 0)) *
                                                          2 / 3));
}

TEST_CASE("what is no file of costs is refused by a sentence that names line and entry") {
  CHECK(refusal_of(whole_file) == "it was read");
  CHECK(refusal_of("") == "JSON: an object in braces is wanted, at line 1, character 1");
  CHECK(refusal_of("{}") == "costs: this is no file of costs, since 'pipelining_costs' is missing; "
                            "write one by write_costs");
  CHECK(refusal_of(with("\": 1,", "\": 2,")) ==
        "costs, line 1: 'pipelining_costs' must be 1, the only format so far");
  CHECK(refusal_of(with("\"communication\": 0.5,", "")) ==
        "costs: 'communication' is missing; write the file anew by write_costs");
  CHECK(refusal_of(with("0.5", "-0.5")) ==
        "costs, line 2: 'communication' must be a number, 0 or between 1e-12 and 1e12");
  CHECK(refusal_of(with("0.5", "\"fast\"")) ==
        "costs, line 2: 'communication' must be a number, 0 or between 1e-12 and 1e12");
  CHECK(refusal_of(with("communication", "comunication")) ==
        "costs, line 2: 'comunication' is no entry of a file of costs; those are pipelining_costs, "
        "communication, links, message_bytes, unit, microbatches, activation_bytes, "
        "weight_input_bytes, resident_bytes, forward, backward_input, backward_weight, recompute, "
        "copy_out, copy_in, gather_weights, scatter_gradients, embed, logits, logits_gradient "
        "and embed_gradient");
  auto const besides = [](std::string const& entry) {
    return refusal_of(with("0.5", "0.5,\n" + entry));
  };
  CHECK(besides("\"unit\": \"hours\"") ==
        "costs, line 3: 'unit' must be \"s\", \"ms\", \"us\" or \"ns\"");
  CHECK(besides("\"unit\": 1") == "costs, line 3: 'unit' must be \"s\", \"ms\", \"us\" or \"ns\"");
  CHECK(besides("\"unit\": \"s\"") == "it was read");
  CHECK(besides("\"\\u0075nit\": \"m\\u0073\"") == "it was read");
  CHECK(besides("\"microbatches\": 2") == "it was read");
  CHECK(besides("\"microbatches\": 4") ==
        "costs, line 4: 'forward' has 2 times for stage 0, which must be a multiple of the 4 "
        "microbatches");
  for (char const* const count : {"0", "1.5", "70000", "[[2]]"})
    CHECK(
      besides(std::string("\"microbatches\": ") + count).find("a whole number from 1 to 65535") !=
      std::string::npos);
  CHECK(besides("\"activation_bytes\": [[1, 2], [3, 4]]") == "it was read");
  for (char const* const bytes :
       {"[[1, 2]]", "[[1], [2, 3]]", "[[1, 2], [3, -1]]", "[[1, 2], [3, 1e13]]"})
    CHECK(besides(std::string("\"activation_bytes\": ") + bytes) ==
          "costs, line 3: 'activation_bytes' needs a list for each of 2 stages, with 2 numbers of "
          "bytes, 0 or between 1 and 2^40");
  CHECK(besides("\"resident_bytes\": [[1, 2], [3, 4]]") ==
        "costs, line 3: 'resident_bytes' needs a list for each of 2 stages, with 1 numbers of "
        "bytes, 0 or between 1 and 2^40");
  CHECK(refusal_of(with("backward_weight", "recompute")) ==
        "costs: 'backward_weight' is missing; write the file anew by write_costs, from whole steps "
        "of training");
  CHECK(refusal_of(with("backward_weight", "forward")) ==
        "JSON: the name 'forward' stands twice, at line 9, character 10");
  CHECK(refusal_of(with("[4, 5]", "[4]")) ==
        "costs, line 6: 'backward_input' has another number of times for stage 1 (1) than for "
        "stage 0 (2); every stage needs one per chunk");
  CHECK(refusal_of(with("[2, 3],\n", "")) ==
        "costs, line 6: 'backward_input' is of 1 x 2 stages and chunks, 'forward' of 2 x 2; all "
        "are of the same cut");
  CHECK(
    refusal_of(with("[3, 4]", "[3, -4]")) ==
    "costs, line 3: 'forward' has a time for stage 1, chunk 1 that is not 0 or between 1e-12 and "
    "1e12");
  CHECK(refusal_of(with("[\n[1, 2],\n[3, 4]]", "[]")) ==
        "costs, line 3: 'forward' is empty; it needs a list per stage, with a time per chunk");
  CHECK(refusal_of(with("[\n[1, 2],\n[3, 4]]", "7")) ==
        "JSON: a list in brackets is wanted, at line 3, character 12");
  CHECK(refusal_of(with("[3, 4]", "3")) ==
        "JSON: a list in brackets is wanted, at line 5, character 1");
  CHECK(refusal_of(with("3, 4", "3, nan")) == "JSON: a number is wanted, at line 5, character 5");
  CHECK(refusal_of(with("3, 4", "3, 1e999")) ==
        "JSON: a number of this size cannot be read, at line 5, character 5");
  CHECK(refusal_of(R"({"pipelining_costs": 1, "communication": 1, "forward": [[0]],
"backward_input": [[0]], "backward_weight": [[0]]})") ==
        "costs, line 1: 'forward' and the backward passes take no time; measure again");
  CHECK(refusal_of(with("0.5", "[[1}]")) == "JSON: ']' is wanted, at line 2, character 21");
  CHECK(refusal_of(with("communication", "\\u001b[2J")) ==
        refusal_of(with("communication", "?[2J"))); // nothing that a terminal obeys
  CHECK(refusal_of(with("communication", "\x1b[2J")) ==
        "JSON: a text has a control character, at line 2, character 3");
  std::string times = "1";
  for (int chunk = 1; chunk <= 65535; ++chunk)
    times += ",1";
  CHECK(refusal_of(with("[\n[1, 2],\n[3, 4]]", "[[" + times + "]]")) ==
        "costs, line 3: 'forward' has more than 65535 stages or chunks");
  CHECK(refusal_of(std::string(whole_file) + "x") ==
        "JSON: there is text after the object, at line 12, character 1");
}

TEST_CASE("times of files have the limits of the command line") {
  for (char const* const time : {"1e308", "1e-290", "1e290", "1.1e12", "9e-13"}) {
    CAPTURE(time);
    CHECK(refusal_of(with("3, 4", std::string("3, ") + time)) ==
          "costs, line 3: 'forward' has a time for stage 1, chunk 1 that is not 0 or between 1e-12 "
          "and 1e12");
    CHECK(refusal_of(with("0.5", time)) ==
          "costs, line 2: 'communication' must be a number, 0 or between 1e-12 and 1e12");
  }
  for (char const* const time : {"1e12", "1e-12", "0", "1e3"})
    CHECK(refusal_of(with("3, 4", std::string("3, ") + time)) == "it was read");
  auto const with_link = [](std::string const& bytes, std::string const& link) {
    return refusal_of(
      with("0.5", "0.5,\n\"message_bytes\": " + bytes + ",\n\"links\": [[0, 1, " + link + "]]"));
  };
  CHECK(with_link("1e6", "1e-6, 1e-11") == "it was read");
  CHECK(with_link("1e300", "1e-6, 1e-11") ==
        "costs, line 3: 'message_bytes' must be a number, 0 or between 1 and 2^40");
  for (char const* const link : {"1e-6, 1e300", "1e-6, 1e-300", "1e-20, 0", "1e13, 0"})
    CHECK(with_link("1e6", link) ==
          "costs, line 4: 'links' needs of every link two different devices, the seconds of an "
          "empty message (0 or between 1e-12 and 1e12) and those of a byte (0 or between 1e-24 and "
          "1); link 0 has others");
}

TEST_CASE("what is written can be read: noise below the limits is 0, more is refused") {
  pp::cost_table noisy({.devices = 1}, {1, 1, 1, 3e-19});
  noisy.set(pp::pass_kind::recompute, 0, 0, 1e-13);
  pp::cut_costs const read = pp::read_costs(pp::write_costs({.devices = 1}, noisy));
  CHECK(read.times.latency() == 0);
  CHECK(time_of(read.times, pp::pass_kind::recompute, 0) == 0);
  noisy.set(pp::pass_kind::forward, 0, 0, 2e12);
  CHECK_THROWS_WITH(pp::write_costs({.devices = 1}, noisy),
                    "write_costs: times must be 0 or between 1e-12 and 1e12; choose a unit in "
                    "which they are");
}

TEST_CASE("damaged files are refused or read, never more") {
  std::string const text = whole_file;
  for (std::size_t length = 0; length + 2 < text.size(); ++length)
    CHECK(refusal_of(text.substr(0, length)) != "it was read");
  std::mt19937_64 random(11);
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string damaged = text;
    for (int edits = 0; edits < 3; ++edits)
      damaged[random() % damaged.size()] = static_cast<char>(random() % 256);
    try {
      pp::cut_costs const read = pp::read_costs(damaged);
      CHECK(read.stages * read.chunks > 0);
      for (pp::pass_kind const kind : all_kinds)
        CHECK(time_of(read.times, kind, read.stages - 1, read.chunks - 1) >= 0);
    } catch (std::invalid_argument const&) {
      ++refused;
    }
  }
  CHECK(refused > 1500);
}
