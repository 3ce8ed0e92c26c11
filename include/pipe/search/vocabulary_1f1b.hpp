// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The published order of a pipeline whose vocabulary is in shards, around 1F1B.

#include <pipe/core/pass.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/schedule/schedule.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace pipelining::inline v0_2 {
namespace detail {

//! The published order around 1F1B, row by row.
class vocabulary_1f1b {
public:
  template <cost_model Cost>
  vocabulary_1f1b(shape const& extents, Cost const& cost, int barriers)
      : devices_(extents.devices), microbatches_(extents.microbatches), further_(barriers - 1),
        behind_forward_(static_cast<std::size_t>(devices_)),
        steps_ahead_(static_cast<std::size_t>(devices_)) {
    double forward = 0;
    double backward = 0;
    for (int stage = devices_; stage < 2 * devices_; ++stage) {
      forward += cost.duration(row_writer::make(pass_kind::forward, stage, 0)) / devices_;
      backward += cost.duration(row_writer::make(pass_kind::backward, stage, 0)) / devices_;
    }
    place_logits(forward, backward);
  }

  void write(int device, row_writer& row) {
    device_ = device;
    row_ = &row;
    embedded_ = forward_ = logits_ = gradients_ = backward_ = returned_ = 0;
    int const warm_up = std::min(devices_ - device, microbatches_);
    for (int i = 0; i < std::min(devices_, microbatches_) - warm_up + 1; ++i)
      embed();
    for (int i = 0; i < warm_up; ++i) {
      embed();
      forward();
    }
    logits();
    steps_ = 1;
    if (further_ == 1)
      embed();
    forward();
    if (further_ == 1) {
      step();
      forward();
    }
    for (int i = 0; i < steps_ahead_[static_cast<std::size_t>(device)]; ++i) {
      bool const due = embedding_is_due();
      step();
      if (due)
        embed();
    }
    bool const behind_forward = behind_forward_[static_cast<std::size_t>(device)] != 0;
    while (forward_ < microbatches_) {
      backward();
      if (!behind_forward)
        step_with_ends();
      forward();
      if (behind_forward)
        step_with_ends();
    }
    while (backward_ < microbatches_) {
      backward();
      bool const due = gradient_is_due();
      step();
      if (due)
        embed_gradient();
    }
    while (returned_ < microbatches_)
      embed_gradient();
    while (gradients_ < microbatches_)
      logits_gradient();
  }

private:
  //! Where `logits` stand on every device: behind the backward passes, or behind the forward
  //! passes; such that those of one microbatch are as near to each other as the passes between
  //! allow.
  void place_logits(double forward, double backward) {
    double offset = 0;
    bool next_behind_backward = true; // the device above one behind forward passes
    for (int device = devices_ - 2; device >= 0; --device) {
      auto const at = static_cast<std::size_t>(device);
      if (behind_forward_[at + 1] != 0) {
        offset += backward - forward;
        next_behind_backward = true;
      } else {
        next_behind_backward = offset - forward >= -backward;
        offset -= next_behind_backward ? forward : 0;
      }
      behind_forward_[at] = next_behind_backward ? 0 : 1;
      bool const same = behind_forward_[at + 1] != 0 && behind_forward_[at] == 0;
      steps_ahead_[at] = steps_ahead_[at + 1] + (same ? 0 : 1);
    }
  }
  [[nodiscard]] bool embedding_is_due() const { return steps_ >= steps_ahead_[0] + further_; }
  [[nodiscard]] bool gradient_is_due() const { return steps_ >= steps_ahead_[0] + 2 + further_; }

  void push(pass_kind kind, int stage, int& count) {
    if (count < microbatches_)
      row_->push(row_writer::make(kind, stage, count++));
  }
  void embed() { push(pass_kind::embed, device_, embedded_); }
  void embed_gradient() { push(pass_kind::embed_gradient, device_, returned_); }
  void forward() { push(pass_kind::forward, devices_ + device_, forward_); }
  void backward() { push(pass_kind::backward, devices_ + device_, backward_); }
  void logits() { push(pass_kind::logits, 2 * devices_ + device_, logits_); }
  void logits_gradient() { push(pass_kind::logits_gradient, 2 * devices_ + device_, gradients_); }
  //! The gradients of the last logits, then the next logits: one set of logits at a time. With one
  //! barrier nobody waits for the last gradients of all, which come at the end.
  void step() {
    if (gradients_ == microbatches_ || (further_ == 0 && logits_ == microbatches_))
      return;
    ++steps_;
    logits_gradient();
    logits();
  }
  void step_with_ends() {
    bool const embeds = embedding_is_due();
    bool const returns = gradient_is_due();
    step();
    if (embeds)
      embed();
    if (returns)
      embed_gradient();
  }

  int devices_;
  int microbatches_;
  int further_;                      // barriers behind the first
  std::vector<char> behind_forward_; // by device
  std::vector<int> steps_ahead_;     // by device: of logits before the first backward
  int device_ = 0;
  row_writer* row_ = nullptr;
  int embedded_ = 0;
  int forward_ = 0;
  int logits_ = 0;
  int steps_ = 0; // of logits, and with two barriers that of the last gradients
  int gradients_ = 0;
  int backward_ = 0;
  int returned_ = 0;
};

template <cost_model Cost>
void write_vocabulary_1f1b(shape const& extents, Cost const& cost, int barriers, row_writer* rows) {
  vocabulary_1f1b order(extents, cost, barriers);
  for (int device = 0; device < extents.devices; ++device)
    order.write(device, rows[device]);
}

} // namespace detail
} // namespace pipelining::inline v0_2
