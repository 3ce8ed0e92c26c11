// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Some layers of a torch::nn::Sequential as a stage of a pipeline: autograd inside,
//! messages outside.

#include <pipe/run/context.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <torch/torch.h>
#include <utility>
#include <vector>

#include "model.hpp"

namespace example {

namespace pp = pipelining;

//! @brief A stage whose passes are autograd's. What it keeps between passes lies in arrays that the
//! plan's slot numbers index, so there is no more of it than the schedule allows.
class torch_stage {
public:
  static constexpr bool takes_chunks = true;

  torch_stage(torch::nn::Sequential layers, model_size const& size)
      : layers_(std::move(layers)), size_(size), parameters_(layers_->parameters()),
        optimizer_(parameters_, torch::optim::SGDOptions(0.1)) {
    for (auto const& module : layers_->modules())
      if (auto found = std::dynamic_pointer_cast<attention_impl>(module))
        attentions_.push_back(found);
    for (auto& parameter : parameters_)
      parameter.mutable_grad() = torch::zeros_like(parameter);
  }

  void set_batch(batch const& data) { data_ = &data; }
  [[nodiscard]] std::vector<torch::Tensor> const& parameters() const { return parameters_; }

  // --- what the library calls ---

  // [snippet forward]
  void forward(pp::context const& where, pp::input in, pp::output out) {
    torch::AutoGradMode const records(!where.evaluating);
    pass& kept = at(passes_, where.activation.slot);
    kept = {};
    kept.x = where.first_stage() ? tokens_of(data_->inputs, where)
                                 : received(in, where).requires_grad_(!where.evaluating);
    begin_attention(where, kept);
    kept.y = layers_->forward(kept.x);
    end_attention(where, kept);
    if (where.last_stage()) {
      kept.y = loss_of(kept.y, tokens_of(data_->targets, where)) * where.microbatch_share() /
               static_cast<double>(size_.batch * size_.tokens);
      loss_ += kept.y.item<double>();
    } else {
      send(kept.y, out);
    }
    if (where.evaluating)
      kept = {};
  }
  // [snippet forward]

  // [snippet split]
  // The gradients of what came in: those of the weights are left for backward_weight, which goes
  // through the same graph again.
  void backward_input(pp::context const& where, pp::input dy, pp::output dx) {
    pass& kept = at(passes_, where.activation.slot);
    collect_gradients(where, kept, dy);
    std::vector<torch::Tensor> const sources = sources_of(where, kept);
    if (!sources.empty())
      hand_on(where, kept, derivatives(kept, sources, true), dx);
  }
  void backward_weight(pp::context const& where) {
    pass& kept = at(passes_, where.activation.slot);
    add_to_parameters(derivatives(kept, parameters_, false), 0);
    kept = {};
  }
  // [snippet split]

  // [snippet fused]
  void backward(pp::context const& where, pp::input dy, pp::output dx) {
    pass& kept = at(passes_, where.activation.slot);
    collect_gradients(where, kept, dy);
    std::vector<torch::Tensor> all = sources_of(where, kept);
    std::size_t const sources = all.size();
    all.insert(all.end(), parameters_.begin(), parameters_.end());
    std::vector<torch::Tensor> const gradients = derivatives(kept, all, false);
    hand_on(where, kept, gradients, dx);
    add_to_parameters(gradients, sources);
    kept = {};
  }
  // [snippet fused]

  // [snippet hooks]
  void contribute(pp::context const&, pp::output row) {
    row.as<double>()[0] = loss_;
    loss_ = 0;
  }
  void optimizer_step(pp::context const&, pp::totals const&) {
    optimizer_.step();
    for (auto& parameter : parameters_)
      parameter.mutable_grad().zero_();
  }
  // [snippet hooks]

private:
  using tensors = std::vector<torch::Tensor>;

  //! What a pass leaves for its backward: the graph between x and y.
  struct pass {
    torch::Tensor x{};
    torch::Tensor y{};
    tensors past{};    // keys and values of the chunks before, as far as they need gradients
    tensors own{};     // keys and values of this chunk
    tensors outputs{}; // y and own ...
    tensors output_gradients{}; // ... and what came back for them
  };
  //! Of one sequence in chunks: keys and values, chunk after chunk, and their gradients.
  struct sequence {
    std::vector<tensors> own{};       // [chunks][2 attentions]
    std::vector<tensors> gradients{}; // the same, from later chunks
  };

  template <class Kept>
  static Kept& at(std::vector<Kept>& all, int slot) {
    auto const index = static_cast<std::size_t>(slot);
    if (all.size() <= index)
      all.resize(index + 1);
    return all[index];
  }

