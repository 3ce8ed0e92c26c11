// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What you learn: how to run a schedule, save what its passes took, predict other schedules from
// that, and run the one that should be fastest; told in docs/how_to/measure_and_plan_again.md. How
// to run: build/release/bin/08_plan_again Expected output: the prediction of three schedules, then
// the pick, predicted and measured
#include <pipe/pipe.hpp>
#include <pipe/planner.hpp>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

namespace pp = pipelining;

namespace {

// A model of four layers that only takes time, in milliseconds; the last one has the output layer.
struct layer {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
};
constexpr layer model[] = {{2, 2, 1}, {2, 2, 1}, {2, 2, 1}, {4, 4, 3}};

struct stage {
  std::vector<layer> layers;

  void forward(pp::context const&, pp::input, pp::output) { work(&layer::forward); }
  void backward_input(pp::context const&, pp::input, pp::output) { work(&layer::backward_input); }
  void backward_weight(pp::context const&) { work(&layer::backward_weight); }
  void backward(pp::context const& at, pp::input dy, pp::output dx) {
    backward_input(at, dy, dx);
    backward_weight(at);
  }

private:
  void work(double layer::*time) const {
    for (layer const& one : layers)
      std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(one.*time));
  }
};

// As many stages as a schedule has, each with as many layers.
std::vector<stage> cut_model(int stages) {
  std::vector<stage> result(static_cast<std::size_t>(stages));
  for (int i = 0; i < 4; ++i)
    result[static_cast<std::size_t>(i * stages / 4)].layers.push_back(model[i]);
  return result;
}

constexpr pp::pipeline_size size{2, 6}; // devices, microbatches

// [snippet measure]
std::vector<pp::dynamic_timetable> run(pp::dynamic_timetable const& table, int steps) {
  std::vector<stage> stages = cut_model(table.over.extents.stages());
  pp::thread_runner runner(pp::lower(table), stages);
  runner.step(); // the first one is not like the others
  std::vector<pp::dynamic_timetable> traces;
  for (int step = 0; step < steps; ++step) {
    runner.step();
    traces.push_back(runner.trace());
  }
  return traces;
}

// The text of the file: times of both halves of backward, on two stages per device.
std::string measure() {
  auto const traces = run(pp::make_timetable<pp::ZeroBubbleInterleaved<2>>(size), 3);
  std::vector<pp::timetable_view> const steps(traces.begin(), traces.end());
  return pp::write_costs(steps.front().over.extents, pp::costs_of(steps));
}
// [snippet measure]

// [snippet predict]
struct planned {
  char const* name;
  pp::dynamic_timetable table;
};

// The timetable of a schedule for what was measured, whatever its stages and chunks.
template <class Schedule>
planned plan_again(char const* name, pp::cut_costs const& measured) {
  pp::shape const extents = Schedule{}.arrange(size.devices, size.microbatches);
  return {name, pp::make_timetable<Schedule>(size, pp::costs_for(measured, extents))};
}
// [snippet predict]

} // namespace

int main() {
  // [snippet pick]
  pp::cut_costs const measured = pp::read_costs(measure());
  planned const all[] = {plan_again<pp::OneFOneB>("1F1B", measured),
                         plan_again<pp::ZeroBubbleH1>("ZB-H1", measured),
                         plan_again<pp::VZeroBubble>("V-ZB", measured)};
  planned const* pick = all;
  for (planned const& one : all) {
    std::printf("%-6s %5.1f ms predicted\n", one.name, 1e3 * pp::makespan(one.table));
    if (pp::makespan(one.table) < pp::makespan(pick->table))
      pick = &one;
  }
  double const seconds = pp::makespan(run(pick->table, 1).front());
  // [snippet pick]
  std::printf("pick: %s, %.1f ms predicted, %.1f ms measured\n",
              pick->name,
              1e3 * pp::makespan(pick->table),
              1e3 * seconds);
  return pp::makespan(pick->table) > 0 && seconds > 0 ? 0 : 1;
}
