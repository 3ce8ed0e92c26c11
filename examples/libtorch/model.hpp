// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A small language model as a torch::nn::Sequential. Nothing here knows of pipelines.

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

namespace example {

struct model_size {
  std::int64_t words = 17;
  std::int64_t width = 24;
  std::int64_t blocks = 6;
  std::int64_t batch = 2;   //!< sequences of a microbatch
  std::int64_t tokens = 16; //!< of a sequence
};

//! Attention of one head: every token looks at itself and at those before it. A sequence may come in
//! pieces, first piece first; `past` has the keys and values of the pieces before.
struct attention_impl : torch::nn::Module {
  torch::nn::Linear query;
  torch::nn::Linear key;
  torch::nn::Linear value;
  torch::Tensor past_keys{}; // [batch, tokens before, width]
  torch::Tensor past_values{};
  torch::Tensor keys{}; // of the last piece, [batch, its tokens, width]
  torch::Tensor values{};

  explicit attention_impl(std::int64_t width)
      : query(register_module("query", torch::nn::Linear(width, width))),
        key(register_module("key", torch::nn::Linear(width, width))),
        value(register_module("value", torch::nn::Linear(width, width))) {}

  torch::Tensor forward(torch::Tensor const& x) {
    keys = key(x);
    values = value(x);
    bool const begins = !past_keys.defined();
    auto const all_keys = begins ? keys : torch::cat({past_keys, keys}, 1);
    auto const all_values = begins ? values : torch::cat({past_values, values}, 1);
    auto const own = x.size(1);
    auto const before = all_keys.size(1) - own;
    auto const scores = torch::matmul(query(x), all_keys.transpose(1, 2)) /
                        std::sqrt(static_cast<double>(x.size(2)));
    auto const later =
      torch::ones({own, before + own}, torch::kBool).triu(before + 1);
    return torch::matmul(torch::softmax(scores.masked_fill(later, -1e30), -1), all_values);
  }
};

//! Attention and two layers of neurons, each added to what comes in.
struct block_impl : torch::nn::Module {
  torch::nn::LayerNorm first_norm;
  std::shared_ptr<attention_impl> attention;
  torch::nn::LayerNorm second_norm;
  torch::nn::Linear widen;
  torch::nn::Linear narrow;

  explicit block_impl(std::int64_t width)
      : first_norm(register_module(
          "first_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        attention(register_module("attention", std::make_shared<attention_impl>(width))),
        second_norm(register_module(
          "second_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        widen(register_module("widen", torch::nn::Linear(width, 4 * width))),
        narrow(register_module("narrow", torch::nn::Linear(4 * width, width))) {}

  torch::Tensor forward(torch::Tensor const& x) {
    auto const y = x + attention->forward(first_norm(x));
    return y + narrow(torch::gelu(widen(second_norm(y))));
  }
};

//! The same numbers for the same seed.
inline torch::nn::Sequential make_model(model_size const& size, std::uint64_t seed) {
  torch::manual_seed(seed);
  torch::nn::Sequential layers;
  layers->push_back(torch::nn::Embedding(size.words, size.width));
  for (std::int64_t i = 0; i < size.blocks; ++i)
    layers->push_back(std::make_shared<block_impl>(size.width));
  layers->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({size.width})));
  layers->push_back(torch::nn::Linear(size.width, size.words));
  layers->to(torch::kDouble);
  return layers;
}

//! The sum over all tokens of what a model pays for its guesses.
inline torch::Tensor loss_of(torch::Tensor const& guesses, torch::Tensor const& targets) {
  return torch::nn::functional::cross_entropy(
    guesses.flatten(0, 1),
    targets.flatten(),
    torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
}

//! Every token is to guess the one after it, of sequences that follow a rule.
struct batch {
  std::vector<torch::Tensor> inputs{}; // [microbatches], each [batch, tokens]
  std::vector<torch::Tensor> targets{};
};

inline batch make_batch(model_size const& size, int microbatches, std::uint64_t seed) {
  torch::manual_seed(seed);
  batch result;
  for (int m = 0; m < microbatches; ++m) {
    auto const starts = torch::randint(size.words, {size.batch, 1}, torch::kLong);
    auto const steps = torch::randint(1, 4, {size.batch, 1}, torch::kLong);
    auto const all = (starts + steps * torch::arange(size.tokens + 1)).remainder(size.words);
    result.inputs.push_back(all.narrow(1, 0, size.tokens).contiguous());
    result.targets.push_back(all.narrow(1, 1, size.tokens).contiguous());
  }
  return result;
}

} // namespace example
