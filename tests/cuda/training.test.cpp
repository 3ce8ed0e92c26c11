// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The hooks on the executors for CUDA, compiled by nvcc as users compile them, on the stand-in.
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shades.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <simulators/cuda/standin.hpp>
#include <string>
#include <tests/cuda/training.hpp>
#include <tests/cuda/training_plans.hpp>
#include <utility>
#include <vector>

namespace {

void check_equal(training_result const& result,
                 std::vector<support::trained> const& expected,
                 std::size_t first = 0) {
  CHECK(result.failure == "");
  for (std::size_t s = 0; s < expected.size(); ++s) {
    CAPTURE(s);
    CHECK(support::same_bits(result.stages[first + s], expected[s]));
  }
}

std::vector<standin::configuration> orders() {
  return {{.execution = standin::order::lazy},
          {.execution = standin::order::eager},
          {.execution = standin::order::random, .seed = 31}};
}

} // namespace

TEST_CASE("streams train as one device does, eagerly and as a graph, in every order") {
  for (training_plan const& plan : training_plans())
    for (standin::configuration const& how : orders())
      for (bool const graph : {false, true}) {
        CAPTURE(plan.name);
        CAPTURE(graph);
        standin::configure(how);
        check_equal(train_on_streams({.work = plan.work, .graph = graph}), plan.expected);
        CHECK(standin::summary() == "");
        CHECK(standin::counters().graph_launches == (graph ? 8 : 0));
      }
}

TEST_CASE("several copies of stages train as one device does that adds them in order") {
  for (training_plan const& plan : copied_plans())
    for (bool const graph : {false, true}) {
      CAPTURE(plan.name);
      CAPTURE(graph);
      standin::configure({.execution = standin::order::random, .seed = 37});
      auto const check_both = [&](training_result const& result) {
        check_equal(result, plan.expected);
        for (std::size_t s = 0; s < plan.expected.size(); ++s)
          if (pipelining::detail::copies_of(plan.work.over, static_cast<int>(s)) == 2)
            CHECK(support::same_bits(result.copies[s], plan.expected[s]));
        CHECK(standin::summary() == "");
      };
      check_both(train_on_streams({.work = plan.work, .graph = graph}));
      for (bool const checked : {false, true}) {
        standin::configure({.execution = standin::order::random, .seed = 38});
        check_both(train_on_ranks({.work = plan.work, .graph = graph, .checked = checked}));
      }
    }
}

TEST_CASE(
  "a stage is told once a step when its gradients are complete, and nothing is added later") {
  for (training_plan const& plan : training_plans()) {
    pipelining::shape const extents = plan.work.over.extents;
    auto last = support::untrained(extents.stages());
    support::train_sequentially(last, extents.microbatches, 6);
    support::run_passes(last, 0, extents.microbatches);
    for (bool const ranks : {false, true})
      for (bool const graph : {false, true}) {
        CAPTURE(plan.name);
        CAPTURE(ranks);
        CAPTURE(graph);
        standin::configure({.execution = standin::order::random, .seed = 35});
        training_case const what{.work = plan.work, .graph = graph, .steps = 7};
        auto const result = ranks ? train_on_ranks(what) : train_on_streams(what);
        CHECK(result.failure == "");
        for (std::size_t s = 0; s < last.size(); ++s) {
          CHECK(support::finite(last[s].gradient));
          CHECK(result.announced[s] == last[s].gradient);
          CHECK(result.announcements[s] == (graph ? 2 : 7)); // of a graph, while it is captured
        }
      }
  }
}

TEST_CASE("the halves of composite passes are enqueued as one, and may run at once") {
  int some = 0;
  for (training_plan const& plan : training_plans())
    for (bool const ranks : {false, true}) {
      CAPTURE(plan.name);
      CAPTURE(ranks);
      standin::configure({.execution = standin::order::random, .seed = 36});
      training_case const what{.work = plan.work, .steps = 2};
      auto const result = ranks ? train_on_ranks(what) : train_on_streams(what);
      CHECK(result.failure == "");
      CHECK(result.pairs == 2 * pairs_of(plan.work));
      some += result.pairs;
    }
  CHECK(some > 40);
}

TEST_CASE("hooks set nothing up after the warm-up, and devices may be several") {
  for (training_plan const& plan : training_plans())
    for (bool const graph : {false, true}) {
      CAPTURE(plan.name);
      CAPTURE(graph);
      std::vector<int> gpus(static_cast<std::size_t>(plan.work.over.extents.devices));
      for (std::size_t device = 0; device < gpus.size(); ++device)
        gpus[device] = static_cast<int>(device);
      training_case const what{
        .work = plan.work, .graph = graph, .freeze_after = 2, .gpus = std::move(gpus)};
      standin::configure({.execution = standin::order::random, .seed = 33});
      auto const on_streams = train_on_streams(what);
      check_equal(on_streams, plan.expected);
      CHECK(on_streams.findings == "");
      standin::configure({.execution = standin::order::random, .seed = 34});
      auto const on_ranks = train_on_ranks(what);
      check_equal(on_ranks, plan.expected);
      CHECK(on_ranks.findings == "");
    }
}

