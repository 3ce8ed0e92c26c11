// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A small model with a tied weight, trained with loss scaling, clipping by the global norm
//! and steps that are skipped on overflow, for tests of the hooks. The arithmetic is the same on
//! hosts and devices, and exact where the order of a sum could differ.

#include <pipe/config.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/run/context.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace support {

//! Numbers of a stage: its weight, the weight that first and last stage share, their gradients, the
//! scale of the loss and what the optimizer knows.
struct trained {
  float weight;
  float shared;
  float gradient;
  float shared_gradient;
  float scale;
  float loss;
  std::int32_t good_steps; // in a row
  std::int32_t skipped;
  std::int32_t clipped;
};

//! A row of the totals.
struct training_row {
  float loss;
  float squared_norm;
  std::int32_t overflow;
};

// One function for each of the stage's passes and hooks, on one unit.

//! The whole units of data that a microbatch consists of.
PIPELINING_HOST_DEVICE inline float datum(int microbatch) {
  return static_cast<float>(microbatch % 5 - 2) * 0.25F + 0.125F;
}

PIPELINING_HOST_DEVICE inline float
forward_of(trained& s, float x, int microbatch, bool first, bool last, float& activation) {
  if (first)
    x = datum(microbatch) * s.shared;
  activation = x;
  float const y = x * s.weight + 0.5F;
  if (last) {
    float const error = y * s.shared - 1.0F;
    s.loss += 0.5F * error * error;
  }
  return y;
}

//! The gradient of the output: the loss stage makes it, times its scale.
PIPELINING_HOST_DEVICE inline float
incoming_of(trained const& s, float dy, bool last, float activation) {
  if (!last)
    return dy;
  float const y = activation * s.weight + 0.5F;
  return (y * s.shared - 1.0F) * s.scale * s.shared;
}

PIPELINING_HOST_DEVICE inline float input_gradient_of(trained const& s, float dy) {
  return dy * s.weight;
}

PIPELINING_HOST_DEVICE inline void add_weight_gradients(
  trained& s, float dy, int microbatch, bool first, bool last, float activation) {
  s.gradient += dy * activation;
  if (last) {
    float const y = activation * s.weight + 0.5F;
    s.shared_gradient += (y * s.shared - 1.0F) * s.scale * y;
  }
  if (first)
    s.shared_gradient += dy * s.weight * datum(microbatch);
}

//! Adds the gradients of the two copies of the tied weight: first stage's plus last stage's.
PIPELINING_HOST_DEVICE inline void add_tied(trained& s, float first, float last) {
  s.shared_gradient = first + last;
}

PIPELINING_HOST_DEVICE inline bool finite(float x) {
  return x - x == 0.0F;
}

//! The shared weight counts once, on the first stage.
PIPELINING_HOST_DEVICE inline training_row row_of(trained const& s, bool first) {
  float const g = s.gradient / s.scale;
  float const t = s.shared_gradient / s.scale;
  return {s.loss,
          g * g + (first ? t * t : 0.0F),
          finite(s.gradient) && finite(s.shared_gradient) ? 0 : 1};
}

//! All rows, one `stride` bytes after the other.
struct training_rows {
  void const* data;
  std::int64_t stride;
  int count;

  [[nodiscard]] PIPELINING_HOST_DEVICE training_row const& operator[](int stage) const {
    return *reinterpret_cast<training_row const*>(static_cast<char const*>(data) + stage * stride);
  }
};

