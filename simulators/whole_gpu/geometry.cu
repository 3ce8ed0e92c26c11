// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/attention/head_dims.hpp>
#include <pipe/attention/portable/backward_block.cuh>
#include <pipe/attention/portable/forward_block.cuh>

#include <string>
#include <vector>

#include "geometry.cuh"
#include "work.hpp"

namespace whole_gpu {

namespace {

template <int Dim>
void add_portable(std::vector<portable_block>& to) {
  using forward = at::detail::forward_shape<Dim>;
  using backward = at::detail::backward_shape<Dim>;
  auto const name = std::to_string(at::detail::query_dim(Dim));
  to.push_back({"forward_" + name, forward::shared_bytes, forward::threads, forward::blocks});
  to.push_back({"backward_" + name, backward::shared_bytes, backward::threads, 1});
}

} // namespace

work work_of(call const& of, gpu const& on) {
  switch (of.dim) {
  case 64: return walk<64>(of, on);
  case 128: return walk<128>(of, on);
  case 256: return walk<256>(of, on);
  default: return work_of_other_dims(of, on);
  }
}

std::vector<portable_block> portable_blocks() {
  std::vector<portable_block> out;
  add_portable<64>(out);
  add_portable<80>(out);
  add_portable<96>(out);
  add_portable<112>(out);
  add_portable<128>(out);
  add_portable<at::head_dims(192, 128)>(out);
  add_portable<256>(out);
  return out;
}

} // namespace whole_gpu
