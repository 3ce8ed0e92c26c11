// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Work and memory of a transformer, counted from its shape. Header for
//! pipelining::transformer and token_range.
//!
//! Counts are of one whole layer or of the whole vocabulary, for one microbatch on one device
//! without tensor parallelism; `predict.hpp` shares them out. Numbers are bf16, attention is causal
//! and keeps no scores (as in FlashAttention), there is no dropout.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/limits.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/quote.hpp>
#include <pipe/flow/training.hpp>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace pipelining::inline v0_3 {

//! @brief Some tokens of each sequence: `length` of them after `prefix` earlier ones.
struct token_range {
  std::int64_t length = 1; //!< tokens
  std::int64_t prefix = 0; //!< tokens before them
};

//! @brief The shape of a transformer: what a model's configuration file says of it.
//!
//! Dense by default; `experts` > 0 makes every layer but the first `dense_layers` a mixture of
//! experts, whose `ffn` is the width of one expert. An encoder comes before the layers, modules
//! after them.
struct transformer {
  //! @brief Plain layers that turn pictures into tokens of the model. Tokens of a picture see all
  //! others of it.
  struct picture_encoder {
    int layers = 0;     //!< 0: the model has no encoder
    int hidden = 1;     //!< width of a token
    int heads = 1;      //!< heads of queries, keys and values
    int ffn = 4;        //!< inner width of the feed-forward part
    bool gated = false; //!< three matrices in the feed-forward part, else two
    int tokens = 1;     //!< of a picture

    friend constexpr bool operator==(picture_encoder const&, picture_encoder const&) = default;
  };

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
  int shared_ffn = 0;        //!< inner width of what every token passes besides its experts
  int query_rank = 0; //!< width that queries are compressed to (latent attention); 0: they are not
  int key_rank = 0;   //!< width that keys and values are compressed to; 0: they are not
  int rope_width = 0; //!< of each query and key, the part with positions beyond head_width
  int dense_layers = 0; //!< of a model with experts: so many layers, the first ones, have none
  int dense_ffn = 0;    //!< inner width of these layers
  int modules = 0; //!< for further tokens (multi-token prediction): a layer and a projection each
  picture_encoder encoder{}; //!< of models that read pictures, too

  //! @brief The most parameters of a model, so that no number of bytes overflows.
  static constexpr double most_parameters = 1e15;

  //! @brief Width of all queries of a token.
  [[nodiscard]] constexpr std::int64_t query_width() const noexcept {
    return head_width > 0 ? std::int64_t{heads} * head_width : hidden;
  }
  //! @brief Width of all keys of a token, and of all values.
  [[nodiscard]] constexpr std::int64_t key_width() const noexcept {
    return query_width() / heads * kv_heads;
  }
  //! @brief Inner widths that one token passes through: of its experts and of the shared part.
  [[nodiscard]] constexpr std::int64_t inner_width() const noexcept {
    return experts > 0 ? std::int64_t{experts_per_token} * ffn + shared_ffn : ffn;
  }
  //! @brief Width of the queries with the part that has positions.
  [[nodiscard]] constexpr std::int64_t scored_query_width() const noexcept {
    return query_width() + std::int64_t{heads} * rope_width;
  }
  //! @brief The same of the keys.
  [[nodiscard]] constexpr std::int64_t scored_key_width() const noexcept {
    return key_width() + std::int64_t{kv_heads} * rope_width;
  }

  //! @brief The shape of the layers without experts, as if all were like that.
  [[nodiscard]] constexpr transformer dense_shape() const noexcept {
    transformer result = *this;
    result.ffn = dense_ffn;
    result.experts = result.experts_per_token = result.shared_ffn = 0;
    result.dense_layers = result.dense_ffn = 0;
    return result;
  }
  //! @brief The shape of the layers of the encoder.
  [[nodiscard]] constexpr transformer encoder_shape() const noexcept {
    transformer result;
    result.layers = encoder.layers;
    result.hidden = encoder.hidden;
    result.heads = result.kv_heads = encoder.heads;
    result.ffn = encoder.ffn;
    result.gated = encoder.gated;
    return result;
  }
  //! @brief The sum of a figure of `count` layers, of which `dense` have no experts.
  [[nodiscard]] constexpr auto
  of_layers(int count, int dense, auto const& of_layer) const noexcept {
    return (count - dense) * of_layer(*this) +
           (dense > 0 ? dense * of_layer(dense_shape()) : decltype(of_layer(*this)){});
  }

