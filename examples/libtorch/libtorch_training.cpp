// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief A torch::nn::Sequential, cut into stages and trained under four schedules, compared with
//! the same model on one device.

#include <pipe/plan/lower.hpp>
#include <pipe/plan/other_plans.hpp>
#include <pipe/plan/sizes.hpp>
#include <pipe/planner/cut/layer_partition.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <torch/torch.h>
#include <vector>

#include "model.hpp"
#include "stage.hpp"

namespace {

using namespace example;

constexpr int devices = 2;
constexpr int microbatches = 4;
constexpr int steps = 5;
constexpr std::uint64_t seed = 7;
constexpr double tolerance = 1e-12; // sums in another order, in double

//! The model as PyTorch trains it: whole sequences, one backward over everything.
struct one_device {
  torch::nn::Sequential model;
  torch::optim::SGD optimizer;

  explicit one_device(model_size const& size)
      : model(make_model(size, seed)),
        optimizer(model->parameters(), torch::optim::SGDOptions(0.1)) {}

  double loss(model_size const& size, batch const& data) {
    double sum = 0;
    for (std::size_t m = 0; m < data.inputs.size(); ++m) {
      auto const loss = loss_of(model->forward(data.inputs[m]), data.targets[m]) /
                        static_cast<double>(size.batch * size.tokens * microbatches);
      sum += loss.item<double>();
      if (torch::GradMode::is_enabled())
        loss.backward();
    }
    return sum;
  }
};

// [snippet cut]
//! The layers of each stage: blocks cost the same, what is around them less.
std::vector<std::unique_ptr<torch_stage>> cut(model_size const& size, int stages) {
  torch::nn::Sequential const model = make_model(size, seed);
  std::vector<pp::layer_cost> costs(model->size(), {1, 1, 1});
  costs.front() = {0.1, 0, 0.1};
  costs[costs.size() - 2] = {0.1, 0.1, 0.1};
  costs.back() = {0.3, 0.3, 0.3};
  std::vector<std::unique_ptr<torch_stage>> result;
  auto next = model->begin();
  for (int const count : pp::balanced_layers(costs, stages)) {
    torch::nn::Sequential part;
    for (int i = 0; i < count; ++i, ++next)
      part->push_back(*next);
    result.push_back(std::make_unique<torch_stage>(part, size));
  }
  return result;
}
// [snippet cut]

double largest_difference(std::vector<torch::Tensor> const& expected,
                          std::vector<std::unique_ptr<torch_stage>> const& stages) {
  double most = 0;
  std::size_t next = 0;
  for (auto const& stage : stages)
    for (torch::Tensor const& parameter : stage->parameters())
      most = std::max(most, (parameter - expected[next++]).abs().max().item<double>());
  return next == expected.size() ? most : INFINITY;
}

double loss_in(pp::totals const& rows) {
  double sum = 0;
  for (int s = 0; s < rows.rows; ++s)
    sum += rows.row<double>(s)[0];
  return sum;
}

template <class Schedule>
bool train(char const* name) {
  model_size const size;
  one_device reference(size);
  // [snippet runner]
  auto const table = pp::make_timetable<Schedule>({devices, microbatches});
  std::int64_t const message =
    size.batch * size.tokens / table.over.extents.chunks * size.width * 8;
  pp::uniform_sizes const sizes{.message = message, .totals_bytes = sizeof(double)};
  auto stages = cut(size, table.over.extents.stages());
  // Every device has one thread of its own, and PyTorch's operators shall not start more.
  pp::thread_runner runner(
    pp::lower(table, sizes), stages, {.on_start = [](int, int) { at::set_num_threads(1); }});
  pp::plan_number const evaluation = runner.add(pp::lower_evaluation(table, sizes));
  // [snippet runner]
  double worst = 0;
  double loss = 0;
  for (int step = 0; step < steps; ++step) {
    batch const data = make_batch(size, microbatches, 100U + static_cast<unsigned>(step));
    for (auto const& stage : stages)
      stage->set_batch(data);
    runner.step();
    loss = loss_in(runner.totals());
    worst = std::max(worst, std::abs(loss - reference.loss(size, data)));
    // Weights after a step of plain descent differ as the gradients do.
    reference.optimizer.step();
    reference.optimizer.zero_grad();
    worst = std::max(worst, largest_difference(reference.model->parameters(), stages));
  }
  batch const unseen = make_batch(size, microbatches, 1);
  for (auto const& stage : stages)
    stage->set_batch(unseen);
  runner.step(evaluation);
  double const validation = loss_in(runner.totals());
  torch::NoGradGuard const plain;
  worst = std::max(worst, std::abs(validation - reference.loss(size, unseen)));
  bool const equal = worst < tolerance;
  std::printf("%-8s loss %.6f after %d steps, %.6f on data that it has not seen; differs from one "
              "device by %.1e%s\n",
              name,
              loss,
              steps,
              validation,
              worst,
              equal ? "" : ": TOO MUCH");
  return equal;
}

} // namespace

int main() {
  try {
    at::set_num_threads(1);
    bool good = train<pp::OneFOneB>("1F1B");
    good = train<pp::VHalf>("V-Half") && good;
    good = train<pp::ZeroBubbleH1>("ZB-H1") && good;
    good = train<pp::Seq1F1B<4>>("Seq1F1B") && good;
    return good ? 0 : 1;
  } catch (std::exception const& failure) {
    std::fprintf(stderr, "libtorch_training: %s\n", failure.what());
    return 1;
  }
}
