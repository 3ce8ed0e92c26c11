// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One layer of the GPT on a GPU: x += attention(norm(x)), x += MLP(norm(x)), for one chunk
//! at a time. The residual, norms and sums are in float, what products multiply is of type Element.
//!
//! Of a shard it has some heads and some of the hidden numbers, as shard_layers.hpp of the host: the
//! sizes of these are `own`, and own width is what the shard's heads have together.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <thrust/functional.h>
#include <thrust/transform.h>
#include <type_traits>

#include "../gpt/model.hpp"
#include "attention_call.cuh"
#include "device_work.cuh"
#include "matrix_products.cuh"
#include "numbers.cuh"
#include "trained.cuh"

namespace gpt::on_gpu {

//! What a layer keeps of a unit from forward to the end of its backward, but for keys and values.
template <class Element>
struct layer_kept {
  normalised first;   //!< before attention
  bfloat16* query;    //!< [tokens, heads, head dim]
  bfloat16* output;   //!< the same of attention
  float* log_sum_exp; //!< [heads, tokens]
  normalised second;  //!< before the MLP
  float* inner;       //!< [tokens, hidden], before GELU
  Element* outer;     //!< [tokens, hidden], after GELU

  layer_kept(placing& in, model_size const& size, model_size const& own, std::int64_t tokens)
      : first{in.take<float>(tokens * size.width), in.take<float>(tokens)},
        query(in.take<bfloat16>(tokens * own.width)), output(in.take<bfloat16>(tokens * own.width)),
        log_sum_exp(in.take<float>(own.heads * tokens)), second{in.take<float>(tokens *
                                                                                size.width),
                                                                 in.take<float>(tokens)},
        inner(in.take<float>(tokens * own.hidden())),
        outer(in.take<Element>(tokens * own.hidden())) {}
};

//! What backward_input makes for backward_weight: the gradients of what products have written.
template <class Element>
struct layer_gradients {
  Element* query;      //!< [tokens, width]
  Element* key_value;  //!< [tokens, 2, key heads, head dim]
  Element* projection; //!< [tokens, width]
  Element* inner;      //!< [tokens, hidden]
  Element* down;       //!< [tokens, width]

  layer_gradients(placing& in, model_size const& size, model_size const& own, std::int64_t tokens)
      : query(in.take<Element>(tokens * own.width)),
        key_value(in.take<Element>(tokens * 2 * own.key_width())),
        projection(in.take<Element>(tokens * size.width)),
        inner(in.take<Element>(tokens * own.hidden())),
        down(in.take<Element>(tokens * size.width)) {}
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
  layer_pass(model_size const& size,
             model_size const& own,
             layer_weights<Element> const& weights,
             chunk_range chunk,
             layer_kept<Element> const& kept,
             device_work<Element>& work,
             cudaStream_t stream)
      : size_(size), own_(own), weights_(weights), chunk_(chunk), tokens_(chunk.count()), kept_(kept),
        work_(&work), space_(work.scratch()), stream_(stream) {}

  //! x [tokens, width], the residual, becomes the layer's output.
  //! @param key_value [sequence, 2, key heads, head dim]: those of the chunk join those before
  void forward(float* x, bfloat16* key_value) {
    auto& products = work_->products;
    auto const width = size_.width;
    auto const keys = 2 * own_.key_width();
    layer_norm_forward(
      space_.scaled, kept_.first, x, weights_.first_gain.value(), tokens_, width, stream_);
    products.forward(
      space_.wide, space_.scaled, weights_.query.operand(), tokens_, width, own_.width);
    convert(kept_.query, space_.wide, tokens_ * own_.width, stream_);
    products.forward(
      space_.wide, space_.scaled, weights_.key_value.operand(), tokens_, width, keys);
    convert(key_value + chunk_.begin * keys, space_.wide, tokens_ * keys, stream_);
    attention_call(own_, chunk_)
      .forward(kept_.output, kept_.log_sum_exp, kept_.query, key_value, stream_);
    add_product(x, output_operand(), weights_.projection, own_.width);
    layer_norm_forward(
      space_.scaled, kept_.second, x, weights_.second_gain.value(), tokens_, width, stream_);
    products.forward(
      kept_.inner, space_.scaled, weights_.up.operand(), tokens_, width, own_.hidden());
    gelu_forward(kept_.outer, kept_.inner, tokens_ * own_.hidden(), stream_);
    add_product(x, kept_.outer, weights_.down, own_.hidden());
  }