  //! @brief Parameters that give query, keys and values. Of latent attention all keys have one part
  //! with positions.
  //! @source DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1, for latent attention.
  [[nodiscard]] constexpr std::int64_t projection_parameters() const noexcept {
    std::int64_t const width = hidden;
    std::int64_t const query = scored_query_width();
    std::int64_t const keys_and_values = 2 * key_width();
    return (query_rank > 0 ? query_rank * (width + query) : width * query) +
           (key_rank > 0 ? width * (key_rank + rope_width) + key_rank * keys_and_values
                         : width * keys_and_values);
  }
  //! @brief The same with the output of attention.
  [[nodiscard]] constexpr std::int64_t attention_parameters() const noexcept {
    return projection_parameters() + query_width() * hidden;
  }
  //! @brief Parameters of a layer whose feed-forward part has this inner width.
  [[nodiscard]] constexpr std::int64_t parameters_with(std::int64_t inner) const noexcept {
    std::int64_t const matrices = gated ? 3 : 2;
    return attention_parameters() + matrices * hidden * inner + std::int64_t{hidden} * experts;
  }
  //! @brief Parameters of a layer that one token meets.
  [[nodiscard]] constexpr std::int64_t met_parameters() const noexcept {
    return parameters_with(inner_width());
  }
  //! @brief Parameters of one layer, without the few of norms and biases.
  [[nodiscard]] constexpr std::int64_t layer_parameters() const noexcept {
    return parameters_with(experts > 0 ? std::int64_t{experts} * ffn + shared_ffn : ffn);
  }
  //! @brief Parameters with which a module joins the embedding of the next token to a hidden state.
  [[nodiscard]] constexpr std::int64_t joining_parameters() const noexcept {
    return 2 * std::int64_t{hidden} * hidden;
  }
  //! @brief Parameters of one end of the model: the embedding, or the output layer.
  [[nodiscard]] constexpr std::int64_t vocabulary_parameters() const noexcept {
    return std::int64_t{hidden} * vocabulary;
  }
  //! @brief Parameters of the whole model.
  [[nodiscard]] constexpr std::int64_t parameters() const noexcept {
    auto const of_layer = [](transformer const& of) { return of.layer_parameters(); };
    return of_layers(layers, dense_layers, of_layer) + (tied ? 1 : 2) * vocabulary_parameters() +
           modules * (layer_parameters() + joining_parameters()) +
           encoder.layers * encoder_shape().layer_parameters();
  }

  //! @brief Floating-point operations of a microbatch in products with so many parameters.
  //!
  //! The number is the same in the forward pass, for the gradient of the input and for the weights.
  //! @param tokens of all sequences.
  [[nodiscard]] static constexpr double flops_with(std::int64_t parameters,
                                                   std::int64_t tokens) noexcept {
    return 2.0 * static_cast<double>(tokens) * static_cast<double>(parameters);
  }
  //! @brief Operations of one layer in products of matrices with weights.
  [[nodiscard]] constexpr double linear_flops(std::int64_t tokens) const noexcept {
    return flops_with(met_parameters(), tokens);
  }
  //! @brief Floating-point operations of the attention of one layer, which no weights take part in.
  //!
  //! Causal: a token looks at those before it. Backward takes five products where forward takes
  //! two, all of them for the gradient of the input.
  //! @param sequences [count] sequences of a microbatch.
  [[nodiscard]] constexpr double
  attention_flops(pass_kind kind, token_range tokens, int sequences = 1) const noexcept {
    if (detail::kinds_of_training[kind].is == role::weights)
      return 0;
    double const length = static_cast<double>(tokens.length);
    std::int64_t const widths = scored_query_width() + query_width();
    double const forward = 2.0 * sequences * static_cast<double>(widths) *
                           (length * static_cast<double>(tokens.prefix) + length * length / 2);
    return detail::kinds_of_training[kind].is == role::forward ? forward : 2.5 * forward;
  }
  //! @brief Floating-point operations of the output layer over the whole vocabulary: the same
  //! number forward, for the gradient of the input and for the gradient of the weights.
  [[nodiscard]] constexpr double vocabulary_flops(std::int64_t tokens) const noexcept {
    return flops_with(vocabulary_parameters(), tokens);
  }

