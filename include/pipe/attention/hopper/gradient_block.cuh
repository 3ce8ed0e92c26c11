// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What the backward kernels for Hopper share: tile sizes, shared memory, roles, and weights
//! and gradients on the accumulators of wgmma.
//!
//! A block keeps two tiles of its own (queries and dO, or keys and values) and visits steps of the
//! other two, which come through a ring of stages.

#include <pipe/attention/hopper/forward_block.cuh>
#include <pipe/attention/hopper/instructions.cuh>
#include <pipe/attention/hopper/products.cuh>
#include <pipe/attention/kernel/warp_matrix.cuh>
#include <pipe/attention/kernel_call.hpp>

#include <cuda.h>

#include <cstdint>
#include <type_traits>

namespace pipelining::inline v0_2::attention {

namespace detail {

//! Tile sizes of a backward kernel for Hopper. Step: rows of the other kind in one stage.
template <int Dim, int Step>
struct hopper_gradient_shape {
  static_assert(Dim == 64 || Dim == 128,
                "attention::hopper_gradient_shape: the head dim must be 64 or 128, because the "
                "registers of a warpgroup hold no wider sums beside the weights");
  static constexpr int dim = Dim;
  static constexpr int consumers = 2;
  static constexpr int threads = 128 * (1 + consumers);
  static constexpr int rows = 64; //!< of one consumer
  static constexpr int own = consumers * rows;
  static constexpr int step = Step;
  static constexpr int stages = Dim * Step == 128 * 128 ? 2 : 4;
  static constexpr int row_bytes = Dim * 2;
  static constexpr int consumer_bytes = rows * row_bytes; //!< one tile of one consumer
  static constexpr int own_bytes = 2 * consumers * consumer_bytes;
  static constexpr int tile_bytes = Step * row_bytes; //!< one tile of a stage
  static constexpr int number_bytes = 2 * Step * 4;   //!< of a stage: two floats per row
  static constexpr int barrier_bytes = 8 * (2 + 2 * stages) + 8 * stages;
  static constexpr int shared_bytes =
    own_bytes + stages * (2 * tile_bytes + number_bytes) + barrier_bytes;
  // What setmaxnreg hands over: the launch gives every thread 168.
  static constexpr int copy_registers = 24;
  static constexpr int consumer_registers = 240;
};

//! Scores beside plain need some registers themselves.
template <score Score>
inline constexpr int hopper_keys_of_step = std::is_same_v<Score, plain> ? 128 : 64;

} // namespace detail

//! @brief Tile sizes of the kernel of dQ for Hopper: 128 queries stay, keys come in steps.
template <int Dim, score Score = plain>
using hopper_query_gradient_shape =
  detail::hopper_gradient_shape<Dim, detail::hopper_keys_of_step<Score>>;

//! @brief Tile sizes of the kernel of dK and dV for Hopper: 128 keys stay, queries come in steps.
template <int Dim>
using hopper_key_gradient_shape = detail::hopper_gradient_shape<Dim, 64>;

//! @brief The tensors of a backward call as the copy engine sees them. Boxes: `_tile` the rows of
//! one consumer, `_step` those of one stage.
struct hopper_backward_maps {
  CUtensorMap query_tile;           //!< for the kernel of dQ
  CUtensorMap output_gradient_tile; //!< for the kernel of dQ
  CUtensorMap query_gradient_tile;  //!< written by the kernel of dQ
  CUtensorMap key_step;             //!< for the kernel of dQ
  CUtensorMap value_step;           //!< for the kernel of dQ
  CUtensorMap key_tile;             //!< for the kernel of dK and dV
  CUtensorMap value_tile;           //!< for the kernel of dK and dV
  CUtensorMap query_step;           //!< for the kernel of dK and dV
  CUtensorMap output_gradient_step; //!< for the kernel of dK and dV
};

namespace detail {

//! Shared memory of a block: its own tiles [which][consumer][panel][row], stages [which][panel]
//! [row], numbers, barriers, slots. `which` is 0 or 1: queries and dO, or keys and values.
template <class Shape>
struct gradient_memory {
  std::uint32_t start; // shared address, a multiple of 1024

