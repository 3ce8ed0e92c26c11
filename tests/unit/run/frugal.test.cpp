// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Recomputed and offloaded activations, on threads: the same numbers as without, in less memory.
#include <pipe/plan/lower.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/chronos_pipe.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/hanayo.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <tests/support/arithmetic_stage.hpp>
#include <tests/support/sizes.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

using support::words;
constexpr pp::uniform_cost costs{.communication = 0.25, .copy_out = 0.3, .copy_in = 0.3};

// A stage that recomputes what its forward pass has kept, from the same input.
struct recomputing_stage : support::arithmetic_stage {
  int recomputed = 0;

  void recompute(pp::context const& where, pp::input in) {
    ++recomputed;
    CHECK(where.recomputing);
    word(where.activation) = in.slot < 0 ? unit(where) : in.as<std::uint64_t>()[0];
  }
};

// Of a timetable, so that it compiles once for all schedules.
template <class Policy>
void check_frugal(pp::timetable_view table, int recomputes) {
  CAPTURE(table.over.extents.devices);
  CAPTURE(table.over.extents.microbatches);
  std::vector<recomputing_stage> model(static_cast<std::size_t>(table.over.extents.stages()));
  for (std::size_t s = 0; s < model.size(); ++s) {
    model[s].weight = s + 3;
    model[s].chunks = table.over.extents.chunks;
  }
  pp::thread_runner runner(pp::lower<Policy>(table, words), model);
  int const steps = 2;
  for (int step = 0; step < steps; ++step)
    runner.step();
  auto const expected = support::run_sequentially(
    table.over.extents.stages(), table.over.extents.microbatches, table.over.extents.chunks);
  for (std::size_t s = 0; s < model.size(); ++s) {
    CHECK(model[s].gradient == steps * expected.gradients[s]);
    CHECK(model[s].recomputed == steps * recomputes * table.over.units());
  }
  CHECK(model.back().losses == steps * expected.losses);
  CHECK(pp::verify(runner.trace()));
}

template <class Schedule>
void check_recomputed_and_offloaded(Schedule const& schedule) {
  for (int devices = 1; devices <= 4; ++devices)
    for (int const microbatches : {1, 4, 9}) {
      auto const timed = [size = pp::pipeline_size{devices, microbatches}](auto const& frugal) {
        return pp::make_timetable(frugal, size, costs);
      };
      check_frugal<pp::communicators::per_pair>(timed(pp::with_recompute<Schedule>{schedule}), 1);
      check_frugal<pp::communicators::per_edge>(timed(pp::with_offload<Schedule>{schedule}), 0);
      check_frugal<pp::communicators::one>(timed(pp::with_offload<Schedule>{schedule}), 0);
      check_frugal<pp::communicators::per_pair>(
        timed(pp::with_offload<pp::with_recompute<Schedule>>{{schedule}}), 1);
    }
}

} // namespace

TEST_CASE_TEMPLATE(
  "every schedule gives the same numbers with recomputed and with offloaded activations",
  Schedule,
  pp::GPipe,
  pp::OneFOneB,
  pp::Interleaved<2>,
  pp::ZeroBubbleH1,
  pp::ZeroBubbleH2,
  pp::Seq1F1B<3>,
  pp::detail::SweptVHalf,
  pp::detail::SweptChronosPipe,
  pp::Hanayo<2>) {
  check_recomputed_and_offloaded(Schedule{});
}

TEST_CASE("chunks, stages and halves that move give the same numbers") {
  for (int devices = 1; devices <= 4; ++devices)
    for (int const microbatches : {1, 4, 9}) {
      auto const timed = [size = pp::pipeline_size{devices, microbatches}](auto const& frugal) {
        return pp::make_timetable(frugal, size, costs);
      };
      check_frugal<pp::communicators::per_pair>(
        timed(pp::with_offload<pp::Seq1F1B<4>, pp::offload::chunks>{}), 0);
      check_frugal<pp::communicators::one>(
        timed(pp::with_offload<pp::Seq1F1BInterleaved<2, 3>, pp::offload::chunks>{}), 0);
      check_frugal<pp::communicators::per_edge>(
        timed(pp::with_offload<pp::Interleaved<3>>{.rule = {.stages = 2}}), 0);
      check_frugal<pp::communicators::per_pair>(
        timed(pp::with_offload<pp::GPipe>{.rule = pp::offload::in_slots::half()}), 0);
    }
}

TEST_CASE("offloaded activations lie on the host: the device's arena shrinks, the host's grows") {
  pp::uniform_cost const slow_passes{
    .forward = 2, .backward_input = 2, .backward_weight = 2, .copy_out = 0.5, .copy_in = 0.5};
  auto const plain = pp::lower(pp::make_timetable(pp::OneFOneB{}, {8, 16}, slow_passes), words);
  auto const moved =
    pp::lower(pp::make_timetable(pp::with_offload<pp::OneFOneB>{}, {8, 16}, slow_passes), words);
  pp::plan const& before = plain;
  pp::plan const& after = moved;
  CHECK(before.layout(0, pp::slot_class::activation).count == 8);
  CHECK(after.layout(0, pp::slot_class::activation).count == 2);
  CHECK(before.host_bytes[0] == 0);
  CHECK(after.host_bytes[0] == after.layout(0, pp::slot_class::host_activation).bytes *
                                 after.layout(0, pp::slot_class::host_activation).count);
  CHECK(after.host_bytes[0] > 0);
}

TEST_CASE("slots of activations are as many as the timetable holds at once, copies and all") {
  for (int const devices : {2, 4, 8})
    for (double const copy : {0.25, 0.5, 1.0, 1.5, 3.0}) {
      pp::uniform_cost const cost{
        .forward = 2, .backward_input = 2, .backward_weight = 2, .copy_out = copy, .copy_in = copy};
      auto const table =
        pp::make_timetable(pp::with_offload<pp::OneFOneB>{}, {devices, 2 * devices}, cost);
      auto const work = pp::lower(table, words);
      for (int device = 0; device < devices; ++device)
        CHECK(work.layout(device, pp::slot_class::activation).count ==
              pp::peak_activation_chunks(table, device));
    }
}

namespace {

// Each stage has an activation of its own size.
struct growing_sizes {
  static std::int64_t bytes(pp::slot_class, pp::pass const& maker) { return 8 * (maker.stage + 1); }
};

} // namespace

TEST_CASE(
  "a recomputed pass is told the bytes that its forward pass was told, on its own device, too") {
  auto const table =
    pp::make_timetable(pp::with_recompute<pp::detail::SweptVHalf>{}, {2, 4}, pp::uniform_cost{});
  pp::plan const work = pp::lower(table, growing_sizes{});
  int compared = 0;
  for (int device = 0; device < 2; ++device)
    for (pp::item const& again : work.program_of(device))
      for (pp::item const& first : work.program_of(device))
        if (again.what == pp::operation::run && again.work.kind == pp::pass_kind::recompute &&
            first.what == pp::operation::run &&
            first.work.kind == pp::pass_kind::checkpointed_forward &&
            first.work.stage == again.work.stage &&
            first.work.microbatch == again.work.microbatch) {
          pp::plan const& view = work;
          CHECK(view.use_at(pp::detail::slot_place::inputs, again).bytes ==
                view.use_at(pp::detail::slot_place::inputs, first).bytes);
          ++compared;
        }
  CHECK(compared == 16);
}
