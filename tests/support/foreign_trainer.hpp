// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The trainer in C of examples/trainers as stages with hooks, a program of the usual kind
//! around it, and the same program without a pipeline.

#include <pipe/cluster/tensor_checkpoint.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/other_plans.hpp>
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/plan_cache.hpp>
#include <pipe/run/post_validated.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <map>
#include <new>
#include <string>
#include <vector>

#include "examples/trainers/trainer.h"

namespace support::foreign {

namespace pp = pipelining;

inline constexpr int width = 8, rows = 8, most_microbatches = 12, devices = 4, steps = 6;
inline constexpr std::size_t numbers = std::size_t{rows} * width;
inline constexpr float rate = 0.25F;

struct samples { // [most_microbatches][rows][width]
  std::vector<float> inputs{}, targets{};
  samples() {
    for (std::size_t i = 0; i < most_microbatches * numbers; ++i) {
      inputs.push_back(static_cast<float>(i % 13) / 13);
      targets.push_back(static_cast<float>(i % 7) / 14);
    }
  }
};

// [lines totals, clipping, the step in the plan: program]
struct row {
  float loss;
  float squared; //!< of the norm of the gradients
};
// [lines]

//! The trainer's own layer, and the state of its optimizer.
struct layer {
  dense of{};
  std::vector<float> momentum{};

  explicit layer(unsigned seed) : momentum(width * (width + 1)) {
    if (dense_make(&of, width, seed) != 0)
      throw std::bad_alloc();
  }
  layer(layer const&) = delete;
  layer& operator=(layer const&) = delete;
  ~layer() { dense_free(&of); }

  [[nodiscard]] std::size_t size() const { return momentum.size(); }
  void zero() const { std::fill_n(of.gradient, size(), 0.0F); }
  [[nodiscard]] float squared() const {
    float sum = 0;
    for (std::size_t i = 0; i < size(); ++i)
      sum += of.gradient[i] * of.gradient[i];
    return sum;
  }
  void step(float coefficient) {
    for (std::size_t i = 0; i < size(); ++i) {
      momentum[i] = 0.5F * momentum[i] + coefficient * of.gradient[i];
      of.weight[i] -= rate * momentum[i];
    }
  }
};

[[nodiscard]] inline float coefficient_of(float squared, float clip) {
  float const norm = std::sqrt(squared);
  return norm > clip ? clip / norm : 1.0F;
}

//! A layer as a stage. The program zeroes gradients and losses, as it would without a pipeline.
struct stage {
  static constexpr bool takes_chunks = true;
  samples const* data;
  float clip;
  layer own;
  float loss = 0;
  // [lines early steps: stage]
  std::vector<float> weight_before{}, momentum_before{}, told{};
  // [lines]
  int undone = 0;

  stage(samples const& all, int number, float most)
      : data(&all), clip(most), own(static_cast<unsigned>(number) + 1) {}

  void zero() {
    own.zero();
    loss = 0;
  }
  void forward(pp::context const& at, pp::input in, pp::output out) {
    std::size_t const n = numbers / static_cast<std::size_t>(at.chunks);
    std::size_t const first =
      static_cast<std::size_t>(at.microbatch) * numbers + static_cast<std::size_t>(at.chunk) * n;
    float* const kept = floats(at.activation);
    float const* const x = at.first_stage() ? &data->inputs[first] : in.as<float>().data();
    std::memcpy(kept, x, n * sizeof(float));
    dense_forward(&own.of, rows / at.chunks, kept, kept + n);
    if (at.last_stage())
      loss += squared_error(static_cast<int>(n),
                            kept + n,
                            &data->targets[first],
                            1.0F / static_cast<float>(at.extents.microbatches),
                            kept + 2 * n);
    else
      std::memcpy(floats(out), kept + n, n * sizeof(float));
  }
  void backward(pp::context const& at, pp::input in, pp::output out) {
    std::vector<float> dz(numbers);
    go_back(at, in, out, dz.data());
    dense_backward_weight(&own.of, rows / at.chunks, floats(at.activation), dz.data());
  }
  void backward_input(pp::context const& at, pp::input in, pp::output out) const {
    go_back(at, in, out, floats(at.weight_input));
  }
  void backward_weight(pp::context const& at) {
    dense_backward_weight(
      &own.of, rows / at.chunks, floats(at.activation), floats(at.weight_input));
  }

