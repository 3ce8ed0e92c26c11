// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Plans that several threads make: the same as that of one thread, byte for byte, and so are the
// verdicts on plans that are wrong.
#include <pipe/plan/lower.hpp>
#include <pipe/plan/other_plans.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/run/thread_workers.hpp>
#include <pipe/schedule/chimera.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/adapt/with_vocabulary.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace pp = pipelining;

namespace {

constexpr pp::uniform_sizes some_sizes{
  .message = 64, .activation = 512, .weight_input = 96, .tied_bytes = 1000, .totals_bytes = 12};

//! The parts one after the other, the last one first.
struct backwards {
  int workers;

  [[nodiscard]] int count() const { return workers; }
  template <class Part>
  static void run(int parts, Part const& part) {
    for (int i = parts; i-- > 0;)
      part(i);
  }
};

void check_same(pp::plan const& one, pp::plan const& other) {
  CHECK(one.items == other.items);
  CHECK(one.offsets == other.offsets);
  CHECK(one.waits == other.waits);
  CHECK(one.uses == other.uses);
  CHECK(one.messages == other.messages);
  CHECK(one.lanes == other.lanes);
  CHECK(one.layouts == other.layouts);
  CHECK(one.arena_bytes == other.arena_bytes);
  CHECK(one.host_bytes == other.host_bytes);
}

template <pp::schedule Schedule, class Sizes>
void check_all(Schedule const& schedule, pp::pipeline_size size, Sizes const& bytes) {
  auto const table = pp::make_timetable(schedule, size);
  pp::plan const alone = pp::lower(table, bytes);
  for (int const threads : {1, 2, 3, 16}) {
    INFO("threads: ", threads);
    pp::thread_workers const workers(threads);
    check_same(pp::lower(table, bytes, {}, workers), alone);
    check_same(pp::lower(table, bytes, {}, backwards{threads}), alone);
    CHECK(pp::prove(alone, workers));
  }
}

} // namespace

TEST_CASE("threads make the plan of one thread") {
  check_all(pp::OneFOneB{}, {5, 9}, some_sizes);
  check_all(pp::Interleaved<3>{}, {4, 8}, some_sizes);
  check_all(pp::ZeroBubbleV{}, {6, 12}, some_sizes);
  check_all(pp::DualPipe<>{}, {4, 16}, some_sizes); // copies of stages
  check_all(pp::Seq1F1B<4>{}, {3, 5}, some_sizes);
  check_all(pp::with_offload<pp::OneFOneB>{}, {4, 8}, pp::uniform_sizes{64, 512}); // two engines
  check_all(pp::with_vocabulary<pp::OneFOneB, 1>{}, {4, 8}, pp::uniform_sizes{64, 512}); // a graph
  check_all(pp::OneFOneB{}, {1, 1}, pp::uniform_sizes{64, 512});
}

TEST_CASE("threads make the plans of an evaluation and of post-validated steps") {
  auto const table = pp::make_timetable(pp::Interleaved<2>{}, {4, 8});
  pp::thread_workers const three(3);
  check_same(pp::lower_evaluation(table, some_sizes, {}, three),
             pp::lower_evaluation(table, some_sizes));
  auto const one = pp::lower_post_validated(table, some_sizes);
  auto const other = pp::lower_post_validated(table, some_sizes, {}, three);
  check_same(other.first, one.first);
  check_same(other.steady, one.steady);
  check_same(other.last, one.last);
}

TEST_CASE("threads find in a wrong plan what one thread finds") {
  pp::plan const right = pp::lower(pp::make_timetable(pp::OneFOneB{}, {4, 6}), some_sizes);
  int wrong = 0;
  auto const check_verdict = [&](pp::plan const& work) {
    pp::proof const alone = pp::prove(work);
    wrong += alone ? 0 : 1;
    for (int const threads : {2, 3, 4}) {
      CHECK(pp::describe(pp::prove(work, pp::thread_workers(threads)), work) ==
            pp::describe(alone, work));
      CHECK(pp::describe(pp::prove(work, backwards{threads}), work) == pp::describe(alone, work));
    }
  };
  for (std::size_t i = 0; i < right.items.size(); i += 3) {
    pp::plan work = right;
    work.items[i].work.microbatch =
      static_cast<std::uint16_t>((work.items[i].work.microbatch + 1) % 6);
    check_verdict(work);
    work = right;
    work.items[i].lane = work.items[i].lane == 0 ? 1 : 0;
    check_verdict(work);
    work = right;
    work.items[i].wait_count = 0;
    check_verdict(work);
    work = right; // two faults on different devices
    work.uses[static_cast<std::size_t>(work.items[i].first_use)].index += 1;
    work.messages[(7 * i) % work.messages.size()].sequence += 1;
    check_verdict(work);
  }
  CHECK(wrong > 100);
}

