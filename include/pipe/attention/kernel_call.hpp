// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Arguments of attention kernels, and demands that they make of a call beyond its shapes.

#include <pipe/attention/head_dims.hpp>
#include <pipe/attention/mask.hpp>
#include <pipe/attention/parameters.hpp>
#include <pipe/attention/score.hpp>

#include <cstdint>
#include <string>
#include <type_traits>

namespace pipelining::inline v0_3::attention::detail {

//! The one argument of the forward kernels.
template <class Element, mask Mask, score Score>
struct forward_call {
  parameters p;                      //!< extents, positions and the scale
  forward_tensors<Element, float> t; //!< what is read and written
  Mask m;                            //!< which keys a query sees
  Score f;                           //!< what becomes of a scaled product
  float scale = 1;                   //!< p.effective_scale(); above 0
};

//! The one argument of the backward kernels.
template <class Element, mask Mask, score Score>
struct backward_call {
  parameters p;                              //!< extents, positions and the scale
  backward_tensors<Element, float, float> t; //!< what is read and written
  row_view<float> mean;                      //!< dO . O, written by the kernel before the sums
  Mask m;                                    //!< which keys a query sees
  Score f;                                   //!< what becomes of a scaled product
  float scale = 1;                           //!< p.effective_scale(); above 0
};

inline constexpr float log2_of_e = 1.4426950408889634f;
inline constexpr float ln_of_2 = 0.6931471805599453f;

//! Kernels move 16 bytes at a time.
template <class Element>
void check_pieces(char const* name, tensor_view<Element> const& view) {
  constexpr std::int64_t piece = 16 / static_cast<std::int64_t>(sizeof(Element));
  if (reinterpret_cast<std::uintptr_t>(view.data) % 16 != 0) {
    refuse(std::string(name) + " does not begin at a multiple of 16 bytes, but kernels move 16 "
                               "bytes at a time");
  }
  auto const check_stride = [&](char const* axis, std::int64_t size, std::int64_t stride) {
    if (size > 1 && stride % piece != 0) {
      refuse(std::string(name) + " has " + axis + " stride " + std::to_string(stride) +
             ", but kernels move 16 bytes at a time, so it must be a multiple of " +
             std::to_string(piece) + " elements");
    }
  };
  check_stride("batch", view.batch, view.batch_stride);
  check_stride("length", view.length, view.length_stride);
  check_stride("head", view.heads, view.head_stride);
}

//! "128", or "192 with values of 128".
inline std::string text_of_dims(std::int64_t query, std::int64_t value) {
  auto text = std::to_string(query);
  if (value != query) {
    text += " with values of ";
    text += std::to_string(value);
  }
  return text;
}

//! Refuses sizes that the kernels cannot run with, whatever the tensors are.
//! @param dims of the kernel
inline void check_kernel_sizes(parameters const& p, int dims) {
  if (p.head_dim != query_dim(dims) || p.dim_of_values() != value_dim(dims)) {
    refuse("the kernel is built for head dim " + text_of_dims(query_dim(dims), value_dim(dims)) +
           ", but the parameters ask for " + text_of_dims(p.head_dim, p.dim_of_values()));
  }
  if (p.batch * p.heads * (p.query_length / 32 + p.key_length / 32 + 2) > 0x7fffffff) {
    refuse("batch * heads * lengths need more blocks than one launch can have");
  }
}

//! Checks a call for kernels of head dims Dim.
//! @throws std::invalid_argument with one sentence, as check
template <int Dim, class Tensors>
void check_for_kernels(parameters const& p, Tensors const& t) {
  check(p, t);
  check_kernel_sizes(p, Dim);
  each_tensor(p, t, [](char const* name, auto const& view, auto...) { check_pieces(name, view); });
}

} // namespace pipelining::inline v0_3::attention::detail
