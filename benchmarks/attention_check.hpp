// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Attention in double on the host, for a few queries and keys of a large problem.

#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace benchmark {

//! Sizes of one sequence; queries and keys are equally many.
struct sizes {
  int dim = 0;
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t key_heads = 0;
  bool is_causal = true;

  [[nodiscard]] double visible_pairs() const {
    auto const n = static_cast<double>(tokens);
    return is_causal ? n * (n + 1) / 2 : n * n;
  }
};

//! Inputs on the host: [tokens, heads or key_heads, dim]; and of forward what backward needs.
struct host_tensors {
  std::vector<__nv_bfloat16> query, key, value, output_gradient, output;
  std::vector<float> log_sum_exp; // [heads, tokens]
};

//! What the double sums say of one query and head, or of one key and key head.
struct row_answer {
  std::int64_t position = 0;
  std::int64_t head = 0;
  std::vector<double> first;  // O, or dK
  std::vector<double> second; // dQ, or dV
};

namespace detail {

inline double dot(__nv_bfloat16 const* a, __nv_bfloat16 const* b, int dim) {
  double sum = 0;
  for (int d = 0; d < dim; ++d) {
    sum +=
      static_cast<double>(__bfloat162float(a[d])) * static_cast<double>(__bfloat162float(b[d]));
  }
  return sum;
}

inline void add(std::vector<double>& sum, double factor, __nv_bfloat16 const* row) {
  for (std::size_t d = 0; d < sum.size(); ++d) {
    sum[d] += factor * static_cast<double>(__bfloat162float(row[d]));
  }
}

inline double scale_of(sizes const& s) {
  return 1 / std::sqrt(static_cast<double>(s.dim));
}

} // namespace detail

//! O and dQ of one query.
inline row_answer
answer_of_query(sizes const& s, host_tensors const& t, std::int64_t query, std::int64_t head) {
  auto const key_head = head / (s.heads / s.key_heads);
  auto const seen = s.is_causal ? query + 1 : s.tokens;
  auto const of_query = [&](auto const& tensor) {
    return tensor.data() + (query * s.heads + head) * s.dim;
  };
  auto const of_key = [&](auto const& tensor, std::int64_t j) {
    return tensor.data() + (j * s.key_heads + key_head) * s.dim;
  };
  std::vector<double> weight(static_cast<std::size_t>(seen));
  for (std::int64_t j = 0; j < seen; ++j) {
    weight[static_cast<std::size_t>(j)] =
      detail::scale_of(s) * detail::dot(of_query(t.query), of_key(t.key, j), s.dim);
  }
  auto const most = *std::max_element(weight.begin(), weight.end());
  double sum = 0;
  for (auto& w : weight) {
    w = std::exp(w - most);
    sum += w;
  }
  row_answer answer{query,
                    head,
                    std::vector<double>(static_cast<std::size_t>(s.dim)),
                    std::vector<double>(static_cast<std::size_t>(s.dim))};
  for (std::int64_t j = 0; j < seen; ++j) {
    auto& w = weight[static_cast<std::size_t>(j)];
    w /= sum;
    detail::add(answer.first, w, of_key(t.value, j));
  }
  double mean = 0;
  for (int d = 0; d < s.dim; ++d) {
    mean += answer.first[static_cast<std::size_t>(d)] *
            static_cast<double>(__bfloat162float(of_query(t.output_gradient)[d]));
  }
  for (std::int64_t j = 0; j < seen; ++j) {
    auto const along = detail::dot(of_query(t.output_gradient), of_key(t.value, j), s.dim);
    detail::add(answer.second,
                detail::scale_of(s) * weight[static_cast<std::size_t>(j)] * (along - mean),
                of_key(t.key, j));
  }
  return answer;
}

//! dK and dV of one key, from the O and the log-sum-exp that forward gave.
inline row_answer
answer_of_key(sizes const& s, host_tensors const& t, std::int64_t key, std::int64_t key_head) {
  auto const group = s.heads / s.key_heads;
  auto const at_key = (key * s.key_heads + key_head) * s.dim;
  row_answer answer{key,
                    key_head,
                    std::vector<double>(static_cast<std::size_t>(s.dim)),
                    std::vector<double>(static_cast<std::size_t>(s.dim))};
  for (auto head = key_head * group; head < (key_head + 1) * group; ++head) {
    for (std::int64_t i = s.is_causal ? key : 0; i < s.tokens; ++i) {
      auto const at = (i * s.heads + head) * s.dim;
      auto const* const query = t.query.data() + at;
      auto const* const gradient = t.output_gradient.data() + at;
      auto const logit = detail::scale_of(s) * detail::dot(query, t.key.data() + at_key, s.dim);
      auto const lse = t.log_sum_exp[static_cast<std::size_t>(head * s.tokens + i)];
      auto const weight = std::exp(logit - static_cast<double>(lse));
      auto const along = detail::dot(gradient, t.value.data() + at_key, s.dim);
      auto const mean = detail::dot(gradient, t.output.data() + at, s.dim);
      detail::add(answer.first, detail::scale_of(s) * weight * (along - mean), query);
      detail::add(answer.second, weight, gradient);
    }
  }
  return answer;
}

//! A few queries, or keys: the ends, edges of chunks and between.
inline std::vector<std::int64_t> some_positions(std::int64_t tokens) {
  std::vector<std::int64_t> all{0, tokens / 4, (tokens - 1) / 2, tokens * 5 / 7, tokens - 1};
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

//! |a - b| / |b| over many rows, in the Euclidean norm.
class relative_error {
public:
  void add(std::vector<double> const& got, std::vector<double> const& expected) {
    for (std::size_t d = 0; d < expected.size(); ++d) {
      difference_ += (got[d] - expected[d]) * (got[d] - expected[d]);
      size_ += expected[d] * expected[d];
    }
  }
  [[nodiscard]] double value() const {
    auto const error = std::sqrt(difference_ / size_);
    return std::isfinite(error) ? error : HUGE_VAL;
  }

private:
  double difference_ = 0;
  double size_ = 0;
};

} // namespace benchmark
