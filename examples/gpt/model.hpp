// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Sizes of the model, how its layers are cut into stages and its sequences into chunks, and
//! what the parameters of a stage are in the whole model.

#include <pipe/pipe.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

namespace pp = pipelining;

inline constexpr std::int64_t vocabulary = 256; //!< one token per byte

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
      size.sequence < 1)
    throw std::invalid_argument("every size of the model must be at least 1");
  if (size.width % size.heads != 0 || size.heads % size.key_heads != 0)
    throw std::invalid_argument("width must be a multiple of heads, and heads of key heads");
}

//! What of its layers a stage has: all of it, or the attention of layer `first` alone, or what
//! follows that of layer `first - 1` and comes before that of layer `first`; or, of one layer, what
//! comes before its attention, or follows it.
enum class layer_part : std::uint8_t {
  whole,
  attention,
  around_attention,
  before_attention,
  after_attention
};

//! Consecutive layers of the model: what one stage holds.
struct layer_range {
  std::int64_t first = 0;
  std::int64_t last = 0; //!< one beyond the last layer
  bool embeds = false;   //!< the embedding comes before
  bool ends = false;     //!< the head and the loss come after
  layer_part part = layer_part::whole;

  //! Whether it begins, or ends, in the middle of a layer.
  [[nodiscard]] bool follows_attention() const {
    return part == layer_part::after_attention || (part == layer_part::around_attention && !embeds);
  }
  [[nodiscard]] bool precedes_attention() const {
    return part == layer_part::before_attention || (part == layer_part::around_attention && !ends);
  }
  //! A part of the one layer that it has. Both ends of the model go with the part next to them.
  [[nodiscard]] layer_range of_layer(layer_part which) const {
    return {first,
            first,
            embeds && which == layer_part::before_attention,
            ends && which == layer_part::after_attention,
            which};
  }
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
    if (layer < layers)
      ranges.push_back({layer, layer, false, false, layer_part::attention});
  }
  return ranges;
}

//! What the stages of a pipeline hold: layers, or, where its devices depend on the microbatch, as
//! those of HelixPipe do, layers cut at their attention.
//! @throws std::invalid_argument where these are not as many as the model has
[[nodiscard]] inline std::vector<layer_range> cut_model(model_size const& size,
                                                        pipelining::shape const& extents) {
  int const stages = extents.stages();
  if (extents.where != pipelining::placement::custom)
    return cut_layers(size.layers, stages);
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
  case layer_part::attention: return 2 * size.width;
  case layer_part::around_attention: return 2 * size.width + 2 * size.key_width();
  default: return size.width;
  }
}

//! Tokens [begin, end) of a sequence, or a part of something else that is cut.
struct chunk_range {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] std::int64_t count() const { return end - begin; }
  [[nodiscard]] bool holds(std::int64_t one) const { return one >= begin && one < end; }
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

//! The heads of a shard as a model of their own.
[[nodiscard]] inline model_size size_of_shard(model_size size, shard_of_stage which) {
  size.width /= which.of;
  size.heads /= which.of;
  size.key_heads /= which.of;
  return size;
}

//! Cuts a sequence into chunks whose lengths differ by at most one.
[[nodiscard]] inline std::vector<chunk_range> cut_sequence(std::int64_t sequence,
                                                           std::int64_t chunks) {
  if (chunks < 1 || chunks > sequence) {
    throw std::invalid_argument("a sequence of " + std::to_string(sequence) +
                                " tokens cannot be cut into " + std::to_string(chunks) + " chunks");
  }
  std::vector<chunk_range> ranges;
  for (std::int64_t c = 0; c < chunks; ++c)
    ranges.push_back({sequence * c / chunks, sequence * (c + 1) / chunks});
  return ranges;
}

//! How a tensor of the model starts: with normal random numbers that follow from where it stands.
struct tensor_start {
  std::int64_t layer = 0; //!< -1: embedding; layers: head
  std::int64_t index = 0; //!< among the tensors of the layer
  double deviation = 0;   //!< 0: with ones, as gains do
  bool decays = false;    //!< matrices decay, gains and embeddings do not
};

//! A box of a tensor of the whole model.
struct tensor_part {
  std::string name{};
  std::vector<std::int64_t> whole{}; //!< shape of the tensor
  std::vector<std::int64_t> first{};
  std::vector<std::int64_t> shape{};
  tensor_start start{};

  [[nodiscard]] std::int64_t count() const {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  }
};

[[nodiscard]] inline tensor_part
whole_part(std::string name, std::vector<std::int64_t> shape, tensor_start start = {}) {
  return {std::move(name), shape, std::vector<std::int64_t>(shape.size()), shape, start};
}
//! A range of it along one axis.
[[nodiscard]] inline tensor_part cut_part(std::string name,
                                          std::vector<std::int64_t> shape,
                                          std::size_t axis,
                                          chunk_range range,
                                          tensor_start start = {}) {
  auto part = whole_part(std::move(name), std::move(shape), start);
  part.first[axis] = range.begin;
  part.shape[axis] = range.count();
  return part;
}