  // [lines totals, clipping, the step in the plan: stage]
  void contribute(pp::context const& at, pp::output out) {
    // [lines early steps: stage]
    if (!at.evaluating)
      told.assign(own.of.gradient, own.of.gradient + own.size());
    // [lines totals, clipping, the step in the plan: stage]
    out.as<row>()[0] = {loss, own.squared()};
  }
  void optimizer_step(pp::context const&, pp::totals const& all) {
    // [lines early steps: stage]
    weight_before.assign(own.of.weight, own.of.weight + own.size());
    momentum_before = own.momentum;
    // [lines totals, clipping, the step in the plan: stage]
    own.step(coefficient(all));
  }
  // [lines early steps: stage]
  [[nodiscard]] bool accepts(pp::context const&, pp::totals const& all) const {
    return coefficient(all) == 1.0F;
  }
  void roll_back(pp::context const&, bool stepped) {
    if (stepped) {
      ++undone;
      std::copy(weight_before.begin(), weight_before.end(), own.of.weight);
      own.momentum = momentum_before;
    }
    std::copy(told.begin(), told.end(), own.of.gradient);
  }
  void begin_iteration(pp::context const&) { zero(); }
  // [lines]

private:
  static float* floats(pp::buffer const& memory) { return memory.as<float>().data(); }
  void go_back(pp::context const& at, pp::input in, pp::output out, float* dz) const {
    std::size_t const n = numbers / static_cast<std::size_t>(at.chunks);
    float const* const kept = floats(at.activation);
    dense_backward_input(&own.of,
                         rows / at.chunks,
                         kept + n,
                         at.last_stage() ? kept + 2 * n : in.as<float>().data(),
                         dz,
                         at.first_stage() ? nullptr : floats(out));
  }
  // [lines totals, clipping, the step in the plan: stage]
  [[nodiscard]] float coefficient(pp::totals const& all) const {
    float squared = 0;
    for (int s = 0; s < all.rows; ++s)
      squared += all.row<row>(s)[0].squared;
    return coefficient_of(squared, clip);
  }
  // [lines]
};

inline constexpr pp::uniform_sizes sizes{.message = numbers * sizeof(float),
                                         .activation = 3 * numbers * sizeof(float),
                                         .weight_input = numbers * sizeof(float),
                                         // [lines totals, clipping, the step in the plan: program]
                                         .totals_bytes = sizeof(row)};
// [lines]

//! Numbers that the program ends with, and those that it prints on its way. A stage that is not
//! here has none.
struct result {
  std::vector<float> losses{};               //!< of training; empty where steps are early
  std::vector<float> evaluations{};          //!< after the third step, and at the end
  std::map<int, std::vector<float>> state{}; //!< of each stage: weights and momentum
  long corrected = 0;
};

//! The number of microbatches of a step.
[[nodiscard]] inline int microbatches_of(int step, bool early) {
  return !early && step % 2 == 1 ? most_microbatches : 8;
}

//! The program without a pipeline: each microbatch forward and back through all layers.
struct alone {
  samples data{};
  std::vector<layer*> layers{};

  alone() = default;
  alone(alone const&) = delete;
  alone& operator=(alone const&) = delete;
  ~alone() {
    for (layer* const each : layers)
      delete each;
  }

