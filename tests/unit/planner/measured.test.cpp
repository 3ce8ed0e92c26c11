// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/planner/model/measured.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/simulate.hpp>

#include <doctest/doctest.h>

#include <random>
#include <stdexcept>
#include <vector>

namespace pp = pipelining;

namespace {

pp::cost_table random_costs(pp::shape const& extents, double latency) {
  std::mt19937_64 random(7);
  pp::cost_table table(extents, {.communication = latency});
  for (pp::pass_kind const kind :
       {pp::pass_kind::forward, pp::pass_kind::backward_input, pp::pass_kind::backward_weight})
    for (int stage = 0; stage < extents.stages(); ++stage)
      for (int chunk = 0; chunk < extents.chunks; ++chunk)
        table.set(kind, stage, chunk, static_cast<double>(4 + random() % 9));
  return table;
}

TEST_CASE("costs come back from the steps that they made, late passes or not") {
  pp::Seq1F1BZeroBubbleH1<2> const schedule;
  pp::pipeline_size const size{4, 7};
  pp::cost_table const cost = random_costs(schedule.arrange(4, 7), 0.5);
  pp::dynamic_timetable const step = pp::make_timetable(schedule, size, cost);
  pp::dynamic_timetable late = step;
  for (std::size_t i = 0; i < late.ends.size(); i += 11)
    late.ends[i] += 100; // something else ran for a while
  std::vector<pp::timetable_view> const steps{step, late, step};
  pp::cost_table const fitted = pp::costs_of(steps);
  for (pp::pass const& what : step.passes)
    CHECK(fitted.duration(what) == doctest::Approx(cost.duration(what)));
  CHECK(fitted.latency() == doctest::Approx(0.5));
}

TEST_CASE("a fused backward comes back as two halves") {
  pp::pipeline_size const size{3, 5};
  pp::uniform_cost const cost{2, 5, 1, 0.25};
  pp::dynamic_timetable const step = pp::make_timetable<pp::OneFOneB>(size, cost);
  std::vector<pp::timetable_view> const steps{step};
  pp::cost_table const fitted = pp::costs_of(steps);
  CHECK(fitted.duration({pp::pass_kind::backward_input}) == doctest::Approx(3));
  CHECK(fitted.duration({pp::pass_kind::backward_weight}) == doctest::Approx(3));
  CHECK(pp::makespan(pp::make_timetable<pp::OneFOneB>(size, fitted)) ==
        doctest::Approx(pp::makespan(step)));
}

TEST_CASE("an order keeps its passes under other costs") {
  pp::pipeline_size const size{3, 5};
  pp::uniform_cost const cost{2, 5, 1, 0.25};
  pp::dynamic_timetable const plain = pp::make_timetable<pp::OneFOneB>(size);
  pp::dynamic_timetable const timed = pp::simulate({plain.over, plain.passes, plain.offsets}, cost);
  CHECK(timed.passes == plain.passes);
  CHECK(timed.starts == pp::make_timetable<pp::OneFOneB>(size, cost).starts);
}

TEST_CASE("steps that give no costs are refused") {
  CHECK_THROWS_WITH_AS(
    (void)pp::costs_of({}), "costs_of: give at least one measured step", std::invalid_argument);
  pp::dynamic_timetable const small = pp::make_timetable<pp::OneFOneB>({2, 2});
  pp::dynamic_timetable const large = pp::make_timetable<pp::OneFOneB>({3, 2});
  std::vector<pp::timetable_view> const different{small, large};
  CHECK_THROWS_WITH_AS((void)pp::costs_of(different),
                       "costs_of: the steps are of pipelines of different extents",
                       std::invalid_argument);
  pp::dynamic_timetable broken = small;
  broken.starts[1] = broken.ends[1] = pp::detail::never;
  std::vector<pp::timetable_view> const steps{broken};
  CHECK_THROWS_WITH_AS((void)pp::costs_of(steps),
                       "costs_of: a pass has no measured time; give whole steps",
                       std::invalid_argument);
}

} // namespace
