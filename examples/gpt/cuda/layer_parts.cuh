// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What comes before the attention of a layer on a GPU, and what follows it: for whole
//! layers, and for those whose attention is on another device. See layer_parts.hpp of the host.
//!
//! The residual, norms and sums are in float, what products multiply is of type Element. Of a shard
//! a layer has some heads and some of the hidden numbers: the sizes of these are `own`, and own
//! width is what the shard's heads have together.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

#include "../model.hpp"
#include "attention_call.cuh"
#include "device_work.cuh"
#include "matrix_products.cuh"
#include "numbers.cuh"
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
  //! From the gradient of the norm's output, in `narrow`, of which each shard has a part.
  void norm_backward(float* dx, trained<Element>& gain, normalised kept) const {
    if (work->sum) {
      work->sum(space().narrow, tokens * size.width, stream);
    }
    layer_norm_backward(
      dx, gain.gradient(), space().narrow, kept, gain.value(), tokens, size.width, stream);
  }
  //! The norm's output again, in `scaled`.
  void scale_again(normalised kept, trained<Element>& gain) const {
    apply_gain(space().scaled, kept.normal, gain.value(), tokens, size.width, stream);
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
    auto& products = at.work->products;
    auto const& space = at.space();
    auto const tokens = at.tokens;
    auto const width = at.size.width;
    auto const keys = 2 * at.own.key_width();
    layer_norm_forward(space.scaled, kept, x, gain.value(), tokens, width, at.stream);
    products.forward(space.wide, space.scaled, query_weight.operand(), tokens, width, at.own.width);
    convert(query, space.wide, tokens * at.own.width, at.stream);
    products.forward(space.wide, space.scaled, key_value_weight.operand(), tokens, width, keys);
    convert(key_value, space.wide, tokens * keys, at.stream);
  }
  //! Adds to dx [tokens, width], and to the gradient of the gain.
  void add_backward_input(float* dx, before_gradients<Element> const& made) const {
    auto& products = at.work->products;
    auto const width = at.size.width;
    float* const narrow = at.space().narrow;
    products.backward_input(
      narrow, made.query, query_weight.operand(), at.tokens, width, at.own.width);
    products.backward_input(narrow,
                            made.key_value,
                            key_value_weight.operand(),
                            at.tokens,
                            width,
                            2 * at.own.key_width(),
                            product_goes::added);
    at.norm_backward(dx, gain, kept);
  }
  //! Adds to the gradients of the matrices.
  void add_backward_weight(before_gradients<Element> const& made) const {
    auto& products = at.work->products;
    auto const width = at.size.width;
    Element* const scaled = at.space().scaled;
    at.scale_again(kept, gain);
    products.backward_weight(
      query_weight.gradient(), scaled, made.query, at.tokens, width, at.own.width);
    products.backward_weight(key_value_weight.gradient(),
                             scaled,
                             made.key_value,
                             at.tokens,
                             width,
                             2 * at.own.key_width());
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
    auto const tokens = at.tokens;
    auto const hidden = at.own.hidden();
    Element* const scaled = at.space().scaled;
    add_product(x, output_operand(), projection, at.own.width);
    layer_norm_forward(scaled, kept.norm, x, gain.value(), tokens, at.size.width, at.stream);
    at.work->products.forward(kept.inner, scaled, up.operand(), tokens, at.size.width, hidden);
    gelu_forward(kept.outer, kept.inner, tokens * hidden, at.stream);
    add_product(x, kept.outer, down, hidden);
  }
  //! dx [tokens, width], the gradient of the layer's output, becomes that of the residual. The
  //! gradient of the gain grows too.
  //! @param output_gradient of attention's output
  void
  backward_input(float* dx, bfloat16* output_gradient, after_gradients<Element> const& made) const {
    auto& products = at.work->products;
    auto const& space = at.space();
    auto const tokens = at.tokens;
    auto const width = at.size.width;
    auto const hidden = at.own.hidden();
    convert(made.down, dx, tokens * width, at.stream);
    products.backward_input(space.wide, made.down, down.operand(), tokens, hidden, width);
    gelu_backward(made.inner, kept.inner, space.wide, tokens * hidden, at.stream);
    products.backward_input(space.narrow, made.inner, up.operand(), tokens, width, hidden);
    at.norm_backward(dx, gain, kept.norm);
    convert(made.projection, dx, tokens * width, at.stream);
    products.backward_input(
      space.narrow, made.projection, projection.operand(), tokens, at.own.width, width);
    convert(output_gradient, space.narrow, tokens * at.own.width, at.stream);
  }
  //! Adds to the gradients of the matrices.
  void add_backward_weight(after_gradients<Element> const& made) const {
    auto& products = at.work->products;
    auto const tokens = at.tokens;
    auto const width = at.size.width;
    auto const hidden = at.own.hidden();
    products.backward_weight(
      projection.gradient(), output_operand(), made.projection, tokens, at.own.width, width);
    at.scale_again(kept.norm, gain);
    products.backward_weight(up.gradient(), at.space().scaled, made.inner, tokens, width, hidden);
    products.backward_weight(down.gradient(), kept.outer, made.down, tokens, hidden, width);
  }

private:
  //! Attention's output as products read it.
  [[nodiscard]] Element const* output_operand() const {
    if constexpr (std::is_same_v<Element, bfloat16>) {
      return output;
    } else {
      convert(at.space().scaled, output, at.tokens * at.own.width, at.stream);
      return at.space().scaled;
    }
  }
  //! x [tokens, width] += in [tokens, inputs] times the matrix; of shards, the sum of all of that.
  void
  add_product(float* x, Element const* in, trained<Element>& matrix, std::int64_t inputs) const {
    auto const& sum = at.work->sum;
    auto const to = sum ? product_goes::instead : product_goes::added;
    float* const y = sum ? at.space().narrow : x;
    at.work->products.forward(y, in, matrix.operand(), at.tokens, inputs, at.size.width, to);
    if (sum) {
      auto const count = at.tokens * at.size.width;
      sum(y, count, at.stream);
      add(x, y, count, at.stream);
    }
  }
};

} // namespace gpt::on_gpu
