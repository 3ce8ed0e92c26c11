// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/plan/lower.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace pp = pipelining;

namespace {

template <class Policy>
void check_plan(pp::timetable_view table) {
  // lower proves what it makes, or throws.
  pp::plan const work = pp::lower<Policy>(table, pp::uniform_sizes{.message = 10});
  pp::plan_view const view = work;
  int crossing = 0;
  for (int i = 0; i < table.size(); ++i)
    crossing += pp::receiver(table.extents, table.passes[i]) != pp::nothing ? 1 : 0;
  CHECK(static_cast<int>(work.items.size()) == table.size() + 2 * crossing);
  for (int device = 0; device < table.extents.devices; ++device) {
    CHECK(view.layout(device, pp::slot_class::activation).count ==
          pp::peak_activation_chunks(table, device));
    std::vector<pp::pass> ran;
    for (pp::item const& step : view.program_of(device))
      if (step.what == pp::operation::run)
        ran.push_back(step.work);
    auto const row = table.row(device);
    CHECK(std::equal(ran.begin(), ran.end(), row.begin(), row.end()));
  }
}

} // namespace

TEST_CASE("every timetable lowers to a proven plan under every policy") {
  for (int devices = 1; devices <= 16; ++devices)
    for (int const microbatches : {1, 2, 3, 5, 8, 13, 24, 40}) {
      auto const gpipe = pp::make_timetable<pp::GPipe>({devices, microbatches});
      check_plan<pp::one_communicator>(gpipe);
      check_plan<pp::communicator_per_pair>(gpipe);
      check_plan<pp::communicator_per_edge>(gpipe);
      auto const one =
        pp::make_timetable<pp::OneFOneB>({devices, microbatches}, pp::uniform_cost{3, 4, 2, 0.25});
      check_plan<pp::one_communicator>(one);
      check_plan<pp::communicator_per_pair>(one);
      check_plan<pp::communicator_per_edge>(one);
      for (int const chunks : {2, 3, 8}) {
        auto const sequence = pp::make_timetable(pp::Seq1F1B<>{chunks}, {devices, microbatches});
        check_plan<pp::communicator_per_pair>(sequence);
      }
    }
}

TEST_CASE("a pass that takes no time changes nothing about the order") {
  check_plan<pp::communicator_per_pair>(
    pp::make_timetable<pp::OneFOneB>({5, 9}, pp::uniform_cost{0, 0, 0, 0}));
}

TEST_CASE("one device needs no messages") {
  pp::plan const work = pp::lower(pp::make_timetable<pp::OneFOneB>({1, 4}));
  CHECK(work.items.size() == 8);
  CHECK(work.waits.empty());
  CHECK(work.lanes[0] == 0);
}

TEST_CASE("arenas hold every class at the size that its largest pass needs") {
  struct ragged {
    static std::int64_t bytes(pp::slot_class of, pp::pass const& what) {
      return of == pp::slot_class::activation ? 1000 * (what.microbatch + 1) : 10;
    }
  };
  pp::plan const work = pp::lower(pp::make_timetable<pp::OneFOneB>({2, 3}), ragged{});
  pp::slot_layout const& kept = work.view().layout(0, pp::slot_class::activation);
  CHECK(kept.count == 2);
  CHECK(kept.bytes == 3072); // 3000 rounded up
  pp::slot_layout const& sent = work.view().layout(0, pp::slot_class::output);
  CHECK(sent.bytes == 256);
  CHECK(sent.offset == 2 * 3072);
  CHECK(work.arena_bytes[0] ==
        2 * 3072 +
          256 * (sent.count + work.view().layout(0, pp::slot_class::received_gradient).count));
  for (pp::item const& step : work.items)
    if (step.what == pp::operation::send)
      CHECK(step.in_bytes == 10);
}

TEST_CASE("a broken timetable is not lowered") {
  auto table = pp::make_timetable<pp::OneFOneB>({2, 3});
  std::swap(table.passes[0], table.passes[1]);
  CHECK_THROWS_AS(pp::lower(table), std::invalid_argument);
}