  //! dx [tokens, width], the gradient of the output, becomes that of the input. The gradients of
  //! the gains grow too.
  //! @param made for backward_weight
  //! @param carried shaped as key_value: what later chunks have added to it joins this chunk's
  void backward_input(float* dx,
                      layer_gradients<Element> const& made,
                      bfloat16 const* key_value,
                      float* carried) {
    auto& products = work_->products;
    auto const width = size_.width;
    auto const keys = 2 * own_.key_width();
    convert(made.down, dx, tokens_ * width, stream_);
    products.backward_input(
      space_.wide, made.down, weights_.down.operand(), tokens_, own_.hidden(), width);
    gelu_backward(made.inner, kept_.inner, space_.wide, tokens_ * own_.hidden(), stream_);
    products.backward_input(
      space_.narrow, made.inner, weights_.up.operand(), tokens_, width, own_.hidden());
    norm_backward(dx, weights_.second_gain, kept_.second);
    convert(made.projection, dx, tokens_ * width, stream_);
    products.backward_input(
      space_.narrow, made.projection, weights_.projection.operand(), tokens_, own_.width, width);
    convert(space_.output_gradient, space_.narrow, tokens_ * own_.width, stream_);
    attention_call(own_, chunk_)
      .backward(space_.query_gradient,
                carried,
                kept_.query,
                key_value,
                kept_.output,
                kept_.log_sum_exp,
                space_.output_gradient,
                space_.of_attention,
                stream_);
    convert(made.query, space_.query_gradient, tokens_ * own_.width, stream_);
    convert(made.key_value, carried + chunk_.begin * keys, tokens_ * keys, stream_);
    products.backward_input(
      space_.narrow, made.query, weights_.query.operand(), tokens_, width, own_.width);
    products.backward_input(space_.narrow,
                            made.key_value,
                            weights_.key_value.operand(),
                            tokens_,
                            width,
                            keys,
                            product_goes::added);
    norm_backward(dx, weights_.first_gain, kept_.first);
  }

  //! Adds to the gradients of the matrices.
  void backward_weight(layer_gradients<Element> const& made) {
    auto& products = work_->products;
    auto const width = size_.width;
    auto const hidden = own_.hidden();
    scale_again(kept_.first, weights_.first_gain);
    products.backward_weight(
      weights_.query.gradient(), space_.scaled, made.query, tokens_, width, own_.width);
    products.backward_weight(weights_.key_value.gradient(),
                             space_.scaled,
                             made.key_value,
                             tokens_,
                             width,
                             2 * own_.key_width());
    products.backward_weight(
      weights_.projection.gradient(), output_operand(), made.projection, tokens_, own_.width, width);
    scale_again(kept_.second, weights_.second_gain);
    products.backward_weight(
      weights_.up.gradient(), space_.scaled, made.inner, tokens_, width, hidden);
    products.backward_weight(
      weights_.down.gradient(), kept_.outer, made.down, tokens_, hidden, width);
  }

private:
  //! Attention's output as products read it.
  Element const* output_operand() {
    if constexpr (std::is_same_v<Element, bfloat16>) {
      return kept_.output;
    } else {
      convert(space_.scaled, kept_.output, tokens_ * own_.width, stream_);
      return space_.scaled;
    }
  }
  //! x [tokens, width] += in [tokens, inputs] times the matrix; of shards, the sum of all of that.
  void add_product(float* x, Element const* in, trained<Element>& matrix, std::int64_t inputs) {
    auto const to = work_->sum ? product_goes::instead : product_goes::added;
    float* const y = work_->sum ? space_.narrow : x;
    work_->products.forward(y, in, matrix.operand(), tokens_, inputs, size_.width, to);
    if (work_->sum) {
      auto const count = tokens_ * size_.width;
      work_->sum(y, count, stream_);
      add(x, y, count, stream_);
    }
  }
  //! From the gradient of the norm's output, in `narrow`, of which each shard has a part.
  void norm_backward(float* dx, trained<Element>& gain, normalised kept) {
    if (work_->sum) {
      work_->sum(space_.narrow, tokens_ * size_.width, stream_);
    }
    layer_norm_backward(
      dx, gain.gradient(), space_.narrow, kept, gain.value(), tokens_, size_.width, stream_);
  }
  void scale_again(normalised kept, trained<Element>& gain) {
    apply_gain(space_.scaled, kept.normal, gain.value(), tokens_, size_.width, stream_);
  }

  model_size size_;
  model_size own_; // the shard's share
  layer_weights<Element> weights_;
  chunk_range chunk_;
  std::int64_t tokens_;
  layer_kept<Element> kept_;
  device_work<Element>* work_;
  scratch_tensors<Element> space_;
  cudaStream_t stream_;
};

} // namespace gpt::on_gpu
