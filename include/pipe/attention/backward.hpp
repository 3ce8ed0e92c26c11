// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Backward of chunked attention on the host, for one chunk at a time in reverse chunk
//! order.

#include <pipe/config.hpp>

#if __cplusplus >= 202002L // what comes below would bury the one error of config.hpp
#include <pipe/attention/host/tile.hpp>
#include <pipe/attention/mask.hpp>
#include <pipe/attention/parameters.hpp>
#include <pipe/attention/score.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace pipelining::inline v0_3::attention {

namespace detail {

//! Scratch of backward. Rows of a block are stored last query first; blocks lie next to each other,
//! one of them at the pointers.
template <class Real>
struct backward_scratch {
  Real* query;           // [tile_rows, head_dim], times scale
  Real* query_gradient;  // [tile_rows, head_dim], not yet times scale
  Real* output_gradient; // [tile_rows, value_dim]
  Real* lse;             // [tile_rows]
  Real* mean;            // [tile_rows], dO . O
  Real* key;             // [tile_keys, head_dim]
  Real* key_across;      // [head_dim, tile_keys]
  Real* value_across;    // [value_dim, tile_keys]
  Real* product;         // [tile_rows, tile_keys], then gradients of the products
  Real* weight;          // [tile_rows, tile_keys], logits first
  Real* along;           // [tile_rows, tile_keys], dO . V
  Real* slope;           // [tile_keys], derivatives of the score in one row
  vector_version version = vector_version::of_process();

  backward_scratch(workspace<Real>& space, parameters const& p) {
    constexpr auto all_rows = some_blocks * tile_rows;
    auto const tile = tile_rows * tile_keys;
    auto const of_rows = all_rows * (2 * p.head_dim + p.dim_of_values() + 2);
    auto const of_keys = tile_keys * (2 * p.head_dim + p.dim_of_values() + 1);
    query = space.reserve(of_rows + of_keys + 3 * tile);
    query_gradient = query + all_rows * p.head_dim;
    output_gradient = query_gradient + all_rows * p.head_dim;
    lse = output_gradient + all_rows * p.dim_of_values();
    mean = lse + all_rows;
    key = mean + all_rows;
    key_across = key + tile_keys * p.head_dim;
    value_across = key_across + tile_keys * p.head_dim;
    product = value_across + tile_keys * p.dim_of_values();
    weight = product + tile;
    along = weight + tile;
    slope = along + tile;
  }

