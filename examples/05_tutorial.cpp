// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What you learn: the way from an idea for a schedule to a training step that runs it; told in
// docs/tutorial.md. How to run: build/release/bin/05_tutorial > late.svg Expected output: the
// picture on standard output, figures and the weights on standard error
#include <pipe/pipe.hpp>
#include <pipe/view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

namespace pp = pipelining;

// [snippet schedule]
// 1F1B with split backward passes, and all gradients of weights at the end.
struct LateWeights {
  constexpr pp::shape arrange(int devices, int microbatches) const {
    return {.devices = devices, .microbatches = microbatches};
  }
  constexpr void order(pp::shape const& extents, int device, pp::row_writer& out) const {
    int const ahead = std::min(extents.devices - 1 - device, extents.microbatches);
    for (int m = 0; m < ahead; ++m)
      out.forward(device, m);
    for (int m = 0; m < extents.microbatches; ++m) {
      if (m + ahead < extents.microbatches)
        out.forward(device, m + ahead);
      out.backward_input(device, m);
    }
    for (int m = 0; m < extents.microbatches; ++m)
      out.backward_weight(device, m);
  }
};
// [snippet schedule]

// [snippet proof]
constexpr auto table = pp::timetable<LateWeights, 4, 8>;
static_assert(pp::verify(table)); // every pass once, on its device, in an order that can run
static_assert(pp::peak_activations(table) == pp::ratio{8, 1}); // all of M
static_assert(pp::peak_activations(pp::timetable<pp::OneFOneB, 4, 8>) == pp::ratio{4, 1}); // P
static_assert(pp::span_of(table) < pp::span_of(pp::timetable<pp::OneFOneB, 4, 8>));
// [snippet proof]

// [snippet stage]
// One stage of a model that multiplies its input by a weight at every stage.
struct layer {
  double weight = 1.1;
  double gradient = 0;

  void forward(pp::context const& at, pp::input x, pp::output y) {
    double const in = x.data == nullptr ? at.microbatch + 1 : x.as<double>()[0]; // the data
    at.activation.as<double>()[0] = in;
    if (y.data != nullptr)
      y.as<double>()[0] = weight * in;
    else
      at.activation.as<double>()[1] = weight * in - 2 * (at.microbatch + 1); // half a squared error
  }
  void backward_input(pp::context const& at, pp::input dy, pp::output dx) {
    double const slope = dy.data == nullptr ? at.activation.as<double>()[1] : dy.as<double>()[0];
    at.weight_input.as<double>()[0] = slope; // kept for backward_weight
    if (dx.data != nullptr)
      dx.as<double>()[0] = weight * slope;
  }
  void backward_weight(pp::context const& at) {
    gradient += at.weight_input.as<double>()[0] * at.activation.as<double>()[0];
  }
};
static_assert(pp::check_fits<LateWeights, layer, 4, 8>); // it has all that the schedule calls
// [snippet stage]

// The same gradients without a pipeline: one microbatch after the other, forward and back.
std::vector<double> plain_gradients(std::vector<layer> const& model, int microbatches) {
  std::vector<double> result(model.size());
  for (int m = 0; m < microbatches; ++m) {
    std::vector<double> inputs{m + 1.0};
    for (layer const& one : model)
      inputs.push_back(one.weight * inputs.back());
    double slope = inputs.back() - 2 * (m + 1);
    for (std::size_t stage = model.size(); stage-- > 0;) {
      result[stage] += slope * inputs[stage];
      slope *= model[stage].weight;
    }
  }
  return result;
}

int main() {
  // [snippet run]
  std::vector<layer> model(4);
  pp::plan const plan =
    pp::lower(table, pp::uniform_sizes{.message = 8, .activation = 16, .weight_input = 8}); // bytes
  pp::thread_runner runner(plan, model);
  runner.step();
  // [snippet run]
  std::vector<double> const expected = plain_gradients(model, 8);
  bool right = true;
  for (std::size_t stage = 0; stage < model.size(); ++stage) {
    std::fprintf(stderr, "stage %zu: gradient %.6f\n", stage, model[stage].gradient);
    right = right && model[stage].gradient == expected[stage];
  }

  // [snippet draw]
  std::string picture;
  pp::write_svg(picture, table, {.schedule = "late weights"});
  pp::dynamic_timetable const measured = runner.trace(); // the same passes with the times they took
  std::fprintf(stderr,
               "planned bubble %.1f %%, of the span\n"
               "measured: the step took %.1f microseconds\n",
               100 * pp::bubble_rate(table),
               1e6 * pp::makespan(measured));
  // [snippet draw]
  std::fputs(picture.c_str(), stdout);
  return right && pp::verify(measured) ? 0 : 1;
}
