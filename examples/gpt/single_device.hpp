// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The same model on one device, one microbatch after the other: what pipelines are held
//! against, and where the times of passes are measured.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "host/host_stage.hpp"

namespace gpt {

//! All stages on one device and one thread, without schedule or messages.
class single_device {
public:
  //! @param stages 1 for the plain model; more to see what each stage takes
  //! @param halves whether it adds the gradients of the first and of the second half of the
  //! microbatches up on their own, as two copies of a stage do
  single_device(model_size const& size,
                std::int64_t stages,
                step_cut cut,
                std::uint64_t seed,
                bool halves = false)
      : single_device(size, cut_layers(size.layers, stages), std::move(cut), seed, halves) {}
  //! @param stages what each holds
  single_device(model_size const& size,
                std::vector<layer_range> const& stages,
                step_cut cut,
                std::uint64_t seed,
                bool halves = false)
      : cut_(std::move(cut)), second_(halves ? cut_.microbatches() / 2 : cut_.microbatches()) {
    std::int64_t widest = 0;
    for (auto const& layers : stages) {
      widest = std::max(widest, handed_on(size, layers.part));
      slots_.emplace_back();
      stages_.emplace_back(size, layers, cut_.seen(0, second_), seed, work_);
      if (halves)
        copies_.emplace_back(size, layers, cut_.seen(second_, cut_.microbatches()), seed, work_);
    }
    auto const largest = static_cast<std::size_t>(size.sequence * widest);
    between_.assign(stages_.size() + 1, std::vector<float>(largest));
  }

  //! Between steps: how the work of the next one is cut. Not where there are halves.
  void set_cut(step_cut const& cut) {
    cut_ = cut;
    second_ = cut_.microbatches();
    for (auto& stage : stages_)
      stage.set_cut(cut_.seen(0, second_));
  }

  //! One step without the optimizer. Calls around(kind, stage, unit, work) for every pass, which
  //! must call work().
  template <class Around>
  double step(batch const& pieces, Around around) {
    for_each_stage([&](auto& stage) { stage.set_batch(pieces); });
    for (std::int64_t turn = 0; turn < cut_.microbatches(); ++turn) {
      auto const m = cut_.from_last() ? cut_.microbatches() - 1 - turn : turn;
      auto const chunks = cut_.chunks(m);
      for (std::int64_t c = 0; c < chunks; ++c)
        for (std::size_t s = 0; s < stages_.size(); ++s)
          run(around, pp::pass_kind::forward, s, {m, c}, between(s), between(s + 1));
      for (std::int64_t c = chunks; c-- > 0;)
        for (std::size_t s = stages_.size(); s-- > 0;) {
          run(around, pp::pass_kind::backward_input, s, {m, c}, between(s + 1), between(s));
          run(around, pp::pass_kind::backward_weight, s, {m, c}, {}, {});
        }
    }
    for (std::size_t s = 0; s < copies_.size(); ++s)
      add_copies(stages_[s], copies_[s]);
    return stages_.back().loss() + (copies_.empty() ? 0 : copies_.back().loss());
  }

  //! The same with nothing around the passes.
  double step(batch const& pieces) {
    return step(pieces, [](pipelining::pass_kind, std::size_t, unit, auto work) { work(); });
  }

  //! Calls visit(parameter) for all stages, then, where there are halves, for their copies.
  template <class Visit>
  void for_each_parameter(Visit visit) {
    for_each_stage([&](auto& stage) { stage.for_each_parameter(visit); });
  }

  void update(adamw const& optimizer, std::int64_t step) {
    for_each_stage([&](auto& stage) { stage.update(optimizer, step); });
  }

  [[nodiscard]] std::vector<host_stage<float>>& stages() { return stages_; }
  [[nodiscard]] std::vector<host_stage<float>>& copies() { return copies_; }

private:
  template <class Visit>
  void for_each_stage(Visit visit) {
    for (auto* const each : {&stages_, &copies_})
      for (auto& stage : *each)
        visit(stage);
  }
  [[nodiscard]] host_stage<float>& at(std::size_t s, unit u) {
    return (u.microbatch < second_ ? stages_ : copies_)[s];
  }
  //! What stage s reads.
  [[nodiscard]] pp::output between(std::size_t s) { return message_in(between_[s]); }
  template <class Around>
  void run(Around& around,
           pp::pass_kind kind,
           std::size_t s,
           unit u,
           pp::output const& in,
           pp::output const& out) {
    auto& stage = at(s, u);
    auto const where = slots_[s].at(stage, u);
    around(kind, s, u, [&] { stage.run_half(kind, {where, read(in), out}); });
  }

  step_cut cut_;
  std::int64_t second_; // the first microbatch of the second half, where there are halves
  host::device_work<float> work_;
  std::vector<own_slots> slots_;
  std::vector<host_stage<float>> stages_;
  std::vector<host_stage<float>> copies_;   // of the second half
  std::vector<std::vector<float>> between_; // what stage s reads: activation, then gradient
};

//! What all parameters of a model have, in the order of its stages: a list of theirs.
template <class Model>
[[nodiscard]] std::vector<float> all_of(Model& model, std::vector<float> parameter<float>::*list) {
  std::vector<float> all;
  if constexpr (requires { model.stages(); }) {
    for (auto& each : model.stages())
      append(all, each, list);
  } else {
    append(all, model, list);
  }
  return all;
}
template <class Model>
[[nodiscard]] std::vector<float> gradients_of(Model& model) {
  return all_of(model, &parameter<float>::gradient);
}
template <class Model>
[[nodiscard]] std::vector<float> weights_of(Model& model) {
  return all_of(model, &parameter<float>::value);
}

//! Adds numbers up in place; into no numbers it puts them, since 0 + -0 is not -0. The bits of a
//! sum of several follow from their order.
inline void add_to(std::vector<float>& sum, std::span<float const> numbers) {
  if (sum.empty())
    sum.assign(numbers.begin(), numbers.end());
  else
    std::transform(numbers.begin(), numbers.end(), sum.begin(), sum.begin(), std::plus<float>());
}

//! How many numbers have other bits.
[[nodiscard]] inline std::size_t differences(std::vector<float> const& a,
                                             std::vector<float> const& b) {
  if (a.size() != b.size())
    throw std::logic_error("the pipeline has not the parameters of the model");
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    count += std::memcmp(&a[i], &b[i], sizeof(float)) != 0 ? 1u : 0u;
  return count;
}

//! The length of the difference over the length of what is right.
//! @throws std::logic_error for lists of different lengths
inline double relative_error(std::vector<float> const& mine, std::vector<float> const& right) {
  if (mine.size() != right.size())
    throw std::logic_error("gradients of two models have not the same parameters");
  double off = 0;
  double all = 0;
  for (std::size_t i = 0; i < right.size(); ++i) {
    double const difference = static_cast<double>(mine[i]) - static_cast<double>(right[i]);
    off += difference * difference;
    all += static_cast<double>(right[i]) * static_cast<double>(right[i]);
  }
  return std::sqrt(off / all);
}

} // namespace gpt