  //! The same with another block at the pointers.
  [[nodiscard]] backward_scratch of_block(parameters const& p, std::int64_t k) const {
    auto other = *this;
    other.query += k * tile_rows * p.head_dim;
    other.query_gradient += k * tile_rows * p.head_dim;
    other.output_gradient += k * tile_rows * p.dim_of_values();
    other.lse += k * tile_rows;
    other.mean += k * tile_rows;
    return other;
  }
};

//! Fetches queries, dO and the two numbers per row: log-sum-exp and dO . O.
template <class Real, class Tensors>
void load_rows(parameters const& p,
               Tensors const& t,
               row_block const& rows,
               backward_scratch<Real> const& s) {
  pack_rows(p, t.query, rows, static_cast<Real>(p.effective_scale()), true, s.query);
  pack_rows(p, t.output_gradient, rows, Real{1}, true, s.output_gradient);
  for (std::int64_t local = 0; local < rows.count(); ++local) {
    auto const r = rows.end - 1 - local;
    auto const h = rows.key_head * p.group() + r % p.group();
    auto const* const output = t.output.row(rows.batch, r / p.group(), h);
    Real const* const gradient = s.output_gradient + local * t.output.dim;
    Real mean = 0;
    for (std::int64_t d = 0; d < t.output.dim; ++d) {
      mean += gradient[d] * static_cast<Real>(output[d]);
    }
    std::fill_n(s.query_gradient + local * p.head_dim, p.head_dim, Real{0});
    s.mean[local] = mean;
    auto const lse = static_cast<Real>(t.log_sum_exp.at(rows.batch, h, r / p.group()));
    s.lse[local] = lse == no_logit<Real> ? Real{0} : lse; // saw nothing: no -inf minus -inf
  }
}

//! Recomputes the weights of one row and the gradients of its products, in place of the products.
template <class Real, mask Mask, score Score>
void gradients_of_row(parameters const& p,
                      Mask const& m,
                      Score const& f,
                      row_block const& rows,
                      key_block const& keys,
                      tile_cover covered,
                      std::int64_t local,
                      backward_scratch<Real> const& s) {
  Real* const product = s.product + local * tile_keys;
  Real* const weight = s.weight + local * tile_keys;
  Real const* const along = s.along + local * tile_keys;
  Real* const slope = s.slope;
  Real const* logit = product;
  if (!products_are_logits<Score>(covered, keys)) {
    auto at = first_pair(p, rows, rows.end - 1 - local, keys);
    logits_of_row(s.version, m, f, covered, at, keys, product, weight);
    logit = weight;
    if constexpr (!std::is_same_v<Score, plain>) { // products are still those of forward here
      auto const first = at.key;
      for (std::int64_t j = 0; j < tile_keys; ++j) {
        at.key = first + static_cast<std::int32_t>(j);
        slope[j] = weight[j] == no_logit<Real> ? Real{1} : f.derivative(product[j], weight[j], at);
      }
    }
  }
  s.version.run([=, lse = s.lse[local], mean = s.mean[local]](auto) {
    for (std::int64_t j = 0; j < tile_keys; ++j) {
      Real const w = weight_of(logit[j], lse);
      weight[j] = w;
      if constexpr (std::is_same_v<Score, plain>) {
        product[j] = w * (along[j] - mean);
      } else {
        product[j] = w * (along[j] - mean) * slope[j];
      }
    }
  });
}

//! All that one tile of keys, which are packed, gives to the rows of a block and gets from them.
template <class Real, class Tensors, mask Mask, score Score>
void backward_tile(parameters const& p,
                   Tensors const& t,
                   Mask const& m,
                   Score const& f,
                   row_block const& rows,
                   key_block const& keys,
                   tile_cover covered,
                   backward_scratch<Real> const& s) {
  auto const dim = p.head_dim;
  auto const dim_of_values = p.dim_of_values();
  auto const count = rows.count();
  std::fill_n(s.product, count * tile_keys, Real{0});
  std::fill_n(s.along, count * tile_keys, Real{0});
  auto const add_to_keys = [&](Real* to, Real const* from, std::int64_t of, Real const* across) {
    add_product(s.version, to, tile_keys, from, of, 1, across, tile_keys, count, of, tile_keys);
  };
  add_to_keys(s.product, s.query, dim, s.key_across);
  add_to_keys(s.along, s.output_gradient, dim_of_values, s.value_across);
  for (std::int64_t local = 0; local < count; ++local) {
    gradients_of_row(p, m, f, rows, keys, covered, local, s);
  }
  add_product(s.version,
              s.query_gradient,
              dim,
              s.product,
              tile_keys,
              1,
              s.key,
              dim,
              count,
              keys.count(),
              dim);
  auto const add_to_gradient = [&](auto const& gradient, Real const* from, Real const* other) {
    auto* const to = gradient.row(rows.batch, keys.begin, rows.key_head);
    auto const stride = gradient.length_stride;
    add_across(s.version, to, stride, from, tile_keys, other, keys.count(), count, gradient.dim);
  };
  add_to_gradient(t.key_gradient, s.product, s.query);
  add_to_gradient(t.value_gradient, s.weight, s.output_gradient);
}

//! Writes dQ of the rows of a block, or adds to it.
template <class Real, class Tensors>
void store_rows(parameters const& p,
                Tensors const& t,
                row_block const& rows,
                backward_scratch<Real> const& s) {
  auto const scale = static_cast<Real>(p.effective_scale());
  for (std::int64_t local = 0; local < rows.count(); ++local) {
    auto const r = rows.end - 1 - local;
    auto* const to =
      t.query_gradient.row(rows.batch, r / p.group(), rows.key_head * p.group() + r % p.group());
    using element = std::remove_pointer_t<decltype(to)>;
    for (std::int64_t d = 0; d < p.head_dim; ++d) {
      Real const before = p.from == carry::in ? static_cast<Real>(to[d]) : Real{0};
      to[d] = static_cast<std::remove_const_t<element>>(
        before + scale * s.query_gradient[local * p.head_dim + d]);
    }
  }
}

//! All keys for some blocks of rows, the last block first.
template <class Real, class Tensors, mask Mask, score Score>
void backward_rows(parameters const& p,
                   Tensors const& t,
                   Mask const& m,
                   Score const& f,
                   row_block const& rows,
                   backward_scratch<Real> const& s) {
  for (std::int64_t k = 0; k < rows.blocks(); ++k) {
    load_rows(p, t, rows.block_from_end(k), s.of_block(p, k));
  }
  for (std::int64_t j = 0; j < p.key_length; j += tile_keys) {
    auto const keys = key_block_at(p, j);
    bool packed = false;
    for (std::int64_t k = 0; k < rows.blocks(); ++k) {
      auto const covered = cover_of(p, m, rows.block_from_end(k), keys);
      if (covered != tile_cover::skip) {
        if (!packed) {
          pack_keys(t.key, rows, keys, s.key);
          pack_keys_across(t.key, rows, keys, s.key_across);
          pack_keys_across(t.value, rows, keys, s.value_across);
          packed = true;
        }
        backward_tile(p, t, m, f, rows.block_from_end(k), keys, covered, s.of_block(p, k));
      }
    }
  }
  for (std::int64_t k = 0; k < rows.blocks(); ++k) {
    store_rows(p, t, rows.block_from_end(k), s.of_block(p, k));
  }
}

} // namespace detail

