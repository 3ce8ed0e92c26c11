// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/plan/lower.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/slim_pipe.hpp>
#include <pipe/timetable/attention_cost.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tests/support/golden_lines.hpp>
#include <tuple>
#include <vector>

namespace pp = pipelining;

namespace {

static_assert(pp::verify(pp::timetable<pp::SlimPipe<8, 2>, 4, 3>));
static_assert(pp::peak_activations(pp::timetable<pp::SlimPipe<8>, 4, 3>) == pp::ratio{7, 4});
// The plan is there when the compiler asks: chunk 3 gives one key chunk to chunk 0.
constexpr pp::shape worked = pp::SlimPipe<4>{}.arrange(4, 2);
static_assert(pp::attention_exchange{}.of(worked, {pp::pass_kind::forward, false, 0, 0, 3}) ==
              pp::detail::exchanged_keys{3, -1});
static_assert(pp::attention_exchange{}.of(worked, {pp::pass_kind::forward, false, 3, 0, 0}) ==
              pp::detail::exchanged_keys{0, 1});

//! What a forward pass takes without attention, and a backward pass twice.
pp::attention_cost cost_of(double linear, double attention, double latency) {
  return {{linear, linear, linear, latency}, attention, 2.5 * attention, {}, {}};
}

double
makespan_of(pp::SlimPipe<> const& schedule, pp::pipeline_size size, pp::attention_cost cost) {
  cost.extents = schedule.arrange(size.devices, size.microbatches);
  return pp::makespan(pp::make_timetable(schedule, size, cost));
}

//! The plan of all passes: by device, microbatch, local stage and chunk the peer, and the key
//! chunks taken over in F and in B.
using plan_rows = std::map<std::tuple<int, int, int, int>, std::tuple<int, int, int>>;

plan_rows rows_of(pp::shape const& extents, pp::attention_exchange const& plan) {
  plan_rows rows;
  for (int stage = 0; stage < extents.stages(); ++stage)
    for (int m = 0; m < extents.microbatches; ++m)
      for (int chunk = 0; chunk < extents.chunks; ++chunk) {
        auto const forward =
          plan.of(extents, pp::row_writer::make(pp::pass_kind::forward, stage, m, chunk));
        auto const backward =
          plan.of(extents, pp::row_writer::make(pp::pass_kind::backward, stage, m, chunk));
        if (forward.chunks != 0 || backward.chunks != 0)
          rows[{stage % extents.devices, m, stage / extents.devices, chunk}] = {
            forward.chunks != 0 ? forward.peer : backward.peer, forward.chunks, backward.chunks};
      }
  return rows;
}

using exchanging = pp::SlimPipeExchange<pp::dynamic, pp::dynamic>;

pp::dynamic_timetable
exchanging_table(exchanging const& schedule, pp::pipeline_size size, pp::attention_cost const& of) {
  return pp::make_timetable(
    schedule,
    size,
    pp::attention_part_cost<exchanging>{schedule,
                                        schedule.arrange(size.devices, size.microbatches),
                                        of.linear,
                                        of.forward,
                                        of.backward});
}

//! Attention that a third device takes over, which the order knows nothing of.
struct on_a_third_device : exchanging {
  [[nodiscard]] constexpr int device_of(pp::shape const& extents, int stage, int route) const {
    int const planned = exchanging::device_of(extents, stage, route);
    bool const given = planned != stage_at(extents, stage).layer % extents.devices;
    return given ? (planned + 1) % extents.devices : planned;
  }
};

} // namespace

