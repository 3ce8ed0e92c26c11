// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A choice by prediction against the clock: stages that sleep, so that two cores run any number of
// devices.
#include <pipe/plan/lower.hpp>
#include <pipe/planner/model/cost_file.hpp>
#include <pipe/planner/model/measured.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/cost_table.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace pp = pipelining;

namespace {

constexpr pp::pipeline_size size{3, 6}; // devices, microbatches
constexpr int layers = 6;               // the most stages of a schedule here
constexpr int parts = 2;                // of a sequence: the most chunks

//! Milliseconds of a layer for a part of a sequence.
struct layer_times {
  double forward[parts];
  double backward_input[parts];
  double backward_weight[parts];
};
using model_times = std::vector<layer_times>;

//! Unlike layers, parts and kinds; no two models alike.
model_times random_model(unsigned seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> factor(0.6, 1.8);
  double const kinds[] = {factor(random), factor(random), factor(random)};
  double const later_part = factor(random);
  model_times model(layers);
  for (layer_times& layer : model) {
    double const own = factor(random);
    for (int part = 0; part < parts; ++part) {
      double const time = own * (part == 0 ? 1 : later_part);
      layer.forward[part] = kinds[0] * time;
      layer.backward_input[part] = kinds[1] * time;
      layer.backward_weight[part] = kinds[2] * time;
    }
  }
  return model;
}

//! The layers of a stage. It sleeps once per layer and part, however the schedule cuts the model:
//! what a sleep takes beyond its time is then the same for all schedules.
struct sleeping_stage {
  static constexpr bool takes_chunks = true;
  model_times own;

  void forward(pp::context const& at, pp::input, pp::output) { sleep(at, &layer_times::forward); }
  void backward_input(pp::context const& at, pp::input, pp::output) {
    sleep(at, &layer_times::backward_input);
  }
  void backward_weight(pp::context const& at) { sleep(at, &layer_times::backward_weight); }
  void backward(pp::context const& at, pp::input dy, pp::output dx) {
    backward_input(at, dy, dx);
    backward_weight(at);
  }

private:
  void sleep(pp::context const& at, double (layer_times::*times)[parts]) const {
    int const mine = parts / at.chunks;
    for (layer_times const& layer : own)
      for (int part = at.chunk * mine; part < (at.chunk + 1) * mine; ++part)
        std::this_thread::sleep_for(
          std::chrono::duration<double, std::milli>((layer.*times)[part]));
  }
};

//! Runs steps of an order; the first one, which is not like the others, is left out.
std::vector<pp::dynamic_timetable>
run(model_times const& model, pp::timetable_view table, int steps) {
  int const count = table.over.extents.stages();
  std::vector<sleeping_stage> stages(static_cast<std::size_t>(count));
  for (int layer = 0; layer < layers; ++layer)
    stages[static_cast<std::size_t>(layer * count / layers)].own.push_back(
      model[static_cast<std::size_t>(layer)]);
  pp::thread_runner runner(pp::lower(table), stages);
  runner.step();
  std::vector<pp::dynamic_timetable> traces;
  for (int step = 0; step < steps; ++step) {
    runner.step();
    traces.push_back(runner.trace());
  }
  return traces;
}

struct candidate {
  std::string name;
  pp::dynamic_timetable table; //!< in predicted times
  std::vector<double> samples; //!< measured makespans

  [[nodiscard]] double predicted() const { return pp::makespan(table); }
  [[nodiscard]] double measured() const {
    std::vector<double> sorted = samples;
    std::nth_element(sorted.begin(),
                     sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2),
                     sorted.end());
    return sorted[sorted.size() / 2];
  }
  void measure(model_times const& model, int steps) {
    for (pp::dynamic_timetable const& step : run(model, table, steps))
      samples.push_back(pp::makespan(step));
  }
};

using finest = pp::Seq1F1BZeroBubbleInterleaved<2, parts>;

