// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Every schedule that has a name, on the executors for NCCL and for streams, under every policy and
// on every machine. By default every schedule meets every value of every setting;
// PIPELINING_TEST_EVERYTHING in the environment: the product.
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <simulators/cuda/standin.hpp>
#include <stdexcept>
#include <string>
#include <tests/cuda/nccl.hpp>
#include <tests/cuda/schedules.hpp>
#include <tests/cuda/streams.hpp>
#include <vector>

namespace {

bool everything() {
  return std::getenv("PIPELINING_TEST_EVERYTHING") != nullptr;
}

std::vector<named_plan> plans_of(pipelining::registry::schedule_choice const& choice) {
  std::vector<named_plan> plans;
  std::string name = choice.name;
  if (choice.chunks)
    name += ", " + std::to_string(*choice.chunks) + " chunks";
  add_plans(plans,
            name,
            pipelining::registry::make_named_timetable(
              choice, pipelining::registry::any_cost(pipelining::uniform_cost{})));
  return plans;
}

//! All names in small sizes, with chunks of sequences too where the schedule has them: a list of
//! three plans each.
std::vector<std::vector<named_plan>> all_plans() {
  std::vector<std::vector<named_plan>> all;
  for (pipelining::registry::named_schedule const& schedule :
       pipelining::registry::named_schedules()) {
    if (schedule.traits.stages_go_one_way)
      continue; // its stages are of other layers for backward passes than for forward passes
    std::size_t const before = all.size();
    for (int const devices : {2, 3})
      for (bool const chunked : {false, true}) {
        using pipelining::registry::option;
        if (chunked && !pipelining::registry::has(schedule.takes, option::chunks))
          continue;
        pipelining::registry::schedule_choice choice;
        choice.name = schedule.name;
        choice.devices = devices;
        if (chunked || pipelining::registry::has(schedule.needs, option::chunks))
          choice.chunks = 2;
        if (pipelining::registry::has(schedule.needs, option::stages_per_device))
          choice.stages_per_device = 2;
        if (pipelining::registry::has(schedule.needs, option::group))
          choice.group = 2;
        if (pipelining::registry::has(schedule.needs, option::memory_limit))
          choice.memory_limit = devices;
        choice.microbatches =
          std::max(4, pipelining::registry::least_microbatches(choice).value_or(4));
        try {
          all.push_back(plans_of(choice));
        } catch (std::invalid_argument const&) { // not with so many devices
        }
      }
    CAPTURE(schedule.name);
    CHECK(all.size() > before);
  }
  return all;
}

struct setting {
  std::size_t policy = 0;
  bool graph = false;
  standin::order execution{};
  bool buffered = false;
  bool narrow = false; //!< room for one kernel of NCCL
};

//! All of them, or six that have every value of each; `turn` chooses which values meet.
std::vector<setting> settings(std::size_t turn) {
  constexpr standin::order orders[] = {
    standin::order::lazy, standin::order::eager, standin::order::random};
  std::vector<setting> all;
  for (std::size_t i = 0; i < (everything() ? 72U : 6U); ++i) {
    std::size_t const k = i + turn;
    if (everything())
      all.push_back({i % 3, i / 3 % 2 != 0, orders[i / 6 % 3], i / 18 % 2 != 0, i / 36 != 0});
    else
      all.push_back(
        {i % 3, k % 2 != 0, orders[(i / 2 + turn) % 3], (i + i / 3) % 2 != 0, (k / 2) % 2 != 0});
  }
  return all;
}

template <class Result>
void check_equal(Result const& result, support::sequential_result const& expected) {
  for (std::size_t s = 0; s < expected.gradients.size(); ++s)
    CHECK(result.gradients[s] == 2 * expected.gradients[s]);
  CHECK(result.losses == 2 * expected.losses);
  CHECK(standin::summary() == "");
}

//! Every activation goes to the host and back at once.
struct move_all {
  void operator()(int, std::vector<pipelining::offload::idle_activation>& all) const {
    for (pipelining::offload::idle_activation& one : all) {
      one.moves = true;
      one.leaves = one.returns = one.made;
    }
  }
};

void use(setting const& how, std::uint64_t seed) {
  standin::configuration machine{.execution = how.execution, .seed = seed};
  machine.buffered_bytes = how.buffered ? 1U << 20U : 0;
  machine.resident_nccl_kernels = how.narrow ? 1 : 0;
  standin::configure(machine);
}

} // namespace

TEST_CASE("every schedule computes what one device computes, on NCCL and on streams") {
  auto const all = all_plans();
  int on_ranks = 0;
  int on_streams = 0;
  for (std::size_t turn = 0; turn < all.size(); ++turn)
    for (setting const& how : settings(turn)) {
      named_plan const& plan = all[turn][how.policy];
      CAPTURE(plan.name);
      CAPTURE(how.graph);
      CAPTURE(static_cast<int>(how.execution));
      CAPTURE(how.buffered);
      CAPTURE(how.narrow);
      use(how, turn + 1);
      auto const ranks = run_on_ranks(
        {.work = plan.work, .graph = how.graph, .one_message_stream = how.narrow, .steps = 2});
      for (rank_report const& rank : ranks.ranks)
        CHECK(rank.failure == "");
      check_equal(ranks, plan.expected);
      ++on_ranks;
      if (how.buffered || how.narrow)
        continue; // streams have no NCCL
      use(how, turn + 1);
      auto const streams = run_on_streams({.work = plan.work, .graph = how.graph, .steps = 2});
      CHECK(streams.failure == "");
      check_equal(streams, plan.expected);
      ++on_streams;
    }
  std::printf("%zu timetables of %zu schedules: %d runs on NCCL, %d on streams\n",
              all.size(),
              pipelining::registry::named_schedules().size(),
              on_ranks,
              on_streams);
}

TEST_CASE("a small plan computes the same in every order that can make a difference") {
  std::vector<named_plan> plans;
  add_plans<pipelining::OneFOneB>(plans, "1F1B", 2, 1);
  using moved = pipelining::with_offload<pipelining::GPipe, move_all>;
  add_plans(plans, "GPipe with copies", pipelining::make_timetable(moved{}, {1, 1}));
  plans.resize(4); // without messages all policies are one
  for (named_plan const& plan : plans) {
    CAPTURE(plan.name);
    auto const seen = standin::explore(
      {},
      [&] {
        auto const result = run_on_streams({.work = plan.work, .steps = 1});
        for (std::size_t s = 0; s < plan.expected.gradients.size(); ++s)
          CHECK(result.gradients[s] == plan.expected.gradients[s]);
      },
      20'000);
    std::printf("%s: %llu runs, %llu states\n",
                plan.name.c_str(),
                static_cast<unsigned long long>(seen.runs),
                static_cast<unsigned long long>(seen.states));
    CHECK(seen.complete);
    CHECK(seen.faulty == 0);
  }
}
