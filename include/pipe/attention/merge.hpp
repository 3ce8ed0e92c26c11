// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Joins attention over disjoint sets of keys: the merge operator on (O, log-sum-exp).

#include <pipe/attention/parameters.hpp>
#include <pipe/config.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace pipelining::inline v0_3::attention {

namespace detail {

//! Log-sum-exp of no keys. A variable, because device code may not call numeric_limits.
template <class Real>
inline constexpr Real no_keys = -std::numeric_limits<Real>::infinity();

//! Sizes of a call, as its output tells them; as many heads of keys as of queries.
template <class Element>
[[nodiscard]] parameters parameters_of(tensor_view<Element> const& output) {
  return {.batch = output.batch,
          .query_length = output.length,
          .heads = output.heads,
          .key_heads = output.heads,
          .head_dim = output.dim};
}

} // namespace detail

//! @brief Shares of two states in their merge, and the log-sum-exp of the merge.
template <class Real>
struct merge_shares {
  Real first = 0;  //!< factor on the output of the first state
  Real second = 0; //!< factor on the output of the second state
  //! Of the merge; minus infinity where neither has a key.
  Real log_sum_exp = detail::no_keys<Real>;
};

//! @brief Shares of two states by their log-sum-exp; the state of no keys (0, -inf) is neutral.
//!
//! Merging is commutative and associative up to rounding.
//! @source own derivation: sums of exponentials over disjoint sets add up
template <class Real>
[[nodiscard]] PIPELINING_HOST_DEVICE merge_shares<Real> shares_of(Real first, Real second) {
  using std::exp;
  using std::log;
  constexpr Real nothing = detail::no_keys<Real>;
  if (second == nothing) {
    return {Real{1}, Real{0}, first};
  }
  if (first == nothing) {
    return {Real{0}, Real{1}, second};
  }
  Real const most = first > second ? first : second;
  Real const a = exp(first - most);
  Real const b = exp(second - most);
  return {a / (a + b), b / (a + b), most + log(a + b)};
}

//! @brief Merges the state (other_output, other_lse) of other keys into (output, lse), on the host.
//!
//! @param output [batch, length, heads, dim], read and written
//! @param lse    [batch, heads, length], read and written
//! @param other_output as output, of a disjoint set of keys
//! @param other_lse    as lse, of the same set
//! @throws std::invalid_argument where the four shapes do not agree
//! @complexity O(batch * length * heads * dim)
template <class Element, class Statistic>
void merge(tensor_view<Element> output,
           row_view<Statistic> lse,
           tensor_view<std::type_identity_t<Element> const> other_output,
           row_view<std::type_identity_t<Statistic> const> other_lse) {
  auto const p = detail::parameters_of(output);
  detail::check_tensor("other output", other_output, p.batch, p.query_length, p.heads, p.head_dim);
  detail::check_rows("log-sum-exp", lse, p);
  detail::check_rows("other log-sum-exp", other_lse, p);
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t i = 0; i < p.query_length; ++i) {
      for (std::int64_t h = 0; h < p.heads; ++h) {
        auto const shares = shares_of<Statistic>(lse.at(b, h, i), other_lse.at(b, h, i));
        Element* const mine = output.row(b, i, h);
        Element const* const theirs = other_output.row(b, i, h);
        for (std::int64_t d = 0; d < p.head_dim; ++d) {
          mine[d] = static_cast<Element>(shares.first * static_cast<Statistic>(mine[d]) +
                                         shares.second * static_cast<Statistic>(theirs[d]));
        }
        lse.at(b, h, i) = shares.log_sum_exp;
      }
    }
  }
}

} // namespace pipelining::inline v0_3::attention
