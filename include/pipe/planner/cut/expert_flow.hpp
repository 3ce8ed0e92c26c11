// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The flows of layers that are cut at their experts. Header for
//! pipelining::expert_training.

#include <pipe/flow/declare.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace pipelining::inline v0_3 {

namespace detail {

[[nodiscard]] constexpr datum lies_in(slot_class pool, flow_word const& word, bool wanted = true) {
  return {.word = word, .pool = static_cast<std::uint8_t>(pool), .wanted = wanted};
}
[[nodiscard]] constexpr datum
goes_to(slot_class pool, slot_class arrives, flow_word const& word) noexcept {
  datum result = lies_in(pool, word);
  result.arrives_in = static_cast<std::uint8_t>(arrives);
  return result;
}

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
inline constexpr datum expert_data[] = {
  goes_to(slot_class::output, slot_class::received_input, "output"),
  goes_to(slot_class::input_gradient, slot_class::received_gradient, "gradient"),
  {.word = "attention weights", .lives = residence::nowhere, .wanted = true},
  {.word = "expert weights", .lives = residence::nowhere, .wanted = true},
  lies_in(slot_class::activation, "attention kept"),
  lies_in(slot_class::activation, "routed", false),
  lies_in(slot_class::activation, "dispatched"),
  lies_in(slot_class::activation, "mixed"),
  lies_in(slot_class::weight_input, "mixed gradient"),
  lies_in(slot_class::weight_input, "dispatched gradient"),
  lies_in(slot_class::weight_input, "routed gradient"),
  lies_in(slot_class::weight_input, "expert input", false),
  lies_in(slot_class::weight_input, "attention input", false)};

[[nodiscard]] constexpr kind_of_pass
expert_kind(char letter, flow_word const& word, role is, std::initializer_list<effect> effects) {
  engine const on = is == role::communicate ? engine::network : engine::compute;
  return declare_kind(letter, word, on, stage_call::perform, effects).with_role(is);
}
inline constexpr kind_of_pass expert_kinds[] = {
  expert_kind('A',
              "attention",
              role::forward,
              {{does::reads, of_output, of_stage::before},
               {does::makes, of_attention_kept},
               {does::makes, of_routed}}),
  expert_kind(
    'D', "dispatch", role::communicate, {{does::frees, of_routed}, {does::makes, of_dispatched}}),
  expert_kind(
    'E', "experts", role::forward, {{does::reads, of_dispatched}, {does::makes, of_mixed}}),
  expert_kind(
    'C', "combine", role::communicate, {{does::frees, of_mixed}, {does::makes, of_output}}),
  expert_kind('K',
              "combine back",
              role::communicate,
              {{does::reads, of_gradient, of_stage::after}, {does::makes, of_mixed_gradient}}),
  expert_kind('M',
              "experts back",
              role::input,
              {{does::reads, of_dispatched},
               {does::frees, of_mixed_gradient},
               {does::makes, of_dispatched_gradient},
               {does::makes, of_expert_input}}),
  expert_kind('W',
              "expert gradients",
              role::weights,
              {{does::frees, of_dispatched},
               {does::frees, of_expert_input},
               {does::makes, of_expert_weights}}),
  expert_kind('J',
              "dispatch back",
              role::communicate,
              {{does::frees, of_dispatched_gradient}, {does::makes, of_routed_gradient}}),
  expert_kind('B',
              "attention back",
              role::input,
              {{does::reads, of_attention_kept},
               {does::frees, of_routed_gradient},
               {does::makes, of_gradient},
               {does::makes, of_attention_input}}),
  expert_kind('V',
              "attention gradients",
              role::weights,
              {{does::frees, of_attention_kept},
               {does::frees, of_attention_input},
               {does::makes, of_attention_weights}})};

} // namespace detail

//! @brief Training of layers with experts, in the order of a layer: attention, dispatch, experts,
//! combine; back: combine back, experts back, expert gradients, dispatch back, attention back,
//! attention gradients. Dispatch and combine run on the network engine.
inline constexpr flow expert_training = declare(detail::expert_data, detail::expert_kinds);

