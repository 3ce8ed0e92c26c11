// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What you learn: a schedule is a type, the compiler makes and checks its timetable, and its plan
// drives your stages. It is the program in README.md, which has its output, too.
// [snippet readme]
#include <pipe/pipe.hpp>

#include <cstdio>
#include <vector>

namespace pp = pipelining;

// The compiler makes the timetable of 4 devices and 8 microbatches, and checks it.
constexpr auto table = pp::timetable<pp::OneFOneB, 4, 8>;
static_assert(pp::verify(table) && pp::peak_activations(table) == pp::ratio{4, 1});

struct scale { // a stage of your model: y = w x; four of them learn to multiply by 3
  double w = 1, dw = 0, loss = 0;
  void forward(pp::context const& at, pp::input x, pp::output y) {
    auto const kept = at.activation.as<double>();
    kept[0] = x.data == nullptr ? at.microbatch + 1 : x.as<double>()[0]; // the data is 1 to 8
    kept[1] = w * kept[0] - 3 * (at.microbatch + 1); // how wrong the last stage is
    if (y.data == nullptr)
      loss += kept[1] * kept[1];
    else
      y.as<double>()[0] = w * kept[0];
  }
  void backward(pp::context const& at, pp::input dy, pp::output dx) {
    auto const kept = at.activation.as<double>();
    double const gradient = dy.data == nullptr ? 2 * kept[1] : dy.as<double>()[0];
    dw += gradient * kept[0];
    if (dx.data != nullptr)
      dx.as<double>()[0] = gradient * w;
  }
};

int main() {
  std::vector<scale> stages(4);
  pp::plan const plan = pp::lower(table, pp::uniform_sizes{.message = 8, .activation = 16});
  pp::thread_runner runner(plan, stages); // on threads; a step allocates nothing
  for (int step = 1; step <= 4; ++step) {
    runner.step();
    std::printf("step %d: loss %.4f\n", step, stages.back().loss);
    for (scale& stage : stages)
      stage = {stage.w - 0.0002 * stage.dw};
  }
}
// [snippet readme]
