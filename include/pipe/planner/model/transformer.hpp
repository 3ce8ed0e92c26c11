// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Work and memory of a transformer, counted from its shape. Header for
//! pipelining::transformer, token_range, named_transformers and find_transformer.
//!
//! Counts are of one whole layer or of the whole vocabulary, for one microbatch on one device
//! without tensor parallelism; `predict.hpp` shares them out. Numbers are bf16, attention is causal
//! and keeps no scores (as in FlashAttention), there is no dropout.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/limits.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/quote.hpp>
#include <pipe/flow/training_kinds.hpp>

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace pipelining::inline v0_3 {

//! @brief Some tokens of each sequence: `length` of them behind `prefix` earlier ones.
struct token_range {
  std::int64_t length = 1; //!< tokens
  std::int64_t prefix = 0; //!< tokens before them
};

//! @brief The shape of a transformer: what a model's configuration file says of it.
//!
//! Dense by default; `experts` > 0 makes every layer a mixture of experts, whose `ffn` is the width
//! of one expert.
struct transformer {
  int layers = 1;     //!< layers of attention and feed-forward part
  int hidden = 1;     //!< width of a token
  int heads = 1;      //!< heads of the queries
  int kv_heads = 1;   //!< heads of keys and values: `heads`, or fewer (grouped attention)
  int head_width = 0; //!< of one head; 0: hidden / heads
  int ffn = 4;        //!< inner width of the feed-forward part, of one expert where there are
  bool gated = false; //!< three matrices in the feed-forward part (SwiGLU), else two
  int vocabulary = 1; //!< rows of the embedding
  bool tied = false;  //!< embedding and output layer are one matrix
  int experts = 0;    //!< experts of a layer; 0: dense
  int experts_per_token = 0; //!< experts that each token passes
  int shared_ffn = 0;        //!< inner width of what every token passes beside its experts

  friend constexpr bool operator==(transformer const&, transformer const&) = default;
};

//! @brief The most parameters of a model, so that no number of bytes overflows.
inline constexpr double most_parameters = 1e15;

namespace detail {

[[nodiscard]] constexpr std::int64_t query_width(transformer const& model) noexcept {
  return model.head_width > 0 ? std::int64_t{model.heads} * model.head_width : model.hidden;
}
[[nodiscard]] constexpr std::int64_t key_width(transformer const& model) noexcept {
  return query_width(model) / model.heads * model.kv_heads;
}
//! Inner widths that one token passes through: of its experts and of the shared part.
[[nodiscard]] constexpr std::int64_t inner_width(transformer const& model) noexcept {
  return model.experts > 0 ? std::int64_t{model.experts_per_token} * model.ffn + model.shared_ffn
                           : model.ffn;
}
[[nodiscard]] constexpr std::int64_t attention_parameters(transformer const& model) noexcept {
  std::int64_t const hidden = model.hidden;
  return hidden * (query_width(model) + 2 * key_width(model)) + query_width(model) * hidden;
}
//! Parameters of a layer that one token meets.
[[nodiscard]] constexpr std::int64_t met_parameters(transformer const& model) noexcept {
  std::int64_t const matrices = model.gated ? 3 : 2;
  return attention_parameters(model) + matrices * model.hidden * inner_width(model) +
         std::int64_t{model.hidden} * model.experts;
}

//! Checks that a model of this shape exists.
//! @throws std::invalid_argument with one sentence that names what is wrong.
constexpr void check_transformer(transformer const& model) {
  if (model.layers < 1 || model.hidden < 1 || model.heads < 1 || model.kv_heads < 1 ||
      model.ffn < 1 || model.vocabulary < 1)
    throw std::invalid_argument(
      "transformer: layers, hidden, heads, kv_heads, ffn and vocabulary must be at least 1");
  if (model.head_width < 0 || model.experts < 0 || model.experts_per_token < 0 ||
      model.shared_ffn < 0)
    throw std::invalid_argument("transformer: no number of a shape is negative");
  if (model.head_width == 0 && model.hidden % model.heads != 0)
    throw std::invalid_argument(
      "transformer: hidden must be a multiple of heads, but " + std::to_string(model.hidden) +
      " is none of " + std::to_string(model.heads) + "; or head_width must say how wide a head is");
  if (model.heads % model.kv_heads != 0)
    throw std::invalid_argument("transformer: heads must be a multiple of kv_heads, but " +
                                std::to_string(model.heads) + " is none of " +
                                std::to_string(model.kv_heads));
  if (model.experts > 0 && (model.experts_per_token < 1 || model.experts_per_token > model.experts))
    throw std::invalid_argument(
      "transformer: experts_per_token must be between 1 and the number of experts");
  if (model.experts == 0 && (model.experts_per_token > 0 || model.shared_ffn > 0))
    throw std::invalid_argument(
      "transformer: experts_per_token and shared_ffn are of models with experts; give experts");
  struct named_number {
    char const* name;
    int value;
  };
  for (named_number const& each : {named_number{"layers", model.layers},
                                   {"hidden", model.hidden},
                                   {"heads", model.heads},
                                   {"head_width", model.head_width},
                                   {"ffn", model.ffn},
                                   {"vocabulary", model.vocabulary},
                                   {"experts", model.experts},
                                   {"shared_ffn", model.shared_ffn}})
    if (!model_range.contains(each.value))
      throw std::invalid_argument(std::string("transformer: ") + each.name + " must be " +
                                  model_range.words);
  double const hidden = model.hidden; // in double, whose products cannot overflow
  double const inner = model.experts > 0 ? double{1} * model.experts * model.ffn + model.shared_ffn
                                         : double{1} * model.ffn;
  double const of_layer = 4 * hidden * static_cast<double>(query_width(model)) +
                          3 * hidden * inner + hidden * model.experts;
  if (model.layers * of_layer + 2 * hidden * model.vocabulary > most_parameters)
    throw std::invalid_argument("transformer: a model of more than 1e15 parameters is not "
                                "counted; check layers, widths, experts and vocabulary");
}

//! Parameters of one layer, without the few of norms and biases.
[[nodiscard]] constexpr std::int64_t layer_parameters(transformer const& model) noexcept {
  std::int64_t const matrices = model.gated ? 3 : 2;
  std::int64_t const inner =
    model.experts > 0 ? std::int64_t{model.experts} * model.ffn + model.shared_ffn : model.ffn;
  return attention_parameters(model) + matrices * model.hidden * inner +
         std::int64_t{model.hidden} * model.experts;
}

//! Of these, the parameters that give query, keys and values.
[[nodiscard]] constexpr std::int64_t projection_parameters(transformer const& model) noexcept {
  return std::int64_t{model.hidden} * (query_width(model) + 2 * key_width(model));
}

//! Parameters of one end of the model: the embedding, or the output layer.
[[nodiscard]] constexpr std::int64_t vocabulary_parameters(transformer const& model) noexcept {
  return std::int64_t{model.hidden} * model.vocabulary;
}

} // namespace detail

//! @brief Parameters of the whole model.
[[nodiscard]] constexpr std::int64_t parameters(transformer const& model) noexcept {
  return model.layers * detail::layer_parameters(model) +
         (model.tied ? 1 : 2) * detail::vocabulary_parameters(model);
}

//! @brief Floating-point operations of one layer in products of matrices with weights.
//!
//! The same number in the forward pass, for the gradient of the input and for that of the weights.
//! @param sequences [count] sequences of a microbatch.
[[nodiscard]] constexpr double
linear_flops(transformer const& model, token_range tokens, int sequences = 1) noexcept {
  return 2.0 * sequences * static_cast<double>(tokens.length) *
         static_cast<double>(detail::met_parameters(model));
}

//! @brief Floating-point operations of the attention of one layer, which no weights take part in.
//!
//! Causal: a token looks at those before it. Backward takes five products where forward takes two,
//! all of them for the gradient of the input.
//! @param sequences [count] sequences of a microbatch.
[[nodiscard]] constexpr double attention_flops(transformer const& model,
                                               pass_kind kind,
                                               token_range tokens,
                                               int sequences = 1) noexcept {
  if (detail::training_kind(kind).is == role::weights)
    return 0;
  double const length = static_cast<double>(tokens.length);
  double const forward = 4.0 * sequences * static_cast<double>(detail::query_width(model)) *
                         (length * static_cast<double>(tokens.prefix) + length * length / 2);
  return detail::training_kind(kind).is == role::forward ? forward : 2.5 * forward;
}

//! @brief Floating-point operations of the output layer over the whole vocabulary: the same number
//! forward, for the gradient of the input and for that of the weights.
[[nodiscard]] constexpr double
vocabulary_flops(transformer const& model, token_range tokens, int sequences = 1) noexcept {
  return 2.0 * sequences * static_cast<double>(tokens.length) *
         static_cast<double>(detail::vocabulary_parameters(model));
}

//! @brief Bytes that the forward pass of one layer keeps for its backward pass.
//!
//! Inputs of both norms, of the four or five products with weights, queries, keys, values and the
//! log-sum-exp of the scores: 32 hidden + 4 heads per token for a plain layer of ffn = 4 hidden.
//! @source Korthikanti et al., MLSys 2023, without dropout masks and scores; own count for grouped
//! attention, gated layers and experts.
[[nodiscard]] constexpr std::int64_t
activation_bytes(transformer const& model, std::int64_t tokens, int sequences = 1) noexcept {
  std::int64_t const hidden = model.hidden;
  std::int64_t const attention = 2 * hidden + 2 * detail::query_width(model) +
                                 4 * detail::key_width(model) + 2 * detail::query_width(model) +
                                 4 * std::int64_t{model.heads};
  std::int64_t const copies = model.experts > 0 ? 2 * hidden * model.experts_per_token : 0;
  std::int64_t const feed_forward =
    2 * hidden + copies + (model.gated ? 6 : 4) * detail::inner_width(model);
  std::int64_t const norms = 4 * hidden;
  return sequences * tokens * (attention + feed_forward + norms);
}

//! @brief Of these, the bytes of attention alone: query, keys, values, output and log-sum-exp.
[[nodiscard]] constexpr std::int64_t attention_activation_bytes(transformer const& model,
                                                                std::int64_t tokens,
                                                                int sequences = 1) noexcept {
  return sequences * tokens *
         (4 * detail::query_width(model) + 4 * detail::key_width(model) +
          4 * std::int64_t{model.heads});
}

//! @brief Bytes that the forward pass of one layer keeps where the backward pass recomputes it: its
//! input.
[[nodiscard]] constexpr std::int64_t
input_bytes(transformer const& model, std::int64_t tokens, int sequences = 1) noexcept {
  return 2 * std::int64_t{sequences} * tokens * model.hidden;
}

//! @brief Bytes of keys and values that one layer keeps for the later chunks of its sequence; the
//! gradients that travel back take as much in bf16.
[[nodiscard]] constexpr std::int64_t
key_value_bytes(transformer const& model, std::int64_t tokens, int sequences = 1) noexcept {
  return 4 * std::int64_t{sequences} * tokens * detail::key_width(model);
}

//! @brief Bytes of a message between two stages: an activation or a gradient.
[[nodiscard]] constexpr std::int64_t
message_bytes(transformer const& model, std::int64_t tokens, int sequences = 1) noexcept {
  return input_bytes(model, tokens, sequences);
}

//! @brief Bytes of what attention gives, with the residual.
[[nodiscard]] constexpr std::int64_t
attended_message_bytes(transformer const& model, std::int64_t tokens, int sequences = 1) noexcept {
  return message_bytes(model, tokens, sequences) +
         2 * sequences * tokens * detail::query_width(model);
}

namespace detail {

//! Floating-point operations of one layer. @param sequences [count] of a microbatch.
//! @source Narayanan et al., SC 2021, and Qi et al., ICLR 2024, halved for causal attention; the
//! counts of grouped attention, gated layers, experts and chunks are an own derivation.
[[nodiscard]] constexpr double layer_flops(transformer const& model,
                                           pass_kind kind,
                                           token_range tokens,
                                           int sequences = 1) noexcept {
  double const linear = linear_flops(model, tokens, sequences);
  return (training_kind(kind).is == role::backward ? 2 * linear : linear) +
         attention_flops(model, kind, tokens, sequences);
}

//! Bytes of what attention reads, with the residual: query, keys and values of all tokens.
[[nodiscard]] constexpr std::int64_t
projected_message_bytes(transformer const& model, std::int64_t tokens, int sequences = 1) noexcept {
  return message_bytes(model, tokens, sequences) +
         sequences * tokens * (2 * query_width(model) + 4 * key_width(model));
}

//! Bytes of the logits and their gradient while the loss is computed: bf16 and single.
[[nodiscard]] constexpr std::int64_t
logits_bytes(transformer const& model, std::int64_t tokens, int sequences = 1) noexcept {
  return (2 + 4) * std::int64_t{sequences} * tokens * model.vocabulary;
}

//! Bytes that one layer sends to other devices' experts and back in one pass, when its
//! experts are spread over `devices` of them. @pre devices >= 1
[[nodiscard]] constexpr double expert_message_bytes(transformer const& model,
                                                    std::int64_t tokens,
                                                    int devices,
                                                    int sequences = 1) noexcept {
  return 2.0 * 2.0 * sequences * static_cast<double>(tokens) * model.hidden *
         model.experts_per_token * (devices - 1) / devices;
}

//! A shape with its name.
struct named_transformer {
  std::string_view name; //!< as the command line spells it
  transformer shape;     //!< its shape
};

[[nodiscard]] constexpr transformer
plain(int layers, int hidden, int heads, int vocabulary = 51200) noexcept {
  return {.layers = layers,
          .hidden = hidden,
          .heads = heads,
          .kv_heads = heads,
          .ffn = 4 * hidden,
          .vocabulary = vocabulary};
}

//! Shapes of published experiments: gpt of Seq1F1B, zb of Zero Bubble, v of Controllable Memory,
//! vocab of Vocabulary Parallelism; llama and mixtral of their model cards.
inline constexpr named_transformer transformers[] = {
  {"gpt-1.3b", plain(24, 2048, 16)},
  {"gpt-2.7b", plain(32, 2560, 32)},
  {"gpt-7b", plain(32, 4096, 32)},
  {"gpt-13b", plain(40, 5120, 40)},
  {"gpt-30b", plain(64, 6144, 64)},
  {"zb-1.5b", plain(22, 2304, 24)},
  {"zb-6.2b", plain(30, 4096, 32)},
  {"zb-14.6b", plain(46, 5120, 40)},
  {"zb-28.3b", plain(62, 6144, 48)},
  {"v-9.6b", plain(30, 5120, 40)},
  {"v-21b", plain(46, 6144, 48)},
  {"v-38.5b", plain(62, 7168, 56)},
  {"v-98.5b", plain(78, 10240, 80)},
  {"vocab-4b", plain(32, 3072, 24, 256000)},
  {"llama-13b", {40, 5120, 40, 40, 0, 13824, true, 32000}},
  {"llama-70b", {80, 8192, 64, 8, 0, 28672, true, 32000}},
  {"mixtral-8x7b", {32, 4096, 32, 8, 0, 14336, true, 32000, false, 8, 2}},
};
//! The shapes that have a name.
[[nodiscard]] constexpr std::span<named_transformer const> named_transformers() noexcept {
  return transformers;
}

} // namespace detail

//! @brief The shape of a name.
//! @throws std::invalid_argument that lists the names when there is none.
[[nodiscard]] inline transformer find_transformer(std::string_view name) {
  std::string all;
  for (detail::named_transformer const& each : detail::named_transformers()) {
    if (each.name == name)
      return each.shape;
    all += (all.empty() ? "" : ", ") + std::string(each.name);
  }
  throw std::invalid_argument("there is no model of the name " + detail::quote(name) +
                              "; the known ones are " + all);
}

} // namespace pipelining::inline v0_3
