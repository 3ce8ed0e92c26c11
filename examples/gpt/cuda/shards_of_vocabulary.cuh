// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What shards of the vocabulary do to their numbers on a GPU: rows of the embedding, and
//! the softmax over logits of which each shard has a part. See sharded_piece.hpp of the host.

#include <pipe/run/context.hpp>

#include <thrust/tabulate.h>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

#include "../vocabulary_cut.hpp"
#include "numbers.cuh"

namespace gpt::on_gpu {

namespace pp = pipelining;

//! What several shards tell, where kernels find it.
struct told_by_shards {
  static constexpr int most = 64; //!< as many as a run has devices
  float const* of[most];
  int count;
};
//! @param skipped numbers before what is meant
[[nodiscard]] inline told_by_shards told_by(std::span<pp::input const> shards,
                                            std::int64_t skipped = 0) {
  if (shards.size() > told_by_shards::most) {
    throw std::invalid_argument("the example on GPUs has 64 shards of the vocabulary at most");
  }
  told_by_shards all{{}, static_cast<int>(shards.size())};
  for (std::size_t i = 0; i < shards.size(); ++i) {
    all.of[i] = shards[i].as<float>().data() + skipped;
  }
  return all;
}

//! to = the sum of what all give, in their order.
inline void add_up(float* to, told_by_shards const& from, std::int64_t count, cudaStream_t stream) {
  thrust::tabulate(on(stream), to, to + count, [=] __device__(std::int64_t i) {
    float sum = from.of[0][i];
    for (int shard = 1; shard < from.count; ++shard) {
      sum += from.of[shard][i];
    }
    return sum;
  });
}

//! x = the rows of the bytes that the shard has, zeros for others, [tokens, width].
inline void look_up(float* x,
                    float const* rows,
                    byte_range bytes,
                    std::uint8_t const* text,
                    std::int64_t tokens,
                    std::int64_t width,
                    cudaStream_t stream) {
  thrust::tabulate(on(stream), x, x + tokens * width, [=] __device__(std::int64_t i) {
    std::int64_t const byte = text[i / width];
    return byte >= bytes.first && byte < bytes.last ? rows[(byte - bytes.first) * width + i % width]
                                                    : 0.0f;
  });
}

//! Statistics [tokens, 3] of logits [tokens, bytes].
inline void make_statistics(float* statistics,
                            float const* logits,
                            byte_range bytes,
                            std::uint8_t const* next_bytes,
                            std::int64_t tokens,
                            cudaStream_t stream) {
  auto const count = bytes.count();
  for_each_token(tokens, stream, [=] __device__(std::int64_t token, row_reduction & over) {
    float const* const row = logits + token * count;
    auto const seen = detail::look_at_logits(row, count, over);
    if (threadIdx.x == 0) {
      std::int64_t const next = next_bytes[token];
      float* const told = statistics + statistics_width * token;
      told[0] = seen.most;
      told[1] = seen.sum;
      told[2] = next >= bytes.first && next < bytes.last ? row[next - bytes.first] : 0.0f;
    }
  });
}

namespace detail {
//! Of a token, the statistics of all shards in one.
__device__ inline token_statistics join(told_by_shards const& shards, std::int64_t token) {
  token_statistics all{shards.of[0][statistics_width * token], 0, 0};
  for (int shard = 1; shard < shards.count; ++shard) {
    float const largest = shards.of[shard][statistics_width * token];
    all.largest = all.largest < largest ? largest : all.largest;
  }
  for (int shard = 0; shard < shards.count; ++shard) {
    float const* const one = shards.of[shard] + statistics_width * token;
    all.sum += one[1] * expf(one[0] - all.largest);
    all.next += one[2];
  }
  return all;
}
} // namespace detail

//! The losses of tokens, and the gradient of a shard's logits for `share` times their sum.
template <class Element>
void cross_entropy_of_shards(float* losses,
                             Element* gradient,
                             float const* logits,
                             told_by_shards const& statistics,
                             byte_range bytes,
                             std::uint8_t const* next_bytes,
                             float share,
                             std::int64_t tokens,
                             cudaStream_t stream) {
  auto const count = bytes.count();
  for_each_token(tokens, stream, [=] __device__(std::int64_t token, row_reduction&) {
    auto const all = detail::join(statistics, token);
    float const* const row = logits + token * count;
    for (std::int64_t v = threadIdx.x; v < count; v += row_threads) {
      float const hit = v + bytes.first == next_bytes[token] ? share : 0.0f;
      gradient[token * count + v] =
        static_cast<Element>(expf(row[v] - all.largest) / all.sum * share - hit);
    }
    if (threadIdx.x == 0) {
      losses[token] = logf(all.sum) + all.largest - all.next;
    }
  });
}

// With one barrier a shard tells the gradient of its input before it knows what others know:
// [tokens, width] sums of exp(logit - largest) times columns, [tokens, width] columns of the next
// bytes, and [tokens, 3] statistics.

//! exp(logit - largest) of a shard.
template <class Element>
void make_exponentials(Element* exponentials,
                       float const* logits,
                       float const* statistics,
                       std::int64_t count,
                       std::int64_t tokens,
                       cudaStream_t stream) {
  thrust::tabulate(
    on(stream), exponentials, exponentials + tokens * count, [=] __device__(std::int64_t i) {
      return static_cast<Element>(expf(logits[i] - statistics[statistics_width * (i / count)]));
    });
}
//! The columns of the next bytes that the shard has, zeros for others, [tokens, width].
inline void next_columns(float* to,
                         float const* columns,
                         byte_range bytes,
                         std::uint8_t const* next_bytes,
                         std::int64_t tokens,
                         std::int64_t width,
                         cudaStream_t stream) {
  auto const count = bytes.count();
  thrust::tabulate(on(stream), to, to + tokens * width, [=] __device__(std::int64_t i) {
    std::int64_t const next = next_bytes[i / width];
    return next >= bytes.first && next < bytes.last
             ? columns[(i % width) * count + next - bytes.first]
             : 0.0f;
  });
}
//! The gradient of the input of all shards, from what each has told.
inline void join_gradients(float* dx,
                           told_by_shards const& told,
                           float share,
                           std::int64_t tokens,
                           std::int64_t width,
                           cudaStream_t stream) {
  auto statistics = told;
  for (int shard = 0; shard < told.count; ++shard) {
    statistics.of[shard] += 2 * tokens * width;
  }
  thrust::tabulate(on(stream), dx, dx + tokens * width, [=] __device__(std::int64_t i) {
    auto const token = i / width;
    auto const all = detail::join(statistics, token);
    float sum = 0;
    for (int shard = 0; shard < told.count; ++shard) {
      float const scale =
        expf(statistics.of[shard][statistics_width * token] - all.largest) / all.sum;
      sum += share * (scale * told.of[shard][i] - told.of[shard][tokens * width + i]);
    }
    return sum;
  });
}

} // namespace gpt::on_gpu