//! Numbers in pieces of one length, of which the last may have fewer, or none.
[[nodiscard]] inline chunk_range
piece_of(std::int64_t count, std::int64_t number, std::int64_t pieces) {
  auto const piece = (count + pieces - 1) / pieces;
  return {std::min(number * piece, count), std::min((number + 1) * piece, count)};
}
//! Pieces [which.begin, which.end) of tensors whose numbers lie one after the other. Each has a
//! name of its own.
[[nodiscard]] inline std::vector<tensor_part>
pieces_of(std::vector<tensor_part> const& tensors, std::int64_t pieces, chunk_range which) {
  std::vector<tensor_part> all;
  for (tensor_part const& each : tensors) {
    auto const count = each.count();
    for (auto i = which.begin; i < which.end; ++i) {
      auto const name = each.name + ".flat." + std::to_string(i);
      all.push_back(cut_part(name, {count}, 0, piece_of(count, i, pieces)));
    }
  }
  return all;
}

// The tensors at both ends of the model, of which a shard has the rows or columns of some bytes.

[[nodiscard]] inline tensor_part bytes_part(model_size const& size,
                                            chunk_range rows = {0, vocabulary}) {
  return cut_part("embedding.bytes", {vocabulary, size.width}, 0, rows, {-1, 0, 0.3, false});
}
[[nodiscard]] inline tensor_part positions_part(model_size const& size) {
  return whole_part("embedding.positions", {size.sequence, size.width}, {-1, 1, 0.1, false});
}
[[nodiscard]] inline tensor_part norm_part(model_size const& size) {
  return whole_part("head.norm", {size.width});
}
[[nodiscard]] inline double deviation(model_size const& size) {
  return 0.5 / std::sqrt(double(size.width));
}
[[nodiscard]] inline tensor_part out_part(model_size const& size,
                                          chunk_range columns = {0, vocabulary}) {
  return cut_part(
    "head.out", {size.width, vocabulary}, 1, columns, {size.layers, 0, deviation(size), true});
}

//! The parameters of layers in the order in which their stage visits them, or those of a shard.
[[nodiscard]] inline std::vector<tensor_part>
parts_of(model_size const& size, layer_range const& layers, shard_of_stage which = {}) {
  std::vector<tensor_part> parts;
  auto const width = size.width;
  auto const matrix = [&](std::int64_t layer, std::int64_t index, bool joins_residual = false) {
    double const share = joins_residual ? std::sqrt(2.0 * double(size.layers)) : 1;
    return tensor_start{layer, index, deviation(size) / share, true};
  };
  auto const before = [&](std::int64_t layer) {
    auto const name = "layers." + std::to_string(layer) + ".attention.";
    auto const keys = size.key_width();
    parts.push_back(whole_part(name + "norm", {width}));
    parts.push_back(
      cut_part(name + "query", {width, width}, 1, which.share(width), matrix(layer, 0)));
    parts.push_back(
      cut_part(name + "key_value", {width, 2, keys}, 2, which.share(keys), matrix(layer, 1)));
  };
  auto const after = [&](std::int64_t layer) {
    auto const name = "layers." + std::to_string(layer) + '.';
    auto const hidden = size.hidden();
    auto const heads = which.share(width);
    auto const mine = which.share(hidden);
    parts.push_back(
      cut_part(name + "attention.projection", {width, width}, 0, heads, matrix(layer, 2, true)));
    parts.push_back(whole_part(name + "mlp.norm", {width}));
    parts.push_back(cut_part(name + "mlp.up", {width, hidden}, 1, mine, matrix(layer, 3)));
    parts.push_back(cut_part(name + "mlp.down", {hidden, width}, 0, mine, matrix(layer, 4, true)));
  };
  if (layers.embeds)
    parts.insert(parts.end(), {bytes_part(size), positions_part(size)});
  for (auto layer = layers.first; layer < layers.last; ++layer) {
    before(layer);
    after(layer);
  }
  if (layers.follows_attention())
    after(layers.first - 1);
  if (layers.precedes_attention())
    before(layers.first);
  if (layers.ends)
    parts.insert(parts.end(), {norm_part(size), out_part(size)});
  return parts;
}

//! Numbers of the parameters of every stage.
[[nodiscard]] inline std::vector<std::int64_t>
parameter_counts(model_size const& size, std::vector<layer_range> const& stages) {
  std::vector<std::int64_t> counts;
  for (layer_range const& layers : stages) {
    counts.push_back(0);
    for (tensor_part const& part : parts_of(size, layers))
      counts.back() += part.count();
  }
  return counts;
}

//! What flows through the pipeline: one chunk of one microbatch.
struct unit {
  std::int64_t microbatch = 0;
  std::int64_t chunk = 0;
};