  float microbatch(pp::pipeline_view const& over, int m, bool trains) {
    auto const chunks = static_cast<std::size_t>(over.chunks_of(m));
    std::size_t const n = numbers / chunks;
    int const chunk_rows = rows / static_cast<int>(chunks);
    std::size_t const count = layers.size();
    std::vector<float> values(chunks * (count + 2) * n), dz(n);
    float loss = 0;
    for (std::size_t c = 0; c < chunks; ++c) {
      float* const kept = &values[c * (count + 2) * n];
      std::size_t const first = static_cast<std::size_t>(m) * numbers + c * n;
      std::copy_n(&data.inputs[first], n, kept);
      for (std::size_t i = 0; i < count; ++i)
        dense_forward(&layers[i]->of, chunk_rows, kept + i * n, kept + (i + 1) * n);
      losses.push_back(squared_error(static_cast<int>(n),
                                     kept + count * n,
                                     &data.targets[first],
                                     1.0F / static_cast<float>(over.extents.microbatches),
                                     kept + (count + 1) * n));
    }
    for (std::size_t c = chunks; trains && c-- > 0;) {
      float* const kept = &values[c * (count + 2) * n];
      float* const dy = kept + (count + 1) * n;
      for (std::size_t i = count; i-- > 0;) {
        dense_backward_input(&layers[i]->of, chunk_rows, kept + (i + 1) * n, dy, dz.data(), dy);
        dense_backward_weight(&layers[i]->of, chunk_rows, kept + i * n, dz.data());
      }
    }
    return loss;
  }
  //! One number after the other, as the last stage adds them up.
  std::vector<float> losses{};

  float run(pp::pipeline_view const& over, bool trains) {
    losses.clear();
    for (layer* const each : layers)
      each->zero();
    for (int m = 0; m < over.extents.microbatches; ++m)
      microbatch(over, m, trains);
    float sum = 0;
    for (float const each : losses)
      sum += each;
    return sum;
  }
};

//! What the program comes to.
//! @param over of a number of microbatches
template <class Over>
result train_alone(Over over, int stages, float clip, bool early) {
  alone program;
  for (int s = 0; s < stages; ++s)
    program.layers.push_back(new layer(static_cast<unsigned>(s) + 1));
  result all;
  for (int step = 0; step < steps; ++step) {
    pp::pipeline const of = over(microbatches_of(step, early));
    float const loss = program.run(of, true);
    if (!early)
      all.losses.push_back(loss);
    float squared = 0;
    for (layer* const each : program.layers)
      squared += each->squared();
    for (layer* const each : program.layers)
      each->step(coefficient_of(squared, clip));
    if (step == 2 || step + 1 == steps)
      all.evaluations.push_back(program.run(over(8), false));
  }
  for (int s = 0; s < stages; ++s) {
    layer const& each = *program.layers[static_cast<std::size_t>(s)];
    all.state[s].assign(each.of.weight, each.of.weight + each.size());
    all.state[s].insert(all.state[s].end(), each.momentum.begin(), each.momentum.end());
  }
  return all;
}

// [lines checkpoints by name: stage]
//! Weights and momentum by name.
[[nodiscard]] inline std::vector<pp::state_tensor> tensors_of(std::vector<stage*> const& model,
                                                              auto owns) {
  std::vector<pp::state_tensor> all;
  for (std::size_t s = 0; s < model.size(); ++s)
    if (owns(static_cast<int>(s))) {
      std::string const name = "layers." + std::to_string(s);
      layer& own = model[s]->own;
      auto const bytes = [&](float* first) {
        return std::as_writable_bytes(std::span(first, own.size()));
      };
      auto const count = static_cast<std::int64_t>(own.size());
      all.push_back({name + ".weight", "F32", {count}, bytes(own.of.weight)});
      all.push_back({name + ".momentum", "F32", {count}, bytes(own.momentum.data())});
    }
  return all;
}
// [lines]

//! A run of the program on a pipeline.
struct program {
  pp::registry::schedule_choice choice{};
  float clip = 1e6F;
  bool early = false;   //!< the optimizer's step is validated in the next iteration
  std::string folder{}; //!< of checkpoints