TEST_CASE("threads find in a wrong timetable what one thread finds") {
  int wrong = 0;
  auto const check_report = [&](pp::dynamic_timetable const& table) {
    pp::report const alone = pp::verify(table);
    wrong += alone ? 0 : 1;
    for (int const threads : {2, 3, 4}) {
      auto const check = [&](auto const& workers) {
        pp::report const found = pp::verify(table, pp::detail::unlimited, workers);
        CHECK(found.entry == alone.entry);
        CHECK(pp::describe(found, table.over) == pp::describe(alone, table.over));
      };
      check(pp::thread_workers(threads));
      check(backwards{threads});
    }
  };
  auto const check_mutants = [&](pp::dynamic_timetable const& right) {
    std::size_t const count = right.passes.size();
    for (std::size_t i = 0; i < count; i += 5) {
      auto const check_changed = [&](auto change) {
        pp::dynamic_timetable table = right;
        change(table, i);
        check_report(table);
        change(table, (3 * i + 7) % count); // on another device as well
        check_report(table);
      };
      check_changed([](pp::dynamic_timetable& of, std::size_t at) { of.passes[at].stage ^= 1; });
      check_changed([](pp::dynamic_timetable& of, std::size_t at) { of.passes[at].stage = 999; });
      check_changed(
        [](pp::dynamic_timetable& of, std::size_t at) { of.passes[at].microbatch ^= 1; });
      check_changed(
        [](pp::dynamic_timetable& of, std::size_t at) { of.passes[at].overlapped ^= 1; });
      check_changed([](pp::dynamic_timetable& of, std::size_t at) { of.starts[at] -= 0.5; });
    }
  };
  check_mutants(pp::make_timetable(pp::DualPipeV<>{}, {4, 8}));
  check_mutants(pp::make_timetable(pp::with_offload<pp::OneFOneB>{}, {4, 8}));
  CHECK(wrong > 300);
}

TEST_CASE("threads wait for more work, and more come where it has more parts") {
  pp::thread_workers const workers(5);
  for (int turn = 0; turn < 200; ++turn) {
    int const parts = 1 + turn % 5;
    std::vector<int> runs(static_cast<std::size_t>(parts));
    workers.run(parts, [&](int part) { runs[static_cast<std::size_t>(part)] += turn; });
    CHECK(runs == std::vector<int>(static_cast<std::size_t>(parts), turn));
    if (turn % 50 == 0) // long enough to fall asleep
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

TEST_CASE(
  "every part runs once, side by side, and all that have begun end before one's error is told") {
  pp::thread_workers const four(4);
  std::mutex lock;
  std::set<std::thread::id> threads;
  std::vector<int> runs(4);
  std::atomic<int> come = 0;
  four.run(4, [&](int part) {
    come += 1;
    while (come < 4) // nobody goes on before all have come
      std::this_thread::yield();
    std::lock_guard const held(lock);
    threads.insert(std::this_thread::get_id());
    ++runs[static_cast<std::size_t>(part)];
  });
  CHECK(runs == std::vector<int>{1, 1, 1, 1});
  CHECK(threads.size() == 4);
  CHECK(threads.count(std::this_thread::get_id()) == 1);

  std::atomic<int> ended = 0;
  std::string said;
  try {
    four.run(4, [&](int part) {
      ended += 1;
      if (part == 1 || part == 3)
        throw std::runtime_error("part " + std::to_string(part));
    });
  } catch (std::runtime_error const& error) {
    said = error.what();
  }
  CHECK(said == "part 1");
  CHECK(ended == 4);
  four.run(0, [&](int) { FAIL("there is no part"); });
  CHECK(pp::thread_workers().count() >= 1);
  CHECK(pp::thread_workers(3).count() == 3);
}

TEST_CASE("an error of the size functions reaches the caller") {
  struct no_room {
    [[nodiscard]] std::int64_t bytes(pp::slot_class, pp::pass const& work) const {
      if (work.stage == 2)
        throw std::runtime_error("no size for stage 2");
      return 8;
    }
  };
  auto const table = pp::make_timetable(pp::OneFOneB{}, {4, 4});
  CHECK_THROWS_WITH(static_cast<void>(pp::lower(table, no_room{}, {}, pp::thread_workers(4))),
                    "no size for stage 2");
}