//! @brief Gradients of one chunk of queries: writes dQ, adds to the running dK and dV, on the host.
//!
//! The chunks of a sequence come last chunk first. Each adds what its queries give to the gradients
//! of all keys that it saw; after chunk c, dK and dV of chunk c's own keys are final. Start with
//! zeros before the last chunk. Weights are recomputed from the log-sum-exp of forward.
//!
//! dK and dV receive one query after the other, the last first, so n chunks in reverse order give
//! the same bits as one chunk. With parameters::from = carry::in, dQ is added to (keys in slices).
//!
//! @param p     sizes, offsets, scale: those of the chunk's forward
//! @param t     views; shapes as backward_tensors says
//! @param m     the mask of forward
//! @param f     the score of forward
//! @param space scratch; one per thread
//! @throws std::invalid_argument as check, before any work
//! @complexity O(head_dim) per (query, key) pair in tiles that are not skipped
template <class Element, class Statistic, class Carry, mask Mask, score Score>
void backward(parameters const& p,
              backward_tensors<Element, Statistic, Carry> const& t,
              Mask const& m,
              Score const& f,
              workspace<accumulate_t<Element>>& space) {
  static_assert(sizeof(Carry) >= sizeof(float),
                "attention::backward: the running dK and dV must be float or wider, because they "
                "are rounded once per query");
  check(p, t);
  detail::backward_scratch<accumulate_t<Element>> const scratch(space, p);
  constexpr auto some_rows = detail::some_blocks * detail::tile_rows;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t kv = 0; kv < p.key_heads; ++kv) {
      for (std::int64_t end = p.query_length * p.group(); end > 0; end -= some_rows) {
        auto const begin = std::max<std::int64_t>(end - some_rows, 0);
        detail::backward_rows(p, t, m, f, detail::row_block{b, kv, begin, end}, scratch);
      }
    }
  }
}

//! @brief The same with scratch of its own.
template <class Element, class Statistic, class Carry, mask Mask = causal, score Score = plain>
void backward(parameters const& p,
              backward_tensors<Element, Statistic, Carry> const& t,
              Mask const& m = {},
              Score const& f = {}) {
  workspace<accumulate_t<Element>> space;
  backward(p, t, m, f, space);
}

} // namespace pipelining::inline v0_3::attention
#endif
