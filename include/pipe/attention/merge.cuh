// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Joins attention over disjoint sets of keys on a GPU: the merge operator as a kernel.

#include <pipe/config.hpp>

#if __cplusplus >= 202002L // what comes below would bury the one error of config.hpp
#include <pipe/attention/built_here.cuh>
#include <pipe/attention/head_dims.hpp>
#include <pipe/attention/kernel/warp_matrix.cuh>
#include <pipe/attention/kernel_call.hpp>
#include <pipe/attention/launch_memory.cuh>
#include <pipe/attention/merge.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace pipelining::inline v0_3::attention {

namespace detail {

//! The one argument of the merge kernel.
template <class Element>
struct merge_call {
  tensor_view<Element> output;             //!< one state, and the merge of both
  row_view<float> lse;                     //!< log-sum-exp of the same
  tensor_view<Element const> other_output; //!< the other state
  row_view<float const> other_lse;         //!< log-sum-exp of the other state
};

inline constexpr int merge_state_threads = 128;

//! The work of one block: some rows.
template <int Dim, class Element>
__device__ inline void merge_block(merge_call<Element> const& c) {
  constexpr int lanes = lanes_of_row(Dim);
  auto const row = std::int64_t{blockIdx.x} * (merge_state_threads / lanes) + threadIdx.x / lanes;
  bool const there = row < c.output.batch * c.output.heads * c.output.length;
  auto const position = there ? row % c.output.length : 0;
  auto const head = there ? row / c.output.length % c.output.heads : 0;
  auto const batch = there ? row / c.output.length / c.output.heads : 0;
  merge_shares<float> shares;
  if (there) {
    shares =
      shares_of<float>(c.lse.at(batch, head, position), c.other_lse.at(batch, head, position));
  }
  auto const piece = threadIdx.x % lanes * 8;
  if (there && piece < Dim) {
    auto* const to = reinterpret_cast<uint4*>(c.output.row(batch, position, head) + piece);
    uint4 mine = *to;
    auto const theirs =
      *reinterpret_cast<uint4 const*>(c.other_output.row(batch, position, head) + piece);
    auto const join = [&](std::uint32_t& a, std::uint32_t b) {
      auto const x = unpack<Element>(a);
      auto const y = unpack<Element>(b);
      a = pack<Element>(shares.first * x.x + shares.second * y.x,
                        shares.first * x.y + shares.second * y.y);
    };
    join(mine.x, theirs.x);
    join(mine.y, theirs.y);
    join(mine.z, theirs.z);
    join(mine.w, theirs.w);
    *to = mine;
  }
  __syncwarp(); // all lanes of the row have read its log-sum-exp
  if (there && threadIdx.x % lanes == 0) {
    c.lse.at(batch, head, position) = shares.log_sum_exp;
  }
}

template <class Built, int Dim, class Element>
PIPELINING_KERNEL void __launch_bounds__(merge_state_threads)
  merge_kernel(merge_call<Element> const __grid_constant__ call) {
  merge_block<Dim>(call);
}

} // namespace detail

//! @brief Merges the state (other_output, other_lse) of other keys into (output, lse), on the GPU
//! of the stream. For slices of the keys that were attended to apart, here or on another device.
//!
//! @tparam Dim as of forward_on_device
//! @param output [batch, length, heads, elements of a value], bf16 or fp16 in device memory, read
//! and written
//! @param lse    [batch, heads, length], natural logarithm, read and written
//! @param other_output as output, of a disjoint set of keys
//! @param other_lse    as lse, of the same set
//! @param stream in whose order the kernel runs; the call does not wait for it
//! @throws std::invalid_argument where the four shapes do not agree or a tensor is not made of
//! pieces of 16 bytes, before any launch
//! @throws cuda::error where the launch fails
template <int Dim, class Element, class Built = built_here>
void merge_on_device(tensor_view<Element> output,
                     row_view<float> lse,
                     tensor_view<std::type_identity_t<Element> const> other_output,
                     row_view<float const> other_lse,
                     cudaStream_t stream) {
  static_assert(detail::is_kernel_element<Element>,
                "attention::merge_on_device: elements must be __nv_bfloat16 or __half; use "
                "attention::merge for float");
  constexpr int dim = detail::value_dim(Dim);
  static_assert(dim % 16 == 0 && dim <= 256,
                "attention::merge_on_device: the head dim must be a multiple of 16 up to 256, "
                "because a row is shared out to the lanes of one warp");
  auto p = detail::parameters_of(output);
  p.head_dim = dim;
  detail::check_tensor("output", output, p.batch, p.query_length, p.heads, p.head_dim);
  detail::check_tensor("other output", other_output, p.batch, p.query_length, p.heads, p.head_dim);
  detail::check_rows("log-sum-exp", lse, p);
  detail::check_rows("other log-sum-exp", other_lse, p);
  detail::check_pieces("output", output);
  detail::check_pieces("other output", other_output);
  detail::check_kernel_sizes(p, dim);
  auto const rows = p.batch * p.heads * p.query_length;
  constexpr int rows_of_block = detail::merge_state_threads / detail::lanes_of_row(dim);
  if (rows != 0) {
    launch_memory once;
    detail::launcher const launch{once, stream};
    launch({(rows + rows_of_block - 1) / rows_of_block, detail::merge_state_threads},
           detail::merge_kernel<Built, dim, Element>,
           {output, lse, other_output, other_lse});
  }
}

} // namespace pipelining::inline v0_3::attention
#endif
