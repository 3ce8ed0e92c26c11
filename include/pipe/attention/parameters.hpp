// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The parameters of one call of chunked attention: sizes, offsets, strided views, and the
//! check of all of them.

#include <pipe/config.hpp>

#include <cmath>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace pipelining::inline v0_3::attention {

//! @brief Type in which sums over dims, keys and queries are kept for tensors of Element: at least
//! float.
template <class Element>
using accumulate_t = std::conditional_t<std::is_same_v<Element, double>, double, float>;

//! @brief The start of a call: from nothing, or from the contents of its output tensors.
enum class carry : std::uint8_t {
  none, //!< outputs are written; what they held is not read
  in,   //!< forward: (O, LSE) of other keys is merged in; backward: dQ is added to
};

//! @brief Sizes and offsets of one call: a chunk of queries against the keys cached so far.
//!
//! Query i of the call sits at position query_offset + i of the sequence, key j at key_offset + j.
//! Masks and scores see positions only, so a chunk gives the same numbers as the whole sequence.
//! Any lengths and offsets are allowed; none has to be a multiple of anything.
struct parameters {
  std::int64_t batch = 1;        //!< sequences
  std::int64_t query_length = 0; //!< queries of this chunk, in tokens
  std::int64_t query_offset = 0; //!< position of the first query, in tokens
  std::int64_t key_length = 0;   //!< keys and values present, in tokens
  std::int64_t key_offset = 0;   //!< position of the first key; not 0 for a slice that starts later
  std::int64_t heads = 1;        //!< query heads
  std::int64_t key_heads = 1;    //!< key and value heads; divides heads
  std::int64_t head_dim = 0;     //!< elements of one head of queries and keys
  std::int64_t value_dim = 0;    //!< of one head of values and outputs; 0 stands for head_dim
  double scale = 0;              //!< on query . key, not negative; 0 stands for 1 / sqrt(head_dim)
  carry from = carry::none;      //!< see carry

  //! @brief Query heads that share one key head.
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr std::int64_t group() const noexcept {
    return heads / key_heads;
  }

  //! @brief The elements of one head of values and outputs that are meant.
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr std::int64_t dim_of_values() const noexcept {
    return value_dim == 0 ? head_dim : value_dim;
  }

  //! @brief The factor on query . key that is meant.
  [[nodiscard]] double effective_scale() const {
    return scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(head_dim));
  }

  [[nodiscard]] friend bool operator==(parameters const&, parameters const&) = default;
};

//! @brief Strided view of a tensor [batch, length, heads, dim]; the elements of a head are
//! contiguous.
//!
//! Strides are in elements. Any order of the outer three axes is a choice of strides.
template <class Element>
struct tensor_view {
  Element* data = nullptr;        //!< element [0, 0, 0, 0]; not owned
  std::int64_t batch = 0;         //!< sequences
  std::int64_t length = 0;        //!< tokens of a sequence
  std::int64_t heads = 0;         //!< heads of a token
  std::int64_t dim = 0;           //!< elements of a head
  std::int64_t batch_stride = 0;  //!< elements from one sequence to the next
  std::int64_t length_stride = 0; //!< elements from one token to the next
  std::int64_t head_stride = 0;   //!< elements from one head to the next

  //! @brief First of the dim elements of one head of one token.
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr Element*
  row(std::int64_t b, std::int64_t position, std::int64_t head) const {
    return data + b * batch_stride + position * length_stride + head * head_stride;
  }

  //! @brief The same view, read only. A template, because nvcc warns of one that cannot be called.
  template <std::same_as<Element const> Constant>
  requires(!std::is_const_v<Element>) [[nodiscard]] PIPELINING_HOST_DEVICE constexpr
  operator tensor_view<Constant>() const { // NOLINT(google-explicit-constructor)
    return {data, batch, length, heads, dim, batch_stride, length_stride, head_stride};
  }
};

//! @brief View of a dense tensor [batch, length, heads, dim].
template <class Element>
[[nodiscard]] PIPELINING_HOST_DEVICE constexpr tensor_view<Element> dense_tensor(
  Element* data, std::int64_t batch, std::int64_t length, std::int64_t heads, std::int64_t dim) {
  return {data, batch, length, heads, dim, length * heads * dim, heads * dim, dim};
}