TEST_CASE("SlimPipe has the figures of the golden file, with the exchange and without") {
  for (std::string const& line : support::golden_lines("golden/families/slim_pipe.txt")) {
    CAPTURE(line);
    std::istringstream in(line);
    pp::pipeline_size size{};
    pp::SlimPipe<pp::dynamic, pp::dynamic> schedule;
    double linear = 0;
    double attention = 0;
    bool exchange = false;
    double latency = 0;
    double makespan = 0;
    double span = 0;
    in >> size.devices >> size.microbatches >> schedule.chunks.value >>
      schedule.stages_per_device.value >> linear >> attention >> exchange >> latency >> makespan >>
      span;
    pp::attention_cost cost = cost_of(linear, attention, latency);
    cost.extents = schedule.arrange(size.devices, size.microbatches);
    if (exchange)
      cost.exchange.emplace();
    auto const table = pp::make_timetable(schedule, size, cost);
    CHECK(pp::makespan(table) == doctest::Approx(makespan).epsilon(1e-12));
    CHECK(pp::span_of(table) == doctest::Approx(span).epsilon(1e-12));
    for (int device = 0; device < size.devices; ++device) {
      double busy = 0;
      in >> busy;
      CHECK(pp::busy(table, device) == doctest::Approx(busy).epsilon(1e-12));
    }
    for (int device = 0; device < size.devices; ++device) {
      int peak = 0;
      in >> peak;
      CHECK(pp::peak_activation_chunks(table, device) == peak);
    }
  }
}

TEST_CASE("SlimPipe's bubble, peaks and wait for messages follow their laws") {
  for (int devices = 1; devices <= 6; ++devices)
    for (int chunks = devices; chunks <= 2 * devices + 3; ++chunks)
      for (int held = 1; held <= 3; ++held)
        for (int const microbatches : {1, 2, 5}) {
          pp::SlimPipe<pp::dynamic, pp::dynamic> const schedule{chunks, held};
          pp::pipeline_size const size{devices, microbatches};
          CAPTURE(devices);
          CAPTURE(chunks);
          CAPTURE(held);
          CAPTURE(microbatches);
          int const units = held * chunks * microbatches;
          auto const table = pp::make_timetable(schedule, size, pp::uniform_cost{10, 12, 8});
          CHECK(pp::span_of(table) == 30 * (units + devices - 1));
          CHECK(pp::makespan(table) == 30 * (units + devices - 1));
          for (int device = 0; device < devices; ++device)
            CHECK(pp::peak_activation_chunks(table, device) ==
                  std::min(held * chunks + 2 * (devices - 1 - device), units));
          auto const late = pp::make_timetable(schedule, size, pp::uniform_cost{10, 12, 8, 3});
          int const size_of_group = pp::SlimPipe<>::chunk_group(late.over.extents);
          int const spare = size_of_group - devices;
          int const waits =
            std::max(3 * devices - 10 * spare, 0) + std::max(3 * devices - 20 * spare, 0);
          if (devices > 1)
            CHECK(pp::makespan(late) - pp::makespan(table) ==
                  2 * 3 * (devices - 1) + (held - 1) * chunks / size_of_group * waits);
        }
}

TEST_CASE("SlimPipe of one stage per device is the eager Seq1F1B") {
  for (int devices = 1; devices <= 8; ++devices)
    for (int chunks = devices; chunks <= 3 * devices; ++chunks)
      for (int microbatches = 1; microbatches <= 5; ++microbatches)
        CHECK(
          pp::make_timetable(pp::SlimPipe<>{chunks}, {devices, microbatches}).passes ==
          pp::make_timetable(pp::EagerSeq1F1B<>{.chunks = chunks}, {devices, microbatches}).passes);
}

TEST_CASE("SlimPipe refuses fewer chunks than devices, and no stages") {
  CHECK_THROWS_WITH((void)pp::make_timetable(pp::SlimPipe<>{3}, {4, 2}),
                    "SlimPipe: 3 chunks are too few for 4 devices: cut sequences into at least as "
                    "many chunks as there are devices, or take Seq1F1B");
  CHECK_THROWS_AS((void)pp::make_timetable(pp::SlimPipe<4, pp::dynamic>{{}, 0}, {4, 2}),
                  std::invalid_argument);
}