  [[nodiscard]] std::int64_t tokens_of_chunk(pp::context const& where) const {
    return size_.tokens / where.chunks;
  }
  [[nodiscard]] torch::Tensor tokens_of(std::vector<torch::Tensor> const& data,
                                        pp::context const& where) const {
    auto const count = tokens_of_chunk(where);
    return data[static_cast<std::size_t>(where.microbatch)].narrow(1, where.chunk * count, count);
  }

  // [snippet messages]
  // A message is the elements of a tensor, one after the other.
  [[nodiscard]] torch::Tensor received(pp::input in, pp::context const& where) const {
    auto result = torch::empty({size_.batch, tokens_of_chunk(where), size_.width}, torch::kDouble);
    std::memcpy(result.data_ptr(), in.data, static_cast<std::size_t>(in.bytes));
    return result;
  }
  static void send(torch::Tensor const& what, pp::output out) {
    torch::Tensor const flat = what.detach().contiguous();
    std::memcpy(out.data, flat.data_ptr(), static_cast<std::size_t>(out.bytes));
  }
  // [snippet messages]

  //! Earlier chunks' keys and values come in as data of this pass: autograd ends at them.
  void begin_attention(pp::context const& where, pass& kept) {
    for (auto const& attention : attentions_)
      attention->past_keys = attention->past_values = torch::Tensor();
    if (where.first_chunk() || attentions_.empty())
      return;
    sequence const& before = at(sequences_, where.state.slot);
    for (std::size_t i = 0; i < 2 * attentions_.size(); ++i) {
      tensors pieces;
      for (int c = 0; c < where.chunk; ++c)
        pieces.push_back(before.own[static_cast<std::size_t>(c)][i]);
      kept.past.push_back(torch::cat(pieces, 1).requires_grad_(!where.evaluating));
      auto& attention = *attentions_[i / 2];
      (i % 2 == 0 ? attention.past_keys : attention.past_values) = kept.past.back();
    }
  }
  void end_attention(pp::context const& where, pass& kept) {
    if (where.chunks == 1 || attentions_.empty())
      return;
    sequence& of = at(sequences_, where.state.slot);
    if (where.first_chunk())
      of = {};
    of.own.emplace_back();
    of.gradients.emplace_back();
    for (auto const& attention : attentions_)
      for (torch::Tensor const& each : {attention->keys, attention->values}) {
        kept.own.push_back(each);
        of.own.back().push_back(each.detach());
        of.gradients.back().push_back(torch::zeros_like(each));
      }
  }

  //! What the pass has made, and the gradients that have come for it.
  void collect_gradients(pp::context const& where, pass& kept, pp::input dy) {
    kept.outputs = {kept.y};
    kept.output_gradients = {where.last_stage() ? torch::ones_like(kept.y) : received(dy, where)};
    for (std::size_t i = 0; i < kept.own.size() && !where.last_chunk(); ++i) {
      kept.outputs.push_back(kept.own[i]);
      kept.output_gradients.push_back(
        at(sequences_, where.state.slot).gradients[static_cast<std::size_t>(where.chunk)][i]);
    }
  }
  //! What has come in and wants a gradient.
  static tensors sources_of(pp::context const& where, pass const& kept) {
    tensors all;
    if (!where.first_stage())
      all.push_back(kept.x);
    all.insert(all.end(), kept.past.begin(), kept.past.end());
    return all;
  }
  static tensors derivatives(pass const& kept, tensors const& with_respect_to, bool again) {
    return torch::autograd::grad(
      kept.outputs, with_respect_to, kept.output_gradients, again, false, true);
  }
  //! Sends the gradient of x, adds those of keys and values to the chunks that they come from.
  void
  hand_on(pp::context const& where, pass const& kept, tensors const& gradients, pp::output dx) {
    std::size_t next = 0;
    if (!where.first_stage())
      send(gradients[next++], dx);
    auto const count = tokens_of_chunk(where);
    for (std::size_t i = 0; i < kept.past.size(); ++i, ++next)
      for (int c = 0; c < where.chunk; ++c)
        at(sequences_, where.state.slot).gradients[static_cast<std::size_t>(c)][i] +=
          gradients[next].narrow(1, c * count, count);
  }
  void add_to_parameters(tensors const& gradients, std::size_t first) {
    torch::NoGradGuard const plain;
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (gradients[first + i].defined())
        parameters_[i].mutable_grad() += gradients[first + i];
  }

  torch::nn::Sequential layers_;
  model_size size_;
  std::vector<torch::Tensor> parameters_;
  torch::optim::SGD optimizer_;
  std::vector<std::shared_ptr<attention_impl>> attentions_{};
  batch const* data_ = nullptr;
  std::vector<pass> passes_{};
  std::vector<sequence> sequences_{};
  double loss_ = 0;
};

} // namespace example
