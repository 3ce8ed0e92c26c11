// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A residual layer whose weights, activations and messages are fp32 or bf16, with fp32 sums
//! and an optimizer that keeps its own weights in fp32.

#include <pipe/cuda/error.cuh>
#include <pipe/cuda/handles.cuh>
#include <pipe/run/context.hpp>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <type_traits>
#include <vector>

namespace example {

namespace pp = pipelining;

constexpr int rows = 8;      // samples of a microbatch
constexpr int features = 16; // of a sample
constexpr int numbers = rows * features;
constexpr int weights = features * features;

//! In fp32, in which everything is computed.
template <class Number>
__device__ inline float wide(Number x) {
  return static_cast<float>(x);
}
//! Rounded to what is kept and sent.
template <class Number>
__device__ inline Number narrow(float x) {
  if constexpr (std::is_same_v<Number, float>)
    return x;
  else
    return __float2bfloat16_rn(x);
}

// One block per row, one thread per feature. A stage is y = x + s(x W) with s(z) = z / (1 + |z|).
// Products that are added say so by fmaf: the bits do not depend on the compiler's choice.
template <class Number>
__global__ void
forward_kernel(Number const* in, Number const* w, Number* kept, Number* out, int m) {
  __shared__ float x[features];
  int const r = static_cast<int>(blockIdx.x);
  int const c = static_cast<int>(threadIdx.x);
  int const at = r * features + c;
  // The first stage makes its samples from their number.
  x[c] =
    in != nullptr ? wide(in[at]) : static_cast<float>((37 * m + 11 * r + 7 * c) % 17) / 8.0F - 1.0F;
  __syncthreads();
  float z = 0;
  for (int k = 0; k < features; ++k)
    z = fmaf(x[k], wide(w[k * features + c]), z);
  float const bend = 1.0F / (1.0F + fabsf(z));
  kept[at] = narrow<Number>(x[c]);
  kept[numbers + at] = narrow<Number>(bend);
  Number const y = narrow<Number>(fmaf(z, bend, x[c]));
  if (out != nullptr)
    out[at] = y;
  else
    kept[2 * numbers + at] = y;
}

// The network is to turn each sample by one feature.
template <class Number>
__global__ void loss_kernel(Number* kept, float* losses, int m) {
  int const r = static_cast<int>(blockIdx.x);
  int const c = static_cast<int>(threadIdx.x);
  int const at = r * features + c;
  float const wanted = static_cast<float>((37 * m + 11 * r + 7 * (c + 1)) % 17) / 8.0F - 1.0F;
  float const error = wide(kept[2 * numbers + at]) - wanted;
  kept[2 * numbers + at] = narrow<Number>(error);
  losses[at] = fmaf(error, error, losses[at]);
}

template <class Number>
__global__ void backward_kernel(Number const* dy, Number const* w, Number* kept, Number* dx) {
  __shared__ float dz[features];
  int const r = static_cast<int>(blockIdx.x);
  int const c = static_cast<int>(threadIdx.x);
  int const at = r * features + c;
  float const incoming = dy != nullptr ? wide(dy[at]) : 2.0F * wide(kept[2 * numbers + at]);
  float const bend = wide(kept[numbers + at]);
  kept[2 * numbers + at] = narrow<Number>(incoming * bend * bend);
  dz[c] = wide(kept[2 * numbers + at]);
  __syncthreads();
  if (dx == nullptr)
    return;
  float sum = incoming;
  for (int k = 0; k < features; ++k)
    sum = fmaf(dz[k], wide(w[c * features + k]), sum);
  dx[at] = narrow<Number>(sum);
}

// Gradients of weights are added up in fp32: those of many microbatches would vanish in bf16.
template <class Number>
__global__ void weight_kernel(Number const* kept, float* dw) {
  int const k = static_cast<int>(blockIdx.x);
  int const c = static_cast<int>(threadIdx.x);
  float sum = 0;
  for (int r = 0; r < rows; ++r)
    sum = fmaf(wide(kept[r * features + k]), wide(kept[2 * numbers + r * features + c]), sum);
  dw[k * features + c] += sum;
}

//! What the optimizer knows of a stage, all in fp32.
struct optimizer_memory {
  float* master; //!< the weights; the layer computes with a rounded copy
  float* mean;   //!< of the gradients
  float* square; //!< of their squares
};
//! A step of Adam. The shares undo the bias of the means towards zero.
struct optimizer_step {
  float scale; //!< of the gradients: one divided by the number of samples
  float rate;
  float mean_share;
  float square_share;
};
inline optimizer_step make_step(int step, int samples) {
  auto const share = [step](double decay) { return 1 / (1 - std::pow(decay, step + 1)); };
  return {1.0F / static_cast<float>(samples),
          2e-3F,
          static_cast<float>(share(0.9)),
          static_cast<float>(share(0.98))};
}

template <class Number>
__global__ void update_kernel(Number* w, float* dw, optimizer_memory own, optimizer_step now) {
  int const at = static_cast<int>(blockIdx.x) * features + static_cast<int>(threadIdx.x);
  float const g = dw[at] * now.scale;
  own.mean[at] = fmaf(0.1F, g - own.mean[at], own.mean[at]);
  own.square[at] = fmaf(0.02F, fmaf(g, g, -own.square[at]), own.square[at]);
  float const length = sqrtf(own.square[at] * now.square_share) + 1e-8F;
  own.master[at] = fmaf(-now.rate, own.mean[at] * now.mean_share / length, own.master[at]);
  w[at] = narrow<Number>(own.master[at]);
  dw[at] = 0;
}

//! One stage: any type with these two functions is one. They enqueue on the stream of the context.
template <class Number>
struct layer {
  Number* w = nullptr; // [features][features]; null for the stages of other ranks
  float* dw = nullptr;
  float* losses = nullptr; // [rows][features]
  bool fails = false;