  //! Where tiles begin, in the units of descriptors.
  __device__ std::uint32_t own_piece(int which, int consumer) const {
    return start / piece_bytes +
           (which * Shape::consumers + consumer) * (Shape::consumer_bytes / piece_bytes);
  }
  __device__ std::uint32_t step_piece(int which, int stage) const {
    return start / piece_bytes + Shape::own_bytes / piece_bytes +
           (2 * stage + which) * (Shape::tile_bytes / piece_bytes);
  }
  __device__ std::uint32_t own(int which, int consumer) const {
    return start + (which * Shape::consumers + consumer) * Shape::consumer_bytes;
  }
  __device__ std::uint32_t step(int which, int stage) const {
    return start + Shape::own_bytes + (2 * stage + which) * Shape::tile_bytes;
  }
  //! Floats, two for each row of the stage.
  __device__ std::uint32_t numbers(int stage) const {
    return step(0, Shape::stages) + stage * Shape::number_bytes;
  }
  __device__ std::uint32_t barrier(int n) const { return numbers(Shape::stages) + 8 * n; }
  __device__ std::uint32_t own_full() const { return barrier(0); }
  __device__ std::uint32_t own_empty() const { return barrier(1); }
  __device__ std::uint32_t full(int stage) const { return barrier(2 + stage); }
  __device__ std::uint32_t empty(int stage) const { return barrier(2 + Shape::stages + stage); }
  //! What a stage holds: 2 * tile, + 1 where every pair has to be asked; or no_more_tiles.
  __device__ std::uint32_t slot(int stage) const {
    return barrier(2 + 2 * Shape::stages) + 4 * stage;
  }
  //! Of which query head, where that differs between stages.
  __device__ std::uint32_t head(int stage) const { return slot(Shape::stages) + 4 * stage; }
};

//! A consumer, that is a warpgroup with 64 rows of the block, and its way through the stages.
template <class Shape>
struct gradient_consumer {
  gradient_memory<Shape> memory;
  ring_place<Shape::stages> place;
  std::uint32_t own_parity;

  __forceinline__ __device__ static int consumer() { return thread_anew() / 128; }
  __forceinline__ __device__ static int lane() { return thread_anew() % 32; }
  //! Row of this lane within the block's own; the second half is 8 further down.
  __forceinline__ __device__ static int row() {
    int const number = thread_anew();
    return number / 32 * 16 + number % 32 / 4;
  }
  //! Column of this lane; then 8 further right for each part.
  __forceinline__ __device__ static int column() { return thread_anew() % 4 * 2; }

