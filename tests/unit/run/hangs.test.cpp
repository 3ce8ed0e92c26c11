// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Stages and hooks that never return.
#include <pipe/plan/lower.hpp>
#include <pipe/plan/lower/hooks.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <tests/support/every_call.hpp>
#include <thread>
#include <utility>
#include <vector>

namespace pp = pipelining;

namespace {

using clock_type = std::chrono::steady_clock;

constexpr auto deadline = std::chrono::milliseconds(500);
constexpr pp::uniform_sizes sizes{
  .message = 8, .activation = 8, .weight_input = 8, .tied_bytes = 8, .totals_bytes = 8};

//! The call that hangs until it is released: the nth one of a device.
struct trap {
  int device = 0;
  int nth = -1;
  std::array<int, 5> calls{}; // of each device, counted by its thread
  std::string name{};         // of the call, before it is caught
  std::atomic<bool> caught = false;
  std::atomic<bool> released = false;

  void visit(pp::context const& where, char const* what, bool of_microbatch) {
    if (calls[static_cast<std::size_t>(where.device)]++ != nth || where.device != device)
      return;
    name = what + std::to_string(where.stage);
    if (of_microbatch)
      name += ", microbatch " + std::to_string(where.microbatch);
    caught = true;
    while (!released)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
};

struct trapped_stage {
  trap* all = nullptr;

