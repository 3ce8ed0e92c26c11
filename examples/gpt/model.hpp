// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Sizes of the model, and how its layers are cut into stages and its sequences into chunks.

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpt {

inline constexpr std::int64_t vocabulary = 256; //!< one token per byte

//! Sizes of a GPT.
struct model_size {
  std::int64_t layers = 16;
  std::int64_t width = 64;
  std::int64_t heads = 4;
  std::int64_t key_heads = 4; //!< fewer than heads: grouped queries
  std::int64_t sequence = 128;

  [[nodiscard]] std::int64_t head_dim() const { return width / heads; }
  [[nodiscard]] std::int64_t key_width() const { return key_heads * head_dim(); }
  [[nodiscard]] std::int64_t hidden() const { return 4 * width; }
};

//! @throws std::invalid_argument where the sizes make no model
inline void check(model_size const& size) {
  if (size.layers < 1 || size.width < 1 || size.heads < 1 || size.key_heads < 1 ||
      size.sequence < 1) {
    throw std::invalid_argument("every size of the model must be at least 1");
  }
  if (size.width % size.heads != 0 || size.heads % size.key_heads != 0) {
    throw std::invalid_argument("width must be a multiple of heads, and heads of key heads");
  }
}

//! Consecutive layers of the model: what one stage holds.
struct layer_range {
  std::int64_t first = 0;
  std::int64_t last = 0; //!< one beyond the last layer
  bool embeds = false;   //!< the embedding comes before
  bool ends = false;     //!< the head and the loss come after
};

//! Cuts the layers as evenly as they go; earlier stages get one more where they do not.
[[nodiscard]] inline std::vector<layer_range> cut_layers(std::int64_t layers, std::int64_t stages) {
  std::vector<layer_range> ranges;
  for (std::int64_t s = 0; s < stages; ++s) {
    auto const begin = ranges.empty() ? 0 : ranges.back().last;
    auto const count = layers / stages + (s < layers % stages ? 1 : 0);
    ranges.push_back({begin, begin + count, s == 0, s == stages - 1});
  }
  return ranges;
}

//! Tokens [begin, end) of a sequence.
struct chunk_range {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] std::int64_t count() const { return end - begin; }
};

//! Cuts a sequence into chunks whose lengths differ by at most one.
[[nodiscard]] inline std::vector<chunk_range> cut_sequence(std::int64_t sequence,
                                                           std::int64_t chunks) {
  if (chunks < 1 || chunks > sequence) {
    throw std::invalid_argument("a sequence of " + std::to_string(sequence) +
                                " tokens cannot be cut into " + std::to_string(chunks) + " chunks");
  }
  std::vector<chunk_range> ranges;
  for (std::int64_t c = 0; c < chunks; ++c) {
    ranges.push_back({sequence * c / chunks, sequence * (c + 1) / chunks});
  }
  return ranges;
}

} // namespace gpt
