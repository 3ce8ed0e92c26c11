// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One layer of the GPT on a GPU, and the end of the model: what comes before attention,
//! what follows it, for whole layers and for those whose attention is on another device; norm,
//! linear and cross-entropy. See layer.hpp of the host.
//!
//! The residual, norms and sums are in float, what products multiply is of type Element. Of a shard
//! a layer has some heads and some of the hidden numbers: the sizes of these are `own`, and own
//! width is what the shard's heads have together.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "device_work.cuh"
#include "trained.cuh"

namespace gpt::on_gpu {

//! What attention keeps of a unit from forward to the end of its backward, but for keys and values.
struct attention_kept {
  bfloat16* query;    //!< [tokens, heads, head dim]
  bfloat16* output;   //!< the same of attention
  float* log_sum_exp; //!< [heads, tokens]

  attention_kept(placing& in, model_size const& own, std::int64_t tokens)
      : query(in.take<bfloat16>(tokens * own.width)), output(in.take<bfloat16>(tokens * own.width)),
        log_sum_exp(in.take<float>(own.heads * tokens)) {}

  [[nodiscard]] attention_tensors<bfloat16, float> with(bfloat16 const* key_value) const {
    return {query, key_value, output, log_sum_exp};
  }
};
//! What the part behind it keeps, but for attention's output.
template <class Element>
struct after_kept {
  normalised norm; //!< before the MLP
  float* inner;    //!< [tokens, hidden], before GELU
  Element* outer;  //!< [tokens, hidden], after GELU

  after_kept(placing& in, model_size const& size, model_size const& own, std::int64_t tokens)
      : norm{in.take<float>(tokens * size.width), in.take<float>(tokens)},
        inner(in.take<float>(tokens * own.hidden())),
        outer(in.take<Element>(tokens * own.hidden())) {}
};

//! What backward_input has for backward_weight: the gradients of what products have written, before
//! attention and behind it.
template <class Element>
struct before_gradients {
  Element* query;     //!< [tokens, width]
  Element* key_value; //!< [tokens, 2, key heads, head dim]

  before_gradients(placing& in, model_size const& own, std::int64_t tokens)
      : query(in.take<Element>(tokens * own.width)),
        key_value(in.take<Element>(tokens * 2 * own.key_width())) {}
};
template <class Element>
struct after_gradients {
  Element* projection; //!< [tokens, width]
  Element* inner;      //!< [tokens, hidden]
  Element* down;       //!< [tokens, width]

  after_gradients(placing& in, model_size const& size, model_size const& own, std::int64_t tokens)
      : projection(in.take<Element>(tokens * size.width)),
        inner(in.take<Element>(tokens * own.hidden())),
        down(in.take<Element>(tokens * size.width)) {}
};

//! Where a part works, and on how many tokens.
template <class Element>
struct part_pass {
  model_size size;
  model_size own; //!< the shard's share
  std::int64_t tokens;
  device_work<Element>* work;
  cudaStream_t stream;

  [[nodiscard]] scratch_tensors<Element> const& space() const { return work->scratch(); }
  [[nodiscard]] token_rows rows() const { return {tokens, size.width, stream}; }
  [[nodiscard]] matrix_pass<Element>
  matrix(trained<Element> const& of, std::int64_t inputs, std::int64_t outputs) const {
    return {work->products, of.operand(), of.gradient(), tokens, inputs, outputs};
  }
  //! From the gradient of the norm's output, in `narrow`, of which each shard has a part.
  void norm_backward(float* dx, trained<Element>& gain, normalised kept) const {
    if (work->sum)
      work->sum(space().narrow, tokens * size.width, stream);
    layer_norm_backward(dx, gain.gradient(), space().narrow, kept, gain.value(), rows());
  }
  //! The norm's output again, in `scaled`.
  void scale_again(normalised kept, trained<Element>& gain) const {
    apply_gain(space().scaled, kept.normal, gain.value(), rows());
  }
};

//! Norm, query, keys and values, at work on one chunk.
template <class Element>
struct before_attention_pass {
  part_pass<Element> at;
  trained<Element>&gain, &query_weight, &key_value_weight;
  normalised kept;