//! How the work of a step is cut: the chunks of every microbatch, whose sequences may be of unequal
//! length.
class step_cut {
public:
  step_cut(std::int64_t microbatches, std::vector<chunk_range> const& chunks)
      : step_cut(std::vector(static_cast<std::size_t>(microbatches), chunks)) {}
  explicit step_cut(std::vector<std::vector<chunk_range>> chunks) : chunks_(std::move(chunks)) {
    for (auto const& each : chunks_) {
      first_units_.push_back(first_units_.back() + static_cast<std::int64_t>(each.size()));
      tokens_ += each.back().end;
    }
    last_seen_ = units();
  }

  [[nodiscard]] std::int64_t microbatches() const {
    return static_cast<std::int64_t>(chunks_.size());
  }
  //! Chunks of a microbatch, and of all.
  [[nodiscard]] std::int64_t chunks(std::int64_t microbatch) const {
    return static_cast<std::int64_t>(chunks_[static_cast<std::size_t>(microbatch)].size());
  }
  [[nodiscard]] std::int64_t units() const { return first_units_.back(); }
  //! Of all these microbatches one of several copies of a stage sees those from `first` to `last`,
  //! which is not among them.
  [[nodiscard]] step_cut seen(std::int64_t first, std::int64_t last) const {
    step_cut part = *this;
    part.first_seen_ = first_units_[static_cast<std::size_t>(first)];
    part.last_seen_ = first_units_[static_cast<std::size_t>(last)];
    return part;
  }
  [[nodiscard]] std::int64_t first_seen() const { return first_seen_; } //!< its first unit
  [[nodiscard]] std::int64_t last_seen() const { return last_seen_; }   //!< after its last
  //! Of microbatches that are not cut, one of several copies sees every `stride`-th from `first`
  //! on.
  [[nodiscard]] step_cut seen_in_turn(std::int64_t first, std::int64_t stride) const {
    step_cut part = seen(first, microbatches());
    part.stride_ = stride;
    return part;
  }
  [[nodiscard]] std::int64_t stride() const { return stride_; }
  //! Gradients add up from the last microbatch to the first, or as they come.
  [[nodiscard]] step_cut back_from_last(bool so = true) const {
    step_cut turned = *this;
    turned.from_last_ = so;
    return turned;
  }
  [[nodiscard]] bool from_last() const { return from_last_; }

  //! Tokens of a microbatch, and of all.
  [[nodiscard]] std::int64_t tokens(std::int64_t microbatch) const {
    return chunks_[static_cast<std::size_t>(microbatch)].back().end;
  }
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }

  [[nodiscard]] chunk_range range(unit u) const {
    return chunks_[static_cast<std::size_t>(u.microbatch)][static_cast<std::size_t>(u.chunk)];
  }
  //! Microbatch by microbatch, first chunk first.
  [[nodiscard]] std::size_t index(unit u) const {
    return static_cast<std::size_t>(first_units_[static_cast<std::size_t>(u.microbatch)] + u.chunk);
  }

private:
  std::vector<std::vector<chunk_range>> chunks_;
  std::vector<std::int64_t> first_units_{0};
  std::int64_t tokens_ = 0;
  std::int64_t first_seen_ = 0;
  std::int64_t last_seen_ = 0;
  std::int64_t stride_ = 1;
  bool from_last_ = false;
};

//! The law that makes gradients independent of the schedule: a stage adds up the gradients of its
//! parameters microbatch by microbatch, the first or the last one first, and within one last chunk
//! first. Inside a chunk the last token comes first, so the order of the sum is that of the tokens,
//! and chunks leave no trace.
class gradient_order {
public:
  //! @throws std::logic_error where a unit comes out of order: the sum would round differently
  void check(unit u, step_cut const& cut, char const* what) {
    auto const last = cut.chunks(u.microbatch) - 1;
    auto const came =
      cut.from_last()
        ? cut.last_seen() - 1 - static_cast<std::int64_t>(cut.index(u))
        : static_cast<std::int64_t>(cut.index({u.microbatch, last - u.chunk})) - cut.first_seen();
    if (came != done_ * cut.stride()) {
      throw std::logic_error(
        std::string(what) + " of microbatch " + std::to_string(u.microbatch) + ", chunk " +
        std::to_string(u.chunk) +
        " came out of order; gradients add up by microbatch, last chunk first");
    }
    done_ = came + cut.stride() >= cut.last_seen() - cut.first_seen() ? 0 : done_ + 1;
  }

private:
  std::int64_t done_ = 0;
};

//! What a shard of the output layer tells the others of a token.
struct token_statistics {
  float largest; //!< logit
  float sum;     //!< of exp(logit - largest)
  float next;    //!< the logit of the byte that comes next; 0 where another shard has it
};
inline constexpr std::int64_t statistics_width = 3;

} // namespace gpt
