// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A plan with copies to the host keeps the planned times: no step waits for one that ends later,
// and there are as many slots as are in use at once.
#include <pipe/plan/lower.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace pp = pipelining;

namespace {

using span_of_time = std::pair<double, double>;

std::tuple<int, int, int, int> key(pp::pass const& what) {
  return {static_cast<int>(what.kind), what.stage, what.microbatch, what.chunk};
}

//! When every pass starts and ends.
auto planned_times(pp::timetable_view const& table) {
  std::map<std::tuple<int, int, int, int>, span_of_time> result;
  for (int i = 0; i < table.size(); ++i)
    result[key(table.passes[i])] = {table.starts[i], table.ends[i]};
  return result;
}

//! Copies that are on the host at once, by hand: from the start of a copy out to the end of the
//! copy in.
int most_on_host(pp::timetable_view const& table, int device) {
  auto const times = planned_times(table);
  std::vector<span_of_time> lives;
  for (auto const& [what, time] : times) {
    auto const& [kind, stage, microbatch, chunk] = what;
    if (kind != static_cast<int>(pp::pass_kind::copy_out) || pp::device_of(table, stage) != device)
      continue;
    auto const back =
      times.at({static_cast<int>(pp::pass_kind::copy_in), stage, microbatch, chunk});
    lives.emplace_back(time.first, back.second);
  }
  std::ptrdiff_t most = 0;
  for (span_of_time const& one : lives)
    most =
      std::max(most, std::count_if(lives.begin(), lives.end(), [&one](span_of_time const& other) {
                 return other.first <= one.first && one.first < other.second;
               }));
  return static_cast<int>(most);
}

//! Steps that wait for one that ends after their planned start.
int late_waits(pp::plan const& work, pp::timetable_view const& table) {
  auto const times = planned_times(table);
  int late = 0;
  for (int device = 0; device < table.over.extents.devices; ++device) {
    std::span<pp::item const> const steps = work.program_of(device);
    for (pp::item const& step : steps) {
      // What is sent is there at the end of the pass that makes it.
      span_of_time const mine = times.at(key(step.work));
      double const start = step.what == pp::operation::run ? mine.first : mine.second;
      for (int const wait : work.waits_of(step)) {
        pp::item const& before = steps[static_cast<std::size_t>(wait)];
        if (times.at(key(before.work)).second > start)
          ++late;
      }
    }
  }
  return late;
}

template <class Schedule, class Rule>
void check(std::string const& name,
           Schedule const& schedule,
           Rule const& rule,
           pp::pipeline_size size) {
  int copies = 0;
  for (double const copy : {0.0, 0.25, 0.5, 1.0, 1.5, 3.0})
    for (double const latency : {0.0, 0.125}) {
      CAPTURE(name);
      CAPTURE(copy);
      CAPTURE(latency);
      pp::uniform_cost const cost{.forward = 1,
                                  .backward_input = 1.25,
                                  .backward_weight = 0.75,
                                  .communication = latency,
                                  .copy_out = copy,
                                  .copy_in = copy};
      auto const table =
        pp::make_timetable(pp::with_offload<Schedule, Rule>{schedule, rule}, size, cost);
      auto const work = pp::lower(table);
      REQUIRE(pp::prove(work));
      CHECK(late_waits(work, table) == 0);
      for (int device = 0; device < size.devices; ++device) {
        int const most = most_on_host(table, device);
        CHECK(work.layout(device, pp::slot_class::host_activation).count == most);
        CHECK(work.layout(device, pp::slot_class::activation).count ==
              pp::peak_activation_chunks(table, device));
        copies += most;
      }
    }
  CHECK(copies > 0);
}

template <class Schedule>
void check(std::string const& name, Schedule const& schedule, pp::pipeline_size size) {
  check(name + ", all", schedule, pp::offload::in_slots{}, size);
  check(name + ", half", schedule, pp::offload::in_slots::half(), size);
}

} // namespace

TEST_CASE("no step waits longer than planned for a slot that a copy leaves") {
  check("GPipe", pp::GPipe{}, {4, 6});
  check("1F1B", pp::OneFOneB{}, {4, 8});
  check("ZB-H1", pp::ZeroBubbleH1{}, {4, 8});
  check("Interleaved", pp::Interleaved<2>{}, {3, 6});
  check("Seq1F1B", pp::Seq1F1B<2>{}, {3, 5});
  check("Seq1F1B, chunks", pp::Seq1F1B<3>{}, pp::offload::chunks{}, {3, 5});
  check("Interleaved, one stage", pp::Interleaved<3>{}, pp::offload::in_slots{.stages = 1}, {2, 6});
  check("V-Half", pp::detail::SweptVHalf{}, {3, 6});
}