  //! @brief Bytes of a token that attention itself keeps: query, keys, values, output and
  //! log-sum-exp.
  [[nodiscard]] constexpr std::int64_t attended_bytes() const noexcept {
    return 2 * (scored_query_width() + scored_key_width() + key_width() + query_width()) +
           4 * std::int64_t{heads};
  }
  //! @brief Bytes that the forward pass of one layer keeps for its backward pass.
  //!
  //! Inputs of both norms, of the four or five products with weights, queries, keys, values and the
  //! log-sum-exp of the scores: 32 hidden + 4 heads per token for a plain layer of ffn = 4 hidden.
  //! @source Korthikanti et al., MLSys 2023, without dropout masks and scores; own count for
  //! grouped attention, gated layers and experts.
  [[nodiscard]] constexpr std::int64_t activation_bytes(std::int64_t tokens) const noexcept {
    std::int64_t const width = hidden;
    std::int64_t const compressed = std::int64_t{query_rank} + key_rank;
    std::int64_t const attention = 2 * width + 2 * compressed + attended_bytes();
    std::int64_t const copies = experts > 0 ? 2 * width * experts_per_token : 0;
    std::int64_t const feed_forward = 2 * width + copies + (gated ? 6 : 4) * inner_width();
    std::int64_t const norms = 4 * width;
    return tokens * (attention + feed_forward + norms);
  }
  //! @brief Of these, the bytes of attention only.
  [[nodiscard]] constexpr std::int64_t
  attention_activation_bytes(std::int64_t tokens) const noexcept {
    return tokens * attended_bytes();
  }
  //! @brief Bytes of keys and values that one layer keeps for the later chunks of its sequence; the
  //! gradients that travel back take as much in bf16.
  [[nodiscard]] constexpr std::int64_t key_value_bytes(std::int64_t tokens) const noexcept {
    return 2 * tokens * (scored_key_width() + key_width());
  }
  //! @brief Bytes of the logits and their gradient while the loss is computed: bf16 and single.
  [[nodiscard]] constexpr std::int64_t logits_bytes(std::int64_t tokens) const noexcept {
    return (2 + 4) * tokens * vocabulary;
  }

  //! @brief Bytes of a message between two stages, an activation or a gradient. The forward pass of
  //! one layer keeps as much, its input, where the backward pass recomputes it.
  [[nodiscard]] constexpr std::int64_t message_bytes(std::int64_t tokens) const noexcept {
    return 2 * tokens * hidden;
  }
  //! @brief Bytes of what attention reads, with the residual: query, keys and values of all tokens.
  [[nodiscard]] constexpr std::int64_t projected_message_bytes(std::int64_t tokens) const noexcept {
    return message_bytes(tokens) +
           2 * tokens * (scored_query_width() + scored_key_width() + key_width());
  }
  //! @brief Bytes of what attention gives, with the residual.
  [[nodiscard]] constexpr std::int64_t attended_message_bytes(std::int64_t tokens) const noexcept {
    return message_bytes(tokens) + 2 * tokens * query_width();
  }
  //! @brief Bytes that one layer sends to other devices' experts and back in one pass, when its
  //! experts are spread over `devices` of them. @pre devices >= 1
  [[nodiscard]] constexpr double expert_message_bytes(std::int64_t tokens,
                                                      int devices) const noexcept {
    return 2.0 * 2.0 * static_cast<double>(tokens) * hidden * experts_per_token * (devices - 1) /
           devices;
  }

  //! @brief Checks that a model of this shape exists.
  //! @throws std::invalid_argument with one sentence that names what is wrong.
  constexpr void check() const {
    check_numbers();
    check_parts();
    double const width = hidden; // in double, whose products cannot overflow
    double const inner = experts > 0 ? double{1} * experts * ffn + shared_ffn : double{1} * ffn;
    double const widest = inner > dense_ffn ? inner : double{1} * dense_ffn;
    double const ranks = double{1} * query_rank + key_rank;
    double const of_layer = (4 * width + 3 * ranks) * static_cast<double>(scored_query_width()) +
                            width * ranks + 3 * width * widest + width * experts;
    double const of_modules = modules * (of_layer + 2 * width * width);
    if (layers * of_layer + of_modules + (2 + modules) * width * vocabulary > most_parameters)
      throw std::invalid_argument("transformer: a model of more than 1e15 parameters is not "
                                  "counted; check layers, widths, experts and vocabulary");
    if (encoder.layers > 0)
      encoder_shape().check();
  }

  //! @brief The shape of a name.
  //! @throws std::invalid_argument that lists the names when there is none.
  [[nodiscard]] static transformer named(std::string_view name);

