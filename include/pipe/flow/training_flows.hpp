// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The flows that add to training. Header for
//! pipelining::detail::frugal_training.

#include <pipe/flow/declare.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shard_weights.hpp>
#include <pipe/flow/slot_class.hpp>
#include <pipe/flow/training.hpp>

namespace pipelining::inline v0_3::detail {

//! Training in less memory. A forward pass may keep only its input, and `recompute` brings
//! the activation back. Or its activation goes to the host (`copy_out`) and comes back (`copy_in`),
//! by engines that work next to the compute engine. A copy back would start as soon as the copy
//! there has ended, which would save nothing: it waits for a `copy_request`, which takes no time
//! and stands among the passes.
//!
//! The input of a stage stays in its slot until it has been read for the last time, so keeping it
//! costs no copy.
inline constexpr flow frugal_training =
  declare({output_datum,
           gradient_datum,
           weight_gradient_datum,
           activation_datum,
           weight_input_datum,
           sequence_datum,
           sequence_gradient_datum,
           in_pool_of(activation_datum, "working_activation"),
           in_pool_of(output_datum, "repeated_output"),
           in_pool_of(activation_datum, "leaving_activation"),
           {"host_activation",
            pool(slot_class::host_activation),
            pool(slot_class::host_activation),
            residence::host},
           {"request", 0, 0, residence::nowhere}},
          {{pass_kind::forward, forward_kind},
           {pass_kind::backward, backward_kind},
           {pass_kind::backward_input, backward_input_kind},
           {pass_kind::backward_weight, backward_weight_kind},
           {pass_kind::checkpointed_forward, checkpointed_forward_kind},
           {pass_kind::recompute, recompute_kind},
           {pass_kind::offloaded_forward, offloaded_forward_kind},
           {pass_kind::copy_out, copy_out_kind},
           {pass_kind::copy_in, copy_in_kind},
           {pass_kind::copy_request, copy_request_kind}});

//! A gradient that all stages before read, where each of them gets the same.
[[nodiscard]] constexpr datum for_all_readers(datum other) noexcept {
  other.instance = datum::per::unit;
  return other;
}

[[nodiscard]] constexpr flow declare_vocabulary_training(int barriers) {
  return declare(
    {output_datum,
     for_all_readers(gradient_datum),
     weight_gradient_datum,
     activation_datum,
     weight_input_datum,
     sequence_datum,
     sequence_gradient_datum,
     {"logits", pool(slot_class::logits), pool(slot_class::logits)},
     {"statistics", pool(slot_class::statistics), pool(slot_class::received_statistics)}},
    {{pass_kind::forward, forward_kind},
     {pass_kind::backward, backward_kind},
     {pass_kind::backward_input, backward_input_kind},
     {pass_kind::backward_weight, backward_weight_kind},
     {pass_kind::embed, embed_kind},
     {pass_kind::logits, logits_kind(barriers)},
     {pass_kind::logits_gradient, logits_gradient_kind(barriers)},
     {pass_kind::embed_gradient, embed_gradient_kind}});
}

//! Training with the embedding and the output layer cut by vocabulary into one shard per
//! device. The shards at each end are a group of stages.
//!
//! `embed` looks up the rows of its shard; the first stage sums what all shards give. `logits`
//! multiplies the output of the last stage with the rows of its shard, and makes statistics that
//! all shards read before their `logits_gradient`. With two barriers that makes the gradient of the
//! last stage's output, too. With one, `logits` has made it already, but for a factor that
//! follows from the statistics, and `logits_gradient` may come late. `embed_gradient` adds to the
//! rows of its shard.
//!
//! @tparam Barriers 1 or 2.
//! @source Yeung et al., "Balancing Pipeline Parallelism with Vocabulary Parallelism", 2024,
//! sections 4 and 5.
template <int Barriers>
requires(Barriers == 1 ||
         Barriers ==
           2) inline constexpr flow vocabulary_training = declare_vocabulary_training(Barriers);

//! Training with sharded weights; other flows of training are made by `shard_weights`, too.
inline constexpr flow sharded_training = shard_weights(training);

} // namespace pipelining::inline v0_3::detail
