// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Statistics of queries that backward kernels read (log-sum-exp and dO . O), the kernels
//! before them that find these, and those after them that round the sums of dQ to elements.

#include <pipe/attention/head_dims.hpp>
#include <pipe/attention/kernel/warp_matrix.cuh>
#include <pipe/attention/kernel_call.hpp>
#include <pipe/attention/query_sums.hpp>

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace pipelining::inline v0_3::attention::detail {

//! Log-sum-exp times log2 e; 0 for a query that saw nothing, whose weights are all 0 anyway.
__device__ inline float power_of(float lse) {
  return lse == -INFINITY ? 0.0f : lse * log2_of_e;
}

//! dO . O of the rows of a warp, to shared memory and to the scratch tensor.
template <int Rows, int Dim, class Call>
__device__ inline void find_means(
  Call const& c, pair_position block, int first, int row, int rows, float* mean, int lane) {
  using element = std::remove_pointer_t<decltype(c.t.query_gradient.data)>;
  constexpr int lanes = lanes_of_row(Dim); // 16 bytes each
#pragma unroll
  for (int step = 0; step < Rows; step += 32 / lanes) {
    int const line = row + step + lane / lanes;
    float sum = 0;
    auto const place = lane % lanes * 8;
    if (line < rows && place < Dim) {
      auto const o = *reinterpret_cast<uint4 const*>(
        c.t.output.row(block.batch, first + line, block.head) + place);
      auto const g = *reinterpret_cast<uint4 const*>(
        c.t.output_gradient.row(block.batch, first + line, block.head) + place);
      std::uint32_t const left[4] = {o.x, o.y, o.z, o.w};
      std::uint32_t const right[4] = {g.x, g.y, g.z, g.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        auto const a = unpack<element>(left[i]);
        auto const b = unpack<element>(right[i]);
        sum += a.x * b.x + a.y * b.y;
      }
    }
#pragma unroll
    for (int away = lanes / 2; away > 0; away /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, away);
    }
    if (lane % lanes == 0) {
      mean[line] = sum;
      if (line < rows) {
        c.mean.at(block.batch, block.head, first + line) = sum;
      }
    }
  }
}

inline constexpr int start_sums_threads = 128;

//! Numbers of dQ in a step.
template <kernel_family Family, int Dim>
inline constexpr int numbers_of_step = queries_of_step(Family, query_dim(Dim)) * query_dim(Dim);
//! Blocks that round the sums of a step, and their threads: a thread has eight columns of two rows.
template <kernel_family Family, int Dim>
inline constexpr int finishing_blocks = numbers_of_step<Family, Dim> % 4096 == 0
                                          ? numbers_of_step<Family, Dim> / 4096
                                          : (numbers_of_step<Family, Dim> + 8191) / 8192;
template <kernel_family Family, int Dim>
inline constexpr int finishing_threads =
  numbers_of_step<Family, Dim> / 16 / finishing_blocks<Family, Dim>;

//! Before the sums: what is known of the queries of a step, zeros where nobody else clears them,
//! nobody has added. A block for each step.
template <kernel_family Family, int Dim, class Call>
__device__ inline void start_sums_block(Call const& c, query_sums const& to) {
  constexpr int step = queries_of_step(Family, query_dim(Dim));
  constexpr int rows_of_warp = step / (start_sums_threads / 32);
  __shared__ float means[step];
  auto const steps = static_cast<unsigned>(to.steps);
  auto const heads = static_cast<unsigned>(c.p.heads);
  int const first = static_cast<int>(blockIdx.x % steps) * step;
  int const head = static_cast<int>(blockIdx.x / steps % heads);
  int const batch = static_cast<int>(blockIdx.x / steps / heads);
  int const thread = static_cast<int>(threadIdx.x);
  int const rows = min(step, static_cast<int>(c.p.query_length) - first);
  find_means<rows_of_warp, value_dim(Dim)>(
    c, {batch, head, 0, 0}, first, thread / 32 * rows_of_warp, rows, means, thread % 32);
  auto const block = static_cast<std::int64_t>(blockIdx.x);
  auto* const sums = reinterpret_cast<float4*>(to.sums + block * numbers_of_step<Family, Dim>);
  auto const cleared = to.starts_at_0 ? numbers_of_step<Family, Dim> / 4 : 0;
  for (int n = thread; n < cleared; n += start_sums_threads) {
    sums[n] = {0, 0, 0, 0};
  }
  __syncthreads();
  if (thread < step) {
    float const lse =
      thread < rows ? power_of(c.t.log_sum_exp.at(batch, head, first + thread)) : 0.0f;
    reinterpret_cast<float2*>(to.numbers)[block * step + thread] = {lse, means[thread]};
  }
  constexpr int halves = query_sums::halves(Family, query_dim(Dim));
  if (thread < halves) {
    to.after[block * halves + thread] = 0;
    if (block == 0 && thread == 0) {
      *to.ticket = 0;
    }
  }
  auto const slices = query_sums::key_tiles(c.p) * query_sums::slices;
  for (auto n = block * start_sums_threads + thread; n < slices;
       n += std::int64_t{gridDim.x} * start_sums_threads) {
    to.written[n] = 0;
  }
}