//! One step of plain descent along the clipped gradient. After an overflow no stage moves, and the
//! scale is halved; after three good steps it doubles, as far as it may.
PIPELINING_HOST_DEVICE inline void step_of(trained& s, training_rows rows) {
  float squared = 0;
  int overflows = 0;
  for (int stage = 0; stage < rows.count; ++stage) {
    training_row const& each = rows[stage];
    squared += each.squared_norm;
    overflows += each.overflow;
  }
  if (overflows == 0) {
    // The norm is clipped to 1. A power of two close to it does, and is exact everywhere.
    float factor = 0.0625F;
    while (squared * factor * factor * 256.0F > 1.0F)
      factor *= 0.5F;
    s.clipped += factor < 0.0625F ? 1 : 0;
    s.weight -= factor * (s.gradient / s.scale);
    s.shared -= factor * (s.shared_gradient / s.scale);
    s.good_steps += 1;
    if (s.good_steps == 3) {
      s.good_steps = 0;
      s.scale = s.scale < 0x1p126F ? s.scale * 2.0F : s.scale;
    }
  } else {
    s.good_steps = 0;
    s.skipped += 1;
    s.scale *= 0.5F;
  }
  s.gradient = 0;
  s.shared_gradient = 0;
  s.loss = 0;
}

//! The stages before the first step. The scale is so large that the first steps overflow.
[[nodiscard]] inline std::vector<trained> untrained(int stages, float scale = 0x1p126F) {
  std::vector<trained> model;
  for (int s = 0; s < stages; ++s)
    model.push_back({0.75F + 0.0625F * static_cast<float>(s), 0.875F, 0, 0, scale, 0, 0, 0, 0});
  return model;
}

//! The passes of a microbatch, stage after stage. @param stage_of gives the numbers of a stage
template <class StageOf>
void run_microbatch(std::size_t size, int m, StageOf stage_of) {
  std::vector<float> activations(size);
  float x = 0;
  for (std::size_t s = 0; s < size; ++s)
    x = forward_of(stage_of(s), x, m, s == 0, s + 1 == size, activations[s]);
  for (std::size_t s = size; s-- > 0;) {
    bool const last = s + 1 == size;
    float const dy = incoming_of(stage_of(s), x, last, activations[s]);
    x = input_gradient_of(stage_of(s), dy);
    add_weight_gradients(stage_of(s), dy, m, s == 0, last, activations[s]);
  }
}

//! The passes of one step, stage after stage and microbatch after microbatch.
inline void run_passes(std::vector<trained>& model, int first_microbatch, int microbatches) {
  auto const size = model.size();
  for (int m = first_microbatch; m < first_microbatch + microbatches; ++m)
    run_microbatch(size, m, [&model](std::size_t s) -> trained& { return model[s]; });
  if (size > 1) {
    float const first = model.front().shared_gradient;
    float const last = model.back().shared_gradient;
    add_tied(model.front(), first, last);
    add_tied(model.back(), first, last);
  }
}

//! The end of a step.
inline void step_all(std::vector<trained>& model) {
  std::vector<training_row> rows;
  for (std::size_t s = 0; s < model.size(); ++s)
    rows.push_back(row_of(model[s], s == 0));
  for (trained& s : model)
    step_of(s, {rows.data(), sizeof rows[0], static_cast<int>(rows.size())});
}

//! What one device makes of the model.
inline void train_sequentially(std::vector<trained>& model, int microbatches, int steps) {
  for (int step = 0; step < steps; ++step) {
    run_passes(model, 0, microbatches);
    step_all(model);
  }
}

//! What one device makes of two replicas that see other microbatches and add up their gradients.
inline void train_replicas(std::vector<trained> (&replicas)[2], int microbatches, int steps) {
  for (int step = 0; step < steps; ++step) {
    for (int r = 0; r < 2; ++r)
      run_passes(replicas[r], r * microbatches, microbatches);
    for (std::size_t s = 0; s < replicas[0].size(); ++s) {
      trained& one = replicas[0][s];
      trained& other = replicas[1][s];
      one.gradient = other.gradient = one.gradient + other.gradient;
      one.shared_gradient = other.shared_gradient = one.shared_gradient + other.shared_gradient;
    }
    for (auto& replica : replicas)
      step_all(replica);
  }
}

//! Numbers that the copies of a stage add up.
struct copied_row {
  float gradient;
  float shared_gradient;
  float loss;
};

[[nodiscard]] PIPELINING_HOST_DEVICE inline copied_row copied_row_of(trained const& s) {
  return {s.gradient, s.shared_gradient, s.loss};
}

