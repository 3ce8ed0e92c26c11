// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What the parameters of a stage are in the whole model.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model.hpp"

namespace gpt {

//! A box of a tensor of the whole model.
struct tensor_part {
  std::string name{};
  std::vector<std::int64_t> whole{}; //!< shape of the tensor
  std::vector<std::int64_t> first{};
  std::vector<std::int64_t> shape{};
};

//! All of a tensor.
[[nodiscard]] inline tensor_part whole_part(std::string name, std::vector<std::int64_t> shape) {
  return {std::move(name), shape, std::vector<std::int64_t>(shape.size()), shape};
}
//! A range of it along one axis.
[[nodiscard]] inline tensor_part
cut_part(std::string name, std::vector<std::int64_t> shape, std::size_t axis, chunk_range range) {
  auto part = whole_part(std::move(name), std::move(shape));
  part.first[axis] = range.begin;
  part.shape[axis] = range.count();
  return part;
}

//! The parameters of layers in the order in which their stage visits them, or those of a shard.
[[nodiscard]] inline std::vector<tensor_part>
parts_of(model_size const& size, layer_range const& layers, shard_of_stage which = {}) {
  std::vector<tensor_part> parts;
  auto const width = size.width;
  auto const before = [&](std::int64_t layer) {
    auto const name = "layers." + std::to_string(layer) + ".attention.";
    auto const keys = size.key_width();
    parts.push_back(whole_part(name + "norm", {width}));
    parts.push_back(cut_part(name + "query", {width, width}, 1, which.share(width)));
    parts.push_back(cut_part(name + "key_value", {width, 2, keys}, 2, which.share(keys)));
  };
  auto const after = [&](std::int64_t layer) {
    auto const name = "layers." + std::to_string(layer) + '.';
    auto const hidden = size.hidden();
    parts.push_back(cut_part(name + "attention.projection", {width, width}, 0, which.share(width)));
    parts.push_back(whole_part(name + "mlp.norm", {width}));
    parts.push_back(cut_part(name + "mlp.up", {width, hidden}, 1, which.share(hidden)));
    parts.push_back(cut_part(name + "mlp.down", {hidden, width}, 0, which.share(hidden)));
  };
  if (layers.embeds) {
    parts.push_back(whole_part("embedding.bytes", {vocabulary, width}));
    parts.push_back(whole_part("embedding.positions", {size.sequence, width}));
  }
  for (auto layer = layers.first; layer < layers.last; ++layer) {
    before(layer);
    after(layer);
  }
  if (layers.part == layer_part::around_attention) {
    if (!layers.embeds) {
      after(layers.first - 1);
    }
    if (!layers.ends) {
      before(layers.first);
    }
  }
  if (layers.ends) {
    parts.push_back(whole_part("head.norm", {width}));
    parts.push_back(whole_part("head.out", {width, vocabulary}));
  }
  return parts;
}

} // namespace gpt
