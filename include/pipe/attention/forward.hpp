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

//! Scratch of forward for one of some blocks of rows, which share what is of keys. Shapes in tiles;
//! the online softmax keeps most and sum per row.
template <class Real>
struct forward_scratch {
  Real* query = nullptr;      // [tile_rows, head_dim], times scale
  Real* output = nullptr;     // [tile_rows, value_dim], not yet divided by sum
  Real* most = nullptr;       // [tile_rows]
  Real* sum = nullptr;        // [tile_rows]
  Real* key_across = nullptr; // [head_dim, tile_keys]
  Real* value = nullptr;      // [tile_keys, value_dim]
  Real* logit = nullptr;      // [tile_rows, tile_keys]
  vector_version version = vector_version::of_process();

  forward_scratch(workspace<Real>& space, parameters const& p, std::int64_t block) {
    place_parts(space,
                block,
                {{&query, tile_rows * p.head_dim, some_blocks},
                 {&output, tile_rows * p.dim_of_values(), some_blocks},
                 {&most, tile_rows, some_blocks},
                 {&sum, tile_rows, some_blocks},
                 {&key_across, tile_keys * p.head_dim},
                 {&value, tile_keys * p.dim_of_values()},
                 {&logit, tile_rows * tile_keys}});
  }
};

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

//! One call of forward, for walk_tiles.
template <class Element, class Statistic, mask Mask, score Score>
struct host_forward {
  using real = accumulate_t<Element>;
  using scratch = forward_scratch<real>;

  parameters const& p;
  forward_tensors<Element, Statistic> const& t;
  Mask const& m;
  Score const& f;

  //! Starts the online softmax: from nothing, or from the (O, log-sum-exp) of other keys.
  void start(row_block const& rows, scratch const& s) const {
    pack_rows(p, t.query, rows, static_cast<real>(p.effective_scale()), s.query);
    bool const carried = p.from == carry::in;
    if (carried) {
      pack_rows<Element>(p, t.output, rows, real{1}, s.output);
    }
    for (std::int64_t local = 0; local < rows.count(); ++local) {
      auto const [query, head] = place_of(p, rows, local);
      s.most[local] =
        carried ? static_cast<real>(t.log_sum_exp.at(rows.batch, head, query)) : no_logit<real>;
      s.sum[local] = s.most[local] == no_logit<real> ? real{0} : real{1};
      if (s.sum[local] == 0) {
        std::fill_n(s.output + local * t.output.dim, t.output.dim, real{0});
      }
    }
  }

  void pack(row_block const& rows, key_block const& keys, scratch const& s) const {
    pack_keys_across(t.key, rows, keys, s.key_across);
    pack_keys(t.value, rows, keys, s.value);
  }

  //! Adds one tile of keys, which are packed, to the rows of a block.
  void
  visit(row_block const& rows, key_block const& keys, tile_cover covered, scratch const& s) const {
    auto const count = rows.count();
    auto const dim = p.dim_of_values();
    std::fill_n(s.logit, count * tile_keys, real{0});
    add_product<real>(s.version,
                      {s.logit, tile_keys},
                      {s.query, p.head_dim, 1},
                      {s.key_across, tile_keys},
                      count,
                      p.head_dim,
                      tile_keys);
    if (!products_are_logits<Score>(covered, keys)) {
      for (std::int64_t local = 0; local < count; ++local) {
        real* const logit = s.logit + local * tile_keys;
        auto const at = first_pair(p, rows, local, keys);
        logits_of_row(s.version, m, f, covered, at, keys, logit, logit);
      }
    }
    s.version.run([=](auto) {
      for (std::int64_t local = 0; local < count; ++local) {
        soften_row(
          s.logit + local * tile_keys, s.most[local], s.sum[local], s.output + local * dim, dim);
      }
    });
    add_product<real>(s.version,
                      {s.output, dim},
                      {s.logit, tile_keys, 1},
                      {s.value, dim},
                      count,
                      keys.count(),
                      dim);
  }

  //! Divides by the sums and writes O and the log-sum-exp.
  void finish(row_block const& rows, scratch const& s) const {
    for (std::int64_t local = 0; local < rows.count(); ++local) {
      auto const [query, head] = place_of(p, rows, local);
      real const sum = s.sum[local];
      Element* const output = t.output.row(rows.batch, query, head);
      auto const dim = t.output.dim;
      for (std::int64_t d = 0; d < dim; ++d) {
        output[d] = static_cast<Element>(sum > 0 ? s.output[local * dim + d] / sum : real{0});
      }
      t.log_sum_exp.at(rows.batch, head, query) =
        static_cast<Statistic>(sum > 0 ? s.most[local] + std::log(sum) : no_logit<real>);
    }
  }
};

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
  check(p, t);
  detail::host_forward<Element, Statistic, Mask, Score> const pass{p, t, m, f};
  detail::walk_tiles(pass, space);
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
