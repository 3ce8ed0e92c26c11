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

//! to = the sum of what all give, in their order.
inline void add_up(float* to, told_by_shards const& from, std::int64_t count, stream on) {
  std::copy_n(from.of[0], count, to);
  for (int shard = 1; shard < from.count; ++shard)
    add(to, from.of[shard], count, on);
}

//! x = the rows of the bytes that the shard has, zeros for others, [tokens, width].
inline void
look_up(float* x, float const* table, byte_range bytes, std::uint8_t const* text, token_rows rows) {
  std::fill_n(x, rows.count(), 0.0F);
  for (std::int64_t t = 0; t < rows.tokens; ++t)
    if (bytes.holds(text[t]))
      std::copy_n(table + (text[t] - bytes.first) * rows.width, rows.width, x + t * rows.width);
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
    one.next = of.bytes.holds(next) ? row[static_cast<std::size_t>(next - of.bytes.first)] : 0;
    std::copy_n(&one.largest, statistics_width, statistics + statistics_width * t);
  }
}

//! Of a token, the statistics of all shards in one.
[[nodiscard]] inline token_statistics join(told_by_shards const& shards, std::int64_t token) {
  token_statistics all{shards.of[0][statistics_width * token], 0, 0};
  for (int shard = 1; shard < shards.count; ++shard)
    all.largest = std::max(all.largest, shards.of[shard][statistics_width * token]);
  for (int shard = 0; shard < shards.count; ++shard) {
    float const* const one = shards.of[shard] + statistics_width * token;
    all.sum += one[1] * std::exp(one[0] - all.largest);
    all.next += one[2];
  }
  return all;
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
      row[next - of.bytes.first] -= share;
    losses[t] = std::log(all.sum) + all.largest - all.next;
  }
}

// With one barrier a shard tells the gradient of its input before it knows what others know: see
// cuda/vocabulary.cuh.

//! exp(logit - largest) of a shard.
inline void
make_exponentials(float* to, float const* statistics, logits_of_shard<stream> const& of) {
  auto const count = of.bytes.count();
  for (std::int64_t i = 0; i < of.tokens * count; ++i)
    to[i] = std::exp(of.logits[i] - statistics[statistics_width * (i / count)]);
}
//! The columns of the next bytes that the shard has, zeros for others, [tokens, width].
inline void
next_columns(float* to, float const* columns, logits_of_shard<stream> const& of, token_rows rows) {
  for (std::int64_t t = 0; t < rows.tokens; ++t) {
    std::uint8_t const next = of.next_bytes[t];
    for (std::int64_t d = 0; d < rows.width; ++d)
      to[t * rows.width + d] =
        of.bytes.holds(next) ? columns[d * of.bytes.count() + next - of.bytes.first] : 0;
  }
}
//! The gradient of the input of all shards, from what each has told.
inline void join_gradients(float* dx, told_by_shards const& told, float share, token_rows rows) {
  auto statistics = told;
  for (int shard = 0; shard < told.count; ++shard)
    statistics.of[shard] += 2 * rows.count();
  std::fill_n(dx, rows.count(), 0.0F);
  for (std::int64_t t = 0; t < rows.tokens; ++t) {
    auto const all = join(statistics, t);
    for (int shard = 0; shard < told.count; ++shard) {
      float const scale =
        std::exp(statistics.of[shard][statistics_width * t] - all.largest) / all.sum;
      float const* const early = told.of[shard] + t * rows.width;
      for (std::int64_t d = 0; d < rows.width; ++d)
        dx[t * rows.width + d] += share * (scale * early[d] - early[rows.count() + d]);
    }
  }
}

} // namespace gpt::host
