// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <examples/gpt/prediction.hpp>

namespace pp = pipelining;

namespace {

pp::uniform_cost const cost{.forward = 2, .backward_input = 3, .backward_weight = 1.5};

} // namespace

TEST_CASE("with a core for every device the times are those of the library's simulation") {
  auto const table = pp::make_timetable(pp::Seq1F1B<pp::dynamic>{.chunks = 3}, {4, 6}, cost);
  auto const shared = gpt::share_cores(table, cost, 4);
  CHECK(shared.starts == table.starts);
  CHECK(shared.ends == table.ends);
  CHECK(gpt::share_cores(table, cost, 99).ends == table.ends);
}

TEST_CASE("copies stand in rows of their own, and wait as the library's simulation says") {
  auto with_copies = cost;
  with_copies.copy_out = with_copies.copy_in = 0.25;
  auto const table = pp::make_timetable(pp::with_offload<pp::OneFOneB>{}, {4, 6}, with_copies);
  REQUIRE(pp::timetable_view(table).row_size(4) > 0);
  auto const shared = gpt::share_cores(table, with_copies, 12);
  CHECK(shared.starts == table.starts);
  CHECK(shared.ends == table.ends);
  CHECK(pp::verify(gpt::share_cores(table, with_copies, 2)));
}

TEST_CASE("a flow with copies has rows for them, which stay empty here") {
  auto const table = pp::make_timetable(pp::with_recompute<pp::OneFOneB>{}, {4, 6}, cost);
  auto const shared = gpt::share_cores(table, cost, 4);
  CHECK(shared.offsets == table.offsets);
  CHECK(shared.ends == table.ends);
  CHECK(pp::verify(shared));
}

TEST_CASE("on one core passes run one after the other") {
  auto const table = pp::make_timetable(pp::OneFOneB{}, {4, 6}, cost);
  auto const shared = gpt::share_cores(table, cost, 1);
  CHECK(pp::makespan(shared) == doctest::Approx(4 * 6 * 6.5));
  CHECK(pp::verify(shared));
}

TEST_CASE("two cores take at least half of the work, and no longer than one core") {
  auto const table = pp::make_timetable(pp::OneFOneB{}, {4, 6}, cost);
  auto const shared = gpt::share_cores(table, cost, 2);
  CHECK(pp::verify(shared));
  CHECK(pp::makespan(shared) >= 4 * 6 * 6.5 / 2);
  CHECK(pp::makespan(shared) < 4 * 6 * 6.5 * 0.7);
  // No moment has more than two passes.
  for (double const start : shared.starts) {
    int running = 0;
    for (std::size_t i = 0; i < shared.starts.size(); ++i) {
      running += shared.starts[i] <= start && start < shared.ends[i] ? 1 : 0;
    }
    CHECK(running <= 2);
  }
}

TEST_CASE("every pass is measured") {
  gpt::model_size const size{.layers = 2, .width = 8, .heads = 2, .key_heads = 2, .sequence = 8};
  std::vector<std::uint8_t> const text(50, 'a');
  std::mt19937_64 random(1);
  auto const pieces = gpt::random_batch(text, 4, 8, random);
  auto const measured = gpt::measure_passes(size, {.devices = 2, .chunks = 2}, pieces);
  auto const milliseconds = gpt::in_unit(measured, {.devices = 2, .chunks = 2}, 1e3);
  using enum pp::pass_kind;
  for (auto const kind : {forward, backward_input, backward_weight}) {
    double sum = 0;
    for (int place = 0; place < 4; ++place) {
      auto const what = pp::row_writer::make(kind, place / 2, 0, place % 2);
      double const seconds = measured.duration(what);
      CHECK((seconds > 0 && seconds < 1));
      CHECK(milliseconds.duration(what) == 1e3 * seconds);
      sum += 1e3 * seconds;
    }
    auto const mean = gpt::mean_of(milliseconds, {.devices = 2, .chunks = 2});
    CHECK(sum / 4 == doctest::Approx(mean.duration({kind})));
  }
  auto const at_last = [&](pp::pass_kind kind) {
    return measured.duration(pp::row_writer::make(kind, 1, 0, 1));
  };
  CHECK(at_last(backward) == at_last(backward_input) + at_last(backward_weight));
  CHECK(at_last(recompute) == at_last(forward));
  CHECK(at_last(offloaded_forward) == at_last(forward));
  CHECK(at_last(copy_out) == 0);
}
