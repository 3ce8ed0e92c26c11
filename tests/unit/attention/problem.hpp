// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Random attention problems for the tests: tensors with odd strides, and calls on their
//! chunks.

#include <pipe/attention/backward.hpp>
#include <pipe/attention/forward.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <tests/support/attention_reference.hpp>
#include <vector>

namespace attention_tests {

namespace at = pipelining::attention;

//! A tensor that owns its numbers: [batch, heads, length, dim + gap] in memory, so no axis is
//! dense.
template <class Element>
struct tensor {
  std::int64_t batch, length, heads, dim;
  static constexpr std::int64_t gap = 3;
  std::vector<Element> numbers;

  tensor(std::int64_t b, std::int64_t l, std::int64_t h, std::int64_t d)
      : batch(b), length(l), heads(h), dim(d),
        numbers(static_cast<std::size_t>(b * l * h * (d + gap)), Element{}) {}

  //! Tokens [first, first + count).
  at::tensor_view<Element> view(std::int64_t first, std::int64_t count) {
    return {numbers.data() + first * (dim + gap),
            batch,
            count,
            heads,
            dim,
            heads * length * (dim + gap),
            dim + gap,
            length * (dim + gap)};
  }
  at::tensor_view<Element> view() { return view(0, length); }

  //! Every element that belongs to the tensor, in one fixed order.
  std::vector<Element> elements() {
    std::vector<Element> all;
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t i = 0; i < length; ++i) {
        for (std::int64_t h = 0; h < heads; ++h) {
          auto const* const row = view().row(b, i, h);
          all.insert(all.end(), row, row + dim);
        }
      }
    }
    return all;
  }
};

//! Sizes of a whole sequence. Queries sit at query_offset and on.
struct sizes {
  std::int64_t batch = 1, queries = 1, query_offset = 0, keys = 1, heads = 1, key_heads = 1,
               dim = 4, value_dim = 4;
};

//! Inputs, outputs and gradients of one problem.
template <class Element>
struct problem {
  sizes size;
  tensor<Element> query, key, value, output, output_gradient, query_gradient, key_gradient,
    value_gradient;
  std::vector<Element> lse;
  double scale = 0;

  explicit problem(sizes const& s)
      : size(s), query(s.batch, s.queries, s.heads, s.dim),
        key(s.batch, s.keys, s.key_heads, s.dim), value(s.batch, s.keys, s.key_heads, s.value_dim),
        output(s.batch, s.queries, s.heads, s.value_dim), output_gradient(output),
        query_gradient(query), key_gradient(key), value_gradient(value),
        lse(static_cast<std::size_t>(s.batch * s.heads * s.queries)) {}

  template <class Random>
  void fill(Random& random) {
    std::normal_distribution<float> normal;
    for (auto* t : {&query, &key, &value, &output_gradient}) {
      for (auto& x : t->numbers) {
        x = normal(random);
      }
    }
  }

  //! The same inputs in another precision.
  template <class Other>
  explicit problem(problem<Other>& other) : problem(other.size) {
    auto const copy = [](auto const& from, auto& to) {
      for (std::size_t n = 0; n < from.numbers.size(); ++n) {
        to.numbers[n] = static_cast<Element>(from.numbers[n]);
      }
    };
    copy(other.query, query);
    copy(other.key, key);
    copy(other.value, value);
    copy(other.output_gradient, output_gradient);
    scale = other.scale;
  }

  //! Parameters of queries [first, first + count) against keys [0, keys).
  at::parameters chunk(std::int64_t first, std::int64_t count, std::int64_t keys) const {
    at::parameters p;
    p.batch = size.batch;
    p.query_length = count;
    p.query_offset = size.query_offset + first;
    p.key_length = keys;
    p.heads = size.heads;
    p.key_heads = size.key_heads;
    p.head_dim = size.dim;
    p.value_dim = size.value_dim;
    p.scale = scale;
    return p;
  }

  at::row_view<Element> statistics(std::int64_t first, std::int64_t count) {
    return {
      lse.data() + first, size.batch, size.heads, count, size.heads * size.queries, size.queries};
  }

  at::forward_tensors<Element>
  forward_views(std::int64_t first, std::int64_t count, std::int64_t keys) {
    return {query.view(first, count),
            key.view(0, keys),
            value.view(0, keys),
            output.view(first, count),
            statistics(first, count)};
  }

  at::backward_tensors<Element>
  backward_views(std::int64_t first, std::int64_t count, std::int64_t keys) {
    return {query.view(first, count),
            key.view(0, keys),
            value.view(0, keys),
            output.view(first, count),
            statistics(first, count),
            output_gradient.view(first, count),
            query_gradient.view(first, count),
            key_gradient.view(0, keys),
            value_gradient.view(0, keys)};
  }
};

//! Largest |a - b| over the largest |b|: one number for a whole tensor.
template <class A, class B>
double distance(std::vector<A> const& a, std::vector<B> const& b) {
  double apart = 0;
  double size = 1e-30;
  for (std::size_t n = 0; n < a.size(); ++n) {
    auto const x = static_cast<double>(a[n]);
    auto const y = static_cast<double>(b[n]);
    if (x == y) { // also -inf
      continue;
    }
    if (!(std::isfinite(x) && std::isfinite(y))) {
      return 1e30;
    }
    apart = std::max(apart, std::abs(x - y));
  }
  for (auto const y : b) {
    size = std::isfinite(y) ? std::max(size, std::abs(static_cast<double>(y))) : size;
  }
  return apart / size;
}

//! Number of elements whose bits differ.
template <class Element>
std::size_t different_bits(std::vector<Element> const& a, std::vector<Element> const& b) {
  std::size_t count = a.size() == b.size() ? 0 : 1;
  for (std::size_t n = 0; n < std::min(a.size(), b.size()); ++n) {
    count += std::memcmp(&a[n], &b[n], sizeof(Element)) != 0 ? 1u : 0u;
  }
  return count;
}

//! Random lengths that add up to total: uneven, often 1, never multiples of anything by intent.
template <class Random>
std::vector<std::int64_t> random_chunks(std::int64_t total, std::int64_t most, Random& random) {
  std::vector<std::int64_t> lengths;
  while (total > 0) {
    auto const length =
      std::uniform_int_distribution<std::int64_t>(1, std::min(total, most))(random);
    lengths.push_back(length);
    total -= length;
  }
  return lengths;
}

//! A user's own mask with no answer for tiles: a fixed pseudo-random half of all pairs.
struct speckled {
  [[nodiscard]] bool keep(at::pair_position p) const {
    auto const mixed =
      static_cast<std::uint32_t>(p.query * 7919 + p.key * 104729 + p.head * 31) * 2654435761u;
    return (mixed >> 16 & 1u) != 0;
  }
};

//! A user's own score: a bent line whose slope depends on the product and on the pair.
struct bent {
  template <class Real>
  [[nodiscard]] Real value(Real s, at::pair_position p) const {
    return s + Real(0.1) * s * s / (Real{1} + s * s) * static_cast<Real>(1 + p.key % 3);
  }
  template <class Real>
  [[nodiscard]] Real derivative(Real s, Real, at::pair_position p) const {
    auto const below = Real{1} + s * s;
    return Real{1} + Real(0.2) * s / (below * below) * static_cast<Real>(1 + p.key % 3);
  }
};

} // namespace attention_tests
