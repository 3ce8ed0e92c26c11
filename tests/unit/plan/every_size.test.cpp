// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The schedules that people reach for first, at every size up to 16 devices, 40 microbatches and 8
// chunks: verified by make_timetable, proven by lower; both throw. The tests of the schedules hold
// the figures.
#include <pipe/plan/lower.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

namespace pp = pipelining;

namespace {

template <class Schedule>
void check(Schedule const& schedule, int devices, int microbatches) {
  auto const table = pp::make_timetable(schedule, {devices, microbatches});
  pp::plan const work = pp::lower(table);
  for (int device = 0; device < devices; ++device)
    if (work.layout(device, pp::slot_class::activation).count !=
        pp::peak_activation_chunks(table, device))
      FAIL("the plan of device " << device << " of " << devices
                                 << " holds another number of activations than its timetable");
}

} // namespace

TEST_CASE("every size is verified and proven") {
  for (int devices = 1; devices <= 16; ++devices)
    for (int microbatches = 1; microbatches <= 40; ++microbatches) {
      check(pp::GPipe{}, devices, microbatches);
      check(pp::OneFOneB{}, devices, microbatches);
      for (int chunks = 1; chunks <= 8; ++chunks)
        check(pp::Seq1F1B<>{.chunks = chunks}, devices, microbatches);
      check(pp::VMin{}, devices, microbatches);
      check(pp::VHalf{}, devices, microbatches);
      check(pp::VZeroBubble{}, devices, microbatches);
    }
}
