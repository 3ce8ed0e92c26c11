// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/attention/head_dims.hpp>
#include <pipe/attention/portable/backward_block.cuh>
#include <pipe/attention/portable/forward_block.cuh>
#include <pipe/attention/score.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "geometry.cuh"
#include "work.hpp"

namespace whole_gpu {

namespace {

//! The blocks of a head dim that a multiprocessor with so much shared memory gets.
template <int Dim>
void add_portable(std::vector<portable_block>& to, int shared_bytes) {
  using backward = at::detail::backward_shape<Dim>;
  auto const name = std::to_string(at::detail::query_dim(Dim)) + "_on_" +
                    std::to_string(shared_bytes >> 10) + "_kib";
  auto const add = [&](std::string const& way, int bytes, int threads, int wanted) {
    to.push_back({way + name,
                  bytes,
                  threads,
                  std::min(wanted, shared_bytes / (bytes + at::detail::bytes_around_block))});
  };
  auto const add_forward = [&](std::string const& way, auto score) {
    at::detail::with_forward_shape<Dim, decltype(score)>(shared_bytes, [&]<class Shape> {
      add(way, Shape::shared_bytes, Shape::threads, Shape::blocks);
    });
  };
  add_forward("forward_", at::plain{});
  add_forward("forward_scored_", at::soft_cap{});
  add("backward_", backward::shared_bytes, backward::threads, 1);
}

} // namespace

work work_of(call const& of, gpu const& on) {
  return of.dim == 128 ? walk<128>(of, on) : work_of_other_dims(of, on);
}

std::vector<portable_block> portable_blocks() {
  std::vector<portable_block> out;
  for (int const shared_bytes : {100 << 10, 164 << 10}) {
    add_portable<64>(out, shared_bytes);
    add_portable<80>(out, shared_bytes);
    add_portable<96>(out, shared_bytes);
    add_portable<112>(out, shared_bytes);
    add_portable<128>(out, shared_bytes);
    add_portable<at::head_dims(192, 128)>(out, shared_bytes);
    add_portable<256>(out, shared_bytes);
  }
  return out;
}

} // namespace whole_gpu
