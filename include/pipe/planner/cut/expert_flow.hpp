// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The flows of layers that are cut at their experts. Header for
//! pipelining::expert_training.

#include <pipe/flow/declare.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/flow/training_flows.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

namespace pipelining::inline v0_3 {

namespace detail {

enum expert_datum : std::uint8_t {
  of_output,
  of_gradient,
  of_attention_weights,
  of_expert_weights,
  of_attention_kept,
  of_routed,
  of_dispatched,
  of_mixed,
  of_mixed_gradient,
  of_dispatched_gradient,
  of_routed_gradient,
  of_expert_input,
  of_attention_input,
  of_passing, // dispatched, of a forward pass that keeps none
  of_routed_again,
  of_passing_again,
  of_leaving_attention, // on their way to the host
  of_leaving_experts,
  of_attention_on_host,
  of_experts_on_host,
  of_request
};

//! The data of layers with experts by number; those that keep all have the first `usual_data`.
inline constexpr std::size_t usual_data = of_passing;
inline constexpr auto expert_data = [] {
  using enum slot_class;
  std::array<datum, of_request + 1> data{};
  std::size_t count = 0;
  auto const add = [&](flow_word const& word, slot_class in, slot_class arrives_in = activation) {
    data[count++] = {word, static_cast<std::uint8_t>(in), static_cast<std::uint8_t>(arrives_in)};
  };
  auto const nowhere = [&](flow_word const& word) {
    data[count++] = {.word = word, .lives = residence::nowhere};
  };
  add("output", output, received_input);
  add("gradient", input_gradient, received_gradient);
  nowhere("attention weights");
  nowhere("expert weights");
  add("attention kept", activation);
  add("routed", activation);
  add("dispatched", activation);
  add("mixed", activation);
  add("mixed gradient", weight_input);
  add("dispatched gradient", weight_input);
  add("routed gradient", weight_input);
  add("expert input", weight_input);
  add("attention input", weight_input);
  for (char const* const word :
       {"passing", "routed again", "passing again", "leaving attention", "leaving experts"})
    add(flow_word::of(word), activation);
  add("attention on host", host_activation, host_activation);
  add("experts on host", host_activation, host_activation);
  nowhere("request");
  for (std::size_t of = 0; of < of_expert_input; ++of)
    data[of].wanted = of != of_routed;
  for (auto const of : {of_attention_on_host, of_experts_on_host})
    data[of].lives = residence::host;
  return data;
}();

//! The kinds by number; those that keep all have the first `usual_kinds`.
inline constexpr std::size_t usual_kinds = 10;
inline constexpr auto expert_kinds = [] {
  using enum does;
  using enum role;
  std::array<kind_of_pass, 23> kinds{};
  std::size_t count = 0;
  auto const add = [&](char letter, flow_word const& word, role is) {
    engine const on = is == communicate ? engine::network : engine::compute;
    kinds[count++] = declare_kind(letter, word, on, stage_call::perform, {}).with_role(is);
  };
  auto const move = [&](char letter, flow_word const& word, engine on) { // copies one datum
    kinds[count++] = declare_kind(letter, word, on, stage_call::copy, {});
  };
  auto const with = [&](std::initializer_list<effect> effects) { // of the kind before
    for (effect const& one : effects)
      kinds[count - 1].effects[kinds[count - 1].effect_count++] = one;
  };
  effect const input_of_layer{reads, of_output, of_stage::before};
  add('A', "attention", forward);
  with({input_of_layer, {makes, of_attention_kept}, {makes, of_routed}});
  add('D', "dispatch", communicate);
  with({{frees, of_routed}, {makes, of_dispatched}});
  add('E', "experts", forward);
  with({{reads, of_dispatched}, {makes, of_mixed}});
  add('C', "combine", communicate);
  with({{frees, of_mixed}, {makes, of_output}});
  add('K', "combine back", communicate);
  with({{reads, of_gradient, of_stage::after}, {makes, of_mixed_gradient}});
  add('M', "experts back", input);
  with({{reads, of_dispatched}, {frees, of_mixed_gradient}});
  with({{makes, of_dispatched_gradient}, {makes, of_expert_input}});
  add('W', "expert gradients", weights);
  with({{frees, of_dispatched}, {frees, of_expert_input}, {makes, of_expert_weights}});
  add('J', "dispatch back", communicate);
  with({{frees, of_dispatched_gradient}, {makes, of_routed_gradient}});
  add('B', "attention back", input);
  with({{reads, of_attention_kept}, {frees, of_routed_gradient}});
  with({{makes, of_gradient}, {makes, of_attention_input}});
  add('V', "attention gradients", weights);
  with({{frees, of_attention_kept}, {frees, of_attention_input}, {makes, of_attention_weights}});
  add('F', "checkpointed attention", forward);
  with({input_of_layer, {makes, of_routed}});
  add('G', "checkpointed dispatch", communicate);
  with({{frees, of_routed}, {makes, of_passing}});
  add('H', "checkpointed experts", forward);
  with({{frees, of_passing}, {makes, of_mixed}});
  add('R', "attention again", again);
  with({input_of_layer, {makes, of_attention_kept}, {makes, of_routed_again}});
  add('S', "dispatch again", communicate);
  with({{frees, of_routed_again}, {makes, of_passing_again}});
  add('T', "experts again", again);
  with({{frees, of_passing_again}, {makes, of_dispatched}});
  add('X', "offloaded attention", forward);
  with({input_of_layer, {makes, of_leaving_attention}, {makes, of_routed}});
  add('Z', "offloaded experts", forward);
  with({{frees, of_passing}, {makes, of_leaving_experts}, {makes, of_mixed}});
  move('O', "attention out", engine::copy_out);
  with({{frees, of_leaving_attention}, {makes, of_attention_on_host}});
  move('P', "experts out", engine::copy_out);
  with({{frees, of_leaving_experts}, {makes, of_experts_on_host}});
  move('Q', "copy request", engine::compute);
  with({{reads, of_attention_on_host}, {reads, of_experts_on_host}, {makes, of_request}});
  move('N', "experts in", engine::copy_in);
  with({{frees, of_experts_on_host}, {reads, of_request}, {makes, of_dispatched}});
  move('L', "attention in", engine::copy_in);
  with({{frees, of_attention_on_host}, {reads, of_request}, {makes, of_attention_kept}});
  return kinds;
}();

} // namespace detail

//! @brief Training of layers with experts, in the order of a layer: attention, dispatch, experts,
//! combine; back: combine back, experts back, expert gradients, dispatch back, attention back,
//! attention gradients. Dispatch and combine run on the network engine.
inline constexpr flow expert_training =
  declare(std::span(detail::expert_data).first(detail::usual_data),
          std::span(detail::expert_kinds).first(detail::usual_kinds));

namespace detail {

//! The same in less memory: a layer keeps only its input and runs attention, dispatch and experts
//! again, or what it keeps goes to the host and comes back. The kinds of `expert_training` have
//! their numbers.
inline constexpr flow frugal_expert_training = declare(expert_data, expert_kinds);

//! The first kind of training that is of shards, of a vocabulary or of weights.
inline constexpr int first_of_shards = [] {
  int kind = 0;
  while (!kinds_of_training.kinds[kind].in_groups)
    ++kind;
  return kind;
}();
//! In flows of layers these come after all kinds of layers: their numbers are so much larger.
inline constexpr int shards_later = static_cast<int>(expert_kinds.size()) - first_of_shards;

//! Layers whose weights lie in shards, which the engine copy_in gathers and scatters, next to
//! tokens on the network.
[[nodiscard]] constexpr flow sharded_expert_training() {
  return shard_weights(expert_training, shards_later, engine::copy_in);
}

//! Layers between the shards of a vocabulary.
//! @param stages the flow of training with these shards
[[nodiscard]] constexpr flow vocabulary_expert_training(flow const& stages) {
  flow result;
  std::ranges::copy(expert_training.kinds, result.kinds);
  result.kind_count = stages.kind_count + shards_later;
  std::array<datum, usual_data + 2> data{};
  std::ranges::copy(std::span(expert_data).first(usual_data), data.begin());
  for (std::size_t of = of_attention_kept; of < usual_data; ++of)
    data[of].wanted = false; // shards have none, and layers need it for what is wanted
  std::ranges::copy(std::span(stages.data).subspan(shard_logits, 2), data.begin() + usual_data);
  for (int i = first_of_shards; i < stages.kind_count; ++i) {
    kind_of_pass& kind = result.kinds[i + shards_later] = lettered(result, stages.kinds[i]);
    for (int k = kind.effect_count; k-- > 0;)
      if (std::uint8_t& of = kind.effects[k].of; of >= shard_logits)
        of = static_cast<std::uint8_t>(of - shard_logits + usual_data);
      else if (of == weight_gradient) // all weights of a shard
        kind.effects[kind.effect_count++] = {does::makes, of_expert_weights};
  }
  return declared_with(result, data);
}

} // namespace detail

} // namespace pipelining::inline v0_3
