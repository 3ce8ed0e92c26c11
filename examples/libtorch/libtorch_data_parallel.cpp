// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief Data parallelism by c10d's gloo: two processes train a pipeline each, on halves of a
//! batch. A stage begins the sum of its gradients in gradients_ready, while others still run. Held
//! against a plain loop over both halves, bit for bit.

#include <pipe/pipe.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <sys/wait.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/torch.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "model.hpp"
#include "stage.hpp"

using namespace example;

namespace {

constexpr int replicas = 2, devices = 2, microbatches = 4, steps = 5;
constexpr std::uint64_t seed = 7;
using gloo = c10d::ProcessGroupGloo;

// [snippet ready]
// A stage with replicas in other processes. Each stage has a process group: the devices' threads
// begin their sums in any order.
struct replicated_stage : torch_stage {
  c10::intrusive_ptr<gloo> group;
  torch::Tensor bucket{}; // the gradients of all parameters
  c10::intrusive_ptr<c10d::Work> sum{};

  replicated_stage(torch::nn::Sequential const& layers, model_size const& size, auto const& all)
      : torch_stage(layers, size), group(all) {
    std::int64_t count = 0;
    for (auto const& each : parameters())
      count += each.numel();
    bucket = torch::zeros({count}, torch::kDouble);
    for (auto const& each : parameters()) {
      count -= each.numel();
      each.mutable_grad() = bucket.narrow(0, count, each.numel()).view_as(each);
    }
  }
  void gradients_ready(pp::context const&) {
    std::vector<torch::Tensor> buckets{bucket};
    sum = group->allreduce(buckets); // on a thread of gloo
  }
  void optimizer_step(pp::context const& at, pp::totals const& all) {
    sum->wait();
    bucket /= replicas;
    torch_stage::optimizer_step(at, all);
  }
};
// [snippet ready]

//! Of a stage: the processes find each other by a file.
auto group_of(int stage, int replica, c10::intrusive_ptr<c10d::Store> const& store) {
  auto options = gloo::Options::create();
  options->devices.push_back(gloo::createDeviceForHostname("127.0.0.1"));
  auto own = c10::make_intrusive<c10d::PrefixStore>("stage " + std::to_string(stage), store);
  return c10::make_intrusive<gloo>(std::move(own), replica, replicas, std::move(options));
}

//! The plain loop: the gradients of each half, and their mean.
std::vector<torch::Tensor> train_alone(model_size const& size) {
  auto model = make_model(size, seed);
  auto const parameters = model->parameters();
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.1));
  for (unsigned step = 0; step < steps; ++step) {
    batch const data = make_batch(size, replicas * microbatches, step);
    std::vector<torch::Tensor> sums[replicas];
    for (std::size_t m = 0; m < data.inputs.size(); ++m) {
      auto const loss = loss_of(model->forward(data.inputs[m]), data.targets[m]) /
                        static_cast<double>(size.batch * size.tokens * microbatches);
      auto& sum = sums[m / microbatches];
      auto const gradients = torch::autograd::grad({loss}, parameters);
      for (std::size_t i = 0; i < parameters.size(); ++i)
        m % microbatches == 0 ? sum.push_back(gradients[i]) : void(sum[i] += gradients[i]);
    }
    for (std::size_t i = 0; i < parameters.size(); ++i)
      parameters[i].mutable_grad() = (sums[0][i] + sums[1][i]) / replicas;
    optimizer.step();
  }
  return parameters;
}

bool train(int replica, std::string const& file) {
  at::set_num_threads(1);
  model_size const size;
  auto const table = pp::make_timetable<pp::Interleaved<2>>({devices, microbatches});
  pp::uniform_sizes const sizes{.message = size.batch * size.tokens * size.width * 8,
                                .totals_bytes = sizeof(double)};
  auto const store = c10::make_intrusive<c10d::FileStore>(file, replicas);
  auto const model = make_model(size, seed);
  std::vector<std::unique_ptr<replicated_stage>> stages;
  auto next = model->begin();
  int const count = table.over.extents.stages();
  for (int s = 0; s < count; ++s) {
    torch::nn::Sequential part;
    for (std::ptrdiff_t left = (model->end() - next) / (count - s); left > 0; --left, ++next)
      part->push_back(*next);
    stages.push_back(std::make_unique<replicated_stage>(part, size, group_of(s, replica, store)));
  }
  pp::thread_runner runner(
    pp::lower(table, sizes), stages, {.on_start = [](int, int) { at::set_num_threads(1); }});
  std::vector<double> losses;
  for (unsigned step = 0; step < steps; ++step) {
    batch data = make_batch(size, replicas * microbatches, step);
    for (auto* const all : {&data.inputs, &data.targets})
      all->erase(all->begin(), all->begin() + replica * microbatches);
    for (auto const& each : stages)
      each->set_batch(data);
    runner.step();
    losses.push_back(runner.totals().row<double>(count - 1)[0]);
  }
  auto const expected = train_alone(size);
  bool equal = true;
  std::size_t at = 0;
  for (auto const& stage : stages)
    for (torch::Tensor const& each : stage->parameters())
      equal = torch::equal(each, expected[at++]) && equal;
  auto const* const bits = equal ? "the bits of a plain loop" : "OTHER BITS than a plain loop";
  std::printf("pipeline %d: loss %.4f to %.4f, %s\n", replica, losses[0], losses.back(), bits);
  return equal && at == expected.size() && losses.back() < losses[0];
}

} // namespace

int main() {
  std::string const file = std::filesystem::temp_directory_path().string() +
                           "/libtorch_data_parallel-" + std::to_string(::getpid());
  pid_t const child = ::fork(); // before PyTorch starts threads
  bool const good = train(child == 0 ? 1 : 0, file);
  if (child == 0)
    return good ? 0 : 1;
  int status = 1;
  ::waitpid(child, &status, 0);
  std::filesystem::remove(file);
  return good && status == 0 ? 0 : 1;
}
