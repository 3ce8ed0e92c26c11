// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What a GPT does to its numbers next to products and attention: number by number by
//! Thrust, or token by token by CUB, with sums over a row.
//!
//! Every sum is made in one order that only the place of the number decides, and by one thread or
//! block: the same call gives the same bits.

#include <pipe/cuda/error.cuh>

#include <cub/block/block_reduce.cuh>
#include <cub/device/device_for.cuh>
#include <thrust/execution_policy.h>
#include <thrust/fill.h>
#include <thrust/functional.h>
#include <thrust/tabulate.h>
#include <thrust/transform.h>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "../host/arithmetic.hpp"

namespace gpt::on_gpu {

namespace cuda = pipelining::cuda;

//! A stream of CUDA, by whose type functions here are found.
struct stream {
  cudaStream_t of = nullptr;

  // NOLINTBEGIN(google-explicit-constructor): it is that stream
  stream(cudaStream_t given) : of(given) {}
  operator cudaStream_t() const { return of; }
  // NOLINTEND(google-explicit-constructor)
};

inline constexpr int row_threads = 128; //!< of a block that works on one token

//! Sums and maxima over what the threads of a block have; all of them get the result.
class row_reduction {
public:
  using block = cub::BlockReduce<float, row_threads>;
  struct storage {
    typename block::TempStorage parts;
    float result;
  };
  __device__ explicit row_reduction(storage& memory) : memory_(&memory) {}

  __device__ float sum(float mine) { return tell(block(memory_->parts).Sum(mine)); }
  //! value(0) + value(1) + ..., of which every thread has some.
  template <class Value>
  __device__ float sum_of(std::int64_t count, Value const& value) {
    float mine = 0;
    for (std::int64_t i = threadIdx.x; i < count; i += row_threads)
      mine += value(i);
    return sum(mine);
  }
  __device__ float most(float mine) {
    return tell(block(memory_->parts).Reduce(mine, [](float a, float b) { return a < b ? b : a; }));
  }

private:
  //! @param result that thread 0 has
  __device__ float tell(float result) {
    if (threadIdx.x == 0)
      memory_->result = result;
    __syncthreads();
    float const told = memory_->result;
    __syncthreads(); // before the next reduction writes
    return told;
  }
  storage* memory_;
};

namespace detail {
template <class Work>
__global__ void __launch_bounds__(row_threads) row_kernel(Work work) {
  __shared__ row_reduction::storage memory;
  row_reduction reduction(memory);
  work(static_cast<std::int64_t>(blockIdx.x), reduction);
}
} // namespace detail

//! Thrust on a stream, without waiting: its element-wise calls allocate nothing, so that graphs can
//! have them.
[[nodiscard]] inline auto on(cudaStream_t stream) {
  return thrust::cuda::par_nosync.on(stream);
}

//! work(i) for i = 0, 1, ..., count - 1, side by side: where one number gives several.
template <class Work>
void for_each_number(std::int64_t count, cudaStream_t stream, Work work) {
  cuda::check(cub::DeviceFor::Bulk(count, work, stream), "cub::DeviceFor::Bulk");
}

//! work(token, reduction) by a block of row_threads for every token.
template <class Work>
void for_each_token(std::int64_t tokens, cudaStream_t stream, Work work) {
  detail::row_kernel<<<static_cast<unsigned>(tokens), row_threads, 0, stream>>>(work);
  cuda::check(cudaGetLastError(), "a kernel that works token by token");
}

template <class To, class From>
void convert(To* to, From const* from, std::int64_t count, cudaStream_t stream) {
  thrust::transform(on(stream), from, from + count, to, [] __device__(From x) {
    return static_cast<To>(static_cast<float>(x));
  });
}

//! to = a + b
template <class To, class From>
void add_up(To* to, From const* a, From const* b, std::int64_t count, cudaStream_t stream) {
  thrust::transform(on(stream), a, a + count, b, to, [] __device__(From x, From y) {
    return static_cast<To>(static_cast<float>(x) + static_cast<float>(y));
  });
}
inline void fill(float* numbers, std::int64_t count, float with, cudaStream_t stream) {
  thrust::fill_n(on(stream), numbers, count, with);
}
inline void add(float* to, float const* from, std::int64_t count, cudaStream_t stream) {
  thrust::transform(on(stream), to, to + count, from, to, thrust::plus<float>{});
}
inline void copy_bytes(void* to,
                       void const* from,
                       std::int64_t bytes,
                       cudaStream_t stream,
                       cudaMemcpyKind way = cudaMemcpyDeviceToDevice) {
  cuda::check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), way, stream),
              "cudaMemcpyAsync");
}
template <class T>
void copy(T* to, T const* from, std::int64_t count, cudaStream_t stream) {
  copy_bytes(to, from, count * static_cast<std::int64_t>(sizeof(T)), stream);
}
inline void clear_bytes(void* to, std::int64_t bytes, cudaStream_t stream) {
  cuda::check(cudaMemsetAsync(to, 0, static_cast<std::size_t>(bytes), stream), "cudaMemsetAsync");
}
template <class T>
void clear(T* numbers, std::int64_t count, cudaStream_t stream) {
  clear_bytes(numbers, count * static_cast<std::int64_t>(sizeof(T)), stream);
}

