// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Shards of the embedding and of the output layer on the host, with the softmax over logits
//! of which each shard has a part. See papers/vocabulary_stage.hpp.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "../papers/vocabulary_stage.hpp"

namespace gpt::host {

template <class T, class Value>
void tabulate(T* to, std::int64_t count, stream, Value value) {
  for (std::int64_t i = 0; i < count; ++i)
    to[i] = value(i);
}
template <class Work>
void for_each_part(token_rows rows, Work work) {
  for (std::int64_t token = 0; token < rows.tokens; ++token)
    work(token, 0, 1);
}

//! Statistics [tokens, 3].
inline void make_statistics(float* statistics, logits_of_shard<stream> const& of) {
  for (std::int64_t t = 0; t < of.tokens; ++t) {
    std::span<float const> const row(of.logits + t * of.bytes.count(),
                                     static_cast<std::size_t>(of.bytes.count()));
    std::uint8_t const next = of.next_bytes[t];
    token_statistics one{*std::max_element(row.begin(), row.end()), 0, 0};
    for (float const logit : row)
      one.sum += std::exp(logit - one.largest);
    one.next = of.bytes.holds(next) ? row[static_cast<std::size_t>(next - of.bytes.begin)] : 0;
    std::copy_n(&one.largest, statistics_width, statistics + statistics_width * t);
  }
}

//! The losses of tokens, and the gradient of a shard's logits for `share` times their sum.
inline void cross_entropy_of_shards(float* losses,
                                    float* gradient,
                                    logits_of_shard<stream> const& of,
                                    told_by_shards const& statistics,
                                    float share) {
  auto const count = of.bytes.count();
  for (std::int64_t t = 0; t < of.tokens; ++t) {
    auto const all = join(statistics, t);
    std::uint8_t const next = of.next_bytes[t];
    float* const row = gradient + t * count;
    for (std::int64_t v = 0; v < count; ++v)
      row[v] = share * std::exp(of.logits[t * count + v] - all.largest) / all.sum;
    if (of.bytes.holds(next))
      row[next - of.bytes.begin] -= share;
    losses[t] = std::log(all.sum) + all.largest - all.next;
  }
}

} // namespace gpt::host
