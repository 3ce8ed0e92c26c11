// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief All stages of a SlimPipeExchange on device 0.

#include <pipe/flow/shape.hpp>
#include <pipe/schedule/schedule.hpp>

namespace support {

//! @brief The same splits, merges and sums as in the pipeline, one microbatch after the other.
template <class Exchange>
struct exchange_on_one_device : Exchange {
  [[nodiscard]] static constexpr int device_of(pipelining::shape const&, int, int) { return 0; }
  static void order(pipelining::shape const& extents, int device, pipelining::row_writer& out) {
    for (int m = 0; m < extents.microbatches && device == 0; ++m) {
      for (int stage = 0; stage < extents.stages(); ++stage)
        out.forward(stage, m);
      for (int stage = extents.stages(); stage-- > 0;)
        out.backward(stage, m);
    }
  }
};

} // namespace support
