// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Masked blocks as a stage: views into slots, dropout that draws the same when it runs
//! again, a scale of the loss in the totals.

#include <pipe/run/context.hpp>
#include <pipe/run/message_tensors.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <torch/torch.h>
#include <utility>
#include <vector>

#include "masked_block.hpp"

namespace example {

namespace pp = pipelining;

constexpr int microbatches = 4;

//! What goes forward, and what comes back.
inline pp::message_layout const forth(std::vector<pp::message_layout::tensor>{
  {"hidden", "F32", {rows, width}}, {"mask", "U8", {rows, 1}}});
inline pp::message_layout const back(std::vector<pp::message_layout::tensor>{
  {"hidden", "F32", {rows, width}}});

//! A tensor in the memory of the plan, without a copy.
inline torch::Tensor hidden_in(pp::message_layout const& in, auto const& memory) {
  auto* const first = in.of<float>(memory, "hidden").data();
  return torch::from_blob(const_cast<float*>(first), {rows, width}, torch::kFloat);
}
inline torch::Tensor mask_in(auto const& memory) {
  auto* const first = forth.of<std::uint8_t>(memory, "mask").data();
  return torch::from_blob(const_cast<std::uint8_t*>(first), {rows, 1}, torch::kByte);
}

struct row { // of the totals
  float loss;
  float overflows;
};

struct masked_stage {
  std::vector<masked_block> blocks{};
  int first = 0; // of the whole model
  int step = 0;
  float scale = first_scale;
  int skipped = 0;
  bool recomputes = false;
  std::map<int, std::pair<torch::Tensor, torch::Tensor>> kept{}; // by slot of the activation
  float loss = 0;

  void forward(pp::context const& at, pp::input in, pp::output out) {
    bool const again = recomputes && !at.recomputing; // it will run again
    torch::AutoGradMode const records(!again);
    torch::Tensor x = hidden_in(forth, at.activation), mask = mask_in(at.activation);
    {
      torch::NoGradGuard const plain; // the message's slot has other contents soon
      x.copy_(at.first_stage() ? data_of(step, at.microbatch) : hidden_in(forth, in));
      mask.copy_(at.first_stage() ? mask_of(at.microbatch) : mask_in(in));
    }
    torch::Tensor y = x.requires_grad_();
    for (std::size_t i = 0; i < blocks.size(); ++i)
      y = blocks[i]->forward(y, mask, {step, at.microbatch, first + static_cast<int>(i)});
    if (at.last_stage()) {
      y = loss_of(y) / microbatches;
      loss += at.recomputing ? 0 : y.item<float>();
      y = y * scale; // the loss stage alone scales
    } else if (!at.recomputing) {
      hidden_in(forth, out).copy_(y.detach());
      mask_in(out).copy_(mask);
    }
    if (!again)
      kept[at.activation.slot] = {x, y};
  }
  void backward(pp::context const& at, pp::input in, pp::output out) {
    auto const [x, y] = std::exchange(kept[at.activation.slot], {});
    auto wanted = parameters();
    wanted.insert(wanted.begin(), x);
    auto const dy = at.last_stage() ? torch::ones_like(y) : hidden_in(back, in);
    auto const gradients = torch::autograd::grad({y}, wanted, {dy});
    torch::NoGradGuard const plain;
    for (std::size_t i = 1; i < wanted.size(); ++i)
      wanted[i].mutable_grad() += gradients[i];
    if (!at.first_stage())
      hidden_in(back, out).copy_(gradients[0]);
  }
  void contribute(pp::context const&, pp::output out) {
    bool finite = true;
    for (auto const& each : parameters())
      finite = finite && torch::isfinite(each.grad()).all().item<bool>();
    out.as<row>()[0] = {std::exchange(loss, 0.0F), finite ? 0.0F : 1.0F};
  }
  void optimizer_step(pp::context const&, pp::totals const& all) {
    float overflows = 0;
    for (int s = 0; s < all.rows; ++s)
      overflows += all.row<row>(s)[0].overflows;
    scaled_step(parameters(), overflows == 0, scale, skipped);
  }
  std::vector<torch::Tensor> parameters() const { return parameters_of(blocks); }
};

} // namespace example
