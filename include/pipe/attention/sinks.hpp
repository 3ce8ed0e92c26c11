// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Sinks on the host: a learned logit for each head, which takes its share of the weights
//! and has no value.
//!
//! A sink is a key that every query sees, whose value is 0: the state (O, log-sum-exp) of that key
//! alone is (0, sink), and forward goes on from it. Weights of backward come from the log-sum-exp,
//! which knows the sink, so backward needs no word of it.
//! @source own derivation from the merge of states; sinks as in OpenAI 2025 (gpt-oss), section 2.2

#include <pipe/attention/merge.hpp>
#include <pipe/attention/parameters.hpp>
#include <pipe/config.hpp>

#include <cmath>
#include <cstdint>

namespace pipelining::inline v0_3::attention {

namespace detail {

//! Weight of a sink for a query with this log-sum-exp.
template <class Real>
[[nodiscard]] PIPELINING_HOST_DEVICE Real sink_weight(Real sink, Real lse) {
  using std::exp;
  return sink == no_keys<Real> ? Real{0} : exp(sink - lse);
}

} // namespace detail

//! @brief Sets the state that forward goes on from with parameters::from = carry::in: O is 0, the
//! log-sum-exp the sink of the head.
//!
//! @param output [batch, length, heads, dim], written
//! @param lse    [batch, heads, length], written
//! @param sinks  [heads], logits that no scale or score changes; minus infinity is no sink
//! @throws std::invalid_argument where the shapes do not agree
//! @complexity O(batch * length * heads * dim)
template <class Element, class Statistic>
void start_at_sinks(tensor_view<Element> output, row_view<Statistic> lse, Statistic const* sinks) {
  auto const p = detail::parameters_of(output);
  detail::check_rows("log-sum-exp", lse, p);
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t i = 0; i < p.query_length; ++i) {
      for (std::int64_t h = 0; h < p.heads; ++h) {
        Element* const row = output.row(b, i, h);
        for (std::int64_t d = 0; d < output.dim; ++d) {
          row[d] = Element{};
        }
        lse.at(b, h, i) = sinks[h];
      }
    }
  }
}

//! @brief Adds the gradient of the sinks for one chunk of queries: minus the sum of dO . O times
//! the sink's weight.
//!
//! @param p        sizes of the chunk
//! @param t        what backward takes: O, its gradient and the log-sum-exp of all keys are read
//! @param sinks    [heads], as forward had them
//! @param gradient [heads], added to
//! @throws std::invalid_argument where the shapes do not agree
//! @complexity O(batch * length * heads * dim)
template <class Element, class Statistic, class Carry>
void add_sink_gradient(parameters const& p,
                       backward_tensors<Element, Statistic, Carry> const& t,
                       Statistic const* sinks,
                       Statistic* gradient) {
  check(p, t);
  for (std::int64_t h = 0; h < p.heads; ++h) {
    Statistic sum = 0;
    for (std::int64_t b = 0; b < p.batch; ++b) {
      for (std::int64_t i = 0; i < p.query_length; ++i) {
        Element const* const output = t.output.row(b, i, h);
        Element const* const its_gradient = t.output_gradient.row(b, i, h);
        Statistic mean = 0;
        for (std::int64_t d = 0; d < p.dim_of_values(); ++d) {
          mean += static_cast<Statistic>(output[d]) * static_cast<Statistic>(its_gradient[d]);
        }
        sum += detail::sink_weight<Statistic>(sinks[h], t.log_sum_exp.at(b, h, i)) * mean;
      }
    }
    gradient[h] -= sum;
  }
}

} // namespace pipelining::inline v0_3::attention
