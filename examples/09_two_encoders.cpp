// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What you learn: a model that is a graph. Two encoders feed a decoder of two stages, and a skip
// leads from the second encoder to the end. Every schedule of the library runs such a model.
// How to run: build/release/bin/09_two_encoders
// Expected output: the loss of some steps, then: 0 weights differ from one stage after the other
#include <pipe/pipe.hpp>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <vector>

namespace pp = pipelining;

namespace {

constexpr int devices = 4; // with a stage each
constexpr int microbatches = 8;
constexpr std::size_t width = 32; // numbers of a sample, of an activation and of a weight
constexpr int steps = 40;

// [snippet edges]
//  encoder 0 ──┐
//              ├──▶ decoder 2 ──▶ decoder 3
//  encoder 1 ──┴──────────────────▲
pp::with_stage_graph<pp::OneFOneB> const schedule{{}, {{0, 2}, {1, 2}, {2, 3}, {1, 3}}};
// [snippet edges]

float sample(int encoder, int microbatch, std::size_t i) {
  return std::sin(static_cast<float>(7 * microbatch + 5 * encoder) + static_cast<float>(i));
}
float target(int microbatch, std::size_t i) {
  return 0.5F * std::sin(static_cast<float>(microbatch) + static_cast<float>(i));
}

//! y = tanh(w x), where x is the sum of all inputs.
struct stage {
  std::vector<float> weight = std::vector<float>(width, 0.5F);
  std::vector<float> gradient = std::vector<float>(width);
  double loss = 0;

  // [snippet stage]
  void forward(pp::context const& at, pp::input, pp::output y) {
    for (std::size_t i = 0; i < width; ++i) {
      float x = at.first_stage() ? sample(at.stage, at.microbatch, i) : 0;
      for (pp::input const& in : at.inputs) // one of each stage before this one
        x += in.as<float>()[i];
      at.activation.as<float>()[i] = x;
      if (!at.last_stage())
        y.as<float>()[i] = std::tanh(weight[i] * x);
    }
  }
  void backward(pp::context const& at, pp::input, pp::output) {
    for (std::size_t i = 0; i < width; ++i) {
      float const x = at.activation.as<float>()[i];
      float const y = std::tanh(weight[i] * x);
      float dy = at.last_stage() ? y - target(at.microbatch, i) : 0;
      loss += at.last_stage() ? dy * dy : 0;
      for (pp::input const& in : at.inputs) // a gradient of each stage that reads y
        dy += in.as<float>()[i];
      gradient[i] += dy * (1 - y * y) * x;
      for (pp::output const& dx : at.outputs) // one for each stage before this one
        dx.as<float>()[i] = dy * (1 - y * y) * weight[i];
    }
  }
  // [snippet stage]
  void learn() {
    for (std::size_t i = 0; i < width; ++i) {
      weight[i] -= 0.2F / microbatches * gradient[i];
      gradient[i] = 0;
    }
  }
};

//! The gradients of one microbatch, one stage after the other.
void run_alone(std::vector<stage>& model, int m) {
  for (std::size_t i = 0; i < width; ++i) {
    float x[4]{sample(0, m, i), sample(1, m, i)};
    float y[4]{};
    float dx[4]{};
    for (std::size_t s = 0; s < 4; ++s) {
      x[s] = s < 2 ? x[s] : s == 2 ? y[0] + y[1] : y[2] + y[1];
      y[s] = std::tanh(model[s].weight[i] * x[s]);
    }
    for (std::size_t s = 4; s-- > 0;) {
      float const own = s == 3 ? y[3] - target(m, i) : 0;
      float const dy = own + (s < 2 ? dx[2] : 0) + (s == 1 || s == 2 ? dx[3] : 0);
      model[s].gradient[i] += dy * (1 - y[s] * y[s]) * x[s];
      dx[s] = dy * (1 - y[s] * y[s]) * model[s].weight[i];
    }
  }
}

} // namespace

int main() {
  auto const table = pp::make_timetable(schedule, {devices, microbatches});
  constexpr int bytes = width * sizeof(float);
  std::vector<stage> model(devices), alone(devices);
  pp::thread_runner runner(
    pp::lower(table, pp::uniform_sizes{.message = bytes, .activation = bytes}), model);
  for (int step = 0; step < steps; ++step) {
    runner.step();
    for (int m = 0; m < microbatches; ++m)
      run_alone(alone, m);
    for (std::size_t s = 0; s < model.size(); ++s) {
      model[s].learn();
      alone[s].learn();
    }
    if (step % 13 == 0)
      std::printf("step %2d: loss %.4f\n", step, model.back().loss / microbatches);
    model.back().loss = 0;
  }
  int differ = 0;
  for (std::size_t s = 0; s < model.size(); ++s)
    for (std::size_t i = 0; i < width; ++i)
      differ += model[s].weight[i] == alone[s].weight[i] ? 0 : 1;
  std::printf("%d weights differ from one stage after the other\n", differ);
  return differ == 0 ? 0 : 1;
}
