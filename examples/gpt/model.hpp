// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Sizes of the model, and how its layers are cut into stages and its sequences into chunks.

#include <pipe/flow/shape.hpp>

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

//! What of its layers a stage has: all of it, or the attention of layer `first` alone, or what
//! follows that of layer `first - 1` and comes before that of layer `first`.
enum class layer_part : std::uint8_t { whole, attention, around_attention };

//! Consecutive layers of the model: what one stage holds.
struct layer_range {
  std::int64_t first = 0;
  std::int64_t last = 0; //!< one beyond the last layer
  bool embeds = false;   //!< the embedding comes before
  bool ends = false;     //!< the head and the loss come after
  layer_part part = layer_part::whole;
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

//! Cuts layers at their attention into 2 layers + 1 stages: embedding and what comes before the
//! first attention, attention, what is between two of them, and so on up to the head.
[[nodiscard]] inline std::vector<layer_range> cut_at_attention(std::int64_t layers) {
  std::vector<layer_range> ranges;
  for (std::int64_t layer = 0; layer <= layers; ++layer) {
    ranges.push_back({layer, layer, layer == 0, layer == layers, layer_part::around_attention});
    if (layer < layers) {
      ranges.push_back({layer, layer, false, false, layer_part::attention});
    }
  }
  return ranges;
}

//! What the stages of a pipeline hold: layers, or, where its devices depend on the microbatch, as
//! those of HelixPipe do, layers cut at their attention.
//! @throws std::invalid_argument where these are not as many as the model has
[[nodiscard]] inline std::vector<layer_range> cut_model(model_size const& size,
                                                        pipelining::shape const& extents) {
  int const stages = extents.stages();
  if (extents.where != pipelining::placement::custom) {
    return cut_layers(size.layers, stages);
  }
  if (stages != 2 * size.layers + 1) {
    throw std::invalid_argument("the schedule cuts " + std::to_string(stages / 2) +
                                " layers at their attention, but the model has " +
                                std::to_string(size.layers) +
                                "; choose --layers, a multiple of --devices");
  }
  return cut_at_attention(size.layers);
}

//! Numbers of a token that a stage hands on: the residual, and with it what attention reads or has
//! made.
[[nodiscard]] inline std::int64_t handed_on(model_size const& size, layer_part part) {
  switch (part) {
  case layer_part::whole: return size.width;
  case layer_part::attention: return 2 * size.width;
  case layer_part::around_attention: return 2 * size.width + 2 * size.key_width();
  }
  return 0;
}

//! Tokens [begin, end) of a sequence.
struct chunk_range {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] std::int64_t count() const { return end - begin; }
};

//! Which shard of a stage, and of how many.
struct shard_of_stage {
  std::int64_t number = 0;
  std::int64_t of = 1;

  //! Its share of something that all shards share alike.
  [[nodiscard]] chunk_range share(std::int64_t all) const {
    return {all / of * number, all / of * (number + 1)};
  }
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
