// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What you learn: how functions in C become stages. A dense layer of trainer.c is a stage; every
// schedule of the registry whose gradients add up in order gives the bits of the plain loop.
// How to run: build/release/bin/c_trainer
#include <pipe/pipe.hpp>
#include <pipe/planner/registry/named_schedules.hpp>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

#include "trainer.h"

namespace pp = pipelining;

namespace {

constexpr int width = 8, rows = 4, devices = 4, microbatches = 8, steps = 3;
constexpr float rate = 0.5F;
constexpr std::size_t numbers = std::size_t{rows} * width;

struct samples { // [microbatches][rows][width]
  std::vector<float> inputs, targets;
};

struct stage {
  dense* layer;
  samples const* data;
  float loss = 0;

  // [lines pipelined steps: stage]
  // Keeps its input, its output and, on the last stage, the gradient of the loss.
  void forward(pp::context const& at, pp::input in, pp::output out) {
    auto const first = static_cast<std::size_t>(at.microbatch) * numbers;
    float* const kept = at.activation.as<float>().data();
    float const* const x = at.first_stage() ? &data->inputs[first] : in.as<float>().data();
    std::memcpy(kept, x, numbers * sizeof(float));
    dense_forward(layer, rows, kept, kept + numbers);
    if (at.last_stage())
      loss += squared_error(
        numbers, kept + numbers, &data->targets[first], 1.0F / microbatches, kept + 2 * numbers);
    else
      std::memcpy(out.as<float>().data(), kept + numbers, numbers * sizeof(float));
  }
  void backward(pp::context const& at, pp::input in, pp::output out) {
    float dz[numbers];
    go_back(at, in, out, dz);
    dense_backward_weight(layer, rows, at.activation.as<float>().data(), dz);
  }
  void go_back(pp::context const& at, pp::input in, pp::output out, float* dz) {
    float const* const kept = at.activation.as<float>().data();
    float const* const dy = at.last_stage() ? kept + 2 * numbers : in.as<float>().data();
    float* const dx = at.first_stage() ? nullptr : out.as<float>().data();
    dense_backward_input(layer, rows, kept + numbers, dy, dz, dx);
  }
  // [lines split backward passes: stage]
  void backward_input(pp::context const& at, pp::input in, pp::output out) {
    go_back(at, in, out, at.weight_input.as<float>().data());
  }
  void backward_weight(pp::context const& at) {
    float const* const dz = at.weight_input.as<float>().data();
    dense_backward_weight(layer, rows, at.activation.as<float>().data(), dz);
  }
  // [lines]
};

std::vector<dense> make_layers(int count) {
  std::vector<dense> layers(static_cast<std::size_t>(count));
  unsigned seed = 0;
  for (dense& each : layers)
    if (dense_make(&each, width, ++seed) != 0)
      throw std::bad_alloc();
  return layers;
}

// The loss of the last step, and the weights at the end, which are gone then.
std::vector<float> result_of(float loss, std::vector<dense>& layers) {
  std::vector<float> all{loss};
  for (dense& each : layers) {
    all.insert(all.end(), each.weight, each.weight + width * (width + 1));
    dense_free(&each);
  }
  return all;
}

std::vector<float> train(pp::plan const& plan, int count, samples const& data) {
  std::vector<dense> layers = make_layers(count);
  // [lines pipelined steps: program]
  std::vector<stage> stages;
  for (dense& each : layers)
    stages.push_back({&each, &data});
  pp::thread_runner runner(plan, stages);
  for (int step = 0; step < steps; ++step) {
    stages.back().loss = 0;
    runner.step();
    // [lines]
    for (dense& each : layers)
      dense_step(&each, rate);
  }
  return result_of(stages.back().loss, layers);
}

// The same by the trainer's own step.
std::vector<float> train_alone(int count, samples const& data) {
  std::vector<dense> layers = make_layers(count);
  float loss = 0;
  for (int step = 0; step < steps; ++step)
    loss = train_step(
      layers.data(), count, rows, microbatches, data.inputs.data(), data.targets.data(), rate);
  return result_of(loss, layers);
}

} // namespace

int main() {
  samples data;
  for (int i = 0; i < microbatches * rows * width; ++i) {
    data.inputs.push_back(static_cast<float>(i % 13) / 13);
    data.targets.push_back(static_cast<float>(i % 7) / 14);
  }
  int same = 0, others = 0;
  for (pp::registry::named_schedule const& one : pp::registry::named_schedules()) {
    auto const& is = one.traits;
    if (!is.sums_in_order || is.over_chunks || is.weights_travel || is.two_copies ||
        is.stages_go_one_way || is.cuts_layers || is.exchanges_attention || is.any_pairs)
      continue;
    pp::registry::schedule_choice choice;
    choice.name = one.name;
    choice.devices = devices;
    choice.microbatches = microbatches;
    if (pp::registry::has(one.needs, pp::registry::option::memory_limit))
      choice.memory_limit = 2 * devices;
    // [lines pipelined steps: program]
    constexpr pp::uniform_sizes sizes{.message = numbers * sizeof(float),
                                      .activation = 3 * numbers * sizeof(float),
                                      .weight_input = numbers * sizeof(float)};
    auto const table = pp::registry::make_named_timetable(choice, pp::uniform_cost{});
    // [lines]
    int const stages = table.over.extents.stages();
    bool const equal = train(pp::lower(table, sizes), stages, data) == train_alone(stages, data);
    auto const* const bits = equal ? "the bits of one device" : "OTHER BITS";
    std::printf("%-16s %2d stages: %s\n", choice.name.c_str(), stages, bits);
    ++(equal ? same : others);
  }
  return same >= 12 && others == 0 ? 0 : 1;
}