TEST_CASE("the exchange has the rows of the golden file and no others") {
  std::map<std::vector<int>, plan_rows> expected;
  for (std::string const& line : support::golden_lines("golden/families/slim_pipe_exchange.txt")) {
    std::istringstream in(line);
    std::vector<int> of(4);
    for (int& extent : of)
      in >> extent;
    int at[4]{};
    for (int& number : at)
      in >> number;
    char colon = 0;
    int row[3]{};
    in >> colon >> row[0] >> row[1] >> row[2];
    expected[of][{at[0], at[1], at[2], at[3]}] = {row[0], row[1], row[2]};
  }
  CHECK(expected.size() == 1);
  for (auto const& [of, rows] : expected)
    CHECK(rows_of(pp::SlimPipe<pp::dynamic, pp::dynamic>{of[2], of[3]}.arrange(of[0], of[1]), {}) ==
          rows);
}

TEST_CASE(
  "what one device takes over the other gives away at the same time, and less under a cap") {
  int entries = 0;
  for (int devices = 1; devices <= 6; ++devices)
    for (int chunks = devices; chunks <= 2 * devices + 2; ++chunks)
      for (int held = 1; held <= 2; ++held) {
        pp::shape const extents =
          pp::SlimPipe<pp::dynamic, pp::dynamic>{chunks, held}.arrange(devices, 3);
        int const all = chunks * held;
        for (auto const kind : {pp::pass_kind::forward, pp::pass_kind::backward})
          for (int number = 0; number < 3 * all; ++number)
            for (int device = 0; device < devices; ++device) {
              auto const pass_at = [&](int on, int at) {
                return pp::attention_exchange::numbered(extents, kind, on, at);
              };
              pp::pass const own = pass_at(device, number);
              auto const exchanged = pp::attention_exchange{}.of(extents, own);
              auto const capped = pp::attention_exchange{1}.of(extents, own);
              CHECK(capped.chunks == std::clamp(exchanged.chunks, -1, 1));
              if (exchanged.chunks == 0)
                continue;
              ++entries;
              int const at = pp::attention_exchange::beside(kind, number, device, exchanged.peer);
              REQUIRE(at >= 0);
              REQUIRE(at < 3 * all);
              pp::pass const other = pass_at(exchanged.peer, at);
              CHECK(pp::attention_exchange{}.of(extents, other) ==
                    pp::detail::exchanged_keys{device, -exchanged.chunks});
              int const left = own.chunk + exchanged.chunks - (other.chunk - exchanged.chunks);
              CHECK(std::abs(left) <= 1);
            }
      }
  CHECK(entries > 1000);
}

TEST_CASE("the exchange makes up for most of what growing attention costs") {
  // The worked example: linear 1, attention 1/2 per key chunk.
  pp::attention_cost cost = cost_of(1, 0.5, 0);
  CHECK(makespan_of({4}, {4, 2}, cost) == 79.375);
  cost.exchange.emplace();
  CHECK(makespan_of({4}, {4, 2}, cost) == 74.125);

  // Attention of a whole sequence as long as the rest, and 8/3 as long: makespan over the work of
  // a device, without exchange, with it, and of chunks that all take the same.
  for (auto const& [attention, even, exchanged] :
       {std::tuple{1.0, 1.164, 1.109}, std::tuple{8.0 / 3, 1.234, 1.114}}) {
    pp::attention_cost of = cost_of(1, attention / 4, 0);
    double const work = 4 * 8 * (3 + 3.5 * attention);
    CHECK(makespan_of({8}, {4, 4}, of) / work == doctest::Approx(even).epsilon(0.0005));
    of.exchange.emplace();
    CHECK(makespan_of({8}, {4, 4}, of) / work == doctest::Approx(exchanged).epsilon(0.0005));
    pp::attention_cost const alike = cost_of(1, 0, 0);
    CHECK(makespan_of({8}, {4, 4}, alike) / (3 * 4 * 8) == doctest::Approx(1.094).epsilon(0.0005));
  }
}