//! Adds the rows of all copies, one `stride` bytes after the other, the first one first.
PIPELINING_HOST_DEVICE inline void
add_copied_rows(trained& s, void const* data, std::int64_t stride, int count) {
  for (int c = 0; c < count; ++c) {
    copied_row const& row =
      *reinterpret_cast<copied_row const*>(static_cast<char const*>(data) + c * stride);
    s.gradient = c == 0 ? row.gradient : s.gradient + row.gradient;
    s.shared_gradient = c == 0 ? row.shared_gradient : s.shared_gradient + row.shared_gradient;
    s.loss = c == 0 ? row.loss : s.loss + row.loss;
  }
}

//! The copies of the stages of a model, by device and stage; those that no microbatch takes stay as
//! they are.
using trained_copies = std::vector<std::vector<trained>>;

//! What one device makes of copies that take the microbatches of their devices, in order, and add
//! up their gradients in the order of devices, before tied ends are added.
inline void train_copies(pipelining::pipeline_view const& over, trained_copies& model, int steps) {
  auto const size = model[0].size();
  auto const at = [&](std::size_t s, int m) -> trained& {
    return model[static_cast<std::size_t>(pipelining::device_of(over, static_cast<int>(s), m))][s];
  };
  for (int step = 0; step < steps; ++step) {
    std::vector<std::vector<bool>> takes(size, std::vector<bool>(model.size(), false));
    for (int m = 0; m < over.extents.microbatches; ++m) {
      run_microbatch(size, m, [&](std::size_t s) -> trained& { return at(s, m); });
      for (std::size_t s = 0; s < size; ++s)
        takes[s][static_cast<std::size_t>(pipelining::device_of(over, static_cast<int>(s), m))] =
          true;
    }
    std::vector<training_row> rows;
    std::vector<copied_row> sums;
    for (std::size_t s = 0; s < size; ++s) {
      std::vector<copied_row> all;
      for (std::size_t d = 0; d < model.size(); ++d)
        if (takes[s][d])
          all.push_back(copied_row_of(model[d][s]));
      trained sum{};
      add_copied_rows(sum, all.data(), sizeof all[0], static_cast<int>(all.size()));
      sums.push_back(copied_row_of(sum));
    }
    for (std::size_t s = 0; s < size; ++s)
      for (std::size_t d = 0; d < model.size(); ++d)
        if (trained& each = model[d][s]; takes[s][d]) {
          each.gradient = sums[s].gradient;
          each.shared_gradient = sums[s].shared_gradient;
          each.loss = sums[s].loss;
          if (size > 1 && (s == 0 || s + 1 == size))
            add_tied(each, sums.front().shared_gradient, sums.back().shared_gradient);
        }
    for (std::size_t s = 0; s < size; ++s)
      rows.push_back(row_of(at(s, 0), s == 0));
    for (std::size_t s = 0; s < size; ++s)
      for (std::size_t d = 0; d < model.size(); ++d)
        if (takes[s][d])
          step_of(model[d][s], {rows.data(), sizeof rows[0], static_cast<int>(rows.size())});
  }
}

//! A stage of the model for executors on the host.
struct training_stage {
  static constexpr bool takes_chunks = true;
  trained numbers{};
  int last_stage = 0;
  int announced = 0;
  int stepped = 0;
  float loss = 0; //!< of the whole model in the last step, from the totals

  [[nodiscard]] bool is_first(pipelining::context const& where) const { return where.stage == 0; }
  [[nodiscard]] bool is_last(pipelining::context const& where) const {
    return where.stage == last_stage;
  }

