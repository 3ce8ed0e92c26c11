// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Attention of one chunk of a layer by the library's kernels, in bf16 with sums in float.

#include <pipe/attention/on_gpu.cuh>

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "../model.hpp"

namespace gpt::on_gpu {

namespace attention = pipelining::attention;
using bfloat16 = __nv_bfloat16; //!< the elements of attention

//! Calls call(std::integral_constant<int, Dim>) with the elements of a head.
//! @throws std::invalid_argument where no kernel is built for so many
template <class Call>
void with_head_dim(std::int64_t dim, Call call) {
  switch (dim) {
  case 64: call(std::integral_constant<int, 64>{}); return;
  case 128: call(std::integral_constant<int, 128>{}); return;
  default:
    throw std::invalid_argument("a head of this model has " + std::to_string(dim) +
                                " elements, but the kernels of the example are built for 64 and "
                                "128; choose --width and --heads so that their quotient is one");
  }
}

//! A chunk of a sequence in one layer. Queries are [tokens, heads, head dim] of the chunk, keys and
//! values [sequence, 2, key heads, head dim] of the whole sequence, filled up to the chunk's end;
//! or some of these.
class attention_call {
public:
  attention_call(model_size const& size, chunk_range chunk)
      : attention_call(size, chunk, {0, chunk.end}) {}
  //! @param seen the tokens whose keys and values are given
  attention_call(model_size const& size, chunk_range chunk, chunk_range seen)
      : size_(size), chunk_(chunk), seen_(seen) {}

  //! Floats of scratch that backward needs.
  [[nodiscard]] std::int64_t scratch_floats() const {
    return attention::backward_scratch(parameters_of());
  }

  //! @param log_sum_exp [heads, tokens]
  void forward(bfloat16* output,
               float* log_sum_exp,
               bfloat16 const* query,
               bfloat16 const* key_value,
               cudaStream_t stream) const {
    with_head_dim(size_.head_dim(), [&](auto dim) {
      attention::forward_on_gpu<dim.value>(
        parameters_of(),
        attention::forward_tensors<bfloat16>{
          queries(query), keys(key_value), values(key_value), queries(output), rows(log_sum_exp)},
        attention::gpu_scratch{},
        attention::causal{},
        attention::plain{},
        stream);
    });
  }

  //! Writes the gradient of the query, and adds to those of all keys and values that are seen,
  //! which are final for the chunk's own if later chunks have come before.
  //! @param key_value_gradient shaped as key_value
  //! @param scratch [scratch_floats]
  void backward(bfloat16* query_gradient,
                float* key_value_gradient,
                bfloat16 const* query,
                bfloat16 const* key_value,
                bfloat16 const* output,
                float const* log_sum_exp,
                bfloat16 const* output_gradient,
                float* scratch,
                cudaStream_t stream) const {
    with_head_dim(size_.head_dim(), [&](auto dim) {
      attention::backward_on_gpu<dim.value>(
        parameters_of(),
        attention::backward_tensors<bfloat16>{queries(query),
                                              keys(key_value),
                                              values(key_value),
                                              queries(output),
                                              rows(log_sum_exp),
                                              queries(output_gradient),
                                              queries(query_gradient),
                                              keys(key_value_gradient),
                                              values(key_value_gradient)},
        attention::gpu_scratch{scratch, scratch_floats()},
        attention::causal{},
        attention::plain{},
        stream);
    });
  }

private:
  [[nodiscard]] attention::parameters parameters_of() const {
    attention::parameters p;
    p.query_length = chunk_.count();
    p.query_offset = chunk_.begin;
    p.key_length = seen_.count();
    p.key_offset = seen_.begin;
    p.heads = size_.heads;
    p.key_heads = size_.key_heads;
    p.head_dim = size_.head_dim();
    return p;
  }
  template <class T>
  [[nodiscard]] attention::tensor_view<T> queries(T* data) const {
    return attention::dense_tensor(data, 1, chunk_.count(), size_.heads, size_.head_dim());
  }
  template <class T>
  [[nodiscard]] attention::tensor_view<T> keys(T* data) const {
    auto view = attention::dense_tensor(data, 1, seen_.count(), size_.key_heads, size_.head_dim());
    view.length_stride = 2 * size_.key_width();
    return view;
  }
  template <class T>
  [[nodiscard]] attention::tensor_view<T> values(T* data) const {
    return keys(data + size_.key_width());
  }
  template <class T>
  [[nodiscard]] attention::row_view<T> rows(T* data) const {
    return attention::dense_rows(data, 1, size_.heads, chunk_.count());
  }

  model_size size_;
  chunk_range chunk_;
  chunk_range seen_;
};

} // namespace gpt::on_gpu
