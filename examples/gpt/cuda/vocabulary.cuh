// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Shards of the embedding and of the output layer on a GPU, with the softmax over logits of
//! which each shard has a part. See papers/vocabulary_stage.hpp.

#include <thrust/tabulate.h>

#include <cuda_runtime_api.h>

#include <cstdint>

#include "../papers/vocabulary_stage.hpp"
#include "numbers.cuh"

namespace gpt::on_gpu {

//! to = the sum of what all give, in their order.
inline void add_up(float* to, told_by_shards const& from, std::int64_t count, cudaStream_t stream) {
  thrust::tabulate(on(stream), to, to + count, [=] __device__(std::int64_t i) {
    float sum = from.of[0][i];
    for (int shard = 1; shard < from.count; ++shard)
      sum += from.of[shard][i];
    return sum;
  });
}

//! x = the rows of the bytes that the shard has, zeros for others, [tokens, width].
inline void
look_up(float* x, float const* table, byte_range bytes, std::uint8_t const* text, token_rows rows) {
  thrust::tabulate(on(rows.stream), x, x + rows.count(), [=] __device__(std::int64_t i) {
    std::int64_t const byte = text[i / rows.width];
    return byte >= bytes.first && byte < bytes.last
             ? table[(byte - bytes.first) * rows.width + i % rows.width]
             : 0.0f;
  });
}

//! Statistics [tokens, 3].
inline void make_statistics(float* statistics, logits_of_shard<stream> const& of) {
  auto const count = of.bytes.count();
  for_each_token(of.tokens, of.on, [=] __device__(std::int64_t token, row_reduction & over) {
    float const* const row = of.logits + token * count;
    auto const seen = detail::look_at_logits(row, count, over);
    if (threadIdx.x == 0) {
      std::int64_t const next = of.next_bytes[token];
      float* const told = statistics + statistics_width * token;
      told[0] = seen.most;
      told[1] = seen.sum;
      told[2] = next >= of.bytes.first && next < of.bytes.last ? row[next - of.bytes.first] : 0.0f;
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
                             logits_of_shard<stream> const& of,
                             told_by_shards const& statistics,
                             float share) {
  auto const count = of.bytes.count();
  for_each_token(of.tokens, of.on, [=] __device__(std::int64_t token, row_reduction&) {
    auto const all = detail::join(statistics, token);
    float const* const row = of.logits + token * count;
    for (std::int64_t v = threadIdx.x; v < count; v += row_threads) {
      float const hit = v + of.bytes.first == of.next_bytes[token] ? share : 0.0f;
      gradient[token * count + v] =
        static_cast<Element>(expf(row[v] - all.largest) / all.sum * share - hit);
    }
    if (threadIdx.x == 0)
      losses[token] = logf(all.sum) + all.largest - all.next;
  });
}

// With one barrier a shard tells the gradient of its input before it knows what others know:
// [tokens, width] sums of exp(logit - largest) times columns, [tokens, width] columns of the next
// bytes, and [tokens, 3] statistics.

//! exp(logit - largest) of a shard.
template <class Element>
void make_exponentials(Element* to, float const* statistics, logits_of_shard<stream> const& of) {
  auto const* const logits = of.logits;
  auto const count = of.bytes.count();
  thrust::tabulate(on(of.on), to, to + of.tokens * count, [=] __device__(std::int64_t i) {
    return static_cast<Element>(expf(logits[i] - statistics[statistics_width * (i / count)]));
  });
}
//! The columns of the next bytes that the shard has, zeros for others, [tokens, width].
inline void
next_columns(float* to, float const* columns, logits_of_shard<stream> const& of, token_rows rows) {
  auto const bytes = of.bytes;
  auto const* const next_bytes = of.next_bytes;
  auto const count = bytes.count();
  thrust::tabulate(on(rows.stream), to, to + rows.count(), [=] __device__(std::int64_t i) {
    std::int64_t const next = next_bytes[i / rows.width];
    return next >= bytes.first && next < bytes.last
             ? columns[(i % rows.width) * count + next - bytes.first]
             : 0.0f;
  });
}
//! The gradient of the input of all shards, from what each has told.
inline void join_gradients(float* dx, told_by_shards const& told, float share, token_rows rows) {
  auto statistics = told;
  for (int shard = 0; shard < told.count; ++shard)
    statistics.of[shard] += 2 * rows.tokens * rows.width;
  thrust::tabulate(on(rows.stream), dx, dx + rows.count(), [=] __device__(std::int64_t i) {
    auto const token = i / rows.width;
    auto const all = detail::join(statistics, token);
    float sum = 0;
    for (int shard = 0; shard < told.count; ++shard) {
      float const scale =
        expf(statistics.of[shard][statistics_width * token] - all.largest) / all.sum;
      sum += share * (scale * told.of[shard][i] - told.of[shard][rows.tokens * rows.width + i]);
    }
    return sum;
  });
}

} // namespace gpt::on_gpu
