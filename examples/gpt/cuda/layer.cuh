// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One layer of the GPT on a GPU: x += attention(norm(x)), x += MLP(norm(x)), for one chunk
//! at a time.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "../model.hpp"
#include "attention_call.cuh"
#include "device_work.cuh"
#include "layer_parts.cuh"
#include "numbers.cuh"
#include "trained.cuh"

namespace gpt::on_gpu {

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
  layer_pass(model_size const& size,
             model_size const& own,
             layer_weights<Element> const& weights,
             chunk_range chunk,
             layer_kept<Element> const& kept,
             device_work<Element>& work,
             cudaStream_t stream)
      : chunk_(chunk), attends_(own, chunk),
        kept_(kept.attention), at_{size, own, chunk.count(), &work, stream},
        before_{at_, weights.first_gain, weights.query, weights.key_value, kept.first},
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
    attends_.forward(kept_.output, kept_.log_sum_exp, kept_.query, key_value, at_.stream);
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
    attends_.backward(space.query_gradient,
                      carried,
                      kept_.query,
                      key_value,
                      kept_.output,
                      kept_.log_sum_exp,
                      space.output_gradient,
                      space.of_attention,
                      at_.stream);
    convert(made.before.query, space.query_gradient, at_.tokens * at_.own.width, at_.stream);
    convert(
      made.before.key_value, carried + chunk_.begin * keys(), at_.tokens * keys(), at_.stream);
    before_.add_backward_input(dx, made.before);
  }

  //! Adds to the gradients of the matrices.
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

} // namespace gpt::on_gpu
