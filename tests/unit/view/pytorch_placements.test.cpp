// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What write_pytorch_csv writes, read_pytorch_csv reads back, wherever the stages are.
#include <pipe/flow/pipeline.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/view/pytorch/read_csv.hpp>
#include <pipe/view/pytorch/write_csv.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <tests/support/random_flows.hpp>
#include <tests/unit/view/pytorch_refusal.hpp>
#include <tests/unit/view/round_trip.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

using io_tests::refusal;

//! Stages on devices by chance, none without one, and passes in any order that can run.
struct by_chance {
  int stage_count;
  unsigned seed;
  std::vector<int> holders;

  by_chance(int devices, int stage_count_, unsigned seed_)
      : stage_count(stage_count_), seed(seed_) {
    support::dice dice(seed);
    for (int stage = 0; stage < stage_count; ++stage)
      holders.push_back(stage < devices ? stage : dice.below(devices));
    dice.shuffle(holders);
  }
  [[nodiscard]] pp::shape arrange(int devices, int microbatches) const {
    return {.devices = devices,
            .microbatches = microbatches,
            .where = pp::placement::custom,
            .extra_stages = stage_count - devices};
  }
  [[nodiscard]] int device_of(pp::shape const&, int stage, int) const {
    return holders[static_cast<std::size_t>(stage)];
  }
  template <pp::cost_model Cost>
  void generate(pp::shape const& extents, Cost const&, pp::row_writer* rows) const {
    support::dice dice(seed + 1);
    bool const splits = dice.one_in(2);
    std::vector<pp::pass> ready;
    auto const add = [&](pp::pass_kind kind, int stage, int microbatch) {
      ready.push_back(pp::row_writer::make(kind, stage, microbatch));
    };
    for (int microbatch = 0; microbatch < extents.microbatches; ++microbatch)
      add(pp::pass_kind::forward, 0, microbatch);
    while (!ready.empty()) {
      dice.shuffle(ready);
      pp::pass const next = ready.back();
      ready.pop_back();
      rows[holders[next.stage]].push(next);
      if (next.kind == pp::pass_kind::backward_weight)
        continue;
      bool const forward = next.kind == pp::pass_kind::forward;
      pp::pass_kind const back = splits ? pp::pass_kind::backward_input : pp::pass_kind::backward;
      if (next.kind == pp::pass_kind::backward_input)
        add(pp::pass_kind::backward_weight, next.stage, next.microbatch);
      if (forward && next.stage + 1 < stage_count)
        add(pp::pass_kind::forward, next.stage + 1, next.microbatch);
      else if (forward)
        add(back, next.stage, next.microbatch);
      else if (next.stage > 0)
        add(back, next.stage - 1, next.microbatch);
    }
  }
};

} // namespace

TEST_CASE("stages on any devices come back") {
  int custom = 0;
  for (int devices = 1; devices <= 5; ++devices)
    for (int stage_count = devices; stage_count <= 12; ++stage_count)
      for (int microbatches : {1, 2, 5}) {
        CAPTURE(devices);
        CAPTURE(stage_count);
        CAPTURE(microbatches);
        auto const seed = static_cast<unsigned>(100 * devices + 10 * stage_count + microbatches);
        auto const table = pp::make_timetable(
          by_chance(devices, stage_count, seed), {devices, microbatches}, io_tests::times);
        pp::pytorch_schedule const file = io_tests::check_round_trip(table);
        custom += file.orders.over.extents.where == pp::placement::custom ? 1 : 0;
        CHECK_NOTHROW(static_cast<void>(pp::lower(pp::make_timetable(file))));
      }
  CHECK(custom > 80);
}

TEST_CASE("the ends of a model are on one device") {
  auto const table = pp::make_timetable(pp::read_pytorch_csv("0F0,3F0,0F1,3B0,0B0,3F1,3B1,0B1\n"
                                                             "1F0,1F1,1B0,1B1\n"
                                                             "2F0,2F1,2B0,2B1\n"));
  CHECK(table.over.holders == std::vector<std::uint16_t>{0, 1, 2, 0});
  CHECK(table.over.extents.stages() == 4);
  CHECK(pp::makespan(table) == 22);
  static_cast<void>(io_tests::check_round_trip(table, {}));
}

TEST_CASE("lines need not have as many stages as others") {
  CHECK(refusal("0F0,2F0,2B0,0B0\n1F0,1B0\n").empty());
  CHECK(refusal("0F0,1F0,1B0,0B0\n2F0,2B0\n").empty());
  CHECK(pp::read_pytorch_csv("0F0,2F0,2B0,0B0\n1F0,1B0\n").orders.over.extents.where ==
        pp::placement::custom);
}

TEST_CASE("a line without a stage is refused, and so is a stage on two lines") {
  CHECK(refusal("0F0,0B0\n0UNSHARD\n") ==
        "PyTorch CSV, line 2, cell 1: the line has no pass; every line is one device with one "
        "stage or more");
  CHECK(refusal("0F0,1F0,1B0,0B0\n1RECV_F0\n") ==
        "PyTorch CSV, line 2, cell 1: the line has no pass; every line is one device with one "
        "stage or more");
  CHECK(refusal("0F0,0F1,0B0,0B1\n0F2,0B2\n") ==
        "PyTorch CSV, line 2, cell 1: stage 0 is on this device, but also on that of line 1, "
        "cell 1");
  auto orders = pp::make_orders(by_chance(2, 3, 1), {2, 1});
  orders.over.extents = {.devices = 3, .microbatches = 1, .where = pp::placement::custom};
  orders.offsets.push_back(orders.offsets.back());
  pp::timetable_view const view{
    .over = orders.over, .passes = orders.passes.data(), .offsets = orders.offsets.data()};
  std::string text;
  CHECK_THROWS_WITH_AS(pp::write_pytorch_csv(text, view),
                       "write_pytorch_csv: device 2 has no pass, and PyTorch's format no device "
                       "without a stage",
                       std::invalid_argument);
}
