// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What the stages of a virtual device share: cuBLAS, and scratch in which nothing survives
//! a pass.

#include <pipe/cuda/handles.cuh>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "../model.hpp"
#include "attention_call.cuh"
#include "gpu_stage.hpp"
#include "matrix_products.cuh"

namespace gpt::on_gpu {

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
