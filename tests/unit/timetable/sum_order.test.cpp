// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Which schedules add gradients up in the order of a plain loop, by their timetables, by the list
// of schedules, and by sums of floats that rounding tells apart.
#include <pipe/plan/lower.hpp>
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/breadth_first.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_sharded_weights.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace pp = pipelining;

namespace {

static_assert(pp::sums_in_order(pp::timetable<pp::OneFOneB, 4, 8>));
static_assert(pp::sums_in_order(pp::timetable<pp::Seq1F1B<4>, 2, 6>));
static_assert(pp::sums_in_order(pp::timetable<pp::ZeroBubbleH2, 4, 8>));
static_assert(pp::sums_in_order(pp::timetable<pp::BreadthFirst<2>, 2, 1>));
static_assert(!pp::sums_in_order(pp::timetable<pp::BreadthFirst<2>, 2, 2>));
static_assert(!pp::sums_in_order(pp::timetable<pp::DualPipe<>, 2, 4>));

//! A gradient: so many numbers that rounding tells sums in any two orders apart.
struct gradient {
  float numbers[32]{};

  //! Adds what a unit adds to the gradient of its stage.
  void add(int microbatch, int chunk) {
    std::minstd_rand draw(static_cast<unsigned>(1 + 64 * microbatch + chunk));
    draw.discard(3);
    for (float& number : numbers)
      number += static_cast<float>(draw()) / static_cast<float>(draw() >> 12 | 1);
  }
  friend gradient operator+(gradient a, gradient const& b) {
    for (std::size_t i = 0; i < std::size(a.numbers); ++i)
      a.numbers[i] += b.numbers[i];
    return a;
  }
  friend bool operator==(gradient const&, gradient const&) = default;
};

//! A stage with a sum on each device that has a copy of it.
struct adding_stage {
  static constexpr bool takes_chunks = true;
  std::vector<gradient> sums;

  void forward(pp::context const&, pp::input, pp::output) {}
  void backward(pp::context const& at, pp::input, pp::output) { add(at); }
  void backward_input(pp::context const&, pp::input, pp::output) {}
  void backward_weight(pp::context const& at) { add(at); }
  [[nodiscard]] gradient sum() const {
    gradient all;
    for (gradient const& each : sums)
      all = all + each;
    return all;
  }

private:
  void add(pp::context const& at) {
    sums[static_cast<std::size_t>(at.device)].add(at.microbatch, at.chunk);
  }
};

//! What is a stage elsewhere is a microbatch here; gradients of a group of layers travel.
struct travelling_stage {
  static constexpr bool takes_chunks = true;
  std::vector<gradient>* sums = nullptr;

  void forward(pp::context const&, pp::input, pp::output) {}
  void backward(pp::context const& at, pp::input in, pp::output out) {
    gradient sum = in.slot < 0 ? gradient{} : in.as<gradient>()[0];
    sum.add(at.stage, 0);
    (out.slot < 0 ? (*sums)[static_cast<std::size_t>(at.chunk)] : out.as<gradient>()[0]) = sum;
  }
};

//! The sums of all stages that have gradients, one after the other.
std::vector<gradient> sums_of(pp::timetable_view table, bool weights_travel) {
  auto const stages = static_cast<std::size_t>(table.over.extents.stages());
  auto const plan = pp::lower(table, pp::uniform_sizes{.message = sizeof(gradient)});
  if (weights_travel) {
    std::vector<gradient> sums(static_cast<std::size_t>(table.over.extents.chunks));
    std::vector<travelling_stage> model(stages, {&sums});
    pp::thread_runner(plan, model).step();
    return sums;
  }
  adding_stage const none{
    std::vector<gradient>(static_cast<std::size_t>(table.over.extents.devices))};
  std::vector<adding_stage> model(stages, none);
  pp::thread_runner(plan, model).step();
  std::vector<gradient> sums;
  for (adding_stage const& stage : model)
    if (gradient const sum = stage.sum();
        sum != gradient{}) // stages that go forward alone have none
      sums.push_back(sum);
  return sums;
}

gradient sum_of_loop(int microbatches, int chunks) {
  gradient sum;
  for (int m = 0; m < microbatches; ++m)
    for (int chunk = chunks; chunk-- > 0;)
      sum.add(m, chunk);
  return sum;
}

std::optional<pp::dynamic_timetable>
made(pp::registry::named_schedule const& schedule, int devices, int microbatches, int chunks) {
  pp::registry::schedule_choice one;
  one.name = schedule.name;
  one.devices = devices;
  one.microbatches = microbatches;
  if (has(schedule.takes, pp::registry::option::chunks))
    one.chunks = chunks;
  if (has(schedule.needs, pp::registry::option::memory_limit))
    one.memory_limit = 2 * devices;
  try {
    return pp::registry::make_named_timetable(one, pp::uniform_cost{});
  } catch (std::invalid_argument const&) {
    return std::nullopt; // a precondition of the schedule
  }
}

} // namespace