using token_rows = gpt::token_rows<stream>;
using normalised = gpt::normalised<float>;

//! y = gain * (x - mean(x)) / sqrt(variance(x) + epsilon), token by token.
template <class Element>
void layer_norm_forward(
  Element* y, normalised kept, float const* x, float const* gain, token_rows rows) {
  for_each_token(
    rows.tokens, rows.stream, [=] __device__(std::int64_t token, row_reduction & over) {
      float const* const from = x + token * rows.width;
      auto const width = static_cast<float>(rows.width);
      auto const x_of = [&](std::int64_t d) { return from[d]; };
      float const mean = over.sum_of(rows.width, x_of) / width;
      auto const square_of = [&](std::int64_t d) { return (from[d] - mean) * (from[d] - mean); };
      float const variance = over.sum_of(rows.width, square_of) / width;
      float const inverse = 1.0f / sqrtf(variance + 1e-5f);
      for (std::int64_t d = threadIdx.x; d < rows.width; d += row_threads) {
        float const n = (from[d] - mean) * inverse;
        kept.normal[token * rows.width + d] = n;
        y[token * rows.width + d] = static_cast<Element>(gain[d] * n);
      }
      if (threadIdx.x == 0)
        kept.inverse[token] = inverse;
    });
}

//! y = gain * normal: again what forward has made.
template <class Element>
void apply_gain(Element* y, float const* normal, float const* gain, token_rows rows) {
  thrust::tabulate(on(rows.stream), y, y + rows.count(), [=] __device__(std::int64_t i) {
    return static_cast<Element>(gain[i % rows.width] * normal[i]);
  });
}

//! dx += what dy gives; the gain's gradient grows too, last token first.
inline void layer_norm_backward(float* dx,
                                float* gain_gradient,
                                float const* dy,
                                normalised kept,
                                float const* gain,
                                token_rows rows) {
  for_each_token(
    rows.tokens, rows.stream, [=] __device__(std::int64_t token, row_reduction & over) {
      float const* const g = dy + token * rows.width;
      float const* const n = kept.normal + token * rows.width;
      auto const width = static_cast<float>(rows.width);
      auto const dy_of = [&](std::int64_t d) { return gain[d] * g[d]; };
      float const sum = over.sum_of(rows.width, dy_of) / width;
      auto const along_of = [&](std::int64_t d) { return gain[d] * g[d] * n[d]; };
      float const along = over.sum_of(rows.width, along_of) / width;
      float const inverse = kept.inverse[token];
      for (std::int64_t d = threadIdx.x; d < rows.width; d += row_threads)
        dx[token * rows.width + d] += inverse * (gain[d] * g[d] - sum - n[d] * along);
    });
  thrust::tabulate(
    on(rows.stream), gain_gradient, gain_gradient + rows.width, [=] __device__(std::int64_t d) {
      float sum = gain_gradient[d];
      for (std::int64_t token = rows.tokens - 1; token >= 0; --token) {
        sum += dy[token * rows.width + d] * kept.normal[token * rows.width + d];
      }
      return sum;
    });
}

namespace detail {
struct sigmoid_of_gelu {
  float value;
  float slope; //!< of what the sigmoid is of
};
__device__ inline sigmoid_of_gelu gelu_sigmoid(float x) {
  constexpr auto inner = static_cast<float>(gelu_inner);
  constexpr auto cubic = static_cast<float>(gelu_cubic);
  float const u = inner * (x + cubic * x * x * x);
  return {1.0f / (1.0f + expf(-u)), inner * (1.0f + 3.0f * cubic * x * x)};
}
} // namespace detail