  void forward(pp::context const& where, pp::input, pp::output) {
    all->visit(where, "forward of stage ", true);
  }
  void backward(pp::context const& where, pp::input, pp::output) {
    all->visit(where, "backward of stage ", true);
  }
  void backward_input(pp::context const& where, pp::input, pp::output) {
    all->visit(where, " of stage ", true);
  }
  void backward_weight(pp::context const& where) { all->visit(where, " of stage ", true); }
  void gradients_ready(pp::context const& where) {
    all->visit(where, " of stage ", true); // named by the pass that it follows
  }
  void tied_gradient(pp::context const& where, pp::output) {
    all->visit(where, "tied gradient of stage ", false);
  }
  void add_tied(pp::context const& where, pp::input, pp::input) {
    all->visit(where, "addition of the tied gradients on stage ", false);
  }
  void contribute(pp::context const& where, pp::output) {
    all->visit(where, "totals of stage ", false);
  }
  void optimizer_step(pp::context const& where, pp::totals) {
    all->visit(where, "optimizer step of stage ", false);
  }
};

//! Waits for a device that has been released.
template <class Runner>
void await_return(Runner& runner) {
  for (;;) {
    try {
      (void)runner.totals();
      return;
    } catch (pp::run_error const&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

//! What became of a call that hung.
struct outcome {
  std::string name{}; // of the call; empty: the device has no such call
  std::string text{}; // of the failure
  int device = -2;    // that the failure names
  bool in_time = false;
  bool whole_again = false;
};

template <class Table>
outcome hang(Table const& table, int device, int nth) {
  trap all{.device = device, .nth = nth};
  std::vector<trapped_stage> model(static_cast<std::size_t>(table.over.extents.stages()),
                                   trapped_stage{&all});
  pp::thread_runner runner(pp::lower(table, sizes), model, {.deadline = deadline});
  outcome found;
  auto const start = clock_type::now();
  try {
    runner.step();
  } catch (pp::run_error const& error) {
    found.text = error.what();
    found.device = error.device();
  }
  found.in_time = clock_type::now() - start < deadline + std::chrono::seconds(1);
  if (!all.caught)
    return found;
  found.name = all.name;
  all.released = true;
  await_return(runner);
  try {
    runner.step();
    found.whole_again = true;
  } catch (pp::run_error const&) {
  }
  return found;
}

//! Hangs every call of every device once, all at the same time. @return how many.
template <class Schedule>
int hang_everywhere(pp::pipeline_size size) {
  auto const table = pp::make_timetable<Schedule>(size);
  constexpr int most = 24; // more than a device has calls
  std::vector<outcome> found(static_cast<std::size_t>(table.over.extents.devices * most));
  std::vector<std::thread> runs;
  for (int run = 0; run < table.over.extents.devices * most; ++run)
    runs.emplace_back(
      [&, run] { found[static_cast<std::size_t>(run)] = hang(table, run / most, run % most); });
  int hung = 0;
  for (int run = 0; run < table.over.extents.devices * most; ++run) {
    runs[static_cast<std::size_t>(run)].join();
    outcome const& its = found[static_cast<std::size_t>(run)];
    CAPTURE(its.name);
    CAPTURE(its.text);
    if (its.name.empty()) {
      CHECK(its.text == "");
      continue;
    }
    ++hung;
    CHECK(its.text.find("run: no progress before the deadline: device " +
                        std::to_string(run / most) + " is not back from the ") == 0);
    CHECK(its.text.substr(0, its.text.find('\n')).find(its.name) != std::string::npos);
    CHECK(its.device == run / most);
    CHECK(its.in_time);
    CHECK(its.whole_again);
  }
  CHECK(found.back().name.empty());
  return hung;
}

} // namespace

TEST_CASE("a pass or a hook that never returns ends the step on time, and is named: one device") {
  CHECK(hang_everywhere<pp::OneFOneB>({1, 2}) > 6);
}
TEST_CASE("a pass or a hook that never returns ends the step on time, and is named: two stages on "
          "one device") {
  CHECK(hang_everywhere<pp::VHalf>({1, 2}) > 10);
}
TEST_CASE("a pass or a hook that never returns ends the step on time, and is named: GPipe") {
  CHECK(hang_everywhere<pp::GPipe>({2, 2}) > 12);
}
TEST_CASE("a pass or a hook that never returns ends the step on time, and is named: 1F1B") {
  CHECK(hang_everywhere<pp::OneFOneB>({3, 3}) > 24);
}
TEST_CASE("a pass or a hook that never returns ends the step on time, and is named: interleaved") {
  CHECK(hang_everywhere<pp::Interleaved<2>>({2, 2}) > 20);
}
TEST_CASE("a pass or a hook that never returns ends the step on time, and is named: zero bubble") {
  CHECK(hang_everywhere<pp::ZeroBubbleH1>({2, 2}) > 16);
}
TEST_CASE("a pass or a hook that never returns ends the step on time, and is named: V-Half") {
  CHECK(hang_everywhere<pp::VHalf>({2, 2}) > 24);
}

namespace {

//! Hangs one member on one device, in its first call or a later one.
struct member_trap {
  std::string_view member{};
  int device = 0;
  std::mutex lock{}; // devices share stages that have copies
  std::set<std::string_view> seen{};
  int stage = -1; // of the call that hangs
  std::atomic<bool> caught = false;
  std::atomic<bool> released = false;

  void visit(pp::context const& at, std::string_view name) {
    if (at.device != device)
      return;
    {
      std::lock_guard const held(lock);
      seen.insert(name);
    }
    if (name != member || caught)
      return;
    stage = at.stage;
    caught = true;
    while (!released)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  static void fill(pp::context const&, pp::output out) {
    std::fill_n(out.as<std::uint8_t>().data(), out.bytes, std::uint8_t{1});
  }
};

using member_stage = support::observed_stage<member_trap>;

//! Two steps of plans in which a member hangs on a device; none where its name is empty.
outcome hang_member(std::string_view plans, member_trap& all) {
  support::calling_plans work = support::plans_that_call(plans);
  std::vector<member_stage> model(static_cast<std::size_t>(work.first.over.extents.stages()),
                                  member_stage{&all});
  pp::thread_runner runner(pp::plan(work.first), model, {.deadline = deadline});
  outcome found;
  auto const start = clock_type::now();
  try {
    support::make_two_steps(runner, std::move(work));
  } catch (pp::run_error const& error) {
    found.text = error.what();
    found.device = error.device();
  }
  found.in_time = clock_type::now() - start < 2 * deadline + std::chrono::seconds(1);
  all.released = true;
  if (all.caught)
    await_return(runner);
  return found;
}

} // namespace

TEST_CASE("every member that plans call may hang") {
  std::set<std::string_view> never;
  for (support::stage_member const& each : support::stage_members)
    never.insert(each.name);
  for (std::string_view const plans : support::every_call_names) {
    std::deque<member_trap> traps;
    for (int const device : {0, 1}) {
      member_trap none{.device = device};
      CHECK(hang_member(plans, none).text == "");
      for (std::string_view const member : none.seen) {
        traps.emplace_back();
        traps.back().member = member;
        traps.back().device = device;
        never.erase(member);
      }
    }
    std::vector<outcome> found(traps.size());
    std::vector<std::thread> runs;
    for (std::size_t i = 0; i < traps.size(); ++i)
      runs.emplace_back([&, i] { found[i] = hang_member(plans, traps[i]); });
    for (std::size_t i = 0; i < traps.size(); ++i) {
      runs[i].join();
      CAPTURE(plans);
      CAPTURE(traps[i].member);
      CAPTURE(found[i].text);
      REQUIRE(traps[i].caught);
      std::string const first = found[i].text.substr(0, found[i].text.find('\n'));
      CHECK(first.starts_with("run: no progress before the deadline: device " +
                              std::to_string(traps[i].device) + " is not back from the "));
      CHECK(first.find(std::string(support::find_member(traps[i].member)->words) +
                       std::to_string(traps[i].stage)) != std::string::npos);
      CHECK(found[i].device == traps[i].device);
      CHECK(found[i].in_time);
    }
  }
  CHECK(never.empty());
}

TEST_CASE("what a thread that never came back may touch lives until it does") {
  for (int const device : {0, 1}) {
    auto const table = pp::make_timetable<pp::OneFOneB>({2, 2});
    trap all{.device = device, .nth = 3};
    std::vector<trapped_stage> model(2, trapped_stage{&all});
    auto token = std::make_shared<int>(0); // lives as long as the options of the runner
    std::weak_ptr<int> const board = token;
    {
      pp::thread_runner runner(
        pp::lower(table, sizes), model, {.deadline = deadline, .on_start = [token](int, int) {}});
      token.reset();
      CHECK_THROWS_AS(runner.step(), pp::run_error);
      std::string const refused =
        "run: a stage of an earlier step has not returned yet, on device " +
        std::to_string(device) + "; nothing can run before it does";
      CHECK_THROWS_WITH_AS(runner.step(), refused.c_str(), pp::run_error);
      CHECK_THROWS_WITH_AS((void)runner.trace(), refused.c_str(), pp::run_error);
      CHECK_THROWS_WITH_AS(
        (void)runner.add(pp::lower(table, sizes)), refused.c_str(), pp::run_error);
    }
    CHECK(!board.expired());
    all.released = true;
    while (!board.expired())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST_CASE("a start of a thread that never returns ends the constructor on time") {
  auto const table = pp::make_timetable<pp::OneFOneB>({2, 2});
  trap all;
  std::vector<trapped_stage> model(2, trapped_stage{&all});
  auto const released = std::make_shared<std::atomic<bool>>(false);
  std::weak_ptr<std::atomic<bool>> const board = released;
  auto hangs = [released](int device, int) {
    while (device == 1 && !*released)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  CHECK_THROWS_WITH_AS(
    pp::thread_runner(
      pp::lower(table, sizes), model, {.deadline = deadline, .on_start = std::move(hangs)}),
    "run: no progress before the deadline: device 1 is not back from thread_options::on_start",
    pp::run_error);
  *released = true;
}

TEST_CASE("a device may wait for longer than the deadline while others move") {
  static constexpr auto longer = std::chrono::milliseconds(450);
  struct slow_stage : trapped_stage {
    void forward(pp::context const& where, pp::input in, pp::output out) {
      std::this_thread::sleep_for(longer / 3);
      trapped_stage::forward(where, in, out);
    }
  };
  trap all;
  std::vector<slow_stage> model(5);
  for (slow_stage& stage : model)
    stage.all = &all;
  // The last device waits for four passes, and the first one for four others.
  pp::thread_runner runner(
    pp::lower(pp::make_timetable<pp::GPipe>({5, 4}), sizes), model, {.deadline = longer});
  CHECK_NOTHROW(runner.step());
}