std::vector<candidate> plan_all(pp::cut_costs const& costs) {
  std::vector<candidate> all;
  auto const add = [&]<class Schedule>(Schedule const& schedule) {
    pp::shape const extents = schedule.arrange(size.devices, size.microbatches);
    all.push_back({doctest::toString<Schedule>().c_str(),
                   pp::make_timetable(schedule, size, pp::costs_for(costs, extents)),
                   {}});
  };
  add(pp::GPipe{});
  add(pp::OneFOneB{});
  add(pp::Interleaved<2>{});
  add(pp::ZeroBubbleH1{});
  add(pp::ZeroBubbleH2{});
  add(pp::VHalf{});
  add(pp::VZeroBubble{});
  add(pp::Seq1F1B<parts>{});
  add(pp::Seq1F1BZeroBubbleH1<parts>{});
  add(finest{});
  return all;
}

//! What a run has measured, by way of a file.
pp::cut_costs measure(model_times const& model) {
  auto const traces = run(model, pp::make_timetable<finest>(size), 3);
  std::vector<pp::timetable_view> const steps(traces.begin(), traces.end());
  return pp::read_costs(pp::write_costs(steps.front().over.extents, pp::costs_of(steps)));
}

constexpr double limit = 1.03;

//! Whether a pick is within the limit of the best that is measured. Other programs make steps late,
//! never early: before it says no, it measures the two again, a few times, by the same limit.
bool within_limit(model_times const& model, std::vector<candidate>& all, std::size_t pick) {
  for (candidate& one : all)
    one.measure(model, 3);
  for (int attempt = 0;; ++attempt) {
    candidate& best =
      *std::min_element(all.begin(), all.end(), [](candidate const& a, candidate const& b) {
        return a.measured() < b.measured();
      });
    candidate& picked = all[pick];
    if (picked.measured() <= limit * best.measured())
      return true;
    if (attempt == 5) {
      MESSAGE("the pick ",
              picked.name,
              " takes ",
              picked.measured(),
              " s, ",
              best.name,
              " takes ",
              best.measured(),
              " s");
      return false;
    }
    for (int turn = 0; turn < 4; ++turn)
      for (candidate* const one : {&picked, &best})
        one->measure(model, 1);
  }
}

std::size_t pick_of(std::vector<candidate> const& all) {
  auto const faster = [](candidate const& a, candidate const& b) {
    return a.predicted() < b.predicted();
  };
  return static_cast<std::size_t>(std::min_element(all.begin(), all.end(), faster) - all.begin());
}

//! Measures a model, plans again, and runs the pick and the others.
bool picks_well(unsigned seed) {
  model_times const model = random_model(seed);
  std::vector<candidate> all = plan_all(measure(model));
  return within_limit(model, all, pick_of(all));
}

//! Whether a pick by a wrong prediction is within the limit: messages would take longer than many
//! passes, and there are none.
bool picks_well_by_messages() {
  pp::shape const cut{.devices = layers, .chunks = parts};
  std::vector<candidate> all =
    plan_all({layers, parts, pp::cost_table(cut, {1e-3, 1e-3, 1e-3, 0.1})});
  return within_limit(random_model(1), all, pick_of(all));
}

} // namespace

// All models sleep side by side. PIPELINING_TEST_EVERYTHING=1 in the environment asks for ten, else
// two are run. Another program may spoil what a pick is made from, so a model may be measured anew.
TEST_CASE("the pick by prediction is within 3 % of the best that is measured, for ten models; "
          "a pick by a wrong prediction is seen") {
  unsigned const models = std::getenv("PIPELINING_TEST_EVERYTHING") != nullptr ? 10 : 2;
  std::future<bool> wrong = std::async(std::launch::async, picks_well_by_messages);
  std::vector<std::future<bool>> picks;
  for (unsigned seed = 1; seed <= models; ++seed)
    picks.push_back(std::async(std::launch::async, [seed] {
      return picks_well(seed) || picks_well(seed) || picks_well(seed);
    }));
  for (unsigned seed = 1; seed <= models; ++seed) {
    CAPTURE(seed);
    CHECK(picks[seed - 1].get());
  }
  CHECK_FALSE(wrong.get());
}