//! @brief Strided view of one number per query and head: [batch, heads, length]. Strides in
//! elements.
template <class Number>
struct row_view {
  Number* data = nullptr;        //!< number [0, 0, 0]; not owned
  std::int64_t batch = 0;        //!< sequences
  std::int64_t heads = 0;        //!< query heads
  std::int64_t length = 0;       //!< tokens of a sequence
  std::int64_t batch_stride = 0; //!< numbers from one sequence to the next
  std::int64_t head_stride = 0;  //!< numbers from one head to the next

  //! The number of one query and head.
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr Number&
  at(std::int64_t b, std::int64_t head, std::int64_t position) const {
    return data[b * batch_stride + head * head_stride + position];
  }

  //! @brief The same view, read only. A template, because nvcc warns of one that cannot be called.
  template <std::same_as<Number const> Constant>
  requires(!std::is_const_v<Number>) [[nodiscard]] PIPELINING_HOST_DEVICE constexpr
  operator row_view<Constant>() const { // NOLINT(google-explicit-constructor)
    return {data, batch, heads, length, batch_stride, head_stride};
  }
};

//! @brief View of a dense tensor [batch, heads, length].
template <class Number>
[[nodiscard]] PIPELINING_HOST_DEVICE constexpr row_view<Number>
dense_rows(Number* data, std::int64_t batch, std::int64_t heads, std::int64_t length) {
  return {data, batch, heads, length, heads * length, length};
}

//! @brief Tensors of a forward call. Statistic is the type of the log-sum-exp: float or wider.
template <class Element, class Statistic = accumulate_t<Element>>
struct forward_tensors {
  tensor_view<Element const> query; //!< [batch, query_length, heads, head_dim]
  tensor_view<Element const> key;   //!< [batch, key_length, key_heads, head_dim]
  tensor_view<Element const> value; //!< [batch, key_length, key_heads, value_dim]
  tensor_view<Element> output;      //!< [batch, query_length, heads, value_dim]
  row_view<Statistic> log_sum_exp;  //!< [batch, heads, query_length], natural logarithm
};

//! @brief Tensors of a backward call. Carry is the type of the running dK and dV: float or wider.
template <class Element, class Statistic = accumulate_t<Element>, class Carry = Statistic>
struct backward_tensors {
  tensor_view<Element const> query;  //!< as in forward
  tensor_view<Element const> key;    //!< as in forward
  tensor_view<Element const> value;  //!< as in forward
  tensor_view<Element const> output; //!< what forward wrote
  row_view<Statistic const>
    log_sum_exp; //!< what forward wrote (of all keys, where keys are sliced)
  tensor_view<Element const> output_gradient; //!< [batch, query_length, heads, value_dim]
  tensor_view<Element> query_gradient;        //!< [batch, query_length, heads, head_dim], written
  tensor_view<Carry> key_gradient;   //!< [batch, key_length, key_heads, head_dim], added to
  tensor_view<Carry> value_gradient; //!< [batch, key_length, key_heads, value_dim], added to
};

