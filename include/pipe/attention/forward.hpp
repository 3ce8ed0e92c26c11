// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Forward of chunked attention on the host.

#include <pipe/config.hpp>

#if __cplusplus >= 202002L // what comes below would bury the one error of config.hpp
#include <pipe/attention/host/tile.hpp>
#include <pipe/attention/mask.hpp>
#include <pipe/attention/parameters.hpp>
#include <pipe/attention/score.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace pipelining::inline v0_3::attention {

namespace detail {

//! Scratch of forward. Shapes in tiles; the online softmax keeps most and sum per row. Blocks of
//! rows lie next to each other, one of them at the pointers.
template <class Real>
struct forward_scratch {
  Real* query;      // [tile_rows, head_dim], times scale
  Real* output;     // [tile_rows, value_dim], not yet divided by sum
  Real* most;       // [tile_rows]
  Real* sum;        // [tile_rows]
  Real* key_across; // [head_dim, tile_keys]
  Real* value;      // [tile_keys, value_dim]
  Real* logit;      // [tile_rows, tile_keys]
  vector_version version = vector_version::of_process();

  forward_scratch(workspace<Real>& space, parameters const& p) {
    constexpr auto all_rows = some_blocks * tile_rows;
    auto const dims = p.head_dim + p.dim_of_values();
    query = space.reserve((all_rows + tile_keys) * dims + tile_rows * tile_keys + 2 * all_rows);
    output = query + all_rows * p.head_dim;
    most = output + all_rows * p.dim_of_values();
    sum = most + all_rows;
    key_across = sum + all_rows;
    value = key_across + tile_keys * p.head_dim;
    logit = value + tile_keys * p.dim_of_values();
  }

  //! The same with another block at the pointers.
  [[nodiscard]] forward_scratch of_block(parameters const& p, std::int64_t k) const {
    auto other = *this;
    other.query += k * tile_rows * p.head_dim;
    other.output += k * tile_rows * p.dim_of_values();
    other.most += k * tile_rows;
    other.sum += k * tile_rows;
    return other;
  }
};

//! Starts the online softmax: from nothing, or from the (O, log-sum-exp) of other keys.
template <class Element, class Statistic, class Real>
void start_rows(parameters const& p,
                forward_tensors<Element, Statistic> const& t,
                row_block const& rows,
                forward_scratch<Real> const& s) {
  bool const carried = p.from == carry::in;
  if (carried) {
    tensor_view<Element const> const output = t.output;
    pack_rows(p, output, rows, Real{1}, false, s.output);
  }
  for (std::int64_t local = 0; local < rows.count(); ++local) {
    auto const r = rows.begin + local;
    auto const h = rows.key_head * p.group() + r % p.group();
    s.most[local] =
      carried ? static_cast<Real>(t.log_sum_exp.at(rows.batch, h, r / p.group())) : no_logit<Real>;
    s.sum[local] = s.most[local] == no_logit<Real> ? Real{0} : Real{1};
    if (s.sum[local] == 0) {
      std::fill_n(s.output + local * t.output.dim, t.output.dim, Real{0});
    }
  }
}

//! Turns one row of logits into weights relative to the row's new maximum; rescales what is there.
template <class Real>
[[gnu::always_inline]] inline void
soften_row(Real* logit, Real& most, Real& sum, Real* output, std::int64_t dim) {
  Real const top = largest_of_keys(logit, most);
  if (top == no_logit<Real>) { // nothing seen so far
    for (std::int64_t j = 0; j < tile_keys; ++j) {
      logit[j] = 0;
    }
    return;
  }
  for (std::int64_t j = 0; j < tile_keys; ++j) {
    logit[j] = weight_of(logit[j], top);
  }
  if (top != most) {
    Real const shrink = weight_of(most, top);
    sum *= shrink;
    for (std::int64_t d = 0; d < dim; ++d) {
      output[d] *= shrink;
    }
    most = top;
  }
  sum += sum_of_keys(logit);
}

//! Adds one tile of keys, which are packed, to the rows of a block.
template <class Real, mask Mask, score Score>
void forward_tile(parameters const& p,
                  Mask const& m,
                  Score const& f,
                  row_block const& rows,
                  key_block const& keys,
                  tile_cover covered,
                  forward_scratch<Real> const& s) {
  auto const dim = p.dim_of_values();
  std::fill_n(s.logit, rows.count() * tile_keys, Real{0});
  add_product(s.version,
              s.logit,
              tile_keys,
              s.query,
              p.head_dim,
              1,
              s.key_across,
              tile_keys,
              rows.count(),
              p.head_dim,
              tile_keys);
  if (!products_are_logits<Score>(covered, keys)) {
    for (std::int64_t local = 0; local < rows.count(); ++local) {
      Real* const logit = s.logit + local * tile_keys;
      auto const at = first_pair(p, rows, rows.begin + local, keys);
      logits_of_row(s.version, m, f, covered, at, keys, logit, logit);
    }
  }
  s.version.run([=, count = rows.count()](auto) {
    for (std::int64_t local = 0; local < count; ++local) {
      soften_row(
        s.logit + local * tile_keys, s.most[local], s.sum[local], s.output + local * dim, dim);
    }
  });
  add_product(
    s.version, s.output, dim, s.logit, tile_keys, 1, s.value, dim, rows.count(), keys.count(), dim);
}

//! Divides by the sums and writes O and the log-sum-exp.
template <class Element, class Statistic, class Real>
void finish_rows(parameters const& p,
                 forward_tensors<Element, Statistic> const& t,
                 row_block const& rows,
                 forward_scratch<Real> const& s) {
  for (std::int64_t local = 0; local < rows.count(); ++local) {
    auto const r = rows.begin + local;
    auto const i = r / p.group();
    auto const h = rows.key_head * p.group() + r % p.group();
    Real const sum = s.sum[local];
    Element* const output = t.output.row(rows.batch, i, h);
    auto const dim = t.output.dim;
    for (std::int64_t d = 0; d < dim; ++d) {
      output[d] = static_cast<Element>(sum > 0 ? s.output[local * dim + d] / sum : Real{0});
    }
    t.log_sum_exp.at(rows.batch, h, i) =
      static_cast<Statistic>(sum > 0 ? s.most[local] + std::log(sum) : no_logit<Real>);
  }
}

//! All keys for some blocks of rows.
template <class Element, class Statistic, class Real, mask Mask, score Score>
void forward_rows(parameters const& p,
                  forward_tensors<Element, Statistic> const& t,
                  Mask const& m,
                  Score const& f,
                  row_block const& rows,
                  forward_scratch<Real> const& s) {
  auto const scale = static_cast<Real>(p.effective_scale());
  for (std::int64_t k = 0; k < rows.blocks(); ++k) {
    auto const of_block = s.of_block(p, k);
    pack_rows(p, t.query, rows.block(k), scale, false, of_block.query);
    start_rows(p, t, rows.block(k), of_block);
  }
  for (std::int64_t j = 0; j < p.key_length; j += tile_keys) {
    auto const keys = key_block_at(p, j);
    bool packed = false;
    for (std::int64_t k = 0; k < rows.blocks(); ++k) {
      auto const covered = cover_of(p, m, rows.block(k), keys);
      if (covered != tile_cover::skip) {
        if (!packed) {
          pack_keys_across(t.key, rows, keys, s.key_across);
          pack_keys(t.value, rows, keys, s.value);
          packed = true;
        }
        forward_tile(p, m, f, rows.block(k), keys, covered, s.of_block(p, k));
      }
    }
  }
  for (std::int64_t k = 0; k < rows.blocks(); ++k) {
    finish_rows(p, t, rows.block(k), s.of_block(p, k));
  }
}

} // namespace detail

