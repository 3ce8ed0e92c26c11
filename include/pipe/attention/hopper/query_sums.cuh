// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What comes before the backward kernel for Hopper (zeros, dO . O) and after it: rounding
//! the sums of dQ to elements.

#include <pipe/attention/hopper/query_sums.hpp>
#include <pipe/attention/kernel/query_statistics.cuh>
#include <pipe/attention/kernel/warp_matrix.cuh>
#include <pipe/attention/kernel_call.hpp>

#include <cstdint>

namespace pipelining::inline v0_2::attention::detail {

inline constexpr int start_sums_threads = 128;
inline constexpr int finish_sums_threads = 256;

//! Before the sums: dO . O of a step, zeros, nobody has added. A block for each step.
template <int Dim, class Call>
__device__ inline void start_sums_block(Call const& c, hopper_query_sums const& to) {
  constexpr int step = hopper_queries_of_step<Dim>;
  constexpr int rows_of_warp = step / (start_sums_threads / 32);
  __shared__ float means[step];
  auto const steps = static_cast<unsigned>(to.steps);
  auto const heads = static_cast<unsigned>(c.p.heads);
  int const first = static_cast<int>(blockIdx.x % steps) * step;
  int const head = static_cast<int>(blockIdx.x / steps % heads);
  int const batch = static_cast<int>(blockIdx.x / steps / heads);
  int const thread = static_cast<int>(threadIdx.x);
  find_means<rows_of_warp, Dim>(c,
                                {batch, head, 0, 0},
                                first,
                                thread / 32 * rows_of_warp,
                                min(step, static_cast<int>(c.p.query_length) - first),
                                means,
                                thread % 32);
  constexpr int count = hopper_query_sums::tiles_of_step(Dim) * hopper_query_sums::tile;
  auto* const sums =
    reinterpret_cast<float4*>(to.sums + static_cast<std::int64_t>(blockIdx.x) * count);
  for (int n = thread; n < count / 4; n += start_sums_threads) {
    sums[n] = {0, 0, 0, 0};
  }
  if (thread == 0) {
    to.after[blockIdx.x] = 0;
    if (blockIdx.x == 0) {
      *to.ticket = 0;
    }
  }
}

//! After the sums: writes dQ, or adds to it. A block for each tile; a thread has eight columns of
//! two rows.
template <int Dim, class Element, class Call>
__device__ inline void finish_sums_block(Call const& c, hopper_query_sums const& from) {
  auto const steps = static_cast<unsigned>(from.steps);
  auto const heads = static_cast<unsigned>(c.p.heads);
  constexpr unsigned tiles = hopper_query_sums::tiles_of_step(Dim);
  int const which = static_cast<int>(blockIdx.x % tiles);
  unsigned const number = blockIdx.x / tiles;
  int const head = static_cast<int>(number / steps % heads);
  int const batch = static_cast<int>(number / steps / heads);
  int const line = static_cast<int>(threadIdx.x) / 8;
  int const n = static_cast<int>(threadIdx.x) % 8;
  int const row = static_cast<int>(number % steps) * hopper_queries_of_step<Dim> +
                  (Dim == 64 ? which * 64 : 0) + line / 8 * 16 + line % 8;
  int const column = (Dim == 64 ? 0 : which * 64) + n * 8;
  auto const* const tile = reinterpret_cast<float4 const*>(
    from.sums + static_cast<std::int64_t>(blockIdx.x) * hopper_query_sums::tile);
  float4 four[4];
#pragma unroll
  for (int lane = 0; lane < 4; ++lane) {
    four[lane] = tile[n * 128 + line * 4 + lane];
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int const r = row + half * 8;
    if (r < static_cast<int>(c.p.query_length)) {
      auto* const to = reinterpret_cast<uint4*>(c.t.query_gradient.row(batch, r, head) + column);
      uint4 const old = c.p.from == carry::in ? *to : uint4{0, 0, 0, 0};
      std::uint32_t const before[4] = {old.x, old.y, old.z, old.w};
      std::uint32_t out[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float2 const had = unpack<Element>(before[i]);
        float const x = half == 0 ? four[i].x : four[i].z;
        float const y = half == 0 ? four[i].y : four[i].w;
        out[i] = pack<Element>(had.x + c.scale * x, had.y + c.scale * y);
      }
      *to = {out[0], out[1], out[2], out[3]};
    }
  }
}

} // namespace pipelining::inline v0_2::attention::detail