//! Whether the portable kernels add to dQ in squares of 32.
//! @tparam Dim of queries
template <int Dim>
inline constexpr bool sums_are_squares = Dim == 64 || Dim == 128 || Dim == 256;

//! Where in the sums of a step a 16 x 8 accumulator lies. The kernels for Hopper have [64 queries,
//! eight columns, 16 rows, lane, 4], so that a lane adds four neighbours, the others
//! [32 columns, 32 rows, 16 rows, eight columns, 4, lane], as their instructions add one number of
//! a lane; or [16 rows, eight columns, 4, lane], where head dims have no such squares.
template <kernel_family Family, int Dim>
__device__ inline int accumulator_place(int sixteen_rows, int eight_columns) {
  if constexpr (Family == kernel_family::hopper) {
    return ((sixteen_rows / 4 * (Dim / 8) + eight_columns) * 4 + sixteen_rows % 4) * 128;
  } else if constexpr (!sums_are_squares<Dim>) {
    return (sixteen_rows * (Dim / 8) + eight_columns) * 128;
  } else {
    int const tile = sixteen_rows / 2 + queries_of_step(Family, Dim) / 32 * (eight_columns / 4);
    return (tile * 8 + sixteen_rows % 2 * 4 + eight_columns % 4) * 128;
  }
}

//! Lanes' shares of the dQ of a step, in all: eight columns of two rows each.
template <kernel_family Family, int Dim>
inline constexpr int shares_of_step = numbers_of_step<Family, Dim> / 16;

//! Writes a share of the dQ of a step, or adds to it.
//! @param sums of the step; null: nobody has added
//! @param at   sequence, head, and the first query of the step
template <kernel_family Family, int Dim, class Element, class Call>
__device__ __forceinline__ void
round_sums(Call const& c, float const* sums, pair_position at, int share) {
  constexpr int dim = query_dim(Dim);
  constexpr bool is_lane_first = Family == kernel_family::hopper;
  int const columns = share % (dim / 8);
  int const line = share / (dim / 8) % 8;
  int const rows = share / dim;
  int const row = at.query + rows * 16 + line;
  auto const* const tile =
    sums + accumulator_place<Family, dim>(rows, columns) + line * (is_lane_first ? 16 : 4);
  float numbers[4][4]; // [lane][number of an accumulator], or the other way round
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    float4 four{0, 0, 0, 0};
    if (sums != nullptr) { // from the L2: blocks on other multiprocessors added
      four = __ldcg(reinterpret_cast<float4 const*>(tile + n * (is_lane_first ? 4 : 32)));
    }
    numbers[n][0] = four.x;
    numbers[n][1] = four.y;
    numbers[n][2] = four.z;
    numbers[n][3] = four.w;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int const r = row + half * 8;
    if (r < static_cast<int>(c.p.query_length)) {
      auto* const to =
        reinterpret_cast<uint4*>(c.t.query_gradient.row(at.batch, r, at.head) + columns * 8);
      uint4 const old = c.p.from == carry::in ? *to : uint4{0, 0, 0, 0};
      std::uint32_t const before[4] = {old.x, old.y, old.z, old.w};
      std::uint32_t out[4];
#pragma unroll
      for (int lane = 0; lane < 4; ++lane) {
        float2 const had = unpack<Element>(before[lane]);
        int const n = 2 * half;
        float const x = is_lane_first ? numbers[lane][n] : numbers[n][lane];
        float const y = is_lane_first ? numbers[lane][n + 1] : numbers[n + 1][lane];
        out[lane] = pack<Element>(had.x + c.scale * x, had.y + c.scale * y);
      }
      *to = {out[0], out[1], out[2], out[3]};
    }
  }
}

//! After the sums: rounds them.
template <kernel_family Family, int Dim, class Element, class Call>
__device__ inline void finish_sums_block(Call const& c, query_sums const& from) {
  constexpr unsigned blocks = finishing_blocks<Family, Dim>;
  auto const steps = static_cast<unsigned>(from.steps);
  auto const heads = static_cast<unsigned>(c.p.heads);
  unsigned const number = blockIdx.x / blocks;
  pair_position const at{static_cast<int>(number / steps / heads),
                         static_cast<int>(number / steps % heads),
                         static_cast<int>(number % steps) * queries_of_step(Family, query_dim(Dim)),
                         0};
  bool const has_sums = from.starts_at_0 || from.after[number] != 0;
  auto const* const sums =
    from.sums + static_cast<std::int64_t>(number) * numbers_of_step<Family, Dim>;
  round_sums<Family, Dim, Element>(
    c,
    has_sums ? sums : nullptr,
    at,
    static_cast<int>(blockIdx.x % blocks * finishing_threads<Family, Dim> + threadIdx.x));
}

} // namespace pipelining::inline v0_3::attention::detail