TEST_CASE("gradients have the bits of a plain loop where timetables say so, and only there") {
  for (pp::registry::named_schedule const& schedule : pp::registry::named_schedules()) {
    CAPTURE(std::string(schedule.name));
    int looked_at = 0;
    bool always = true;
    for (int const devices : {2, 4})
      for (int const microbatches : {1, 2, devices, 8, 12})
        for (int const chunks : {1, 3}) {
          if (chunks > 1 && !has(schedule.takes, pp::registry::option::chunks))
            continue;
          auto const table = made(schedule, devices, microbatches, chunks);
          if (!table)
            continue;
          CAPTURE(devices);
          CAPTURE(microbatches);
          CAPTURE(chunks);
          ++looked_at;
          bool const travel = schedule.traits.weights_travel;
          bool const in_order = pp::sums_in_order(*table);
          always = always && in_order;
          gradient const loop = sum_of_loop(microbatches, travel ? 1 : table->over.extents.chunks);
          auto const sums = sums_of(*table, travel);
          REQUIRE(!sums.empty());
          bool const same =
            std::all_of(sums.begin(), sums.end(), [&](auto const& sum) { return sum == loop; });
          if (in_order || microbatches > 2) // the sum of two is the same in both orders
            CHECK(same == in_order);
        }
    CHECK(looked_at > 0);
    CHECK(always == schedule.traits.sums_in_order);
  }
}

namespace {

//! A stage whose gradients are collected in a sum for each visit, and added to its own after it.
struct sharded_stage {
  static constexpr bool takes_chunks = true;
  gradient sum;
  gradient* collected = nullptr;

  void forward(pp::context const&, pp::input, pp::output) {}
  void backward(pp::context const& at, pp::input, pp::output) {
    collected->add(at.microbatch, at.chunk);
  }
  void gather_weights(pp::context const&, pp::output) {}
  void use_weights(pp::context const&, pp::input) {}
  void collect_gradients(pp::context const&, pp::output out) {
    collected = &out.as<gradient>()[0];
    *collected = {};
  }
  void scatter_gradients(pp::context const&, pp::input in) { sum = sum + in.as<gradient>()[0]; }
};
struct sharded_sizes {
  [[nodiscard]] std::int64_t bytes(pp::slot_class, pp::pass const&) const {
    return sizeof(gradient);
  }
};

template <class Schedule>
bool sharded_in_order(pp::reshard rule) {
  auto const table = pp::make_timetable(
    pp::with_sharded_weights<Schedule>{.rule = rule}, {2, 8}, pp::uniform_cost{});
  std::vector<sharded_stage> model(static_cast<std::size_t>(table.over.extents.stages()));
  pp::thread_runner(pp::lower(table, sharded_sizes{}), model).step();
  bool same = true;
  for (sharded_stage const& stage : model)
    same = same && stage.sum == sum_of_loop(8, 1);
  CHECK(same == pp::sums_in_order(table));
  return same;
}

} // namespace

TEST_CASE("visits of sharded weights have a sum each") {
  CHECK(sharded_in_order<pp::OneFOneB>({}));
  CHECK(sharded_in_order<pp::Interleaved<2>>(pp::reshard::gathered_once()));
  CHECK(!sharded_in_order<pp::Interleaved<2>>({}));
  CHECK(!sharded_in_order<pp::BreadthFirst<2>>(pp::reshard::gathered_once()));
}
