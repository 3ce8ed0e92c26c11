// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What you learn: how a trainer that is there already takes the library in: stages by pointer, one
// runner for training, evaluation and the short last batch, threads on cores of their own, totals
// that the caller reads. How to run: build/release/bin/07_existing_trainer
#include <pipe/pipe.hpp>
#include <pipe/planner.hpp>
#include <pipe/run/affinity.hpp>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <vector>

namespace pp = pipelining;

namespace {

// What the trainer has: a layer, written by somebody who knew of no pipelines.
struct layer {
  double weight = 0.9;
  double gradient = 0;
};
double layer_forward(layer const& of, double x) {
  return of.weight * x;
}
double layer_backward(layer& of, double x, double dy) {
  of.gradient += x * dy;
  return of.weight * dy;
}

// [snippet stage]
// What it takes: forward and backward of one microbatch, with the layers of this stage.
struct stage {
  std::vector<layer> layers;
  double const* data = nullptr; // [microbatches]; the model should triple them
  double loss = 0;

  void forward(pp::context const& at, pp::input x, pp::output y) {
    double value = at.first_stage() ? data[at.microbatch] : x.as<double>()[0];
    for (std::size_t i = 0; i < layers.size(); ++i) {
      at.activation.as<double>()[i] = value;
      value = layer_forward(layers[i], value);
    }
    if (!at.last_stage()) {
      y.as<double>()[0] = value;
      return;
    }
    double const error = value - 3 * data[at.microbatch];
    loss += error * error * at.microbatch_share(); // the mean over M
    at.activation.as<double>()[layers.size()] = 2 * error * at.microbatch_share();
  }

  void backward(pp::context const& at, pp::input dy, pp::output dx) {
    double gradient =
      at.last_stage() ? at.activation.as<double>()[layers.size()] : dy.as<double>()[0];
    for (std::size_t i = layers.size(); i-- > 0;)
      gradient = layer_backward(layers[i], at.activation.as<double>()[i], gradient);
    if (!at.first_stage())
      dx.as<double>()[0] = gradient;
  }

  // Every stage has a row; the last one knows the loss. An evaluation asks for it as well.
  void contribute(pp::context const&, pp::output row) {
    row.as<double>()[0] = loss;
    loss = 0;
  }
  void optimizer_step(pp::context const&, pp::totals const&) {
    for (layer& each : layers) {
      each.weight -= 0.01 * each.gradient;
      each.gradient = 0;
    }
  }
};
static_assert(pp::check_fits<pp::OneFOneB, stage>); // it has all that the schedule calls
// [snippet stage]

} // namespace

int main() {
  constexpr int devices = 2;
  std::vector<double> const training{0.5, 1, 1.5, 2, 0.25, 0.75, 1.25, 1.75, 0.1, 0.2, 0.3};
  std::vector<double> const validation{0.4, 0.8, 1.2};

  // Seven layers in two stages, so that the slower one is as fast as can be: by measured times.
  std::vector<pp::layer_cost> times(7, {.forward = 1, .backward_input = 1, .backward_weight = 1});
  times.back() = {.forward = 2, .backward_input = 2, .backward_weight = 2};
  std::vector<std::unique_ptr<stage>> stages;
  for (int const count : pp::balanced_layers(times, devices))
    stages.push_back(
      std::make_unique<stage>(stage{std::vector<layer>(static_cast<std::size_t>(count))}));

  // [snippet runner]
  pp::uniform_sizes const sizes{
    .message = sizeof(double), .activation = 8 * sizeof(double), .totals_bytes = sizeof(double)};
  auto const table = [](int microbatches) {
    return pp::make_timetable<pp::OneFOneB>({devices, microbatches});
  };
  // One set of threads and one memory for all plans. Each device stays on its share of the cores;
  // threads that its passes start stay there, too: OMP_NUM_THREADS, if set, is at most that share.
  pp::thread_runner runner(pp::lower(table(8), sizes), stages, {.on_start = pp::pin_in_turn()});
  pp::plan_number const last_batch = runner.add(pp::lower(table(3), sizes));
  pp::plan_number const evaluation = runner.add(pp::lower_evaluation(table(3), sizes));

  auto const loss_of = [&](pp::plan_number plan, double const* data) {
    for (auto const& each : stages)
      each->data = data;
    runner.step(plan);
    return runner.totals().row<double>(devices - 1)[0];
  };
  double loss = 0;
  for (int epoch = 0; epoch < 200; ++epoch) {
    (void)loss_of({}, training.data()); // eight microbatches
    (void)loss_of(last_batch, training.data() + 8);
    loss = loss_of(evaluation, validation.data());
  }
  // [snippet runner]
  double product = 1;
  for (auto const& each : stages)
    for (layer const& one : each->layers)
      product *= one.weight;
  std::printf("validation loss %.2g, the layers multiply by %.4f\n", loss, product);
  return loss < 1e-6 && std::abs(product - 3) < 1e-3 ? 0 : 1;
}
