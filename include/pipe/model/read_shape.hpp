// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Models and GPUs from JSON files. Header for pipelining::read_transformer and
//! pipelining::read_gpu.
//!
//! A model's file is the `config.json` that model hubs publish, or an object with the names of the
//! members of `transformer`. Only numbers, booleans and words at the top are looked at.

#include <pipe/model/gpu.hpp>
#include <pipe/model/transformer.hpp>

#include <charconv>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace pipelining::inline v0_2 {
namespace detail {

//! The members of a JSON object whose values are numbers, booleans (0 or 1) or words. Nested
//! objects, lists and null are skipped.
class flat_json {
public:
  explicit flat_json(std::string_view text) : text_(text) {
    expect('{');
    if (peek() != '}')
      for (;;) {
        std::string const name = word();
        expect(':');
        value(name);
        if (peek() != ',')
          break;
        ++at_;
      }
    expect('}');
    if (peek() != '\0')
      fail("there is text behind the object");
  }

  [[nodiscard]] std::map<std::string, double> const& numbers() const noexcept { return numbers_; }
  [[nodiscard]] std::map<std::string, std::string> const& words() const noexcept { return words_; }

private:
  [[noreturn]] void fail(char const* what) const {
    throw std::invalid_argument("JSON: " + std::string(what) + ", at character " +
                                std::to_string(at_ + 1));
  }
  char peek() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos)
      ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  void expect(char wanted) {
    if (peek() != wanted)
      fail(wanted == '{'   ? "an object in braces is wanted"
           : wanted == ':' ? "':' is wanted behind a name"
           : wanted == '"' ? "a name in quotes is wanted"
                           : "',' or '}' is wanted");
    ++at_;
  }
  std::string word() {
    expect('"');
    std::string result;
    for (; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\\')
        ++at_;
      if (at_ < text_.size())
        result += text_[at_];
    }
    if (at_ == text_.size())
      fail("a text does not end");
    ++at_;
    return result;
  }
  bool literal(std::string_view wanted) {
    if (text_.substr(at_, wanted.size()) != wanted)
      return false;
    at_ += wanted.size();
    return true;
  }
  void skip_nested() {
    int depth = 0;
    do {
      char const next = peek();
      if (next == '\0')
        fail("a list or an object does not end");
      if (next == '"') {
        static_cast<void>(word());
        continue;
      }
      depth += next == '{' || next == '[' ? 1 : next == '}' || next == ']' ? -1 : 0;
      ++at_;
    } while (depth > 0);
  }
  void value(std::string const& name) {
    char const next = peek();
    if (next == '"') {
      words_[name] = word();
    } else if (next == '{' || next == '[') {
      skip_nested();
    } else if (literal("true")) {
      numbers_[name] = 1;
    } else if (literal("false")) {
      numbers_[name] = 0;
    } else if (!literal("null")) {
      double number = 0;
      char const* const begin = text_.data() + at_;
      auto const [end, error] = std::from_chars(begin, text_.data() + text_.size(), number);
      if (error != std::errc())
        fail("a value is wanted");
      at_ += static_cast<std::size_t>(end - begin);
      numbers_[name] = number;
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::map<std::string, double> numbers_;
  std::map<std::string, std::string> words_;
};

//! The first of some names that there is, as a whole number.
[[nodiscard]] inline int
whole_number(flat_json const& file, std::initializer_list<char const*> names, int otherwise) {
  for (char const* const name : names) {
    auto const found = file.numbers().find(name);
    if (found == file.numbers().end())
      continue;
    double const value = found->second;
    if (value != std::floor(value) || std::abs(value) > 2147483647.0)
      throw std::invalid_argument(std::string("model file: '") + name + "' must be a whole number");
    return static_cast<int>(value);
  }
  if (otherwise < 0)
    throw std::invalid_argument(std::string("model file: '") + *names.begin() +
                                "' is missing (or, in a hub's config.json, '" + names.end()[-1] +
                                "')");
  return otherwise;
}

} // namespace detail

//! @brief The model that a JSON text describes.
//! @throws std::invalid_argument that says what is missing or wrong.
[[nodiscard]] inline transformer read_transformer(std::string_view json) {
  detail::flat_json const file(json);
  transformer model;
  model.layers = detail::whole_number(file, {"layers", "n_layer", "num_hidden_layers"}, -1);
  model.hidden = detail::whole_number(file, {"hidden", "n_embd", "hidden_size"}, -1);
  model.heads = detail::whole_number(file, {"heads", "n_head", "num_attention_heads"}, -1);
  model.kv_heads = detail::whole_number(file, {"kv_heads", "num_key_value_heads"}, model.heads);
  model.head_width = detail::whole_number(file, {"head_width", "head_dim"}, 0);
  model.vocabulary = detail::whole_number(file, {"vocabulary", "vocab_size"}, -1);
  model.experts = detail::whole_number(
    file, {"experts", "num_local_experts", "num_experts", "n_routed_experts"}, 0);
  model.experts_per_token =
    detail::whole_number(file, {"experts_per_token", "num_experts_per_tok"}, 0);
  int const dense = detail::whole_number(file, {"ffn", "n_inner", "intermediate_size"}, 0);
  model.ffn =
    model.experts > 0 ? detail::whole_number(file, {"moe_intermediate_size"}, dense) : dense;
  if (model.ffn == 0)
    model.ffn = 4 * model.hidden;
  model.shared_ffn =
    detail::whole_number(file, {"shared_ffn", "shared_expert_intermediate_size"}, 0);
  if (model.experts == 0)
    model.experts_per_token = model.shared_ffn = 0;
  // Hubs do not say whether there is a gate; those whose activation is SiLU have one.
  auto const activation = file.words().find("hidden_act");
  bool const silu = activation != file.words().end() && activation->second == "silu";
  model.gated = detail::whole_number(file, {"gated"}, silu ? 1 : 0) != 0;
  model.tied = detail::whole_number(file, {"tied", "tie_word_embeddings"}, 0) != 0;
  check_transformer(model);
  return model;
}

//! @brief The GPU that a JSON text describes, with the names of the members of `gpu`.
//! @throws std::invalid_argument that says what is missing or wrong.
[[nodiscard]] inline gpu read_gpu(std::string_view json) {
  detail::flat_json const file(json);
  gpu result;
  struct {
    char const* name;
    double gpu::*member;
  } const wanted[] = {{"peak_tflops", &gpu::peak_tflops},
                      {"memory_gb", &gpu::memory_gb},
                      {"link_gb_per_s", &gpu::link_gb_per_s},
                      {"network_gb_per_s", &gpu::network_gb_per_s},
                      {"host_gb_per_s", &gpu::host_gb_per_s}};
  for (auto const& each : wanted) {
    auto const found = file.numbers().find(each.name);
    if (found == file.numbers().end())
      throw std::invalid_argument(std::string("GPU file: '") + each.name + "' is missing");
    result.*each.member = found->second;
  }
  result.gpus_per_machine = detail::whole_number(file, {"gpus_per_machine"}, 8);
  check_gpu(result);
  return result;
}

} // namespace pipelining::inline v0_2
