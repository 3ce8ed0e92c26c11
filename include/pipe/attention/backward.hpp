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

//! Scratch of backward for one of some blocks of rows, which share what is of keys.
template <class Real>
struct backward_scratch {
  Real* query = nullptr;           // [tile_rows, head_dim], times scale
  Real* query_gradient = nullptr;  // [tile_rows, head_dim], not yet times scale
  Real* output_gradient = nullptr; // [tile_rows, value_dim]
  Real* lse = nullptr;             // [tile_rows]
  Real* mean = nullptr;            // [tile_rows], dO . O
  Real* key = nullptr;             // [tile_keys, head_dim]
  Real* key_across = nullptr;      // [head_dim, tile_keys]
  Real* value_across = nullptr;    // [value_dim, tile_keys]
  Real* product = nullptr;         // [tile_rows, tile_keys], then gradients of the products
  Real* weight = nullptr;          // [tile_rows, tile_keys], logits first
  Real* along = nullptr;           // [tile_rows, tile_keys], dO . V
  Real* slope = nullptr;           // [tile_keys], derivatives of the score in one row
  vector_version version = vector_version::of_process();

  backward_scratch(workspace<Real>& space, parameters const& p, std::int64_t block) {
    place_parts(space,
                block,
                {{&query, tile_rows * p.head_dim, some_blocks},
                 {&query_gradient, tile_rows * p.head_dim, some_blocks},
                 {&output_gradient, tile_rows * p.dim_of_values(), some_blocks},
                 {&lse, tile_rows, some_blocks},
                 {&mean, tile_rows, some_blocks},
                 {&key, tile_keys * p.head_dim},
                 {&key_across, tile_keys * p.head_dim},
                 {&value_across, tile_keys * p.dim_of_values()},
                 {&product, tile_rows * tile_keys},
                 {&weight, tile_rows * tile_keys},
                 {&along, tile_rows * tile_keys},
                 {&slope, tile_keys}});
  }
};

//! One call of backward, for walk_tiles.
template <class Element, class Statistic, class Carry, mask Mask, score Score>
struct host_backward {
  using real = accumulate_t<Element>;
  using scratch = backward_scratch<real>;

  parameters const& p;
  backward_tensors<Element, Statistic, Carry> const& t;
  Mask const& m;
  Score const& f;

  //! Fetches queries, dO and the two numbers per row: log-sum-exp and dO . O.
  void start(row_block const& rows, scratch const& s) const {
    pack_rows(p, t.query, rows, static_cast<real>(p.effective_scale()), s.query);
    pack_rows(p, t.output_gradient, rows, real{1}, s.output_gradient);
    for (std::int64_t local = 0; local < rows.count(); ++local) {
      auto const [query, head] = place_of(p, rows, local);
      auto const* const output = t.output.row(rows.batch, query, head);
      real const* const gradient = s.output_gradient + local * t.output.dim;
      real mean = 0;
      for (std::int64_t d = 0; d < t.output.dim; ++d) {
        mean += gradient[d] * static_cast<real>(output[d]);
      }
      std::fill_n(s.query_gradient + local * p.head_dim, p.head_dim, real{0});
      s.mean[local] = mean;
      auto const lse = static_cast<real>(t.log_sum_exp.at(rows.batch, head, query));
      s.lse[local] = lse == no_logit<real> ? real{0} : lse; // saw nothing: no -inf minus -inf
    }
  }

  void pack(row_block const& rows, key_block const& keys, scratch const& s) const {
    pack_keys(t.key, rows, keys, s.key);
    pack_keys_across(t.key, rows, keys, s.key_across);
    pack_keys_across(t.value, rows, keys, s.value_across);
  }

  //! Recomputes the weights of one row and the gradients of its products, in place of the products.
  void find_gradients(row_block const& rows,
                      key_block const& keys,
                      tile_cover covered,
                      std::int64_t local,
                      scratch const& s) const {
    real* const product = s.product + local * tile_keys;
    real* const weight = s.weight + local * tile_keys;
    real const* const along = s.along + local * tile_keys;
    real* const slope = s.slope;
    real const* logit = product;
    if (!products_are_logits<Score>(covered, keys)) {
      auto at = first_pair(p, rows, local, keys);
      logits_of_row(s.version, m, f, covered, at, keys, product, weight);
      logit = weight;
      if constexpr (!std::is_same_v<Score, plain>) { // products are still those of forward here
        auto const first = at.key;
        for (std::int64_t j = 0; j < tile_keys; ++j) {
          at.key = first + static_cast<std::int32_t>(j);
          slope[j] =
            weight[j] == no_logit<real> ? real{1} : f.derivative(product[j], weight[j], at);
        }
      }
    }
    s.version.run([=, lse = s.lse[local], mean = s.mean[local]](auto) {
      for (std::int64_t j = 0; j < tile_keys; ++j) {
        real const w = weight_of(logit[j], lse);
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
  void
  visit(row_block const& rows, key_block const& keys, tile_cover covered, scratch const& s) const {
    auto const dim = p.head_dim;
    auto const count = rows.count();
    auto const multiply = [&](real* to, real const* from, std::int64_t of, real const* across) {
      std::fill_n(to, count * tile_keys, real{0});
      add_product<real>(
        s.version, {to, tile_keys}, {from, of, 1}, {across, tile_keys}, count, of, tile_keys);
    };
    multiply(s.product, s.query, dim, s.key_across);
    multiply(s.along, s.output_gradient, p.dim_of_values(), s.value_across);
    for (std::int64_t local = 0; local < count; ++local) {
      find_gradients(rows, keys, covered, local, s);
    }
    add_product<real>(s.version,
                      {s.query_gradient, dim},
                      {s.product, tile_keys, 1},
                      {s.key, dim},
                      count,
                      keys.count(),
                      dim);
    auto const add_to = [&](tensor_view<Carry> const& gradient, real const* from, real const* by) {
      auto* const to = gradient.row(rows.batch, keys.begin, rows.key_head);
      strided_rows<Carry> const sums{to, gradient.length_stride};
      strided_rows<real const> const factors{from, tile_keys};
      add_across(s.version, sums, factors, by, keys.count(), count, gradient.dim);
    };
    add_to(t.key_gradient, s.product, s.query);
    add_to(t.value_gradient, s.weight, s.output_gradient);
  }

  //! Writes dQ of the rows of a block, or adds to it.
  void finish(row_block const& rows, scratch const& s) const {
    auto const scale = static_cast<real>(p.effective_scale());
    for (std::int64_t local = 0; local < rows.count(); ++local) {
      auto const [query, head] = place_of(p, rows, local);
      Element* const to = t.query_gradient.row(rows.batch, query, head);
      for (std::int64_t d = 0; d < p.head_dim; ++d) {
        real const before = p.from == carry::in ? static_cast<real>(to[d]) : real{0};
        to[d] = static_cast<Element>(before + scale * s.query_gradient[local * p.head_dim + d]);
      }
    }
  }
};

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
  detail::host_backward<Element, Statistic, Carry, Mask, Score> const pass{p, t, m, f};
  detail::walk_tiles(pass, space);
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