  //! Of x [tokens, width] writes query [tokens, width] and key_value [tokens, 2, key heads, head
  //! dim].
  void forward(bfloat16* query, bfloat16* key_value, float const* x) const {
    auto const& space = at.space();
    layer_norm_forward(space.scaled, kept, x, gain.value(), at.rows());
    queries().forward(space.wide, space.scaled);
    convert(query, space.wide, at.tokens * at.own.width, at.stream);
    keys().forward(space.wide, space.scaled);
    convert(key_value, space.wide, at.tokens * 2 * at.own.key_width(), at.stream);
  }
  //! Adds to dx [tokens, width], and to the gradient of the gain.
  void add_backward_input(float* dx, before_gradients<Element> const& made) const {
    queries().backward_input(at.space().narrow, made.query);
    keys().backward_input(at.space().narrow, made.key_value, product_goes::added);
    at.norm_backward(dx, gain, kept);
  }
  void add_backward_weight(before_gradients<Element> const& made) const {
    at.scale_again(kept, gain);
    queries().backward_weight(at.space().scaled, made.query);
    keys().backward_weight(at.space().scaled, made.key_value);
  }

private:
  [[nodiscard]] matrix_pass<Element> queries() const {
    return at.matrix(query_weight, at.size.width, at.own.width);
  }
  [[nodiscard]] matrix_pass<Element> keys() const {
    return at.matrix(key_value_weight, at.size.width, 2 * at.own.key_width());
  }
};

//! The projection of attention's output onto the residual and the MLP behind it, at work on one
//! chunk.
template <class Element>
struct after_attention_pass {
  part_pass<Element> at;
  trained<Element>&projection, &gain, &up, &down;
  after_kept<Element> kept;
  bfloat16 const* output; //!< of attention, [tokens, width]

  //! x [tokens, width], the residual, becomes the layer's output.
  void forward(float* x) const {
    Element* const scaled = at.space().scaled;
    add_product(x, output_operand(), projected());
    layer_norm_forward(scaled, kept.norm, x, gain.value(), at.rows());
    upwards().forward(kept.inner, scaled);
    gelu_forward(kept.outer, kept.inner, at.tokens * at.own.hidden(), at.stream);
    add_product(x, kept.outer, downwards());
  }
  //! dx [tokens, width], the gradient of the layer's output, becomes that of the residual. The
  //! gradient of the gain grows too.
  //! @param output_gradient of attention's output
  void
  backward_input(float* dx, bfloat16* output_gradient, after_gradients<Element> const& made) const {
    auto const& space = at.space();
    convert(made.down, dx, at.rows().count(), at.stream);
    downwards().backward_input(space.wide, made.down);
    gelu_backward(made.inner, kept.inner, space.wide, at.tokens * at.own.hidden(), at.stream);
    upwards().backward_input(space.narrow, made.inner);
    at.norm_backward(dx, gain, kept.norm);
    convert(made.projection, dx, at.rows().count(), at.stream);
    projected().backward_input(space.narrow, made.projection);
    convert(output_gradient, space.narrow, at.tokens * at.own.width, at.stream);
  }
  void add_backward_weight(after_gradients<Element> const& made) const {
    projected().backward_weight(output_operand(), made.projection);
    at.scale_again(kept.norm, gain);
    upwards().backward_weight(at.space().scaled, made.inner);
    downwards().backward_weight(kept.outer, made.down);
  }

private:
  [[nodiscard]] matrix_pass<Element> projected() const {
    return at.matrix(projection, at.own.width, at.size.width);
  }
  [[nodiscard]] matrix_pass<Element> upwards() const {
    return at.matrix(up, at.size.width, at.own.hidden());
  }
  [[nodiscard]] matrix_pass<Element> downwards() const {
    return at.matrix(down, at.own.hidden(), at.size.width);
  }
  //! Attention's output as products read it.
  [[nodiscard]] Element const* output_operand() const {
    if constexpr (std::is_same_v<Element, bfloat16>) {
      return output;
    } else {
      convert(at.space().scaled, output, at.tokens * at.own.width, at.stream);
      return at.space().scaled;
    }
  }
  //! x [tokens, width] += in times the matrix; of shards, the sum of all of that.
  void add_product(float* x, Element const* in, matrix_pass<Element> const& matrix) const {
    auto const& sum = at.work->sum;
    float* const y = sum ? at.space().narrow : x;
    matrix.forward(y, in, sum ? product_goes::instead : product_goes::added);
    if (sum) {
      sum(y, at.rows().count(), at.stream);
      add(x, y, at.rows().count(), at.stream);
    }
  }
};

//! What a layer keeps of a unit from forward to the end of its backward, but for keys and values.
template <class Element>
struct layer_kept {
  normalised first; //!< before attention
  attention_kept attention;
  after_kept<Element> after;

  layer_kept(placing& in, model_size const& size, model_size const& own, std::int64_t tokens)
      : first{in.take<float>(tokens * size.width), in.take<float>(tokens)},
        attention(in, own, tokens), after(in, size, own, tokens) {}
};

//! What backward_input makes for backward_weight: the gradients of what products have written.
template <class Element>
struct layer_gradients {
  before_gradients<Element> before;
  after_gradients<Element> after;

