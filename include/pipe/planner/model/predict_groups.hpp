// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Times and bytes of a model on groups of GPUs that share sequences. Header for
//! pipelining::grouped_gpus.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/planner/model/gpu.hpp>
#include <pipe/planner/model/predict.hpp>
#include <pipe/planner/model/transformer.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace pipelining::inline v0_3 {

//! @brief A model without a pipeline: groups of GPUs share the tokens of their sequences, and all
//! GPUs share weights, gradients and the optimizer's state. A cost for `best_sequence_groups`.
//!
//! In a group every GPU has a part of the tokens, and in attention a part of the heads: four
//! all-to-alls of a layer forward (query, keys, values and output) and as many backward. Fewer
//! heads of keys and values than GPUs are repeated. Whole layers are gathered one after the other,
//! forward and again backward, and their gradients scattered. What goes to GPUs of the same machine
//! takes the links, the rest the network, both at once. Groups fill machines one after the other.
//! @source Wang et al., FlexSP (arXiv:2412.01523); Jacobs et al., DeepSpeed Ulysses
//! (arXiv:2309.14509); Rajbhandari et al., SC 2020 (shared state). What crosses which wire is an
//! own derivation.
struct grouped_gpus {
  transformer model;  //!< experts stay with their layer
  gpu on;             //!< each of them
  efficiency reached; //!< shares of the peak rate
  int gpus = 1;       //!< of all groups
  int data = 1;       //!< sets of so many GPUs that share weights, gradients and state, too

  //! @brief Seconds that a group of so many GPUs takes for a sequence, forward and backward;
  //! nothing hides its exchanges.
  [[nodiscard]] constexpr double time(int tokens, int size) const noexcept {
    training_setup const group{.sequence = tokens, .tensor = size};
    stage_content const whole{model.layers, true, true};
    double seconds = 0;
    for (pass_kind const kind : detail::split_kinds(training))
      seconds += pass_seconds(model, group, on, reached, whole, kind, {tokens, 0}) -
                 exchange_seconds(model, group, on, whole, kind, tokens);
    return seconds + 2 * model.layers * exchange_time(tokens, size);
  }
  //! @brief Bytes that each of them holds of a sequence until its backward pass: activations,
  //! logits and their gradient. Infinite where the heads are no multiple of the group.
  [[nodiscard]] constexpr double bytes(int tokens, int size) const noexcept {
    if (model.heads % size != 0)
      return std::numeric_limits<double>::infinity();
    return static_cast<double>(model.layers * activation_bytes(model, tokens) +
                               detail::logits_bytes(model, tokens)) /
           size;
  }
  //! @brief Bytes that are there whatever the sequences are: a share of all weights, gradients and
  //! state, and the weights of two layers, one in use and the next, with the gradients of one.
  [[nodiscard]] constexpr double resident_bytes() const noexcept {
    double const largest = static_cast<double>(
      std::max(detail::layer_parameters(model), detail::vocabulary_parameters(model)));
    return 18.0 * static_cast<double>(parameters(model)) / gpus / data + (2 * 2 + 4) * largest;
  }
  //! @brief Seconds in which all layers are gathered twice and their gradients scattered: no
  //! microbatch takes less. Every machine gets what it lacks once, its GPUs a part each.
  [[nodiscard]] constexpr double gather_seconds() const noexcept {
    double const all = (2 * 2 + 4) * static_cast<double>(parameters(model));
    double const sharing = static_cast<double>(gpus) * data;
    double const nearby = std::min<double>(sharing, on.gpus_per_machine);
    return seconds_of(all * (nearby - 1) / nearby, all * (sharing - nearby) / sharing / nearby);
  }

private:
  //! The four all-to-alls of a layer.
  [[nodiscard]] constexpr double exchange_time(int tokens, int size) const noexcept {
    double const width = static_cast<double>(detail::query_width(model)) / model.heads;
    double const heads = 2.0 * model.heads + 2.0 * std::max(model.kv_heads, size);
    double const to_each = 2.0 * tokens * heads * width / size / size;
    int const nearby = std::min(size, on.gpus_per_machine);
    return seconds_of(to_each * (nearby - 1), to_each * (size - nearby));
  }
  [[nodiscard]] constexpr double seconds_of(double in_machine, double to_others) const noexcept {
    return std::max(in_machine / on.link_gb_per_s, to_others / on.network_gb_per_s) / 1e9;
  }
};

} // namespace pipelining::inline v0_3
