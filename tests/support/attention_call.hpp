// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One call of attention on the stand-in for the CUDA runtime, and its answers in double.

#include <pipe/attention/parameters.hpp>
#include <pipe/attention/query_sums.hpp>

#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <tests/support/attention_reference.hpp>
#include <vector>

#include "tests/support/device_array.hpp"

namespace device_tests {

namespace at = pipelining::attention;

//! Two sequences of forty queries, four heads over two, after thirty keys.
inline constexpr at::parameters some_parameters{.batch = 2,
                                                .query_length = 40,
                                                .query_offset = 30,
                                                .key_length = 70,
                                                .heads = 4,
                                                .key_heads = 2,
                                                .head_dim = 64};

//! The sentence of the exception, or nothing.
template <class Function>
std::string sentence_of(Function const& f) {
  try {
    f();
  } catch (std::invalid_argument const& e) {
    return e.what();
  }
  return "";
}

//! Largest difference.
inline double apart(std::vector<double> const& a, std::vector<double> const& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t n = 0; n < a.size(); ++n) {
    most = std::max(most, std::abs(a[n] - b[n]));
  }
  return most;
}

//! Dense tensors of a forward and a backward call, filled with random numbers.
template <class Element>
struct attention_call_of {
  using element = Element;

  explicit attention_call_of(at::parameters const& of = some_parameters, unsigned seed = 1)
      : p(of), query(query_count()), key(key_count()), value(value_count()), output(output_count()),
        output_gradient(output_count()), query_gradient(query_count()), lse(row_count()),
        scratch(scratch_count()), key_gradient(key_count()), value_gradient(value_count()) {
    std::mt19937 random(seed);
    query.fill(random);
    key.fill(random);
    value.fill(random);
    output_gradient.fill(random);
    key_gradient.fill_zero();
    value_gradient.fill_zero();
  }

  std::int64_t row_count() const { return p.batch * p.heads * p.query_length; }
  //! What either family sums dQ in.
  std::int64_t sum_count() const {
    return std::max(at::detail::query_sums::scratch(p, at::kernel_family::portable),
                    at::detail::query_sums::scratch(p, at::kernel_family::hopper));
  }
  //! What backward_scratch says: dO . O in 16 bytes, then the sums of dQ.
  std::int64_t scratch_count() const { return (row_count() + 3) / 4 * 4 + sum_count(); }
  std::int64_t query_count() const { return row_count() * p.head_dim; }
  std::int64_t key_count() const { return p.batch * p.key_length * p.key_heads * p.head_dim; }

  std::int64_t output_count() const { return row_count() * p.dim_of_values(); }
  std::int64_t value_count() const {
    return p.batch * p.key_length * p.key_heads * p.dim_of_values();
  }

  //! A dense tensor of queries, keys, outputs or values, whatever the memory.
  template <class Number>
  at::tensor_view<Number> of_queries(Number* data) const {
    return at::dense_tensor(data, p.batch, p.query_length, p.heads, p.head_dim);
  }
  template <class Number>
  at::tensor_view<Number> of_keys(Number* data) const {
    return at::dense_tensor(data, p.batch, p.key_length, p.key_heads, p.head_dim);
  }
  template <class Number>
  at::tensor_view<Number> of_outputs(Number* data) const {
    return at::dense_tensor(data, p.batch, p.query_length, p.heads, p.dim_of_values());
  }
  template <class Number>
  at::tensor_view<Number> of_values(Number* data) const {
    return at::dense_tensor(data, p.batch, p.key_length, p.key_heads, p.dim_of_values());
  }
  template <class Number>
  at::row_view<Number> rows(Number* data) const {
    return at::dense_rows(data, p.batch, p.heads, p.query_length);
  }

  at::forward_tensors<element> forward() const {
    return {of_queries(query.data()),
            of_keys(key.data()),
            of_values(value.data()),
            of_outputs(output.data()),
            rows(lse.data())};
  }
  at::backward_tensors<element> backward() const {
    return {of_queries(query.data()),
            of_keys(key.data()),
            of_values(value.data()),
            of_outputs(output.data()),
            rows(lse.data()),
            of_outputs(output_gradient.data()),
            of_queries(query_gradient.data()),
            of_keys(key_gradient.data()),
            of_values(value_gradient.data())};
  }

  at::parameters p;
  device_array<element> query, key, value, output, output_gradient, query_gradient;
  device_array<float> lse, scratch, key_gradient, value_gradient;
};

using attention_call = attention_call_of<__nv_bfloat16>;

//! What the double reference makes of a call.
struct attention_answers {
  template <class Element, class Mask = at::causal, class Score = at::plain>
  explicit attention_answers(attention_call_of<Element> const& c,
                             Mask const& m = {},
                             Score const& f = {})
      : output(static_cast<std::size_t>(c.output_count())),
        lse(static_cast<std::size_t>(c.row_count())),
        query_gradient(static_cast<std::size_t>(c.query_count())),
        key_gradient(static_cast<std::size_t>(c.key_count())),
        value_gradient(static_cast<std::size_t>(c.value_count())) {
    auto q = c.query.numbers();
    auto k = c.key.numbers();
    auto v = c.value.numbers();
    auto g = c.output_gradient.numbers();
    at::reference_forward(c.p,
                          {c.of_queries(q.data()),
                           c.of_keys(k.data()),
                           c.of_values(v.data()),
                           c.of_outputs(output.data()),
                           c.rows(lse.data())},
                          m,
                          f);
    at::reference_backward(c.p,
                           {c.of_queries(q.data()),
                            c.of_keys(k.data()),
                            c.of_values(v.data()),
                            c.of_outputs(output.data()),
                            c.rows(lse.data()),
                            c.of_outputs(g.data()),
                            c.of_queries(query_gradient.data()),
                            c.of_keys(key_gradient.data()),
                            c.of_values(value_gradient.data())},
                           m,
                           f);
  }

  std::vector<double> output, lse, query_gradient, key_gradient, value_gradient;
};

//! Holds the gradients of a call against the answers: within two roundings of the largest numbers.
inline void check_gradients(attention_call& c, attention_answers const& expected) {
  c.query_gradient.fetch();
  c.key_gradient.fetch();
  c.value_gradient.fetch();
  CHECK(apart(c.query_gradient.numbers(), expected.query_gradient) < 0.03);
  CHECK(apart(c.key_gradient.numbers(), expected.key_gradient) < 0.06);
  CHECK(apart(c.value_gradient.numbers(), expected.value_gradient) < 0.06);
}

} // namespace device_tests
