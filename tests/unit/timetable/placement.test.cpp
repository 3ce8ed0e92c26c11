// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Placements and numbers of chunks that a schedule brings itself.
#include <pipe/flow/pipeline.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <stdexcept>

namespace pp = pipelining;

namespace {

//! All forward, then all backward; microbatches enter at the last device, or by turns at both ends.
template <int Routes>
struct from_the_end {
  int wrong = 0; // added to every device
  constexpr pp::shape arrange(int devices, int microbatches) const {
    return {.devices = devices,
            .microbatches = microbatches,
            .where = pp::placement::custom,
            .custom_routes = Routes};
  }
  constexpr int device_of(pp::shape const& extents, int stage, int route) const {
    return wrong + (route == 0 ? extents.devices - 1 - stage : stage);
  }
  constexpr void order(pp::shape const& extents, int device, pp::row_writer& out) const {
    for (int m = 0; m < extents.microbatches; ++m)
      out.forward(stage_on(extents, device, m), m);
    for (int m = 0; m < extents.microbatches; ++m)
      out.backward(stage_on(extents, device, m), m);
  }
  static constexpr int stage_on(pp::shape const& extents, int device, int microbatch) {
    return microbatch % Routes == 0 ? extents.devices - 1 - device : device;
  }
};
static_assert(pp::verify(pp::timetable<from_the_end<1>, 3, 4>));
static_assert(pp::verify(pp::timetable<from_the_end<2>, 3, 4>));

struct nowhere {
  constexpr pp::shape arrange(int devices, int microbatches) const {
    return {.devices = devices, .microbatches = microbatches, .where = pp::placement::custom};
  }
  constexpr void order(pp::shape const&, int, pp::row_writer&) const {}
};

//! Microbatch m has m mod 3 + 1 chunks, all forward and then all backward.
struct ragged {
  int largest = 3;
  constexpr pp::shape arrange(int devices, int microbatches) const {
    return {.devices = devices, .microbatches = microbatches, .chunks = largest};
  }
  constexpr int chunks_of(pp::shape const&, int microbatch) const { return microbatch % 3 + 1; }
  constexpr void order(pp::shape const& extents, int device, pp::row_writer& out) const {
    for (int m = 0; m < extents.microbatches; ++m)
      for (int c = 0; c <= m % 3; ++c)
        out.forward(device, m, c);
    for (int m = 0; m < extents.microbatches; ++m)
      for (int c = m % 3; c >= 0; --c)
        out.backward(device, m, c);
  }
};
static_assert(pp::verify(pp::timetable<ragged, 2, 5>));

} // namespace

TEST_CASE("a placement of a schedule's own is kept by tables and plans") {
  pp::dynamic_timetable table;
  {
    auto const made = pp::make_timetable(from_the_end<1>{}, {4, 6});
    table = made;
  }
  CHECK(pp::makespan(table) == 3 * (6 + 3)); // a pipeline is as long in either direction
  for (int stage = 0; stage < 4; ++stage)
    CHECK(pp::device_of(table, stage) == 3 - stage);
  pp::plan work;
  {
    auto const made = pp::lower(table);
    work = made;
  }
  table = {};
  for (int stage = 0; stage < 4; ++stage)
    CHECK(pp::device_of(work, stage) == 3 - stage);
  CHECK(pp::prove(work));
}

TEST_CASE("microbatches may take several routes") {
  auto const table = pp::make_timetable(from_the_end<2>{}, {3, 4});
  CHECK(pp::verify(table));
  CHECK(pp::device_of(table, 0, 0) == 2);
  CHECK(pp::device_of(table, 0, 1) == 0);
  CHECK(pp::prove(pp::lower(table, pp::uniform_sizes{.message = 8, .activation = 8})));
}

TEST_CASE("a placement that cannot be is refused with a sentence") {
  CHECK_THROWS_WITH_AS((void)pp::make_timetable(from_the_end<1>{1}, {4, 6}),
                       "shape: device_of gives stage 0 to device 4, but there are 4 devices",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS((void)pp::make_timetable(nowhere{}, {2, 2}),
                       "shape: a schedule with placement::custom needs a member device_of(shape, "
                       "stage, route) that says where each stage is",
                       std::invalid_argument);
}

TEST_CASE("microbatches may have unequal numbers of chunks") {
  auto const table = pp::make_timetable(ragged{}, {3, 7});
  CHECK(pp::verify(table));
  CHECK(table.over.view().units() == 1 + 2 + 3 + 1 + 2 + 3 + 1);
  CHECK(table.passes.size() == 2U * 3U * 13U);
  // Unit times: 13 forward of 1, 13 backward of 2, and twice the way down.
  CHECK(pp::makespan(table) == 13 * 3 + 2 * 3);
  pp::plan const work = pp::lower(
    table, pp::uniform_sizes{.message = 8, .activation = 8, .sequence = 8, .sequence_gradient = 8});
  CHECK(pp::prove(work));
  CHECK(work.layout(0, pp::slot_class::activation).count == 13);
  CHECK(work.layout(0, pp::slot_class::sequence).count == 7);
  CHECK_THROWS_WITH_AS((void)pp::make_timetable(ragged{2}, {2, 3}),
                       "shape: chunks_of gives microbatch 2 3 chunks; there must be 1 to "
                       "shape::chunks, 2",
                       std::invalid_argument);
}

TEST_CASE("costs that no pass can take are refused before anything is ordered") {
  for (double const bad : {-1.0, 1.0 / 0.0, 0.0 / 0.0}) {
    CHECK_THROWS_AS((void)pp::make_timetable(ragged{}, {2, 2}, pp::uniform_cost{1, bad, 1}),
                    std::invalid_argument);
    CHECK_THROWS_AS((void)pp::make_timetable(ragged{}, {2, 2}, pp::uniform_cost{1, 1, 1, bad}),
                    std::invalid_argument);
  }
}
