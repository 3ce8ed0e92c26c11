// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The flow of training, and the data and the kinds of passes that such flows are made of.
//! Header for pipelining::training.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/resolve.hpp>
#include <pipe/flow/slot_class.hpp>

#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <string_view>

namespace pipelining::inline v0_3 {
namespace detail {

struct kind_name {
  char letter;
  char const* word;
};
//! The letters and words of the kinds of training, by number.
inline constexpr kind_name names_of_training[] = {
  {'F', "forward"},
  {'B', "backward"},
  {'I', "backward_input"},
  {'W', "backward_weight"},
  {'K', "checkpointed_forward"},
  {'R', "recompute"},
  {'H', "offloaded_forward"},
  {'O', "copy_out"},
  {'L', "copy_in"},
  {'Q', "copy_request"},
  {'E', "embed"},
  {'S', "logits"},
  {'T', "logits_gradient"},
  {'G', "embed_gradient"},
  {'N', "request_weights"},
  {'A', "gather_weights"},
  {'U', "use_weights"},
  {'X', "release_weights"},
  {'P', "request_weights_again"},
  {'J', "gather_weights_again"},
  {'V', "use_weights_again"},
  {'Y', "release_weights_again"},
  {'C', "collect_gradients"},
  {'D', "request_scatter"},
  {'Z', "scatter_gradients"},
  {'M', "keep_weights"},
};

} // namespace detail

//! @brief A kind with its effects, and the letter and the word of a kind of training.
[[nodiscard]] constexpr kind_of_pass
declare_kind(pass_kind named, engine on, stage_call calls, std::initializer_list<effect> effects) {
  detail::kind_name const& name = detail::names_of_training[detail::index_of(named)];
  return declare_kind(name.letter, flow_word::of(name.word), on, calls, effects);
}

namespace detail {

//! The number of a kind of training with the word of another kind; negative where there is none.
[[nodiscard]] constexpr int number_in_training(kind_of_pass const& kind) noexcept {
  std::string_view const word = kind.word.c_str();
  for (int number = 0; number < static_cast<int>(std::size(names_of_training)); ++number)
    if (word == names_of_training[number].word)
      return number;
  return -1;
}

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

inline constexpr datum output_datum{"output",
                                    pool(slot_class::output),
                                    pool(slot_class::received_input),
                                    residence::device,
                                    datum::per::unit,
                                    true};
inline constexpr datum gradient_datum{"input_gradient",
                                      pool(slot_class::input_gradient),
                                      pool(slot_class::received_gradient),
                                      residence::device,
                                      datum::per::reader,
                                      true};
inline constexpr datum weight_gradient_datum{
  "weight_gradient", 0, 0, residence::nowhere, datum::per::unit, true};
inline constexpr datum activation_datum{"activation",
                                        pool(slot_class::activation),
                                        pool(slot_class::activation),
                                        residence::device,
                                        datum::per::unit,
                                        true};
inline constexpr datum weight_input_datum{
  "weight_input", pool(slot_class::weight_input), pool(slot_class::weight_input)};
inline constexpr datum sequence_datum{"sequence",
                                      pool(slot_class::sequence),
                                      pool(slot_class::sequence),
                                      residence::device,
                                      datum::per::microbatch,
                                      false,
                                      true};
inline constexpr datum sequence_gradient_datum{"sequence_gradient",
                                               pool(slot_class::sequence_gradient),
                                               pool(slot_class::sequence_gradient),
                                               residence::device,
                                               datum::per::microbatch,
                                               false,
                                               true};

//! A datum that takes the slots of another.
[[nodiscard]] constexpr datum in_pool_of(datum other, flow_word const& word) noexcept {
  other.word = word;
  other.wanted = false;
  return other;
}

inline constexpr effect reads_input{does::reads, made_output, of_stage::before};
inline constexpr effect extends_sequence{
  does::adds_to, keys_and_values, of_stage::own, effect::chunk_order::ascending};
inline constexpr effect reads_gradient{does::reads, made_gradient, of_stage::after};
inline constexpr effect extends_gradients{
  does::adds_to, their_gradients, of_stage::own, effect::chunk_order::descending};

inline constexpr kind_of_pass forward_kind = declare_kind(
  pass_kind::forward,
  engine::compute,
  stage_call::forward,
  {reads_input, {does::makes, kept_activation}, extends_sequence, {does::makes, made_output}});
inline constexpr kind_of_pass backward_kind = declare_kind(pass_kind::backward,
                                                           engine::compute,
                                                           stage_call::backward,
                                                           {reads_gradient,
                                                            {does::frees, kept_activation},
                                                            {does::frees, keys_and_values},
                                                            extends_gradients,
                                                            {does::frees, their_gradients},
                                                            {does::makes, made_gradient},
                                                            {does::makes, weight_gradient}});
inline constexpr kind_of_pass backward_input_kind = declare_kind(pass_kind::backward_input,
                                                                 engine::compute,
                                                                 stage_call::backward_input,
                                                                 {reads_gradient,
                                                                  {does::reads, kept_activation},
                                                                  {does::frees, keys_and_values},
                                                                  extends_gradients,
                                                                  {does::frees, their_gradients},
                                                                  {does::makes, kept_for_weights},
                                                                  {does::makes, made_gradient}});
inline constexpr kind_of_pass backward_weight_kind = declare_kind(pass_kind::backward_weight,
                                                                  engine::compute,
                                                                  stage_call::backward_weight,
                                                                  {{does::frees, kept_activation},
                                                                   {does::frees, kept_for_weights},
                                                                   {does::makes, weight_gradient}});
inline constexpr kind_of_pass checkpointed_forward_kind =
  declare_kind(pass_kind::checkpointed_forward,
               engine::compute,
               stage_call::forward,
               {reads_input,
                {does::makes, working_activation},
                {does::frees, working_activation},
                extends_sequence,
                {does::makes, made_output}});
inline constexpr kind_of_pass recompute_kind = declare_kind(pass_kind::recompute,
                                                            engine::compute,
                                                            stage_call::recompute,
                                                            {reads_input,
                                                             {does::makes, kept_activation},
                                                             {does::reads, keys_and_values},
                                                             {does::makes, repeated_output},
                                                             {does::frees, repeated_output}});
inline constexpr kind_of_pass offloaded_forward_kind = declare_kind(
  pass_kind::offloaded_forward,
  engine::compute,
  stage_call::forward,
  {reads_input, {does::makes, leaving_activation}, extends_sequence, {does::makes, made_output}});
inline constexpr kind_of_pass copy_out_kind =
  declare_kind(pass_kind::copy_out,
               engine::copy_out,
               stage_call::copy,
               {{does::frees, leaving_activation}, {does::makes, activation_on_host}});
inline constexpr kind_of_pass copy_in_kind = declare_kind(pass_kind::copy_in,
                                                          engine::copy_in,
                                                          stage_call::copy,
                                                          {{does::frees, activation_on_host},
                                                           {does::reads, request_to_copy},
                                                           {does::makes, kept_activation}});
inline constexpr kind_of_pass copy_request_kind =
  declare_kind(pass_kind::copy_request,
               engine::compute,
               stage_call::copy,
               {{does::reads, activation_on_host}, {does::makes, request_to_copy}});

[[nodiscard]] constexpr kind_of_pass in_groups(kind_of_pass kind) noexcept {
  kind.in_groups = true;
  return kind;
}
//! A kind that does for a backward pass what another one has done for the forward pass.
[[nodiscard]] constexpr kind_of_pass
done_again(pass_kind named, engine on, stage_call calls) noexcept {
  return declare_kind(named, on, calls, {}).with_role(role::again);
}
inline constexpr effect reads_statistics{does::reads, shard_statistics, of_stage::group};
inline constexpr kind_of_pass embed_kind = in_groups(declare_kind(
  pass_kind::embed, engine::compute, stage_call::forward, {{does::makes, made_output}}));
inline constexpr kind_of_pass embed_gradient_kind = in_groups(
  declare_kind(pass_kind::embed_gradient,
               engine::compute,
               stage_call::backward,
               {reads_gradient, {does::makes, made_gradient}, {does::makes, weight_gradient}}));
//! With one barrier the gradient of the input comes before the statistics are exchanged.
[[nodiscard]] constexpr kind_of_pass logits_kind(int barriers) noexcept {
  kind_of_pass kind = declare_kind(pass_kind::logits,
                                   engine::compute,
                                   stage_call::forward,
                                   {reads_input,
                                    {does::makes, shard_logits},
                                    {does::makes, shard_statistics},
                                    {does::makes, made_output}});
  if (barriers == 1)
    kind.effects[kind.effect_count++] = {does::makes, made_gradient};
  return in_groups(kind);
}
[[nodiscard]] constexpr kind_of_pass logits_gradient_kind(int barriers) noexcept {
  kind_of_pass kind =
    declare_kind(pass_kind::logits_gradient,
                 engine::compute,
                 barriers == 1 ? stage_call::backward_weight : stage_call::backward,
                 {reads_statistics, {does::frees, shard_logits}, {does::makes, weight_gradient}});
  if (barriers == 2)
    kind.effects[kind.effect_count++] = {does::makes, made_gradient};
  return in_groups(kind);
}

//! Kinds that move weights in shards, by number from `request_weights` on, without effects, which
//! differ from flow to flow.
inline constexpr kind_of_pass kinds_of_weights[] = {
  declare_kind(pass_kind::request_weights, engine::compute, stage_call::copy, {}),
  declare_kind(pass_kind::gather_weights, engine::network, stage_call::gather_weights, {}),
  declare_kind(pass_kind::use_weights, engine::compute, stage_call::use_weights, {}),
  declare_kind(pass_kind::release_weights, engine::compute, stage_call::copy, {}),
  done_again(pass_kind::request_weights_again, engine::compute, stage_call::copy),
  done_again(pass_kind::gather_weights_again, engine::network, stage_call::gather_weights),
  done_again(pass_kind::use_weights_again, engine::compute, stage_call::use_weights),
  done_again(pass_kind::release_weights_again, engine::compute, stage_call::copy),
  declare_kind(pass_kind::collect_gradients, engine::compute, stage_call::collect_gradients, {}),
  declare_kind(pass_kind::request_scatter, engine::compute, stage_call::copy, {}),
  declare_kind(pass_kind::scatter_gradients, engine::network, stage_call::scatter_gradients, {}),
  declare_kind(pass_kind::keep_weights, engine::compute, stage_call::copy, {})};

//! The kinds of all flows of training, and none of their data.
inline constexpr flow kinds_of_training = [] {
  flow result;
  for (kind_of_pass const& kind : {forward_kind,
                                   backward_kind,
                                   backward_input_kind,
                                   backward_weight_kind,
                                   checkpointed_forward_kind,
                                   recompute_kind,
                                   offloaded_forward_kind,
                                   copy_out_kind,
                                   copy_in_kind,
                                   copy_request_kind,
                                   embed_kind,
                                   logits_kind(2),
                                   logits_gradient_kind(2),
                                   embed_gradient_kind})
    result.kinds[result.kind_count++] = kind;
  for (kind_of_pass const& kind : kinds_of_weights)
    result.kinds[result.kind_count++] = kind;
  return result;
}();

//! The definition of a kind of training.
[[nodiscard]] constexpr kind_of_pass const& training_kind(pass_kind kind) noexcept {
  return kinds_of_training[kind];
}

//! Whether all kinds of a flow are kinds of training.
[[nodiscard]] constexpr bool is_of_training(flow const& declared) noexcept {
  for (int kind = 0; kind < declared.kind_count; ++kind)
    if (declared.kinds[kind].exists() &&
        !(declared.kinds[kind].word == kinds_of_training.kinds[kind].word))
      return false;
  return true;
}

} // namespace detail

//! @brief Training: a forward pass per unit and stage, and its backward, whole or in two halves.
inline constexpr flow training =
  detail::resolved({detail::output_datum,
                    detail::gradient_datum,
                    detail::weight_gradient_datum,
                    detail::activation_datum,
                    detail::weight_input_datum,
                    detail::sequence_datum,
                    detail::sequence_gradient_datum},
                   {{pass_kind::forward, detail::forward_kind},
                    {pass_kind::backward, detail::backward_kind},
                    {pass_kind::backward_input, detail::backward_input_kind},
                    {pass_kind::backward_weight, detail::backward_weight_kind}});

} // namespace pipelining::inline v0_3
