// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The published orders of a pipeline whose vocabulary is in shards, around 1F1B.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/schedule/schedule.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! A row of such an order. Passes of each kind go by microbatch; those behind the last are left
//! out.
class vocabulary_row {
public:
  vocabulary_row(shape const& extents, int device, row_writer& row)
      : devices_(extents.devices), microbatches_(extents.microbatches), device_(device), row_(row) {
  }

  void embed() { push(pass_kind::embed, 0, embedded); }
  void embed_gradient() { push(pass_kind::embed_gradient, 0, returned); }
  void forward() { push(pass_kind::forward, 1, forwards); }
  void backward() { push(pass_kind::backward, 1, backwards); }
  void logits() { push(pass_kind::logits, 2, made); }
  void logits_gradient() { push(pass_kind::logits_gradient, 2, gradients); }

  // How many there are so far.
  int embedded = 0;
  int forwards = 0;
  int made = 0; // logits
  int gradients = 0;
  int backwards = 0;
  int returned = 0;

private:
  void push(pass_kind kind, int stage_of_device, int& count) {
    if (count < microbatches_)
      row_.push(row_writer::make(kind, stage_of_device * devices_ + device_, count++));
  }

  int devices_;
  int microbatches_;
  int device_;
  row_writer& row_;
};

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

  void write(vocabulary_row row, int device) const {
    auto const at = static_cast<std::size_t>(device);
    int const warm_up = std::min(devices_ - device, microbatches_);
    for (int i = 0; i < std::min(devices_, microbatches_) - warm_up + 1; ++i)
      row.embed();
    for (int i = 0; i < warm_up; ++i) {
      row.embed();
      row.forward();
    }
    row.logits();
    int steps = 1; // of logits, and with two barriers that of the last gradients
    if (further_ == 1)
      row.embed();
    row.forward();
    if (further_ == 1) {
      step(row, steps);
      row.forward();
    }
    for (int i = 0; i < steps_ahead_[at]; ++i)
      step_with_ends(row, steps, true, false);
    bool const behind_forward = behind_forward_[at] != 0;
    while (row.forwards < microbatches_) {
      row.backward();
      if (!behind_forward)
        step_with_ends(row, steps, true, true);
      row.forward();
      if (behind_forward)
        step_with_ends(row, steps, true, true);
    }
    while (row.backwards < microbatches_) {
      row.backward();
      step_with_ends(row, steps, false, true);
    }
    while (row.returned < microbatches_)
      row.embed_gradient();
    while (row.gradients < microbatches_)
      row.logits_gradient();
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
  //! The gradients of the last logits, then the next logits: one set of logits at a time. With one
  //! barrier nobody waits for the last gradients of all, which come at the end.
  void step(vocabulary_row& row, int& steps) const {
    if (row.gradients == microbatches_ || (further_ == 0 && row.made == microbatches_))
      return;
    ++steps;
    row.logits_gradient();
    row.logits();
  }
  //! With the passes of the embedding that are due.
  void step_with_ends(vocabulary_row& row, int& steps, bool embeds, bool returns) const {
    embeds = embeds && steps >= steps_ahead_[0] + further_;
    returns = returns && steps >= steps_ahead_[0] + 2 + further_;
    step(row, steps);
    if (embeds)
      row.embed();
    if (returns)
      row.embed_gradient();
  }

  int devices_;
  int microbatches_;
  int further_;                      // barriers behind the first
  std::vector<char> behind_forward_; // by device
  std::vector<int> steps_ahead_;     // by device: of logits before the first backward
};

//! The published interlaced order: `logits` and their gradients are one step, which all devices
//! take at the same time, since the exchange of statistics inside it joins them.
class interlaced_1f1b {
public:
  explicit interlaced_1f1b(shape const& extents)
      : devices_(extents.devices), microbatches_(extents.microbatches),
        first_steps_(std::min(devices_, microbatches_)) {}

  void write(vocabulary_row row, int device) const {
    int const warm_up = std::min(devices_ * 3 / 2 - device, microbatches_);
    int const steps = std::min(devices_ - device, microbatches_);
    int const waiting = std::max(0, warm_up - steps - (devices_ - device - 1) / 2);
    for (int i = 0; i <= device; ++i)
      row.embed();
    for (int i = 0; i < warm_up; ++i) {
      row.embed();
      row.forward();
    }
    for (int i = 0; i < steps; ++i)
      step(row);
    for (int i = 0; i < waiting; ++i) {
      row.backward();
      step(row);
    }
    bool const forward_first = (devices_ - device) % 2 == 0;
    while (row.forwards < microbatches_) {
      if (forward_first)
        row.forward();
      row.backward();
      if (!forward_first)
        row.forward();
      step(row);
    }
    while (row.backwards < microbatches_) {
      row.backward();
      if (row.made < microbatches_)
        step(row);
      else
        row.embed_gradient();
    }
    while (row.returned < microbatches_)
      row.embed_gradient();
  }

private:
  //! With the passes of the embedding that are due: when the first device has its forward passes of
  //! the warm-up behind it, and its first backward passes.
  void step(vocabulary_row& row) const {
    row.logits();
    row.logits_gradient();
    if (row.made >= first_steps_)
      row.embed();
    if (row.made >= first_steps_ + 2 - devices_ % 2)
      row.embed_gradient();
  }

  int devices_;
  int microbatches_;
  int first_steps_; // of the first device before its first backward pass
};

template <cost_model Cost>
void write_vocabulary_1f1b(shape const& extents, Cost const& cost, int barriers, row_writer* rows) {
  vocabulary_1f1b const published(extents, cost, barriers);
  interlaced_1f1b const interlaced(extents);
  for (int device = 0; device < extents.devices; ++device) {
    vocabulary_row const row(extents, device, rows[device]);
    if (barriers == 0)
      interlaced.write(row, device);
    else
      published.write(row, device);
  }
}

} // namespace pipelining::inline v0_3::detail
