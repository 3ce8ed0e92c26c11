// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Passes of other engines that a stage begins and finishes, on threads: compute goes on meanwhile.
#include <pipe/plan/lower.hpp>
#include <pipe/plan/other_plans.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/run/called_runner.hpp>
#include <pipe/run/guards.hpp>
#include <pipe/run/post_validated.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <tests/support/asked_flows.hpp>
#include <tests/support/beginning_stage.hpp>
#include <tests/support/expert_overlap.hpp>
#include <tests/support/partnered_model.hpp>
#include <thread>
#include <vector>

namespace pp = pipelining;
using support::begun_work;

namespace {

template <class Runner>
void check_overlap(pp::plan const& work, support::digests const& expected, Runner run) {
  support::partnered_model model(work);
  CHECK(model.overlapping() > 0);
  CHECK(model.fits(run(model)));
  CHECK(model.late == 0);
  CHECK(support::read_by(model.stages) == expected);
  for (support::beginning_stage const& stage : model.stages)
    CHECK(stage.under_way.empty());
}

// On threads, on one thread for all devices, and on threads of the caller.
void check_all_runners(pp::plan const& work, support::digests const& expected) {
  for (int const threads : {0, 1})
    check_overlap(work, expected, [&](support::partnered_model& model) {
      pp::thread_runner runner(work, model.stages, {.count = threads});
      runner.step();
      model.compute.passes.clear();
      runner.step();
      return runner.trace();
    });
  check_overlap(work, expected, [&](support::partnered_model& model) {
    pp::called_runner runner(work, model.stages);
    runner.step();
    return runner.trace();
  });
  check_overlap(work, expected, [&](support::partnered_model& model) {
    pp::called_runner runner(work, model.stages);
    runner.begin_step();
    std::vector<std::thread> callers;
    for (int device = 0; device < work.over.extents.devices; ++device)
      callers.emplace_back([&runner, device] { runner.run_device(device); });
    for (std::thread& each : callers)
      each.join();
    runner.finish_step();
    return runner.trace();
  });
}

} // namespace

TEST_CASE("passes of compute run while the network works, and read what an interpreter says") {
  for (int const devices : {1, 3}) {
    CAPTURE(devices);
    for (support::asked::asked_plan const& one :
         {support::asked::plan_of("frees", support::asked::network_last<true>{}, devices, 5),
          support::asked::plan_of("reads", support::asked::network_last<false>{}, devices, 5)})
      check_all_runners(one.of.work, one.of.expected);
    for (bool const merged : {true, false}) {
      auto const [work, expected] = support::overlap::interpreted({2, merged}, devices, 6);
      check_all_runners(work, expected);
    }
  }
}

namespace {

// One device: attend, dispatch on the network, backward.
pp::plan small_plan(int microbatches = 3) {
  return support::asked::plan_of("", support::asked::network_last<true>{}, 1, microbatches).of.work;
}
std::vector<support::beginning_stage> small_model(pp::plan const& work, begun_work how) {
  std::vector<support::beginning_stage> model(1);
  model[0].over = work.over;
  model[0].how = [how](auto const&) { return how; };
  return model;
}
constexpr auto attend = static_cast<pp::pass_kind>(0);
constexpr auto dispatch = static_cast<pp::pass_kind>(1);

template <class Model>
std::string failure(pp::thread_runner<Model>& runner) {
  try {
    runner.step();
  } catch (pp::run_error const& error) {
    return error.what();
  }
  return "";
}

} // namespace

TEST_CASE("what begin_pass or finish_pass throws ends the step, and names the pass") {
  auto const work = small_plan();
  for (begun_work const how :
       {begun_work::at_begin, begun_work::at_finish, begun_work::elsewhere}) {
    auto model = small_model(work, how);
    bool fails = true;
    model[0].at_work = [&](pp::pass const& what) {
      if (fails && what.kind == dispatch && what.microbatch == 1)
        throw std::runtime_error("no route");
    };
    pp::thread_runner runner(work, model);
    CHECK(failure(runner) ==
          "run: device 0 failed in the dispatch of stage 0, microbatch 1: no route");
    CHECK(model[0].under_way.empty());
    fails = false;
    CHECK(failure(runner) == "");
    CHECK(model[0].began == (how == begun_work::at_begin ? 1 : 2) + 3);
  }
}

TEST_CASE("a step that fails finishes what has begun, and says that it is abandoned") {
  struct watching_stage : support::beginning_stage {
    std::vector<int> abandoned{};
    void finish_pass(pp::pass_kind kind, pp::context const& where, pp::input in, pp::output out) {
      if (where.abandoned)
        abandoned.push_back(where.microbatch);
      support::beginning_stage::finish_pass(kind, where, in, out);
      if (where.abandoned)
        throw std::runtime_error("nobody hears of it");
    }
  };
  auto const work =
    support::asked::plan_of("", support::asked::network_last<false>{}, 2, 4).of.work;
  for (int const failing : {0, 1}) {
    std::vector<watching_stage> model(2);
    bool fails = true;
    for (watching_stage& stage : model) {
      stage.over = work.over;
      stage.how = [](auto const&) { return begun_work::at_finish; };
      stage.at_work = [&](pp::pass const& what) {
        if (fails && what.kind == attend && what.microbatch == 3 && what.stage == failing)
          throw std::runtime_error("out of luck");
      };
    }
    pp::thread_runner runner(work, model);
    CHECK(failure(runner) == "run: device " + std::to_string(failing) +
                               " failed in the attend of stage " + std::to_string(failing) +
                               ", microbatch 3: out of luck");
    CHECK(model[static_cast<std::size_t>(failing)].abandoned.size() == (failing == 1 ? 1 : 0));
    CHECK(model[0].under_way.empty());
    CHECK(model[1].under_way.empty());
    fails = false;
    CHECK(failure(runner) == "");
  }
}

