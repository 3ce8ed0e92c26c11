// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/plan/lower.hpp>
#include <pipe/plan/lower/hooks.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <tests/support/arithmetic_stage.hpp>
#include <tests/support/count_allocations.hpp>
#include <tests/support/training.hpp>
#include <vector>

namespace pp = pipelining;

TEST_CASE("a thousand steps allocate nothing") {
  auto const table = pp::make_timetable<pp::Seq1F1B<2>>({4, 6});
  std::vector<support::arithmetic_stage> model(4);
  for (auto& stage : model)
    stage.chunks = 2;
  pp::thread_runner runner(
    pp::lower(
      table,
      pp::uniform_sizes{
        .message = 64, .activation = 8, .weight_input = 8, .sequence = 8, .sequence_gradient = 8}),
    model);
  runner.step();
  long const before = support::allocations();
  CHECK(before > 0);
  for (int step = 0; step < 1000; ++step)
    runner.step();
  CHECK(support::allocations() == before);
  CHECK(model[3].calls == 1001 * 2 * 12);
}

TEST_CASE("nor do hooks") {
  auto model = support::training_model(4);
  pp::thread_runner runner(
    pp::lower(
      pp::make_timetable<pp::OneFOneB>({4, 6}),
      pp::uniform_sizes{.message = 4, .activation = 4, .tied_bytes = 4, .totals_bytes = 16}),
    model);
  runner.step();
  long const before = support::allocations();
  for (int step = 0; step < 100; ++step)
    runner.step();
  CHECK(support::allocations() == before);
  CHECK(model[3].stepped == 101);
}