  void forward(pp::context const& at, pp::input x, pp::output y) {
    if (fails && at.microbatch == 1)
      throw std::runtime_error("loss is not a number");
    auto* const on = static_cast<cudaStream_t>(at.stream);
    Number* const kept = at.activation.as<Number>().data();
    forward_kernel<<<rows, features, 0, on>>>(
      x.as<Number>().data(), w, kept, y.as<Number>().data(), at.microbatch);
    if (y.data == nullptr)
      loss_kernel<<<rows, features, 0, on>>>(kept, losses, at.microbatch);
    pp::cuda::check(cudaGetLastError(), "forward");
  }
  void backward(pp::context const& at, pp::input dy, pp::output dx) {
    auto* const on = static_cast<cudaStream_t>(at.stream);
    Number* const kept = at.activation.as<Number>().data();
    backward_kernel<<<rows, features, 0, on>>>(
      dy.as<Number>().data(), w, kept, dx.as<Number>().data());
    weight_kernel<<<features, features, 0, on>>>(kept, dw);
    pp::cuda::check(cudaGetLastError(), "backward");
  }
};

//! The part of the model that this rank has.
template <class Number>
class own_layer {
public:
  explicit own_layer(int rank)
      : memory_(static_cast<std::int64_t>(sizeof(float)) * (4 * weights + numbers) +
                static_cast<std::int64_t>(sizeof(Number)) * weights) {
    std::vector<float> start(weights);
    for (std::size_t i = 0; i < start.size(); ++i)
      start[i] =
        static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 3) % 11) / 100 - 0.05F;
    set_state(start);
  }
  [[nodiscard]] layer<Number> stage() const {
    return {reinterpret_cast<Number*>(floats() + 4 * weights + numbers),
            floats() + 3 * weights,
            floats() + 4 * weights};
  }
  [[nodiscard]] optimizer_memory optimizer() const {
    return {floats(), floats() + weights, floats() + 2 * weights};
  }
  //! One step of the optimizer.
  void update(optimizer_step const& now, cudaStream_t on) const {
    update_kernel<<<features, features, 0, on>>>(stage().w, stage().dw, optimizer(), now);
    pp::cuda::check(cudaGetLastError(), "update");
  }
  //! Reads what has been added up, and clears it.
  [[nodiscard]] float loss(cudaStream_t on) const {
    std::vector<float> const sums = read(stage().losses, numbers, on);
    pp::cuda::check(cudaMemsetAsync(stage().losses, 0, sizeof(float) * numbers, on),
                    "cudaMemsetAsync");
    float sum = 0;
    for (float const each : sums)
      sum += each;
    return sum;
  }
  //! The weights of the optimizer.
  [[nodiscard]] std::vector<float> master(cudaStream_t on) const {
    return read(optimizer().master, weights, on);
  }
  //! All that the next step depends on: the weights, and both means of the gradients.
  [[nodiscard]] std::vector<float> state(cudaStream_t on) const {
    return read(optimizer().master, 3 * weights, on);
  }
  //! @param values what `state` gives, or the weights alone. @pre no step has begun.
  void set_state(std::vector<float> const& values) const {
    std::vector<Number> rounded(weights);
    for (std::size_t i = 0; i < rounded.size(); ++i)
      rounded[i] = static_cast<Number>(values[i]);
    auto const put = [](void* to, void const* from, std::size_t bytes) {
      pp::cuda::check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    };
    put(optimizer().master, values.data(), sizeof(float) * values.size());
    put(stage().w, rounded.data(), sizeof(Number) * rounded.size());
  }

private:
  [[nodiscard]] float* floats() const { return reinterpret_cast<float*>(memory_.data()); }
  static std::vector<float> read(float const* from, int count, cudaStream_t on) {
    std::vector<float> values(static_cast<std::size_t>(count));
    std::size_t const bytes = sizeof(float) * values.size();
    pp::cuda::check(cudaMemcpyAsync(values.data(), from, bytes, cudaMemcpyDeviceToHost, on),
                    "cudaMemcpyAsync");
    pp::cuda::check(cudaStreamSynchronize(on), "cudaStreamSynchronize");
    return values;
  }

  pp::cuda::device_memory memory_;
};

} // namespace example