  [[nodiscard]] pp::dynamic_timetable table(int microbatches) const {
    auto asked = choice;
    asked.microbatches = microbatches;
    return pp::registry::make_named_timetable(asked, pp::uniform_cost{});
  }
};

[[nodiscard]] inline float loss_in(pp::totals const& all) {
  float sum = 0;
  for (int s = 0; s < all.rows; ++s)
    sum += all.row<row>(s)[0].loss;
  return sum;
}

//! Steps [first, last) on one runner.
template <class Runner>
void live(program const& what,
          Runner& runner,
          pp::plan_number::post_validated const& numbers_early,
          std::vector<stage*> const& model,
          int first,
          int last,
          result& all) {
  auto const zero = [&] {
    for (stage* const each : model)
      each->zero();
  };
  // [lines evaluation: program]
  pp::plan_number const evaluation = runner.add(pp::lower_evaluation(what.table(8), sizes));
  // [lines]
  pp::plan_cache<int, pp::plan_number> cache(
    1); // each other number of microbatches takes the place of the last
  // [lines early steps: program]
  pp::post_validated_steps early(runner);
  // [lines]
  for (int step = first; step < last; ++step) {
    zero();
    if (what.early) {
      // [lines early steps: program]
      early.step(numbers_early);
      // [lines]
      continue;
    }
    int const microbatches = microbatches_of(step, false);
    runner.step(cache.get(microbatches, [&](pp::plan_number const* instead) {
      auto work = pp::lower(what.table(microbatches), sizes);
      return instead == nullptr ? runner.add(std::move(work))
                                : runner.replace(*instead, std::move(work));
    }));
    all.losses.push_back(loss_in(runner.totals()));
  }
  // [lines early steps: program]
  early.finish();
  // [lines]
  all.corrected += early.corrected();
  zero();
  // [lines evaluation: program]
  runner.step(evaluation);
  // [lines]
  all.evaluations.push_back(loss_in(runner.totals()));
}

//! Trains, stops after the third step with a checkpoint, and goes on in another life.
//! @param with `with(plan, stages, run)` makes a runner and calls `run(runner, rank)`; a negative
//! rank has all stages. @param meet called where all ranks must have come.
template <class With, class Meet>
result train(program const& what, With with, Meet meet) {
  result all;
  for (int life = 0; life < 2; ++life) {
    samples const data;
    std::vector<stage*> model;
    int const stages = what.table(8).over.extents.stages();
    for (int s = 0; s < stages; ++s) // the second life begins with other numbers
      model.push_back(new stage(data, s + 100 * life, what.clip));
    // [lines early steps: program]
    auto plans = pp::lower_post_validated(what.table(8), sizes);
    // [lines]
    auto work = what.early ? plans.first : pp::lower(what.table(8), sizes);
    with(std::move(work), model, [&](auto& runner, int rank) {
      auto const owns = [&](int s) { return rank < 0 || runner.owns(s); };
      // [lines checkpoints by name: program]
      auto const tensors = tensors_of(model, owns);
      pp::checkpoint_place const place{
        what.folder, "rank-" + std::to_string(std::max(rank, 0)), "trainer=dense\n"};
      if (life == 1)
        pp::load_tensors(place, 3, tensors);
      // [lines]
      pp::plan_number::post_validated numbers_early{};
      if (what.early)
        // [lines early steps: program]
        numbers_early = pp::post_validated_steps(runner).add(std::move(plans));
      // [lines]
      live(what, runner, numbers_early, model, 3 * life, 3 + 3 * life, all);
      if (life == 0)
        // [lines checkpoints by name: program]
        pp::save_tensors(place, 3, tensors);
      // [lines]
      for (int s = 0; life == 1 && s < stages; ++s)
        if (owns(s)) {
          layer const& own = model[static_cast<std::size_t>(s)]->own;
          all.state[s].assign(own.of.weight, own.of.weight + own.size());
          all.state[s].insert(all.state[s].end(), own.momentum.begin(), own.momentum.end());
        }
    });
    meet();
    for (stage* const each : model)
      delete each;
  }
  return all;
}

//! All schedules whose gradients add up in order, and whose stages are layers.
[[nodiscard]] inline std::vector<pp::registry::schedule_choice> schedules() {
  using pp::registry::option;
  std::vector<pp::registry::schedule_choice> all;
  for (pp::registry::named_schedule const& one : pp::registry::named_schedules()) {
    auto const& is = one.traits;
    if (!is.sums_in_order || is.weights_travel || is.two_copies || is.stages_go_one_way ||
        is.cuts_layers || is.exchanges_attention || is.any_pairs)
      continue;
    pp::registry::schedule_choice choice;
    choice.name = one.name;
    choice.devices = devices;
    if (pp::registry::has(one.needs, option::memory_limit))
      choice.memory_limit = 2 * devices;
    if (pp::registry::has(one.needs, option::chunk_counts))
      choice.chunk_counts = {2, 1, 4};
    all.push_back(choice);
  }
  return all;
}

} // namespace support::foreign
