// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Models and GPUs from JSON files. Header for pipelining::read_transformer and
//! pipelining::read_gpu.
//!
//! A model's file is the `config.json` that model hubs publish, or an object with the names of the
//! members of `transformer`. Only numbers, booleans and words at the top are looked at. A model
//! that reads pictures, too, has them in its `text_config`, its encoder in `vision_config`.

#include <pipe/flow/limits.hpp>
#include <pipe/planner/model/flat_json.hpp>
#include <pipe/planner/model/gpu.hpp>
#include <pipe/planner/model/transformer.hpp>

#include <cmath>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

namespace pipelining::inline v0_3 {
namespace detail {

//! "model file, line 3: 'hidden' must be ...".
[[noreturn]] inline void
refuse_member(char const* what, flat_json const& file, char const* name, char const* wanted) {
  throw std::invalid_argument(std::string(what) + ", line " + std::to_string(file.line_of(name)) +
                              ": '" + name + "' must be " + wanted);
}

//! The first of some names that there is, as a whole number.
[[nodiscard]] inline int whole_number(flat_json const& file,
                                      std::initializer_list<char const*> names,
                                      int otherwise,
                                      char const* what = "model file") {
  for (char const* const name : names) {
    if (!file.has_plain(name))
      continue;
    double const value = file.number(name); // words are no numbers, in quotes or not
    if (value != std::floor(value) || !model_range.contains(value))
      refuse_member(what, file, name, model_range.words);
    return static_cast<int>(value);
  }
  if (otherwise < 0)
    throw std::invalid_argument(
      std::string(what) + ": '" + *names.begin() + "' is missing" +
      (names.size() > 1 ? std::string(" (or, in a hub's config.json, '") + names.end()[-1] + "')"
                        : ""));
  return otherwise;
}

//! The encoder of a model that reads pictures, as an object `encoder` or a hub's `vision_config`
//! has it. One of a hub that does not say all of it is none.
[[nodiscard]] inline transformer::picture_encoder read_encoder(flat_json const& model) {
  std::string_view const own = model.object("encoder");
  std::string_view const text = own.empty() ? model.object("vision_config") : own;
  if (text.empty())
    return {};
  flat_json const file(text);
  int const wanted = own.empty() ? 0 : -1;
  char const* const what = own.empty() ? "model file, vision_config" : "model file, encoder";
  transformer::picture_encoder result;
  result.layers = whole_number(file, {"layers", "depth", "num_hidden_layers"}, wanted, what);
  result.hidden = whole_number(file, {"hidden", "embed_dim", "hidden_size"}, wanted, what);
  result.heads = whole_number(file, {"heads", "num_heads", "num_attention_heads"}, wanted, what);
  int const patch = whole_number(file, {"patch_size"}, 0, what);
  int const side = patch > 0 ? whole_number(file, {"image_size"}, 0, what) / patch : 0;
  int const patches = side <= (1 << 12) ? side * side : 0;
  result.tokens = whole_number(file, {"tokens"}, patches > 0 ? patches : wanted, what);
  if (result.layers == 0 || result.hidden == 0 || result.heads == 0 || result.tokens == 0)
    return {};
  int const usual = result.hidden <= (1 << 22) ? 4 * result.hidden : result.hidden;
  result.ffn = whole_number(file, {"ffn", "intermediate_size"}, usual, what);
  result.gated = whole_number(file, {"gated"}, 0, what) != 0;
  return result;
}

} // namespace detail

//! @brief The model that a JSON text describes.
//! @throws std::invalid_argument that says what is missing or wrong.
[[nodiscard]] inline transformer read_transformer(std::string_view json) {
  detail::flat_json const file(json);
  if (std::string_view const text = file.object("text_config"); !text.empty()) {
    transformer model = read_transformer(text);
    model.encoder = detail::read_encoder(file);
    model.check();
    return model;
  }
  auto const number = [&file](std::initializer_list<char const*> names, int otherwise) {
    return detail::whole_number(file, names, otherwise);
  };
  transformer model;
  model.layers = number({"layers", "n_layer", "num_hidden_layers"}, -1);
  model.hidden = number({"hidden", "n_embd", "hidden_size"}, -1);
  model.heads = number({"heads", "n_head", "num_attention_heads"}, -1);
  model.kv_heads = number({"kv_heads", "num_key_value_heads"}, model.heads);
  model.key_rank = number({"key_rank", "kv_lora_rank"}, 0);
  model.query_rank = number({"query_rank", "q_lora_rank"}, 0);
  bool const latent = model.key_rank > 0;
  model.rope_width = latent ? number({"rope_width", "qk_rope_head_dim"}, 0) : 0;
  model.head_width =
    latent ? number({"head_width", "qk_nope_head_dim"}, -1) : number({"head_width", "head_dim"}, 0);
  model.vocabulary = number({"vocabulary", "vocab_size"}, -1);
  model.experts = number({"experts", "num_local_experts", "num_experts", "n_routed_experts"}, 0);
  model.experts_per_token = number({"experts_per_token", "num_experts_per_tok", "moe_topk"}, 0);
  int const dense = number({"ffn", "n_inner", "intermediate_size"}, 0);
  model.ffn = model.experts > 0 ? number({"moe_intermediate_size"}, dense) : dense;
  if (model.ffn == 0)
    model.ffn = 4 * model.hidden;
  int const shared = number({"n_shared_experts"}, 0);
  model.shared_ffn = number({"shared_ffn", "shared_expert_intermediate_size"}, shared * model.ffn);
  if (model.experts == 0)
    model.experts_per_token = model.shared_ffn = 0;
  else
    model.dense_layers = number({"dense_layers", "first_k_dense_replace"}, 0);
  if (model.dense_layers > 0)
    model.dense_ffn = number({"dense_ffn", "intermediate_size"}, -1);
  // Hubs do not say whether there is a gate; those whose activation is SiLU have one, and Gemma.
  bool const gated =
    file.word("hidden_act") == "silu" || file.word("model_type").starts_with("gemma");
  model.gated = number({"gated"}, gated ? 1 : 0) != 0;
  model.tied = number({"tied", "tie_word_embeddings"}, 0) != 0;
  model.modules = number({"modules", "num_nextn_predict_layers"}, 0);
  model.encoder = detail::read_encoder(file);
  model.check();
  return model;
}

//! @brief The GPU that a JSON text describes, with the names of the members of `gpu`.
//! @throws std::invalid_argument that says what is missing or wrong.
[[nodiscard]] inline gpu read_gpu(std::string_view json) {
  detail::flat_json const file(json);
  gpu result;
  for (detail::gpu_member const& each : detail::gpu_members) {
    double const value = file.number(each.name);
    if (!file.has(each.name))
      throw std::invalid_argument(std::string("GPU file: '") + each.name + "' is missing");
    if (!detail::gpu_range.contains(value))
      detail::refuse_member(
        "GPU file", file, each.name, (std::string("a number ") + detail::gpu_range.words).c_str());
    result.*each.member = value;
  }
  result.gpus_per_machine = detail::whole_number(file, {"gpus_per_machine"}, 8, "GPU file");
  detail::check_gpu(result);
  return result;
}

} // namespace pipelining::inline v0_3
