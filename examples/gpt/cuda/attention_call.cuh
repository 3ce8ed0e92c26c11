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

#include "../layer.hpp"
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
      : at_{size, chunk, seen} {}

  [[nodiscard]] std::int64_t scratch_floats() const {
    return attention::backward_scratch(at_.parameters());
  }

  //! @param log_sum_exp [heads, tokens]
  void forward(bfloat16* output,
               float* log_sum_exp,
               bfloat16 const* query,
               bfloat16 const* key_value,
               cudaStream_t stream) const {
    with_head_dim(at_.size.head_dim(), [&](auto dim) {
      attention::forward_on_gpu<dim.value>(
        at_.parameters(),
        attention::forward_tensors<bfloat16>{at_.queries(query),
                                             at_.keys(key_value),
                                             at_.values(key_value),
                                             at_.queries(output),
                                             at_.rows(log_sum_exp)},
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
    with_head_dim(at_.size.head_dim(), [&](auto dim) {
      attention::backward_on_gpu<dim.value>(
        at_.parameters(),
        attention::backward_tensors<bfloat16>{at_.queries(query),
                                              at_.keys(key_value),
                                              at_.values(key_value),
                                              at_.queries(output),
                                              at_.rows(log_sum_exp),
                                              at_.queries(output_gradient),
                                              at_.queries(query_gradient),
                                              at_.keys(key_value_gradient),
                                              at_.values(key_value_gradient)},
        attention::gpu_scratch{scratch, scratch_floats()},
        attention::causal{},
        attention::plain{},
        stream);
    });
  }

private:
  attending at_;
};

} // namespace gpt::on_gpu