  void forward(pipelining::context const& where, pipelining::input in, pipelining::output out) {
    float const x = in.slot < 0 ? 0.0F : in.as<float>()[0];
    float const y = forward_of(numbers,
                               x,
                               where.microbatch,
                               is_first(where),
                               is_last(where),
                               where.activation.as<float>()[0]);
    if (out.slot >= 0)
      out.as<float>()[0] = y;
  }
  void
  backward_input(pipelining::context const& where, pipelining::input in, pipelining::output out) {
    where.weight_input.as<float>()[0] = input_half(where, in, out);
  }
  void backward_weight(pipelining::context const& where) {
    weight_half(where, where.weight_input.as<float>()[0]);
  }
  void backward(pipelining::context const& where, pipelining::input in, pipelining::output out) {
    weight_half(where, input_half(where, in, out));
  }
  void gradients_ready(pipelining::context const&) { ++announced; }
  void copied_gradient(pipelining::context const&, pipelining::output out) const {
    out.as<copied_row>()[0] = copied_row_of(numbers);
  }
  void add_copies(pipelining::context const&, pipelining::totals const& all) {
    add_copied_rows(numbers, all.data, all.stride, all.rows);
  }
  void tied_gradient(pipelining::context const&, pipelining::output out) const {
    out.as<float>()[0] = numbers.shared_gradient;
  }
  void add_tied(pipelining::context const&, pipelining::input first, pipelining::input last) {
    support::add_tied(numbers, first.as<float>()[0], last.as<float>()[0]);
  }
  void contribute(pipelining::context const& where, pipelining::output row) const {
    row.as<training_row>()[0] = row_of(numbers, is_first(where));
  }
  void optimizer_step(pipelining::context const&, pipelining::totals const& all) {
    loss = 0;
    for (int stage = 0; stage < all.rows; ++stage)
      loss += all.row<training_row>(stage)[0].loss;
    step_of(numbers, {all.data, all.stride, all.rows});
    ++stepped;
  }

private:
  float input_half(pipelining::context const& where, pipelining::input in, pipelining::output out) {
    float const dy = incoming_of(numbers,
                                 in.slot < 0 ? 0.0F : in.as<float>()[0],
                                 is_last(where),
                                 where.activation.as<float>()[0]);
    if (out.slot >= 0)
      out.as<float>()[0] = input_gradient_of(numbers, dy);
    return dy;
  }
  void weight_half(pipelining::context const& where, float dy) {
    add_weight_gradients(numbers,
                         dy,
                         where.microbatch,
                         is_first(where),
                         is_last(where),
                         where.activation.as<float>()[0]);
  }
};

//! The stages for an executor on the host.
[[nodiscard]] inline std::vector<training_stage> training_model(int stages,
                                                                float scale = 0x1p126F) {
  std::vector<training_stage> model;
  for (trained const& numbers : untrained(stages, scale))
    model.push_back({numbers, stages - 1});
  return model;
}

//! A stage of which every device has its own, for pipelines with several copies.
struct training_stage_by_device {
  static constexpr bool takes_chunks = true;
  std::vector<training_stage> of; //!< by device

  void forward(pipelining::context const& where, pipelining::input in, pipelining::output out) {
    at(where).forward(where, in, out);
  }
  void
  backward_input(pipelining::context const& where, pipelining::input in, pipelining::output out) {
    at(where).backward_input(where, in, out);
  }
  void backward_weight(pipelining::context const& where) { at(where).backward_weight(where); }
  void backward(pipelining::context const& where, pipelining::input in, pipelining::output out) {
    at(where).backward(where, in, out);
  }
  void gradients_ready(pipelining::context const& where) { at(where).gradients_ready(where); }
  void copied_gradient(pipelining::context const& where, pipelining::output out) {
    at(where).copied_gradient(where, out);
  }
  void add_copies(pipelining::context const& where, pipelining::totals const& all) {
    at(where).add_copies(where, all);
  }
  void tied_gradient(pipelining::context const& where, pipelining::output out) {
    at(where).tied_gradient(where, out);
  }
  void add_tied(pipelining::context const& where, pipelining::input first, pipelining::input last) {
    at(where).add_tied(where, first, last);
  }
  void contribute(pipelining::context const& where, pipelining::output row) {
    at(where).contribute(where, row);
  }
  void optimizer_step(pipelining::context const& where, pipelining::totals const& all) {
    at(where).optimizer_step(where, all);
  }

private:
  training_stage& at(pipelining::context const& where) {
    return of[static_cast<std::size_t>(where.device)];
  }
};

//! True when all numbers of two stages have the same bits.
[[nodiscard]] inline bool same_bits(trained const& a, trained const& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

} // namespace support
