// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Attention of one chunk of a layer by the library's kernels, in bf16 with sums in float;
//! and what the stages of a virtual device share: cuBLAS, and scratch in which nothing survives a
//! pass.

#include <pipe/attention/on_gpu.cuh>
#include <pipe/cuda/handles.cuh>

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "gpu_stage.hpp"
#include "matrix_products.cuh"

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

  void forward(attention_tensors<bfloat16, float> const& of, cudaStream_t stream) const {
    with_head_dim(at_.size.head_dim(), [&](auto dim) {
      attention::forward_on_gpu<dim.value>(at_.parameters(),
                                           at_.forward_tensors(of),
                                           attention::gpu_scratch{},
                                           attention::causal{},
                                           attention::plain{},
                                           stream);
    });
  }

  //! Gradients of keys and values are final for the chunk's own if later chunks have come before.
  //! @param scratch [scratch_floats]
  void backward(attention_tensors<bfloat16, float> const& of,
                attention_gradients<bfloat16, float> const& to,
                float* scratch,
                cudaStream_t stream) const {
    with_head_dim(at_.size.head_dim(), [&](auto dim) {
      attention::backward_on_gpu<dim.value>(at_.parameters(),
                                            at_.backward_tensors(of, to),
                                            attention::gpu_scratch{scratch, scratch_floats()},
                                            attention::causal{},
                                            attention::plain{},
                                            stream);
    });
  }

private:
  attending at_;
};

//! Puts tensors of several types one behind the other. Without memory it only counts.
class placing {
public:
  //! @param multiple of bytes at which tensors begin; 1: without gaps, as messages are
  explicit placing(std::byte* memory = nullptr, std::int64_t multiple = 256)
      : memory_(memory), multiple_(multiple) {}

  template <class T>
  [[nodiscard]] T* take(std::int64_t count) {
    std::byte* const at = memory_ == nullptr ? nullptr : memory_ + bytes_;
    auto const bytes = count * static_cast<std::int64_t>(sizeof(T));
    bytes_ += (bytes + multiple_ - 1) / multiple_ * multiple_;
    return reinterpret_cast<T*>(at);
  }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; } //!< taken so far

private:
  std::byte* memory_;
  std::int64_t multiple_;
  std::int64_t bytes_ = 0;
};

//! What passes of so many tokens may write over.
template <class Element>
struct scratch_tensors {
  Element* scaled;           //!< [tokens, width], what a product reads
  float* wide;               //!< [tokens, the widest result of a product]
  float* narrow;             //!< [tokens, width]
  float* residual;           //!< [tokens, width], where a stage has no message to write it to
  bfloat16* output_gradient; //!< [tokens, width], of attention
  bfloat16* query_gradient;  //!< [tokens, width]
  float* key_value_gradient; //!< [sequence, 2, key heads, head dim], where the plan carries none
  float* of_attention;       //!< [attention_call::scratch_floats] of so many tokens

  scratch_tensors(placing& in, model_size const& size, std::int64_t tokens)
      : scaled(in.take<Element>(tokens * size.width)),
        wide(in.take<float>(tokens * std::max({size.hidden(), vocabulary, 2 * size.key_width()}))),
        narrow(in.take<float>(tokens * size.width)), residual(in.take<float>(tokens * size.width)),
        output_gradient(in.take<bfloat16>(tokens * size.width)),
        query_gradient(in.take<bfloat16>(tokens * size.width)),
        key_value_gradient(in.take<float>(size.sequence * 2 * size.key_width())),
        of_attention(in.take<float>(attention_call(size, {0, tokens}).scratch_floats())) {}
};

//! Belongs to one virtual device, whose passes follow each other on one stream.
template <class Element>
class device_work {
public:
  //! @param tokens of the longest chunk
  //! @param between bytes that a fused backward pass needs from its first half to its second
  //! @param sum over the shards of a stage; empty where there is one
  device_work(model_size const& size,
              std::int64_t tokens,
              std::int64_t between,
              std::int64_t workspace_bytes,
              sum_over_gpus sum)
      : products(workspace_bytes), sum(std::move(sum)),
        memory_(layout(nullptr, size, tokens, between).bytes),
        laid_out_(memory_.data(), size, tokens, between) {}

  matrix_products products;
  sum_over_gpus sum;

  [[nodiscard]] scratch_tensors<Element> const& scratch() const { return laid_out_.tensors; }
  //! Memory of a fused backward pass.
  [[nodiscard]] std::byte* between() const { return laid_out_.between; }

private:
  struct layout {
    placing in;
    scratch_tensors<Element> tensors;
    std::byte* between;
    std::int64_t bytes;

    layout(std::byte* memory,
           model_size const& size,
           std::int64_t tokens,
           std::int64_t between_bytes)
        : in(memory), tensors(in, size, tokens), between(in.take<std::byte>(between_bytes)),
          bytes(in.bytes()) {}
  };
  cuda::device_memory memory_;
  layout laid_out_;
};

} // namespace gpt::on_gpu
