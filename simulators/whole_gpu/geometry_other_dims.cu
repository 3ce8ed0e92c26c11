// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/attention/head_dims.hpp>

#include <stdexcept>
#include <string>

#include "geometry.cuh"
#include "work.hpp"

namespace whole_gpu {

work work_of_other_dims(call const& of, gpu const& on) {
  switch (of.dim) {
  case 64: return walk<64>(of, on);
  case 80: return walk<80>(of, on);
  case 96: return walk<96>(of, on);
  case 112: return walk<112>(of, on);
  case 192: return walk<at::head_dims(192, 128)>(of, on);
  case 256: return walk<256>(of, on);
  default:
    throw std::invalid_argument("there are no kernels of head dim " + std::to_string(of.dim));
  }
}

} // namespace whole_gpu