  friend constexpr bool operator==(transformer const&, transformer const&) = default;

private:
  //! Checks every number of a shape by itself.
  constexpr void check_numbers() const {
    struct named_number {
      char const* name;
      int value;
      int least = 0;
    };
    for (named_number const& each : {named_number{"layers", layers, 1},
                                     {"hidden", hidden, 1},
                                     {"heads", heads, 1},
                                     {"kv_heads", kv_heads, 1},
                                     {"head_width", head_width},
                                     {"ffn", ffn, 1},
                                     {"vocabulary", vocabulary, 1},
                                     {"experts", experts},
                                     {"experts_per_token", experts_per_token},
                                     {"shared_ffn", shared_ffn},
                                     {"dense_layers", dense_layers},
                                     {"dense_ffn", dense_ffn},
                                     {"query_rank", query_rank},
                                     {"key_rank", key_rank},
                                     {"rope_width", rope_width},
                                     {"modules", modules},
                                     {"layers of the encoder", encoder.layers},
                                     {"tokens of the encoder", encoder.tokens, 1}}) {
      if (each.value < each.least)
        throw std::invalid_argument(std::string("transformer: ") + each.name +
                                    " must be at least " + std::to_string(each.least) + ", not " +
                                    std::to_string(each.value));
      if (!detail::model_range.contains(each.value))
        throw std::invalid_argument(std::string("transformer: ") + each.name + " must be " +
                                    detail::model_range.words);
    }
  }

  //! Checks that the numbers of a shape go together.
  constexpr void check_parts() const {
    auto const no_multiple = [](char const* one, int value, char const* other, int of) {
      return std::string("transformer: ") + one + " must be a multiple of " + other + ", but " +
             std::to_string(value) + " is none of " + std::to_string(of);
    };
    if (head_width == 0 && hidden % heads != 0)
      throw std::invalid_argument(no_multiple("hidden", hidden, "heads", heads) +
                                  "; or head_width must say how wide a head is");
    if (heads % kv_heads != 0)
      throw std::invalid_argument(no_multiple("heads", heads, "kv_heads", kv_heads));
    if (experts > 0 && (experts_per_token < 1 || experts_per_token > experts))
      throw std::invalid_argument(
        "transformer: experts_per_token must be between 1 and the number of experts");
    if (experts == 0 && (experts_per_token > 0 || shared_ffn > 0))
      throw std::invalid_argument(
        "transformer: experts_per_token and shared_ffn are of models with experts; give experts");
    if (dense_layers > layers || (dense_layers > 0) != (dense_ffn > 0) ||
        (dense_layers > 0 && experts == 0))
      throw std::invalid_argument(
        "transformer: dense_layers, at most all layers, and dense_ffn are "
        "of models with experts, and belong together");
    if (key_rank == 0 && (query_rank > 0 || rope_width > 0))
      throw std::invalid_argument(
        "transformer: query_rank and rope_width are of latent attention; give key_rank as well");
  }
};

namespace detail {

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
//! vocab of Vocabulary Parallelism. The others come from the files config.json that Meta,
//! Mistral, Qwen, OpenAI and DeepSeek publish with their models, without the windows of gpt-oss,
//! without modules for further tokens.
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
  {"llama3-8b", {32, 4096, 32, 8, 0, 14336, true, 128256}},
  {"llama3-70b", {80, 8192, 64, 8, 0, 28672, true, 128256}},
  {"llama3-405b", {126, 16384, 128, 8, 0, 53248, true, 128256}},
  {"qwen3-8b", {36, 4096, 32, 8, 128, 12288, true, 151936}},
  {"qwen3-14b", {40, 5120, 40, 8, 128, 17408, true, 151936}},
  {"qwen3-32b", {64, 5120, 64, 8, 128, 25600, true, 151936}},
  {"qwen3-30b-a3b", {48, 2048, 32, 4, 128, 768, true, 151936, false, 128, 8}},
  {"qwen3-235b-a22b", {94, 4096, 64, 4, 128, 1536, true, 151936, false, 128, 8}},
  {"gpt-oss-20b", {24, 2880, 64, 8, 64, 2880, true, 201088, false, 32, 4}},
  {"gpt-oss-120b", {36, 2880, 64, 8, 64, 2880, true, 201088, false, 128, 4}},
  {"mixtral-8x7b", {32, 4096, 32, 8, 0, 14336, true, 32000, false, 8, 2}},
  {"mixtral-8x22b", {56, 6144, 48, 8, 0, 16384, true, 32000, false, 8, 2}},
  {"deepseek-v3",
   {61, 7168, 128, 128, 128, 2048, true, 129280, false, 256, 8, 2048, 1536, 512, 64, 3, 18432}},
};

} // namespace detail

inline transformer transformer::named(std::string_view name) {
  std::string all;
  for (detail::named_transformer const& each : detail::transformers) {
    if (each.name == name)
      return each.shape;
    all += (all.empty() ? "" : ", ") + std::string(each.name);
  }
  throw std::invalid_argument("there is no model of the name " + detail::quote(name) +
                              "; the known ones are " + all);
}

} // namespace pipelining::inline v0_3
