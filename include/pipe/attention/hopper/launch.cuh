// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Demands of launches of the kernels for Hopper, and their tensor maps.

#include <pipe/attention/hopper/code_in_program.cuh>
#include <pipe/attention/hopper/tensor_map.cuh>
#include <pipe/attention/launch_memory.cuh>
#include <pipe/attention/parameters.hpp>

#include <cuda.h>

#include <cstdint>
#include <string>

namespace pipelining::inline v0_3::attention::detail {

//! Refuses GPUs other than Hopper, and programs without code for it.
//! @param code  gives the program's hopper_code; asked only where the GPU is a Hopper
//! @param other the function to call instead
template <class Code>
void check_hopper(launch_memory& memory, Code const& code, char const* other) {
  if (!memory.gpu().is_hopper()) {
    refuse(std::string("the kernels for Hopper run on compute capability 9.0, which the current "
                       "GPU does not have; use ") +
           other);
  }
  switch (code(memory)) {
  case hopper_code::there: return;
  case hopper_code::none:
    refuse(std::string("this program has no sm_90a code of the kernels for Hopper; compile with "
                       "-gencode arch=compute_90a,code=sm_90a, or use ") +
           other);
  case hopper_code::few_registers:
    refuse(std::string("the kernels for Hopper have too few registers in this program; compile "
                       "without -maxrregcount, or use ") +
           other);
  case hopper_code::unclear:
    refuse(std::string("the runtime does not report the launch bounds that tell whether this "
                       "program has sm_90a code of the kernels for Hopper; use ") +
           other);
  }
}

//! Encodes a tensor for tiles of so many rows. Without keys no tile of them is taken, but the
//! engine wants some address.
template <class Element>
CUtensorMap map_of(launch_memory& memory,
                   char const* name,
                   tensor_view<Element> view,
                   int rows,
                   void const* some_address) {
  if (view.length == 0) {
    view.data = static_cast<Element*>(const_cast<void*>(some_address));
  }
  return memory.encode<Element>(name,
                                describe_tensor(name, view, static_cast<std::uint32_t>(rows)));
}

} // namespace pipelining::inline v0_3::attention::detail