//! y = GELU(x), in the form with tanh.
template <class Element>
void gelu_forward(Element* y, float const* x, std::int64_t count, cudaStream_t stream) {
  thrust::transform(on(stream), x, x + count, y, [] __device__(float of) {
    return static_cast<Element>(of * detail::gelu_sigmoid(of).value);
  });
}

//! dx = GELU'(x) dy
template <class Element>
void gelu_backward(
  Element* dx, float const* x, float const* dy, std::int64_t count, cudaStream_t stream) {
  thrust::transform(on(stream), x, x + count, dy, dx, [] __device__(float of, float gradient) {
    auto const s = detail::gelu_sigmoid(of);
    return static_cast<Element>(gradient * (s.value + of * s.value * (1.0f - s.value) * s.slope));
  });
}

//! x = embedding of the byte + embedding of its position, [tokens, width].
inline void embedding_forward(
  float* x, float const* bytes, float const* positions, std::uint8_t const* text, token_rows rows) {
  thrust::tabulate(on(rows.stream), x, x + rows.count(), [=] __device__(std::int64_t i) {
    return bytes[text[i / rows.width] * rows.width + i % rows.width] + positions[i];
  });
}

//! Adds to the gradients of rows of the table of bytes. Every number of them has a thread that
//! looks for its byte, last token first: no two threads add to one number.
//! @param bytes that the rows are of
inline void rows_backward(float* row_gradients,
                          chunk_range bytes,
                          float const* dx,
                          std::uint8_t const* text,
                          token_rows rows) {
  thrust::tabulate(on(rows.stream),
                   row_gradients,
                   row_gradients + bytes.count() * rows.width,
                   [=] __device__(std::int64_t i) {
                     auto const byte = static_cast<std::uint8_t>(bytes.begin + i / rows.width);
                     float sum = row_gradients[i];
                     for (std::int64_t token = rows.tokens - 1; token >= 0; --token)
                       if (text[token] == byte)
                         sum += dx[token * rows.width + i % rows.width];
                     return sum;
                   });
}

namespace detail {
//! What the threads of a token know of its logits.
struct row_of_logits {
  float most;
  float sum; //!< of exp(logit - most)
};
__device__ inline row_of_logits
look_at_logits(float const* logits, std::int64_t count, row_reduction& over) {
  float most = logits[0];
  for (std::int64_t v = threadIdx.x; v < count; v += row_threads)
    most = most < logits[v] ? logits[v] : most;
  most = over.most(most);
  return {most, over.sum_of(count, [&](std::int64_t v) { return expf(logits[v] - most); })};
}
} // namespace detail

//! The loss of each token in nats, of logits [tokens, vocabulary].
inline void cross_entropy_forward(float* losses,
                                  float const* logits,
                                  std::uint8_t const* next_bytes,
                                  std::int64_t tokens,
                                  cudaStream_t stream) {
  for_each_token(tokens, stream, [=] __device__(std::int64_t token, row_reduction & over) {
    float const* const row = logits + token * vocabulary;
    auto const seen = detail::look_at_logits(row, vocabulary, over);
    if (threadIdx.x == 0)
      losses[token] = logf(seen.sum) - (row[next_bytes[token]] - seen.most);
  });
}

//! The gradient of the logits, for `share` times the sum of the losses.
template <class Element>
void cross_entropy_backward(Element* gradient,
                            float const* logits,
                            std::uint8_t const* next_bytes,
                            float share,
                            std::int64_t tokens,
                            cudaStream_t stream) {
  for_each_token(tokens, stream, [=] __device__(std::int64_t token, row_reduction & over) {
    float const* const row = logits + token * vocabulary;
    auto const seen = detail::look_at_logits(row, vocabulary, over);
    for (std::int64_t v = threadIdx.x; v < vocabulary; v += row_threads) {
      float const hit = v == next_bytes[token] ? share : 0.0f;
      gradient[token * vocabulary + v] =
        static_cast<Element>(expf(row[v] - seen.most) / seen.sum * share - hit);
    }
  });
}

} // namespace gpt::on_gpu
