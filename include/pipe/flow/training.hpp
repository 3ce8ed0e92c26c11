// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The flow of training, and the data and the kinds of passes that such flows are made of.
//! Header for pipelining::training.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/resolve.hpp>

#include <algorithm>
#include <cstdint>
#include <initializer_list>

namespace pipelining::inline v0_3 {
namespace detail {

//! The data of the flows of training, numbered.
enum training_datum : std::uint8_t {
  made_output,
  made_gradient,
  weight_gradient,
  kept_activation,
  kept_for_weights,
  keys_and_values,
  their_gradients,
  working_activation, // of a forward pass that keeps none
  repeated_output,    // of a recomputation
  leaving_activation, // on its way to the host
  activation_on_host,
  request_to_copy
};

//! The further data of the flows with a vocabulary in shards.
enum vocabulary_datum : std::uint8_t { shard_logits = their_gradients + 1, shard_statistics };

[[nodiscard]] constexpr std::uint8_t pool(slot_class of) noexcept {
  return static_cast<std::uint8_t>(of);
}

//! The data that all flows of training have, and none of their kinds.
inline constexpr flow data_of_training = [] {
  using enum slot_class;
  flow result;
  auto const add = [&](flow_word const& word, slot_class made_in, slot_class arrives_in) {
    result.data[result.data_count++] = {word, pool(made_in), pool(arrives_in)};
  };
  add("output", output, received_input);
  add("input_gradient", input_gradient, received_gradient);
  add("weight_gradient", activation, activation);
  add("activation", activation, activation);
  add("weight_input", weight_input, weight_input);
  add("sequence", sequence, sequence);
  add("sequence_gradient", sequence_gradient, sequence_gradient);
  for (int const of : {made_output, made_gradient, weight_gradient, kept_activation})
    result.data[of].wanted = true;
  result.data[made_gradient].instance = datum::per::reader;
  result.data[weight_gradient].lives = residence::nowhere;
  for (int const of : {keys_and_values, their_gradients}) {
    result.data[of].instance = datum::per::microbatch;
    result.data[of].only_chunked = true;
  }
  return result;
}();

inline constexpr effect reads_input{does::reads, made_output, of_stage::before};
inline constexpr effect extends_sequence{
  does::adds_to, keys_and_values, of_stage::own, effect::chunk_order::ascending};
inline constexpr effect reads_gradient{does::reads, made_gradient, of_stage::after};
inline constexpr effect extends_gradients{
  does::adds_to, their_gradients, of_stage::own, effect::chunk_order::descending};

inline constexpr effect makes_activation{does::makes, kept_activation};
inline constexpr effect makes_output{does::makes, made_output};
inline constexpr effect makes_gradient{does::makes, made_gradient};
inline constexpr effect makes_weight_gradient{does::makes, weight_gradient};

//! The kinds of all flows of training by number, and none of their data. Those of weights in shards
//! have no effects here, which differ from flow to flow; those of a vocabulary have two barriers.
inline constexpr flow kinds_of_training = [] {
  using enum engine;
  using enum stage_call;
  using enum does;
  flow result;
  auto const add = [&](char letter, flow_word const& word, engine on, stage_call calls) {
    result.kinds[result.kind_count++] = declare_kind(letter, word, on, calls, {});
  };
  auto const with = [&](std::initializer_list<effect> effects) { // of the kind before
    kind_of_pass& kind = result.kinds[result.kind_count - 1];
    for (effect const& one : effects)
      kind.effects[kind.effect_count++] = one;
  };
  add('F', "forward", compute, forward);
  with({reads_input, makes_activation, extends_sequence, makes_output});
  add('B', "backward", compute, backward);
  with({reads_gradient, {frees, kept_activation}, {frees, keys_and_values}, extends_gradients});
  with({{frees, their_gradients}, makes_gradient, makes_weight_gradient});
  add('I', "backward_input", compute, backward_input);
  with({reads_gradient, {reads, kept_activation}, {frees, keys_and_values}, extends_gradients});
  with({{frees, their_gradients}, {makes, kept_for_weights}, makes_gradient});
  add('W', "backward_weight", compute, backward_weight);
  with({{frees, kept_activation}, {frees, kept_for_weights}, makes_weight_gradient});
  add('K', "checkpointed_forward", compute, forward);
  with({reads_input, {makes, working_activation}, {frees, working_activation}, extends_sequence});
  with({makes_output});
  add('R', "recompute", compute, recompute);
  with({reads_input, makes_activation, {reads, keys_and_values}});
  with({{makes, repeated_output}, {frees, repeated_output}});
  add('H', "offloaded_forward", compute, forward);
  with({reads_input, {makes, leaving_activation}, extends_sequence, makes_output});
  add('O', "copy_out", copy_out, copy);
  with({{frees, leaving_activation}, {makes, activation_on_host}});
  add('L', "copy_in", copy_in, copy);
  with({{frees, activation_on_host}, {reads, request_to_copy}, makes_activation});
  add('Q', "copy_request", compute, copy);
  with({{reads, activation_on_host}, {makes, request_to_copy}});
  add('E', "embed", compute, forward);
  with({makes_output});
  add('S', "logits", compute, forward);
  with({reads_input, {makes, shard_logits}, {makes, shard_statistics}, makes_output});
  add('T', "logits_gradient", compute, backward);
  with({{reads, shard_statistics, of_stage::group}, {frees, shard_logits}, makes_weight_gradient});
  with({makes_gradient});
  add('G', "embed_gradient", compute, backward);
  with({reads_gradient, makes_gradient, makes_weight_gradient});
  add('N', "request_weights", compute, copy);
  add('A', "gather_weights", network, gather_weights);
  add('U', "use_weights", compute, use_weights);
  add('X', "release_weights", compute, copy);
  add('P', "request_weights_again", compute, copy);
  add('J', "gather_weights_again", network, gather_weights);
  add('V', "use_weights_again", compute, use_weights);
  add('Y', "release_weights_again", compute, copy);
  add('C', "collect_gradients", compute, collect_gradients);
  add('D', "request_scatter", compute, copy);
  add('Z', "scatter_gradients", network, scatter_gradients);
  add('M', "keep_weights", compute, copy);
  for (int k = 0; k < 4; ++k) {
    result.kinds[index_of(pass_kind::embed) + k].in_groups = true;
    result.kinds[index_of(pass_kind::request_weights_again) + k].is = role::again;
  }
  return result;
}();
static_assert(kinds_of_training.kind_named("keep_weights") == pass_kind::keep_weights);

//! The kinds of training and others, with the data that all flows of training have. Nothing is
//! worked out yet.
[[nodiscard]] constexpr flow with_kinds(std::initializer_list<pass_kind> others) noexcept {
  flow result = data_of_training;
  result.kind_count = index_of(pass_kind::backward_weight) + 1;
  for (int kind = 0; kind < result.kind_count; ++kind)
    result.kinds[kind] = kinds_of_training.kinds[kind];
  for (pass_kind const kind : others) {
    result.kinds[index_of(kind)] = kinds_of_training[kind];
    result.kind_count = std::max(result.kind_count, index_of(kind) + 1);
  }
  return result;
}

} // namespace detail

//! @brief A kind with its effects, and the letter and the word of a kind of training.
[[nodiscard]] constexpr kind_of_pass
declare_kind(pass_kind named, engine on, stage_call calls, std::initializer_list<effect> effects) {
  kind_of_pass const& name = detail::kinds_of_training[named];
  return declare_kind(name.letter, name.word, on, calls, effects);
}

//! @brief Training: a forward pass per unit and stage, and its backward, whole or in two halves.
inline constexpr flow training = detail::resolved(detail::with_kinds({}));

} // namespace pipelining::inline v0_3
