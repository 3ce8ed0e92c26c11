// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Launches a backward kernel after one that sets its sums of dQ to zero, and one that
//! rounds them where it does not.

#include <pipe/attention/forward.cuh>
#include <pipe/attention/kernel/query_sums.cuh>
#include <pipe/attention/kernel_call.hpp>
#include <pipe/config.hpp>

#include <cuda_runtime_api.h>

namespace pipelining::inline v0_3::attention::detail {

template <class Built, kernel_family Family, int Dim, class Element, mask Mask, score Score>
PIPELINING_KERNEL void __launch_bounds__(start_sums_threads)
  start_sums_kernel(backward_call<Element, Mask, Score> const __grid_constant__ call,
                    query_sums const __grid_constant__ sums) {
  start_sums_block<Family, Dim>(call, sums);
}

template <class Built, kernel_family Family, int Dim, class Element, mask Mask, score Score>
PIPELINING_KERNEL void __launch_bounds__(finishing_threads<Family, Dim>)
  finish_sums_kernel(backward_call<Element, Mask, Score> const __grid_constant__ call,
                     query_sums const __grid_constant__ sums) {
  finish_sums_block<Family, Dim, Element>(call, sums);
}

//! @param start launches the kernel with so many blocks, unless there is no key
//! @param keys  of a tile
template <class Built,
          kernel_family Family,
          int Dim,
          class Element,
          mask Mask,
          score Score,
          class Start>
void launch_backward(launch_memory& memory,
                     backward_call<Element, Mask, Score> const& call,
                     query_sums const& sums,
                     int keys,
                     cudaStream_t stream,
                     Start const& start) {
  auto const& p = call.p;
  auto const steps = static_cast<unsigned>(p.batch * p.heads * sums.steps);
  auto const blocks = static_cast<unsigned>(sums.blocks(p, keys, Family));
  if (steps == 0) {
    return;
  }
  launch(memory,
         start_sums_kernel<Built, Family, Dim, Element, Mask, Score>,
         call,
         {steps},
         start_sums_threads,
         0,
         stream,
         sums);
  if (blocks != 0) {
    start(blocks);
  }
  if (sums.is_rounded) {
    return;
  }
  launch(memory,
         finish_sums_kernel<Built, Family, Dim, Element, Mask, Score>,
         call,
         {finishing_blocks<Family, Dim> * steps},
         finishing_threads<Family, Dim>,
         0,
         stream,
         sums);
}

} // namespace pipelining::inline v0_3::attention::detail
