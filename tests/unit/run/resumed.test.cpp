// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/plan/lower.hpp>
#include <pipe/run/thread_device.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <random>
#include <tests/support/arithmetic_stage.hpp>
#include <tests/support/sizes.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

using model = std::vector<support::arithmetic_stage>;

//! All devices of a step on this thread: each goes on for as far as it can, in an order by chance.
//! @return how often a device was asked.
int take_turns(pp::detail::thread_board& board, model& stages, std::mt19937& chance) {
  std::vector<int> left;
  for (int device = 0; device < board.device_count; ++device)
    left.push_back(device);
  int turns = 0;
  int const limit = 1 << 20; // never reached unless nobody can go on
  for (; !left.empty() && turns < limit; ++turns) {
    std::size_t const at = std::uniform_int_distribution<std::size_t>(0, left.size() - 1)(chance);
    if (pp::detail::thread_device<model>{board, stages, left[at]}.advance())
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(at));
  }
  CHECK(left.empty());
  return turns;
}

template <class Policy>
void check_turns(pp::timetable_view table) {
  pp::shape const& over = table.over.extents;
  model stages(static_cast<std::size_t>(over.stages()));
  for (std::size_t s = 0; s < stages.size(); ++s) {
    stages[s].weight = s + 3;
    stages[s].chunks = over.chunks;
  }
  pp::detail::thread_board board(over.devices, {.guarded = true});
  board.put(pp::lower<Policy>(table, support::words), 0, stages);
  std::mt19937 chance(7);
  int const steps = 3;
  for (int step = 0; step < steps; ++step) {
    board.begin_step(*board.plans[0]);
    int const turns = take_turns(board, stages, chance);
    CHECK(turns >= over.devices);
    CHECK(board.failed_device.load() == pp::nothing);
  }
  auto const expected = support::run_sequentially(over.stages(), over.microbatches, over.chunks);
  for (std::size_t s = 0; s < stages.size(); ++s)
    CHECK(stages[s].gradient == steps * expected.gradients[s]);
  CHECK(stages.back().losses == steps * expected.losses);
}

} // namespace

TEST_CASE("one thread runs all devices in turns, and computes what one device computes") {
  for (int const devices : {1, 2, 3, 5, 8})
    for (int const microbatches : {1, 2, 7}) {
      check_turns<pp::communicators::per_pair>(
        pp::make_timetable<pp::GPipe>({devices, microbatches}));
      check_turns<pp::communicators::per_edge>(
        pp::make_timetable<pp::OneFOneB>({devices, microbatches}));
      check_turns<pp::communicators::one>(
        pp::make_timetable<pp::OneFOneB>({devices, microbatches}));
      check_turns<pp::communicators::per_pair>(
        pp::make_timetable<pp::Seq1F1B<3>>({devices, microbatches}));
      check_turns<pp::communicators::one>(
        pp::make_timetable<pp::ZeroBubbleH1>({devices, microbatches}));
      check_turns<pp::communicators::per_pair>(
        pp::make_timetable<pp::Interleaved<2>>({devices, devices * microbatches}));
    }
}

TEST_CASE("a device that must wait returns, says for which message, and goes on when it is there") {
  model stages(2);
  for (std::size_t s = 0; s < stages.size(); ++s)
    stages[s].weight = s + 3;
  pp::detail::thread_board board(2, {});
  board.put(pp::lower(pp::make_timetable<pp::OneFOneB>({2, 1}), support::words), 0, stages);
  board.begin_step(*board.plans[0]);
  pp::detail::thread_device<model> first{board, stages, 0};
  pp::detail::thread_device<model> last{board, stages, 1};
  CHECK_FALSE(last.advance());
  int const missing = board.devices[1].waits_on.load();
  REQUIRE(missing != pp::nothing);
  CHECK(last.steps[static_cast<std::size_t>(missing)].what == pp::operation::receive);
  int const at = board.devices[1].next;
  CHECK_FALSE(last.advance()); // nothing has come
  CHECK(board.devices[1].next == at);
  CHECK_FALSE(first.advance()); // sends, and waits for the gradient
  CHECK(last.advance());
  CHECK(first.advance());
  CHECK(stages[0].gradient == support::run_sequentially(2, 1, 1).gradients[0]);
}