namespace detail {

[[noreturn]] inline void refuse(std::string const& what) {
  throw std::invalid_argument("attention: " + what);
}

//! "[1, 2, 3]". Appends only: g++ 12 warns falsely about literal + temporary string.
inline std::string bracketed(std::initializer_list<std::int64_t> sizes) {
  std::string text;
  for (auto const size : sizes) {
    text += text.empty() ? "[" : ", ";
    text += std::to_string(size);
  }
  return text += "]";
}

inline void check_count(char const* name, std::int64_t count, std::int64_t least) {
  if (count < least) {
    refuse(std::string(name) + " is " + std::to_string(count) + ", but must be at least " +
           std::to_string(least));
  }
}

template <class Element>
void check_tensor(char const* name,
                  tensor_view<Element> const& view,
                  std::int64_t batch,
                  std::int64_t length,
                  std::int64_t heads,
                  std::int64_t dim) {
  if (view.batch != batch || view.length != length || view.heads != heads || view.dim != dim) {
    refuse(std::string(name) + " is " + bracketed({view.batch, view.length, view.heads, view.dim}) +
           ", but the parameters ask for [batch, length, heads, dim] = " +
           bracketed({batch, length, heads, dim}));
  }
  if (view.data == nullptr && batch * length * heads * dim != 0) {
    refuse(std::string(name) + " has no data (null pointer)");
  }
  if (view.heads > 1 && view.head_stride < dim && -view.head_stride < dim) {
    refuse(std::string(name) + " has head stride " + std::to_string(view.head_stride) +
           ", so heads of dim " + std::to_string(dim) + " would overlap");
  }
}

template <class Number>
void check_rows(char const* name, row_view<Number> const& view, parameters const& p) {
  if (view.batch != p.batch || view.heads != p.heads || view.length != p.query_length) {
    refuse(std::string(name) + " is " + bracketed({view.batch, view.heads, view.length}) +
           ", but the parameters ask for [batch, heads, query length] = " +
           bracketed({p.batch, p.heads, p.query_length}));
  }
  if (view.data == nullptr && p.batch * p.heads * p.query_length != 0) {
    refuse(std::string(name) + " has no data (null pointer)");
  }
}

inline void check_parameters(parameters const& p) {
  check_count("batch", p.batch, 0);
  check_count("query length", p.query_length, 0);
  check_count("query offset", p.query_offset, 0);
  check_count("key length", p.key_length, 0);
  check_count("key offset", p.key_offset, 0);
  check_count("heads", p.heads, 1);
  check_count("key heads", p.key_heads, 1);
  check_count("head dim", p.head_dim, 1);
  check_count("value dim", p.value_dim, 0);
  if (p.heads % p.key_heads != 0) {
    refuse(std::to_string(p.heads) + " heads cannot share " + std::to_string(p.key_heads) +
           " key heads evenly; heads must be a multiple of key heads");
  }
  constexpr std::int64_t last_position = 0x7fffffff; // masks and scores see 32-bit positions
  if (p.query_length > last_position - p.query_offset ||
      p.key_length > last_position - p.key_offset) {
    refuse("positions must stay below 2147483647");
  }
  if (!std::isfinite(p.scale) || p.scale < 0) { // the largest product must be the largest logit
    refuse("scale must be a finite number above 0, or 0 for 1 / sqrt(head dim); got " +
           std::to_string(p.scale));
  }
}

//! Calls visit(name, view, length, heads, dim) for the tensors of a forward or backward call, with
//! the sizes that the parameters ask for.
template <class Tensors, class Visit>
void each_tensor(parameters const& p, Tensors const& t, Visit const& visit) {
  auto const dim_of_values = p.dim_of_values();
  visit("query", t.query, p.query_length, p.heads, p.head_dim);
  visit("key", t.key, p.key_length, p.key_heads, p.head_dim);
  visit("value", t.value, p.key_length, p.key_heads, dim_of_values);
  visit("output", t.output, p.query_length, p.heads, dim_of_values);
  if constexpr (requires { t.output_gradient; }) {
    visit("output gradient", t.output_gradient, p.query_length, p.heads, dim_of_values);
    visit("query gradient", t.query_gradient, p.query_length, p.heads, p.head_dim);
    visit("key gradient", t.key_gradient, p.key_length, p.key_heads, p.head_dim);
    visit("value gradient", t.value_gradient, p.key_length, p.key_heads, dim_of_values);
  }
}

} // namespace detail

//! @brief Checks a call as a whole.
//! @param t forward_tensors or backward_tensors
//! @throws std::invalid_argument with one sentence that names the tensor or size at fault
template <class Tensors>
void check(parameters const& p, Tensors const& t) {
  detail::check_parameters(p);
  detail::each_tensor(p, t, [&](char const* name, auto const& view, auto... sizes) {
    detail::check_tensor(name, view, p.batch, sizes...);
  });
  detail::check_rows("log-sum-exp", t.log_sum_exp, p);
}

} // namespace pipelining::inline v0_3::attention