TEST_CASE("ranks train as one device does, on every machine, eagerly and as a graph") {
  for (training_plan const& plan : training_plans())
    for (bool const graph : {false, true})
      standin::for_each_machine(
        {}, 1, [&](standin::configuration const& how, std::string const& machine) {
          CAPTURE(plan.name);
          CAPTURE(machine);
          CAPTURE(graph);
          bool const narrow = how.resident_nccl_kernels == 1;
          standin::configure(how);
          check_equal(
            train_on_ranks({.work = plan.work, .graph = graph, .one_message_stream = narrow}),
            plan.expected);
          CHECK(standin::summary() == "");
          standin::report_leaks();
          CHECK(standin::summary() == "");
        });
}

TEST_CASE("rows of the totals and tied gradients are checked like other messages") {
  for (training_plan const& plan : training_plans())
    for (bool const graph : {false, true}) {
      CAPTURE(plan.name);
      CAPTURE(graph);
      standin::configure({.execution = standin::order::random, .seed = 3});
      check_equal(train_on_ranks({.work = plan.work, .graph = graph, .checked = true}),
                  plan.expected);
      CHECK(standin::summary() == "");
    }
}

TEST_CASE("two replicas add up their gradients while the pipeline cools down") {
  for (training_plan const& plan : training_plans()) {
    pipelining::shape const extents = plan.work.over.extents;
    if (2 * extents.devices > 8)
      continue;
    int const stages = extents.stages();
    std::vector<support::trained> expected[2]{support::untrained(stages),
                                              support::untrained(stages)};
    support::train_replicas(expected, extents.microbatches, 9);
    for (standin::configuration const& how : orders())
      for (bool const graph : {false, true}) {
        CAPTURE(plan.name);
        CAPTURE(graph);
        standin::configure(how);
        auto const result = train_on_ranks({.work = plan.work, .graph = graph, .replicas = 2});
        check_equal(result, expected[0]);
        check_equal(result, expected[1], static_cast<std::size_t>(stages));
        CHECK(standin::summary() == "");
        // Where devices own several stages, passes of others are enqueued after a reduction.
        CHECK((result.passes_after_reduction > 0) == (stages > extents.devices));
      }
  }
}

namespace {

using named_range = std::pair<std::string, std::string>; // name, colour

std::string hexadecimal(unsigned argb) {
  return pipelining::detail::hexadecimal({static_cast<int>(argb >> 16 & 255),
                                          static_cast<int>(argb >> 8 & 255),
                                          static_cast<int>(argb & 255)})
    .data();
}

std::string colour_of(pipelining::pass_kind kind) {
  return pipelining::detail::hexadecimal(
           pipelining::detail::shade(pipelining::training[kind], 0, 1, 0, 1))
    .data();
}

} // namespace

TEST_CASE("profilers see every pass, message and hook by its name and colour") {
  using pipelining::pass_kind;
  auto const work =
    pipelining::lower(pipelining::make_timetable<pipelining::OneFOneB>({2, 1}), training_sizes);
  std::string const f = colour_of(pass_kind::forward);
  std::string const b = colour_of(pass_kind::backward);
  std::string const grey = "#808080";
  std::vector<named_range> const expected{{"F s0 m0", f},
                                          {"send F s0 m0 to 1", f},
                                          {"receive F s0 m0 from 0", f},
                                          {"F s1 m0", f},
                                          {"B s1 m0", b},
                                          {"send B s1 m0 to 0", b},
                                          {"receive B s1 m0 from 1", b},
                                          {"tied s1", grey},
                                          {"B s0 m0", b},
                                          {"tied s0", grey},
                                          {"send tied s1 to 0", grey},
                                          {"receive tied s1 from 1", grey},
                                          {"send tied s0 to 1", grey},
                                          {"receive tied s0 from 0", grey},
                                          {"add tied s0", grey},
                                          {"add tied s1", grey},
                                          {"totals s0", grey},
                                          {"totals s1", grey},
                                          {"send totals s1-1 to 0", grey},
                                          {"receive totals s1-1 from 1", grey},
                                          {"send totals s0-1 to 1", grey},
                                          {"receive totals s0-1 from 0", grey},
                                          {"optimizer s0", grey},
                                          {"optimizer s1", grey}};
  for (bool const ranks : {false, true})
    for (bool const on : {true, false}) {
      CAPTURE(ranks);
      standin::configure({.record_ranges = true});
      training_case const what{.work = work, .ranges = on, .steps = 1};
      CHECK((ranks ? train_on_ranks(what) : train_on_streams(what)).failure == "");
      std::vector<named_range> seen;
      for (standin::nvtx_range const& each : standin::nvtx_ranges()) {
        CHECK(each.domain == "pipelining");
        seen.emplace_back(each.text, hexadecimal(each.argb));
      }
      CHECK(standin::open_nvtx_ranges() == 0);
      auto wanted = on ? expected : std::vector<named_range>();
      // Which device is ahead is the executor's; the plan says what each enqueues.
      std::sort(wanted.begin(), wanted.end());
      std::sort(seen.begin(), seen.end());
      CHECK(seen == wanted);
    }
}

TEST_CASE("a group of messages is one range, and chunks have their number") {
  auto const work = pipelining::lower(pipelining::make_timetable(pipelining::Seq1F1B<2>{}, {3, 4}),
                                      training_sizes_of_chunks);
  standin::configure({.record_ranges = true});
  training_case what{.work = work, .ranges = true, .steps = 1};
  CHECK(train_on_streams(what).failure == "");
  bool grouped = false;
  for (standin::nvtx_range const& each : standin::nvtx_ranges())
    grouped = grouped || each.text.find(" c1 to 1, receive B s1 ") != std::string::npos;
  CHECK(grouped);
}
