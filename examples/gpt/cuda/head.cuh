// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The end of the model on a GPU: norm, linear and cross-entropy against the next byte.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "../model.hpp"
#include "device_work.cuh"
#include "matrix_products.cuh"
#include "numbers.cuh"
#include "trained.cuh"

namespace gpt::on_gpu {

//! The head at work on one chunk. It keeps its normalised input, and from backward_input to
//! backward_weight the gradient of the logits, [tokens, vocabulary]; logits are made anew.
template <class Element>
class head_pass {
public:
  head_pass(model_size const& size,
            trained<Element>& gain,
            trained<Element>& out,
            std::uint8_t const* next_bytes,
            std::int64_t tokens,
            normalised kept,
            device_work<Element>& work,
            cudaStream_t stream)
      : width_(size.width), gain_(&gain), out_(&out), next_bytes_(next_bytes), tokens_(tokens),
        kept_(kept), work_(&work), space_(work.scratch()), stream_(stream) {}

  [[nodiscard]] static normalised keep(placing& in, model_size const& size, std::int64_t tokens) {
    return {in.take<float>(tokens * size.width), in.take<float>(tokens)};
  }

  //! Writes the loss of each token, in nats.
  void forward(float* losses, float const* x) {
    layer_norm_forward(space_.scaled, kept_, x, gain_->value(), tokens_, width_, stream_);
    make_logits();
    cross_entropy_forward(losses, space_.wide, next_bytes_, tokens_, stream_);
  }
  //! dx = the gradient of the input for `share` times the sum of the losses.
  void backward_input(float* dx, Element* logits_gradient, float share) {
    scale_again();
    make_logits();
    cross_entropy_backward(logits_gradient, space_.wide, next_bytes_, share, tokens_, stream_);
    work_->products.backward_input(
      space_.narrow, logits_gradient, out_->operand(), tokens_, width_, vocabulary);
    cuda::check(
      cudaMemsetAsync(dx, 0, static_cast<std::size_t>(tokens_ * width_) * sizeof(float), stream_),
      "cudaMemsetAsync");
    layer_norm_backward(
      dx, gain_->gradient(), space_.narrow, kept_, gain_->value(), tokens_, width_, stream_);
  }
  //! Adds to the gradient of the matrix.
  void backward_weight(Element const* logits_gradient) {
    scale_again();
    work_->products.backward_weight(
      out_->gradient(), space_.scaled, logits_gradient, tokens_, width_, vocabulary);
  }

private:
  void scale_again() {
    apply_gain(space_.scaled, kept_.normal, gain_->value(), tokens_, width_, stream_);
  }
  //! In `wide`, from `scaled`.
  void make_logits() {
    work_->products.forward(
      space_.wide, space_.scaled, out_->operand(), tokens_, width_, vocabulary);
  }

  std::int64_t width_;
  trained<Element>* gain_;
  trained<Element>* out_;
  std::uint8_t const* next_bytes_;
  std::int64_t tokens_;
  normalised kept_;
  device_work<Element>* work_;
  scratch_tensors<Element> space_;
  cudaStream_t stream_;
};

} // namespace gpt::on_gpu
