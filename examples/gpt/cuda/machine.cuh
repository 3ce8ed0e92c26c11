// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A GPU as a machine of stages, see memory.hpp: its types, attention of one chunk of a
//! layer by the library's kernels, in bf16 with sums in float; and what the stages of a virtual
//! device share: cuBLAS, and scratch in which nothing survives a pass.

#include <pipe/attention/merge.cuh>
#include <pipe/attention/on_gpu.cuh>
#include <pipe/cuda/handles.cuh>

#include <thrust/execution_policy.h>
#include <thrust/reduce.h>

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../layer.hpp"
#include "gpu_stage.hpp"
#include "matrix_products.cuh"
#include "trained.cuh"

namespace gpt::on_gpu {

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

template <class Element>
class device_work;

//! Stages on a GPU, whose products multiply numbers of type Element.
template <class Element>
struct machine {
  using number = float;
  using element = Element;
  using attended = bfloat16;
  using weight = trained<Element>;
  using work = device_work<Element>;
  using stream = on_gpu::stream;
  using memory = cuda::device_memory;
  static constexpr std::int64_t alignment = 256;

  [[nodiscard]] static stream stream_of(pp::context const& where) {
    return static_cast<cudaStream_t>(where.stream);
  }
  [[nodiscard]] static std::int64_t attention_scratch(model_size const& size, std::int64_t tokens) {
    return attention::backward_scratch(attending{size, {0, tokens}, {0, tokens}}.parameters());
  }
  static void copy_text(std::byte* to, std::vector<std::uint8_t> const& text, stream on) {
    copy_bytes(to, text.data(), std::ssize(text), on, cudaMemcpyHostToDevice);
  }
  [[nodiscard]] static double sum(float const* numbers, std::int64_t count) {
    return thrust::reduce(thrust::cuda::par, numbers, numbers + count, 0.0);
  }
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

  //! Before each pass.
  void begin(model_size const&, std::int64_t, stream on) { products.use(on); }
  [[nodiscard]] scratch_tensors<machine<Element>> const& scratch() const {
    return laid_out_.tensors;
  }
  //! Memory of a fused backward pass, which wants no more bytes than any.
  [[nodiscard]] std::byte* between(std::int64_t) const { return laid_out_.between; }
  [[nodiscard]] matrix_pass<Element> matrix(trained<Element> const& of,
                                            std::int64_t tokens,
                                            std::int64_t inputs,
                                            std::int64_t outputs) {
    return {products, of.operand(), of.gradients(), tokens, inputs, outputs};
  }

private:
  struct layout {
    placing in;
    scratch_tensors<machine<Element>> tensors;
    std::byte* between;
    std::int64_t bytes;

    layout(std::byte* memory,
           model_size const& size,
           std::int64_t tokens,
           std::int64_t between_bytes)
        : in(slot_of<machine<Element>>(memory)), tensors(in, size, tokens),
          between(in.take<std::byte>(between_bytes)), bytes(in.bytes()) {}
  };
  cuda::device_memory memory_;
  layout laid_out_;
};

template <class Element>
void attend(attending const& at,
            attention_tensors<bfloat16, float> const& of,
            device_work<Element>&,
            stream on) {
  with_head_dim(at.size.head_dim(), [&](auto dim) {
    attention::forward_on_gpu<dim.value>(at.parameters(),
                                         at.forward_tensors(of),
                                         attention::gpu_scratch{},
                                         attention::causal{},
                                         attention::plain{},
                                         on);
  });
}
//! Gradients of keys and values are final for the chunk's own if later chunks have come before.
template <class Element>
void attend_backward(attending const& at,
                     attention_tensors<bfloat16, float> const& of,
                     attention_gradients<bfloat16, float> const& to,
                     device_work<Element>& work,
                     stream on) {
  auto const scratch = attention::backward_scratch(at.parameters());
  with_head_dim(at.size.head_dim(), [&](auto dim) {
    attention::backward_on_gpu<dim.value>(
      at.parameters(),
      at.backward_tensors(of, to),
      attention::gpu_scratch{work.scratch().of_attention, scratch},
      attention::causal{},
      attention::plain{},
      on);
  });
}
//! The output and log-sum-exp of attention to some keys become those of these and others.
inline void merge(bfloat16* output,
                  float* log_sum_exp,
                  bfloat16 const* other_output,
                  float const* other_log_sum_exp,
                  model_size const& size,
                  std::int64_t tokens,
                  stream on) {
  auto const dense = [&](auto* of) {
    return attention::dense_tensor(of, 1, tokens, size.heads, size.head_dim());
  };
  with_head_dim(size.head_dim(), [&](auto dim) {
    attention::merge_on_device<dim.value, bfloat16>(
      dense(output),
      attention::dense_rows(log_sum_exp, 1, size.heads, tokens),
      dense(other_output),
      attention::dense_rows(other_log_sum_exp, 1, size.heads, tokens),
      on);
  });
}

} // namespace gpt::on_gpu