TEST_CASE("passes in parts exchange attention as planned, and their plans are proven") {
  int given = 0;
  for (int devices = 1; devices <= 5; ++devices)
    for (int chunks = devices; chunks <= 2 * devices; chunks += 2)
      for (int held = 1; held <= 2; ++held)
        for (int const microbatches : {1, 3}) {
          exchanging const schedule{{chunks, held}, {}};
          auto const table = pp::make_timetable(schedule, {devices, microbatches});
          CHECK(pp::verify(table));
          if (devices % 2 == 0) { // lower throws when the proof fails.
            (void)pp::lower<pp::communicators::one>(table);
            (void)pp::lower<pp::communicators::per_pair>(table);
            (void)pp::lower<pp::communicators::per_edge>(table);
          }
          // Passes come in the order of SlimPipe.
          auto const whole = pp::make_timetable(schedule.inner, {devices, microbatches});
          std::vector<pp::pass> seen;
          for (pp::pass const& what : table.passes) {
            pp::exchange_stage const stage = schedule.stage_at(table.over.extents, what.stage);
            if (stage.part == pp::layer_part::attention)
              seen.push_back(
                pp::row_writer::make(what.kind, stage.layer, what.microbatch, stage.chunk));
          }
          CHECK(seen == whole.passes);
          for (pp::pass const& what : table.passes) {
            pp::exchange_stage const stage = schedule.stage_at(table.over.extents, what.stage);
            int const own = stage.layer % devices;
            int const on = pp::device_of(table, what);
            if (stage.part != pp::layer_part::taken_attention || on == own)
              continue;
            ++given;
            auto const planned = schedule.exchange.steady(
              schedule.inside(table.over.extents),
              pp::row_writer::make(what.kind, stage.layer, what.microbatch, stage.chunk));
            CHECK(planned == pp::detail::exchanged_keys{on, -stage.taken});
          }
        }
  CHECK(given > 400);
}

TEST_CASE("the halves of a backward pass of a part take what the whole one takes") {
  exchanging const schedule{{4, 1}, {}};
  pp::shape const extents = schedule.arrange(4, 4);
  pp::attention_part_cost<exchanging> const cost{schedule, extents, {1, 1.5, 0.75}, 0.5, 1.25};
  for (int stage = 0; stage < extents.stages(); ++stage) {
    auto const time = [&](pp::pass_kind kind) {
      return cost.duration(pp::row_writer::make(kind, stage, 0));
    };
    CAPTURE(stage);
    CHECK(time(pp::pass_kind::backward) ==
          time(pp::pass_kind::backward_input) + time(pp::pass_kind::backward_weight));
  }
}

TEST_CASE("attention that a third device takes over is found") {
  auto const found = [](auto const& schedule) {
    return pp::verify(pp::make_timetable(schedule, {4, 4})).broken;
  };
  CHECK(found(exchanging{{8, 1}, {}}) == pp::report::rule::none);
  CHECK_THROWS_AS((void)found(on_a_third_device{{{8, 1}, {}}}), std::invalid_argument);
}

TEST_CASE("the exchange pays where attention is long, also with what devices wait for each other") {
  // Attention of a whole sequence over the rest, and the time over the work of a device.
  for (auto const& [devices, microbatches, chunks, held, longer, most] :
       {std::tuple{4, 2, 4, 1, 1.0, 1.4},
        {4, 4, 8, 1, 1.0, 1.11},
        {4, 4, 8, 1, 8.0 / 3, 1.11},
        {4, 16, 8, 1, 8.0 / 3, 1.06},
        {5, 3, 5, 2, 1.0, 1.12},
        {8, 4, 16, 2, 1.0, 1.08}}) {
    pp::attention_cost cost = cost_of(1, 2 * longer / chunks, 0);
    pp::SlimPipe<pp::dynamic, pp::dynamic> const plain{chunks, held};
    double const work = microbatches * chunks * held * (3 + 3.5 * longer);
    double const without = pp::makespan(pp::make_timetable(plain, {devices, microbatches}, cost));
    double const with = pp::makespan(exchanging_table({plain, {}}, {devices, microbatches}, cost));
    CAPTURE(without / work);
    CAPTURE(with / work);
    CHECK(with < 0.98 * without);
    CHECK(with < most * work);
  }
}