TEST_CASE("the checked mode looks at what a pass has filled when it ends") {
  auto const work = support::asked::plan_of("", support::asked::network_last<true>{}, 2, 4).of.work;
  for (bool const silent : {true, false})
    for (begun_work const how : {begun_work::at_finish, begun_work::elsewhere}) {
      struct careless_stage : support::beginning_stage {
        bool silent = false;
        void
        finish_pass(pp::pass_kind kind, pp::context const& where, pp::input in, pp::output out) {
          support::beginning_stage::finish_pass(kind, where, in, out);
          if (silent && out.bytes > 0)
            std::fill_n(out.data, out.bytes, std::byte{0xFF});
          if (!silent && out.bytes > 0)
            out.data[out.bytes] = std::byte{1};
        }
      };
      std::vector<careless_stage> model(2);
      for (careless_stage& stage : model) {
        stage.over = work.over;
        stage.silent = silent;
        stage.how = [how](auto const&) { return how; };
      }
      pp::thread_runner runner(work, model, {.guarded = true});
      std::string const text = failure(runner);
      CAPTURE(text);
      CHECK(
        text.find("run: device 0 failed in the dispatch of stage 0, microbatch 0: the stage has "
                  "written ") == 0);
      CHECK(text.find(silent ? "nothing into its output" : "beyond the 8 bytes of its") !=
            std::string::npos);
    }
}

TEST_CASE("a pass that is never finished ends the step at the deadline, and is named") {
  auto const work = small_plan();
  auto model = small_model(work, begun_work::elsewhere);
  std::atomic<bool> released = false;
  model[0].at_work = [&](pp::pass const& what) {
    while (what.kind == dispatch && what.microbatch == 2 && !released)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  {
    pp::thread_runner runner(work, model, {.deadline = std::chrono::milliseconds(200)});
    CHECK(
      failure(runner).find("run: no progress before the deadline: device 0 is not back from the "
                           "dispatch of stage 0, microbatch 2") == 0);
    released = true;
    while (failure(runner) != "")
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(model[0].under_way.empty());
}

namespace {

// The kinds before the first backward pass may run before a step is validated: they call forward.
struct forward_on_network : support::asked::network_last<false> {
  static constexpr pp::flow declared = [] {
    pp::flow const same = support::asked::on_network(false, true);
    pp::kind_of_pass kinds[] = {same.kinds[0], same.kinds[1], same.kinds[2]};
    kinds[0].calls = kinds[1].calls = pp::stage_call::forward;
    return pp::declare(support::asked::all_data, kinds);
  }();
};

} // namespace

TEST_CASE("nothing is under way when a step of the optimizer is validated") {
  struct validating_stage : support::beginning_stage {
    int validated = 0;
    bool stepped = false;
    void contribute(pp::context const&, pp::output row) { row.as<float>()[0] = 1; }
    void optimizer_step(pp::context const&, pp::totals const&) { stepped = true; }
    bool accepts(pp::context const&, pp::totals const&) { return false; }
    void roll_back(pp::context const&, bool) {
      CHECK(under_way.empty());
      ++validated;
    }
    void forward(pp::context const& where, pp::input in, pp::output out) {
      perform(attend, where, in, out);
    }
    void begin_iteration(pp::context const&) {}
  };
  struct sized : support::eight_bytes {
    std::int64_t totals_bytes = sizeof(float);
  };
  auto const table = pp::make_timetable(forward_on_network{}, {3, 5});
  std::vector<validating_stage> model(3);
  for (validating_stage& stage : model) {
    stage.over = table.over;
    stage.how = [](auto const&) { return begun_work::elsewhere; };
  }
  auto plans = pp::lower_post_validated(table, sized{});
  pp::thread_runner runner(plans.first, model);
  pp::post_validated_steps early(runner);
  auto const numbers = early.add(std::move(plans));
  for (int step = 0; step < 4; ++step)
    early.step(numbers);
  early.finish();
  CHECK(early.repeated() == 3);
  support::digests all;
  for (validating_stage& stage : model) {
    CHECK(stage.validated == 4);
    CHECK(stage.began > 5 * 4); // and some before they were told to begin again
    CHECK(stage.under_way.empty());
    all.merge(stage.read);
  }
  CHECK(all == support::interpret(table, {{0, 1, pp::of_unit::same}, {1, 2, pp::of_unit::same}}));
}