//! @brief Attention of one chunk of queries over the keys cached so far, on the host.
//!
//! Writes O and the natural-log log-sum-exp; a query that sees no key gets O = 0 and -infinity.
//! With parameters::from = carry::in it goes on from the (O, log-sum-exp) of other keys instead.
//!
//! Sums are kept in accumulate_t<Element>. The result is the same bit for bit in every thread, and
//! whether queries come in one chunk or in many. Keys within key_length must be finite numbers,
//! also where the mask hides them.
//!
//! @param p     sizes, offsets, scale
//! @param t     views; shapes as forward_tensors says
//! @param m     which pairs are kept; tiles that it skips cost nothing
//! @param f     what is done to scale * query . key
//! @param space scratch; one per thread
//! @throws std::invalid_argument as check, before any work
//! @complexity O(head_dim) per (query, key) pair in tiles that are not skipped
template <class Element, class Statistic, mask Mask, score Score>
void forward(parameters const& p,
             forward_tensors<Element, Statistic> const& t,
             Mask const& m,
             Score const& f,
             workspace<accumulate_t<Element>>& space) {
  using real = accumulate_t<Element>;
  check(p, t);
  detail::forward_scratch<real> const scratch(space, p);
  auto const rows_of_head = p.query_length * p.group();
  constexpr auto some_rows = detail::some_blocks * detail::tile_rows;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t kv = 0; kv < p.key_heads; ++kv) {
      for (std::int64_t begin = 0; begin < rows_of_head; begin += some_rows) {
        auto const end = std::min(begin + some_rows, rows_of_head);
        detail::forward_rows(p, t, m, f, detail::row_block{b, kv, begin, end}, scratch);
      }
    }
  }
}

//! @brief The same with scratch of its own.
template <class Element, class Statistic, mask Mask = causal, score Score = plain>
void forward(parameters const& p,
             forward_tensors<Element, Statistic> const& t,
             Mask const& m = {},
             Score const& f = {}) {
  workspace<accumulate_t<Element>> space;
  forward(p, t, m, f, space);
}

} // namespace pipelining::inline v0_3::attention
#endif