namespace detail {

inline constexpr datum frugal_expert_data[] = {
  lies_in(slot_class::activation, "passing", false),
  lies_in(slot_class::activation, "routed again", false),
  lies_in(slot_class::activation, "passing again", false),
  lies_in(slot_class::activation, "leaving attention", false),
  lies_in(slot_class::activation, "leaving experts", false),
  {.word = "attention on host",
   .pool = static_cast<std::uint8_t>(slot_class::host_activation),
   .arrives_in = static_cast<std::uint8_t>(slot_class::host_activation),
   .lives = residence::host},
  {.word = "experts on host",
   .pool = static_cast<std::uint8_t>(slot_class::host_activation),
   .arrives_in = static_cast<std::uint8_t>(slot_class::host_activation),
   .lives = residence::host},
  {.word = "request", .lives = residence::nowhere}};

//! A copy of one datum of a layer to another place.
[[nodiscard]] constexpr kind_of_pass
expert_copy(char letter, flow_word const& word, engine on, std::initializer_list<effect> effects) {
  return declare_kind(letter, word, on, stage_call::copy, effects);
}
inline constexpr kind_of_pass frugal_expert_kinds[] = {
  expert_kind('F',
              "checkpointed attention",
              role::forward,
              {{does::reads, of_output, of_stage::before}, {does::makes, of_routed}}),
  expert_kind('G',
              "checkpointed dispatch",
              role::communicate,
              {{does::frees, of_routed}, {does::makes, of_passing}}),
  expert_kind('H',
              "checkpointed experts",
              role::forward,
              {{does::frees, of_passing}, {does::makes, of_mixed}}),
  expert_kind('R',
              "attention again",
              role::again,
              {{does::reads, of_output, of_stage::before},
               {does::makes, of_attention_kept},
               {does::makes, of_routed_again}}),
  expert_kind('S',
              "dispatch again",
              role::communicate,
              {{does::frees, of_routed_again}, {does::makes, of_passing_again}}),
  expert_kind('T',
              "experts again",
              role::again,
              {{does::frees, of_passing_again}, {does::makes, of_dispatched}}),
  expert_kind('X',
              "offloaded attention",
              role::forward,
              {{does::reads, of_output, of_stage::before},
               {does::makes, of_leaving_attention},
               {does::makes, of_routed}}),
  expert_kind(
    'Z',
    "offloaded experts",
    role::forward,
    {{does::frees, of_passing}, {does::makes, of_leaving_experts}, {does::makes, of_mixed}}),
  expert_copy('O',
              "attention out",
              engine::copy_out,
              {{does::frees, of_leaving_attention}, {does::makes, of_attention_on_host}}),
  expert_copy('P',
              "experts out",
              engine::copy_out,
              {{does::frees, of_leaving_experts}, {does::makes, of_experts_on_host}}),
  expert_copy('Q',
              "copy request",
              engine::compute,
              {{does::reads, of_attention_on_host},
               {does::reads, of_experts_on_host},
               {does::makes, of_request}}),
  expert_copy(
    'N',
    "experts in",
    engine::copy_in,
    {{does::frees, of_experts_on_host}, {does::reads, of_request}, {does::makes, of_dispatched}}),
  expert_copy('L',
              "attention in",
              engine::copy_in,
              {{does::frees, of_attention_on_host},
               {does::reads, of_request},
               {does::makes, of_attention_kept}})};

//! Two lists, one after the other.
template <class Value, std::size_t First, std::size_t Second>
[[nodiscard]] constexpr std::array<Value, First + Second> joined(Value const (&first)[First],
                                                                 Value const (&second)[Second]) {
  std::array<Value, First + Second> result{};
  std::copy(first, first + First, result.begin());
  std::copy(second, second + Second, result.begin() + First);
  return result;
}

//! The same in less memory: a layer keeps only its input and runs attention, dispatch and experts
//! again, or what it keeps goes to the host and comes back. The kinds of `expert_training` have
//! their numbers.
inline constexpr flow frugal_expert_training =
  declare(joined(expert_data, frugal_expert_data), joined(expert_kinds, frugal_expert_kinds));

} // namespace detail

} // namespace pipelining::inline v0_3