  //! Waits for the next stage and says which tile it holds.
  __forceinline__ __device__ int next_tile() const {
    wait_for(memory.full(place.stage), place.parity);
    return read_slot(memory.slot(place.stage));
  }
  //! The stage that next_tile told of.
  __forceinline__ __device__ int take() {
    int const stage = place.stage;
    place.advance();
    return stage;
  }
  __forceinline__ __device__ void release(int stage) const {
    arrive_warp(memory.empty(stage), lane() == 0);
  }
  __forceinline__ __device__ void wait_for_own() {
    wait_for(memory.own_full(), own_parity);
    own_parity ^= 1;
  }
  //! Products of own tile `which` with that of a stage.
  template <class Element, int Count>
  __forceinline__ __device__ void start(float (&d)[Count], int which, int stage) const {
    start_rows<Element, Shape::dim>(d,
                                    describe_tile(memory.own_piece(which, consumer()), 16),
                                    describe_tile(memory.step_piece(which, stage), 16));
  }
};

//! Makes the barriers and gives each warpgroup its role: copy(memory, lane) for one warp,
//! consume(consumer) for two warpgroups.
//! @param full_arrivals on a full stage, beside its bytes. @param own_arrivals on free own tiles
template <class Shape, class Copy, class Consume>
__device__ __forceinline__ void run_roles(unsigned char* shared,
                                          int full_arrivals,
                                          int own_arrivals,
                                          Copy const& copy,
                                          Consume const& consume) {
  gradient_memory<Shape> const memory{shared_address(shared)};
  if (threadIdx.x == 0) {
    check_alignment(memory.start);
    begin_barrier(memory.own_full(), 1);
    begin_barrier(memory.own_empty(), own_arrivals);
    for (int stage = 0; stage < Shape::stages; ++stage) {
      begin_barrier(memory.full(stage), full_arrivals);
      begin_barrier(memory.empty(stage), 4 * Shape::consumers); // one arrival per warp
    }
    publish_barriers();
  }
  __syncthreads();
  int const warpgroup = static_cast<int>(threadIdx.x) / 128;
  int const lane = static_cast<int>(threadIdx.x) % 32;
  if (warpgroup == Shape::consumers) {
    give_registers<Shape::copy_registers>();
    if (threadIdx.x < 128 * Shape::consumers + 32) {
      copy(memory, lane);
    }
  } else {
    take_registers<Shape::consumer_registers>();
    consume(gradient_consumer<Shape>{memory, {}, 0});
  }
}

//! The same number, of which the compiler knows nothing: what was made of it before is made again,
//! and not kept in a register across the loop over tiles.
__device__ inline int anew(int number) {
  asm volatile("" : "+r"(number));
  return number;
}

__device__ inline float2 read_two(std::uint32_t from) {
  float2 two;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(two.x), "=f"(two.y) : "r"(from));
  return two;
}

//! A number of the query of each accumulator of part n: 4 n ... 4 n + 3.
struct numbers_of_part {
  float of[4];
};

//! Products to weights times derivatives of the score, in place.
//! @tparam Whole  every pair exists and is kept
//! @tparam Across rows are keys and columns queries
//! @param at   of the lane's first row and column
//! @param rows that exist, counted from there; columns likewise
//! @param lse  of part n: log-sum-exps as powers of two
//! @param keep of (part n, its weights): takes the weights alone
template <bool Whole, bool Across, int Count, mask Mask, score Score, class Lse, class Keep>
__device__ __forceinline__ void make_hopper_weights(float (&s)[Count],
                                                    pair_position at,
                                                    int rows,
                                                    int columns,
                                                    float scale,
                                                    Mask const& m,
                                                    Score const& f,
                                                    Lse const& lse,
                                                    Keep const& keep) {
  constexpr bool is_plain = std::is_same_v<Score, plain>;
  float const factor = is_plain ? scale * log2_of_e : log2_of_e;
#pragma unroll
  for (int n = 0; n < Count / 4; ++n) {
    numbers_of_part const base = lse(n);
    float weight[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float& x = s[4 * n + e];
      int const row = e / 2 * 8;
      int const column = n * 8 + e % 2;
      pair_position const here{
        at.batch, at.head, at.query + (Across ? column : row), at.key + (Across ? row : column)};
      weight[e] = 0;
      if (Whole || (row < rows && column < columns && m.keep(here))) {
        float const product = x * scale;
        float logit = x;
        if constexpr (!is_plain) {
          logit = static_cast<float>(f.value(product, here));
        }
        weight[e] = power_of_two(logit * factor - base.of[e]);
        x = weight[e];
        if constexpr (!is_plain) {
          x *= static_cast<float>(f.derivative(product, logit, here));
        }
      } else {
        x = 0;
      }
    }
    keep(n, weight);
    if constexpr (!Whole || !is_plain) {
      asm volatile("" ::: "memory"); // else what masks read is read for all columns at once
    }
  }
}

//! Gradients of the products, rounded to elements: s (d - mean), where d is dO . V.
template <class Element, int Count, class Mean>
__device__ __forceinline__ void make_hopper_gradients(std::uint32_t (&to)[Count / 2],
                                                      float const (&s)[Count],
                                                      float const (&d)[Count],
                                                      Mean const& mean) {
#pragma unroll
  for (int n = 0; n < Count / 4; ++n) {
    numbers_of_part const base = mean(n);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const i = 4 * n + 2 * half;
      to[2 * n + half] = pack<Element>(s[i] * (d[i] - base.of[2 * half]),
                                       s[i + 1] * (d[i + 1] - base.of[2 * half + 1]));
    }
  }
}

} // namespace detail

} // namespace pipelining::inline v0_2::attention
