// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Attention in double precision, written like the formulas: what every faster version is
//! held against.

#include <pipe/config.hpp>

#if __cplusplus >= 202002L // what comes below would bury the one error of config.hpp
#include <pipe/attention/mask.hpp>
#include <pipe/attention/parameters.hpp>
#include <pipe/attention/score.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace pipelining::inline v0_3::attention {

namespace detail {

//! The logits of one query, the products that they come from, and which keys it sees.
struct reference_row {
  std::vector<double> product;
  std::vector<double> logit;
  std::vector<bool> kept;
};

inline double dot(double const* a, double const* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t d = 0; d < n; ++d) {
    sum += a[d] * b[d];
  }
  return sum;
}

inline pair_position
pair_at(parameters const& p, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
  return {static_cast<std::int32_t>(b),
          static_cast<std::int32_t>(h),
          static_cast<std::int32_t>(p.query_offset + i),
          static_cast<std::int32_t>(p.key_offset + j)};
}

template <mask Mask, score Score>
reference_row row_of(parameters const& p,
                     double const* query,
                     tensor_view<double const> key,
                     Mask const& m,
                     Score const& f,
                     std::int64_t b,
                     std::int64_t h,
                     std::int64_t i) {
  reference_row row;
  for (std::int64_t j = 0; j < p.key_length; ++j) {
    auto const at = pair_at(p, b, h, i, j);
    double const s = p.effective_scale() * dot(query, key.row(b, j, h / p.group()), p.head_dim);
    row.product.push_back(s);
    row.logit.push_back(f.value(s, at));
    row.kept.push_back(m.keep(at));
  }
  return row;
}

} // namespace detail

//! @brief Forward of one chunk in double: O = softmax(logits) V row by row, and the log-sum-exp.
//!
//! A query that sees no key gets O = 0 and log-sum-exp = -infinity. Ignores parameters::from.
//! @throws std::invalid_argument as check
//! @complexity O(batch * heads * query_length * key_length * head_dim), no tiles
template <mask Mask = causal, score Score = plain>
void reference_forward(parameters const& p,
                       forward_tensors<double> const& t,
                       Mask const& m = {},
                       Score const& f = {}) {
  check(p, t);
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.heads; ++h) {
      for (std::int64_t i = 0; i < p.query_length; ++i) {
        auto const row = detail::row_of(p, t.query.row(b, i, h), t.key, m, f, b, h, i);
        double most = -std::numeric_limits<double>::infinity();
        for (std::int64_t j = 0; j < p.key_length; ++j) {
          auto const k = static_cast<std::size_t>(j);
          most = row.kept[k] && row.logit[k] > most ? row.logit[k] : most;
        }
        double sum = 0;
        std::vector<double> output(static_cast<std::size_t>(p.dim_of_values()), 0.0);
        for (std::int64_t j = 0; j < p.key_length; ++j) {
          auto const k = static_cast<std::size_t>(j);
          double const weight = row.kept[k] ? std::exp(row.logit[k] - most) : 0;
          sum += weight;
          for (std::size_t d = 0; d < output.size(); ++d) {
            output[d] += weight * t.value.row(b, j, h / p.group())[d];
          }
        }
        for (std::size_t d = 0; d < output.size(); ++d) {
          t.output.row(b, i, h)[d] = sum > 0 ? output[d] / sum : 0;
        }
        t.log_sum_exp.at(b, h, i) = most + std::log(sum); // -inf where nothing is seen
      }
    }
  }
}

//! @brief Backward of one chunk in double: writes dQ, adds to dK and dV. Ignores parameters::from.
//!
//! With w = softmax: dV_j += w_ij dO_i; dlogit_ij = w_ij (dO_i . V_j - dO_i . O_i);
//! ds_ij = dlogit_ij * derivative; dQ_i = scale sum_j ds_ij K_j; dK_j += scale ds_ij Q_i.
//! @throws std::invalid_argument as check
template <mask Mask = causal, score Score = plain>
void reference_backward(parameters const& p,
                        backward_tensors<double> const& t,
                        Mask const& m = {},
                        Score const& f = {}) {
  check(p, t);
  double const scale = p.effective_scale();
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.heads; ++h) {
      for (std::int64_t i = 0; i < p.query_length; ++i) {
        double const* const query = t.query.row(b, i, h);
        double const* const out_gradient = t.output_gradient.row(b, i, h);
        double* const query_gradient = t.query_gradient.row(b, i, h);
        auto const row = detail::row_of(p, query, t.key, m, f, b, h, i);
        double const mean = detail::dot(out_gradient, t.output.row(b, i, h), p.dim_of_values());
        std::vector<double> sum(static_cast<std::size_t>(p.head_dim), 0.0);
        for (std::int64_t j = 0; j < p.key_length; ++j) {
          auto const k = static_cast<std::size_t>(j);
          if (!row.kept[k]) {
            continue;
          }
          auto const kv = h / p.group();
          double const weight = std::exp(row.logit[k] - t.log_sum_exp.at(b, h, i));
          double const along = detail::dot(out_gradient, t.value.row(b, j, kv), p.dim_of_values());
          double const slope =
            f.derivative(row.product[k], row.logit[k], detail::pair_at(p, b, h, i, j));
          double const ds = weight * (along - mean) * slope * scale;
          for (std::int64_t d = 0; d < p.head_dim; ++d) {
            sum[static_cast<std::size_t>(d)] += ds * t.key.row(b, j, kv)[d];
            t.key_gradient.row(b, j, kv)[d] += ds * query[d];
          }
          for (std::int64_t d = 0; d < p.dim_of_values(); ++d) {
            t.value_gradient.row(b, j, kv)[d] += weight * out_gradient[d];
          }
        }
        for (std::int64_t d = 0; d < p.head_dim; ++d) {
          query_gradient[d] = sum[static_cast<std::size_t>(d)];
        }
      }
    }
  }
}

} // namespace pipelining::inline v0_3::attention
#endif