  layer_gradients(placing& in, model_size const& size, model_size const& own, std::int64_t tokens)
      : before(in, own, tokens), after(in, size, own, tokens) {}
};

//! The trained tensors of a layer, in the order in which the layer on the host has them.
template <class Element>
struct layer_weights {
  trained<Element>&first_gain, &query, &key_value, &projection, &second_gain, &up, &down;
  static constexpr std::size_t count = 7;
  //! Gains are whole on all shards.
  [[nodiscard]] static constexpr bool is_gain(std::size_t number) {
    return number == 0 || number == 4;
  }
};

//! A layer at work on one chunk.
template <class Element>
class layer_pass {
public:
  layer_pass(part_pass<Element> const& at,
             layer_weights<Element> const& weights,
             chunk_range chunk,
             layer_kept<Element> const& kept)
      : chunk_(chunk), attends_(at.own, chunk), kept_(kept.attention),
        at_(at), before_{at_, weights.first_gain, weights.query, weights.key_value, kept.first},
        after_{at_,
               weights.projection,
               weights.second_gain,
               weights.up,
               weights.down,
               kept.after,
               kept.attention.output} {}

  //! x [tokens, width], the residual, becomes the layer's output.
  //! @param key_value [sequence, 2, key heads, head dim]: those of the chunk join those before
  void forward(float* x, bfloat16* key_value) {
    before_.forward(kept_.query, key_value + chunk_.begin * keys(), x);
    attends_.forward(kept_.with(key_value), at_.stream);
    after_.forward(x);
  }

  //! dx [tokens, width], the gradient of the output, becomes that of the input. The gradients of
  //! the gains grow too.
  //! @param made for backward_weight
  //! @param carried shaped as key_value: what later chunks have added to it joins this chunk's
  void backward_input(float* dx,
                      layer_gradients<Element> const& made,
                      bfloat16 const* key_value,
                      float* carried) {
    auto const& space = at_.space();
    after_.backward_input(dx, space.output_gradient, made.after);
    attends_.backward(
      kept_.with(key_value),
      attention_gradients<bfloat16, float>{space.output_gradient, space.query_gradient, carried},
      space.of_attention,
      at_.stream);
    convert(made.before.query, space.query_gradient, at_.tokens * at_.own.width, at_.stream);
    convert(
      made.before.key_value, carried + chunk_.begin * keys(), at_.tokens * keys(), at_.stream);
    before_.add_backward_input(dx, made.before);
  }

  void backward_weight(layer_gradients<Element> const& made) {
    before_.add_backward_weight(made.before);
    after_.add_backward_weight(made.after);
  }

private:
  [[nodiscard]] std::int64_t keys() const { return 2 * at_.own.key_width(); }

  chunk_range chunk_;
  attention_call attends_;
  attention_kept kept_;
  part_pass<Element> at_;
  before_attention_pass<Element> before_;
  after_attention_pass<Element> after_;
};

//! The head at work on one chunk. It keeps its normalised input, and from backward_input to
//! backward_weight the gradient of the logits, [tokens, vocabulary]; logits are made anew.
template <class Element>
struct head_pass {
  part_pass<Element> at;
  trained<Element>&gain, &out;
  std::uint8_t const* next_bytes;
  normalised kept;

  [[nodiscard]] static normalised keep(placing& in, model_size const& size, std::int64_t tokens) {
    return {in.take<float>(tokens * size.width), in.take<float>(tokens)};
  }

  //! Writes the loss of each token, in nats.
  void forward(float* losses, float const* x) const {
    auto const& space = at.space();
    layer_norm_forward(space.scaled, kept, x, gain.value(), at.rows());
    logits().forward(space.wide, space.scaled);
    cross_entropy_forward(losses, space.wide, next_bytes, at.tokens, at.stream);
  }
  //! dx = the gradient of the input for `share` times the sum of the losses.
  void backward_input(float* dx, Element* logits_gradient, float share) const {
    auto const& space = at.space();
    at.scale_again(kept, gain);
    logits().forward(space.wide, space.scaled);
    cross_entropy_backward(logits_gradient, space.wide, next_bytes, share, at.tokens, at.stream);
    logits().backward_input(space.narrow, logits_gradient);
    clear(dx, at.rows().count(), at.stream);
    layer_norm_backward(dx, gain.gradient(), space.narrow, kept, gain.value(), at.rows());
  }
  void backward_weight(Element const* logits_gradient) const {
    at.scale_again(kept, gain);
    logits().backward_weight(at.space().scaled, logits_gradient);
  }

private:
  [[nodiscard]] matrix_pass<Element> logits() const {
    return at.matrix(out, at.size.width, vocabulary);
  }
};

} // namespace gpt::on_gpu
