// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A small model with dropout and a mask, its data, and how a program trains it that knows
//! of no pipelines: with autocast and a scale of the loss.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <torch/torch.h>
#include <torch/version.h>
#include <vector>

namespace example {

constexpr std::int64_t rows = 8, width = 16;
constexpr int block_count = 4;
constexpr float first_scale = 1.7e38F; // overflows at first

//! Which pass draws: it draws the same when it runs again, on whichever thread.
struct drawing {
  int step;
  int microbatch;
  int block;
};

//! Hidden states and a mask come in, and hidden states go out.
struct masked_block_impl : torch::nn::Module {
  torch::nn::Linear linear;

  masked_block_impl() : linear(register_module("linear", torch::nn::Linear(width, width))) {}

  torch::Tensor forward(torch::Tensor const& x, torch::Tensor const& mask, drawing const& of) {
    auto const seed = static_cast<std::uint64_t>((of.step * 100 + of.microbatch) * 100 + of.block);
    auto const own = at::make_generator<at::CPUGeneratorImpl>(seed);
    auto const keeps = at::bernoulli(torch::full({rows, width}, 0.9F), own);
    return x + torch::tanh(linear->forward(x)) * keeps * mask;
  }
};
using masked_block = torch::nn::ModuleHolder<masked_block_impl>;

inline std::vector<masked_block> make_blocks() {
  torch::manual_seed(5);
  std::vector<masked_block> blocks;
  for (int i = 0; i < block_count; ++i)
    blocks.emplace_back();
  for (auto const& block : blocks)
    for (auto& each : block->parameters())
      each.mutable_grad() = torch::zeros_like(each);
  return blocks;
}
inline std::vector<torch::Tensor> parameters_of(std::vector<masked_block> const& blocks) {
  std::vector<torch::Tensor> all;
  for (auto const& block : blocks)
    for (auto const& each : block->parameters())
      all.push_back(each);
  return all;
}

inline torch::Tensor data_of(int step, int microbatch) {
  auto const count = torch::arange(rows * width, torch::kFloat).reshape({rows, width});
  return torch::sin(count + static_cast<float>(7 * step + microbatch));
}
inline torch::Tensor mask_of(int microbatch) {
  return (torch::arange(rows).reshape({rows, 1}) % (2 + microbatch) != 0).to(torch::kByte);
}
inline torch::Tensor loss_of(torch::Tensor const& y) {
  return (y - 0.5F).to(torch::kFloat).square().sum();
}

//! Products in bfloat16 from now on, on the calling thread.
inline void use_autocast() {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
  at::autocast::set_autocast_enabled(at::kCPU, true);
#else
  at::autocast::set_cpu_enabled(true);
#endif
  at::autocast::set_autocast_cache_enabled(false); // it would keep copies of weights between steps
}

//! As GradScaler does: a step that is not finite is left out, and the scale is smaller then.
inline void
scaled_step(std::vector<torch::Tensor> const& parameters, bool finite, float& scale, int& skipped) {
  torch::NoGradGuard const plain;
  for (torch::Tensor each : parameters) {
    if (finite)
      each -= each.grad() * (0.001F / scale);
    each.mutable_grad().zero_();
  }
  skipped += finite ? 0 : 1;
  scale = finite ? scale : scale / 65536;
}

struct outcome {
  std::vector<float> losses{};
  std::vector<torch::Tensor> weights{};
  int skipped = 0;
};

//! The plain loop.
inline outcome train_alone(int microbatches, int steps) {
  auto blocks = make_blocks();
  auto const parameters = parameters_of(blocks);
  use_autocast();
  outcome found;
  float scale = first_scale;
  for (int step = 0; step < steps; ++step) {
    float loss = 0;
    for (int m = 0; m < microbatches; ++m) {
      torch::Tensor y = data_of(step, m);
      for (int i = 0; i < block_count; ++i)
        y = blocks[static_cast<std::size_t>(i)]->forward(y, mask_of(m), {step, m, i});
      auto const mean = loss_of(y) / microbatches;
      loss += mean.item<float>();
      (mean * scale).backward();
    }
    bool finite = true;
    for (auto const& each : parameters)
      finite = finite && torch::isfinite(each.grad()).all().item<bool>();
    scaled_step(parameters, finite, scale, found.skipped);
    found.losses.push_back(loss);
  }
  for (auto const& each : parameters)
    found.weights.push_back(each.detach().clone());
  return found;
}

} // namespace example
