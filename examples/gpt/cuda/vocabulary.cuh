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

template <class T, class Value>
void tabulate(T* to, std::int64_t count, cudaStream_t stream, Value value) {
  thrust::tabulate(on(stream), to, to + count, value);
}
template <class Work>
struct work_of_thread {
  Work work;
  __device__ void operator()(std::int64_t token, row_reduction&) const {
    work(token, static_cast<int>(threadIdx.x), row_threads);
  }
};
template <class Work>
void for_each_part(token_rows rows, Work work) {
  for_each_token(rows.tokens, rows.stream, work_of_thread<Work>{work});
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
      told[2] = next >= of.bytes.begin && next < of.bytes.end ? row[next - of.bytes.begin] : 0.0f;
    }
  });
}

//! The losses of tokens, and the gradient of a shard's logits for `share` times their sum.
template <class Element>
void cross_entropy_of_shards(float* losses,
                             Element* gradient,
                             logits_of_shard<stream> const& of,
                             told_by_shards const& statistics,
                             float share) {
  auto const count = of.bytes.count();
  for_each_token(of.tokens, of.on, [=] __device__(std::int64_t token, row_reduction&) {
    auto const all = join(statistics, token);
    float const* const row = of.logits + token * count;
    for (std::int64_t v = threadIdx.x; v < count; v += row_threads) {
      float const hit = v + of.bytes.begin == of.next_bytes[token] ? share : 0.0f;
      gradient[token * count + v] =
        static_cast<Element>(expf(row[v] - all.largest) / all.sum * share - hit);
    }
    if (threadIdx.x == 0)
      losses[token] = logf(all.sum) + all.largest - all.next;
  });
}

} // namespace gpt::on_gpu
