// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What you learn: a schedule is a type, the compiler makes and checks its timetable, and its plan
// drives your stages. How to run: build/release/bin/01_first_pipeline Expected output: loss 10000
// -> 0.0 after 60 steps (the middle dot is digits that depend on nothing but this file)
#include <pipe/pipe.hpp>

#include <cstddef>
#include <cstdio>
#include <vector>

// [snippet readme]
namespace pp = pipelining;

// The timetable of 4 devices and 8 microbatches is a constant that the compiler has made and
// checked.
constexpr auto table = pp::timetable<pp::OneFOneB, 4, 8>;
static_assert(pp::verify(table) && pp::peak_activations(table) == pp::ratio{4, 1});

struct scale { // a stage of your model: here y = w x
  double w = 1, dw = 0, loss = 0;
  void forward(pp::context const& at, pp::input x, pp::output y);
  void backward(pp::context const& at, pp::input dy, pp::output dx);
};

int main() {
  std::vector<scale> stages(4);
  // Lowering proves that the plan cannot deadlock.
  pp::plan const plan = pp::lower(table, pp::uniform_sizes{.message = 8, .activation = 16});
  // One thread per device. Nothing is allocated after this line.
  pp::thread_runner runner(plan, stages);
  // [snippet readme]
  double const target = 3;
  double first = 0;
  double last = 0;
  for (int step = 0; step < 60; ++step) {
    runner.step();
    last = stages.back().loss;
    if (step == 0)
      first = last;
    for (scale& stage : stages) {
      stage.w -= 0.0001 * stage.dw;
      stage.dw = stage.loss = 0;
    }
  }
  std::printf("loss %.3f -> %.6f after 60 steps\n", first, last);
  double product = 1;
  for (scale const& stage : stages)
    product *= stage.w;
  return last < 1e-6 * first && product > target - 0.01 && product < target + 0.01 ? 0 : 1;
}

// The model is a product of four weights that should multiply by 3; microbatch m is the number m
// + 1.
void scale::forward(pp::context const& at, pp::input x, pp::output y) {
  double const in = x.data == nullptr ? at.microbatch + 1 : x.as<double>()[0];
  at.activation.as<double>()[0] = in;
  double const out = w * in;
  if (y.data != nullptr) {
    y.as<double>()[0] = out;
    return;
  }
  double const error = out - 3 * (at.microbatch + 1);
  at.activation.as<double>()[1] = error;
  loss += error * error;
}

void scale::backward(pp::context const& at, pp::input dy, pp::output dx) {
  double const gradient =
    dy.data == nullptr ? 2 * at.activation.as<double>()[1] : dy.as<double>()[0];
  dw += gradient * at.activation.as<double>()[0];
  if (dx.data != nullptr)
    dx.as<double>()[0] = gradient * w;
}
