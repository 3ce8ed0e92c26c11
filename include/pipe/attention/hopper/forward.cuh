// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Forward kernel for sm_90a: one warp copies tiles, two or three warpgroups multiply them.
//!
//! Blocks stay: each takes pieces of work (a tile of queries of one head) until none is left. The
//! copying thread asks the mask which tiles of keys to visit and tells the consumers, tile by tile,
//! in a slot beside the tile. Queries meet the next keys while the weights of the last ones meet
//! their values and while the softmax runs. Warpgroups start products in turn, so that the softmax
//! of one also runs beside the products of the others.
//! @source Shah et al. 2024 (FlashAttention-3), sections 3.1 and 3.2: roles and overlap

#include <pipe/attention/hopper/forward_block.cuh>
#include <pipe/attention/hopper/instructions.cuh>
#include <pipe/attention/hopper/products.cuh>
#include <pipe/attention/hopper/softmax.cuh>
#include <pipe/attention/kernel/warp_matrix.cuh>
#include <pipe/attention/kernel_call.hpp>
#include <pipe/attention/key_splits.hpp>

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace pipelining::inline v0_2::attention {

namespace detail {

//! The copying thread.
template <int Dim, class Element, mask Mask, score Score, class Splits>
__device__ inline void copy_tiles(forward_call<Element, Mask, Score> const& c,
                                  hopper_forward_maps const& maps,
                                  Splits const& splits,
                                  hopper_memory<Dim, Score> const& memory) {
  using shape = hopper_forward_shape<Dim, Score>;
  ring_place<shape::stages> key;
  ring_place<shape::stages> value;
  std::uint32_t query_parity = 1;
  int const tiles = (static_cast<int>(c.p.key_length) + shape::keys - 1) / shape::keys;
  each_work<shape::queries>(c.p, splits.count, [&](hopper_work const& work) {
    wait_for(memory.query_empty(), query_parity);
    query_parity ^= 1;
    arrive_expecting(memory.query_full(), shape::query_bytes);
    for (int consumer = 0; consumer < shape::consumers; ++consumer) {
      load_tile(memory.query(consumer),
                maps.query,
                {work.first + consumer * shape::rows, work.head, work.batch},
                memory.query_full());
    }
    int const begin = tiles * work.split / splits.count;
    int const end = tiles * (work.split + 1) / splits.count;
    each_key_tile<shape::queries, shape::keys>(c, work, begin, end, [&](int tile, bool whole) {
      wait_for(memory.key_empty(key.stage), key.parity ^ 1);
      write_slot(memory.slot(key.stage), 2 * tile + (whole ? 0 : 1));
      arrive_expecting(memory.key_full(key.stage), shape::key_bytes);
      load_tile(memory.key(key.stage),
                maps.key,
                {tile * shape::keys, work.key_head, work.batch},
                memory.key_full(key.stage));
      key.advance();
      wait_for(memory.value_empty(value.stage), value.parity ^ 1);
      arrive_expecting(memory.value_full(value.stage), shape::key_bytes);
      load_tile(memory.value(value.stage),
                maps.value,
                {tile * shape::keys, work.key_head, work.batch},
                memory.value_full(value.stage));
      value.advance();
    });
    wait_for(memory.key_empty(key.stage), key.parity ^ 1);
    write_slot(memory.slot(key.stage), no_more_tiles);
    arrive(memory.key_full(key.stage));
    key.advance();
  });
}

//! One consumer: a warpgroup, or 64 rows of the block.
template <int Dim, class Element, mask Mask, score Score, class Splits>
struct hopper_consumer {
  using shape = hopper_forward_shape<Dim, Score>;
  using call = forward_call<Element, Mask, Score>;
  static constexpr int panels = Dim / panel_width;
  static constexpr bool is_plain = std::is_same_v<Score, plain>;
  static constexpr bool is_split = !std::is_same_v<Splits, no_key_splits>;

  call const& c;
  hopper_forward_maps const& maps;
  Splits const& splits;
  hopper_memory<Dim, Score> memory;
  bool is_first_lane;
  std::uint32_t queries; // where this consumer's tile begins, in pieces
  int turn;              // of this consumer; it is 0's turn first
  ring_place<shape::stages> key;
  ring_place<shape::stages> value;
  std::uint32_t query_parity;
  float output[Dim / 2];                  // [64, Dim] of the warpgroup, not yet divided by the sum
  std::uint32_t weights[shape::keys / 4]; // [64, keys] of the last tile
  row_pair state;

  __forceinline__ __device__ static int consumer() { return thread_anew() / 128; }
  //! Row of this lane within the block's queries; the second half is 8 further down.
  __forceinline__ __device__ static int row() {
    int const number = thread_anew();
    return number / 32 * 16 + number % 32 / 4;
  }
  //! Column of this lane; then 8 further right for each part.
  __forceinline__ __device__ static int column() { return thread_anew() % 4 * 2; }

  __forceinline__ __device__ float factor() const {
    return is_plain ? c.scale * log2_of_e : log2_of_e;
  }

  //! The consumer that may start products after this one.
  __forceinline__ __device__ int next_turn() const {
    return turn + 1 == shape::consumers ? 0 : turn + 1;
  }

  //! Waits for the next tile of keys and says which one it is.
  __forceinline__ __device__ int next_tile() const {
    wait_for(memory.key_full(key.stage), key.parity);
    return __shfl_sync(0xffffffffu, read_slot(memory.slot(key.stage)), 0);
  }
  __forceinline__ __device__ void release_key() {
    arrive_warp(memory.key_empty(key.stage), is_first_lane);
    key.advance();
  }
  __forceinline__ __device__ void release_value() {
    arrive_warp(memory.value_empty(value.stage), is_first_lane);
    value.advance();
  }

  __forceinline__ __device__ void start_logits(float (&s)[shape::keys / 2]) const {
    start_rows<Element, Dim, shape::keys>(
      s, describe_tile(queries, 16), describe_tile(memory.key_piece(key.stage), 16));
  }
  __forceinline__ __device__ void start_output() {
    start_sum<Element>(output, weights, memory.value_piece(value.stage));
  }

  //! Products of a tile to weights relative to the new maximum, still in float.
  __forceinline__ __device__ void
  soften(float (&s)[shape::keys / 2], hopper_work const& work, int told) {
    bool const whole = told % 2 == 0;
    if (!whole || !is_plain) { // else positions do not matter
      int const column_of_tile = told / 2 * shape::keys + column();
      int const row_of_tile = row();
      pair_position const at{work.batch,
                             work.head,
                             static_cast<int>(c.p.query_offset) + work.first + row_of_tile,
                             static_cast<int>(c.p.key_offset) + column_of_tile};
      int const rows = work.rows - row_of_tile;
      int const columns = static_cast<int>(c.p.key_length) - column_of_tile;
      if (whole) {
        make_hopper_logits<true>(s, at, rows, columns, c.scale, c.m, c.f);
      } else {
        make_hopper_logits<false>(s, at, rows, columns, c.scale, c.m, c.f);
      }
    }
    state.add(s, factor());
  }

  //! Shrinks what is summed and rounds the weights, once no product uses either.
  __forceinline__ __device__ void take_weights(float const (&s)[shape::keys / 2]) {
#pragma unroll
    for (int i = 0; i < Dim / 2; ++i) {
      output[i] *= state.shrink[i % 4 / 2];
    }
#pragma unroll
    for (int i = 0; i < shape::keys / 4; ++i) {
      weights[i] = pack<Element>(s[2 * i], s[2 * i + 1]);
    }
  }

  //! Starts from nothing, or from the (O, log-sum-exp) of other keys.
  __forceinline__ __device__ void start(hopper_work const& work) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const r = row() + half * 8;
      int const query = work.first + r;
      bool const carried = !is_split && c.p.from == carry::in && r < work.rows;
      float const lse = carried ? c.t.log_sum_exp.at(work.batch, work.head, query) : -INFINITY;
      bool const some = lse != -INFINITY;
      state.most[half] = some ? lse * log2_of_e / factor() : -INFINITY;
      state.sum[half] = some && column() == 0 ? 1.0f : 0.0f;
#pragma unroll
      for (int n = 0; n < Dim / 8; ++n) {
        float2 before{0, 0};
        if (some) {
          before = unpack<Element>(*reinterpret_cast<std::uint32_t const*>(
            c.t.output.row(work.batch, query, work.head) + n * 8 + column()));
        }
        output[4 * n + 2 * half] = before.x;
        output[4 * n + 2 * half + 1] = before.y;
      }
    }
  }

  //! All tiles of keys.
  __forceinline__ __device__ void visit_tiles(hopper_work const& work) {
    float s[shape::keys / 2];
    int told = next_tile();
    if (told != no_more_tiles) {
      before_products();
      start_logits(s);
      wait_for_products<0>(s);
      release_key();
      soften(s, work, told);
      take_weights(s);
      told = next_tile();
      while (told != no_more_tiles) {
        wait_for(memory.value_full(value.stage), value.parity);
        wait_for_turn(turn);
        before_products();
        start_logits(s);
        start_output();
        give_turn(next_turn());
        wait_for_products<1>(s);
        release_key();
        soften(s, work, told);
        // Before the wait for the outputs: ptxas moves that wait up, but not across a loop, so that
        // the whole softmax stays beside the products.
        told = next_tile();
        wait_for_products<0>(output);
        release_value();
        take_weights(s);
      }
      wait_for(memory.value_full(value.stage), value.parity);
      before_products();
      start_output();
      wait_for_products<0>(output);
      release_value();
    }
    release_key();
  }

  //! Divides by the sums and writes O and the log-sum-exp.
  __forceinline__ __device__ void finish(hopper_work const& work) {
    meet_warpgroup(consumer()); // nobody multiplies queries any more
    auto const tile = memory.query(consumer());
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const r = row() + half * 8;
      float const sum = sum_of_row(state.sum[half]);
      float const share = sum > 0 ? 1 / sum : 0.0f;
      if (column() == 0 && r < work.rows) {
        c.t.log_sum_exp.at(work.batch, work.head, work.first + r) =
          sum > 0 ? state.most[half] * factor() * ln_of_2 + logf(sum) : -INFINITY;
      }
#pragma unroll
      for (int n = 0; n < Dim / 8; ++n) {
        output[4 * n + 2 * half] *= share;
        output[4 * n + 2 * half + 1] *= share;
      }
    }
    keep_hopper_rows<Element>(tile, output, row() % shape::rows, column());
    show_to_copies();
    meet_warpgroup(consumer());
    if (threadIdx.x % 128 == 0) {
      store_tile(maps.output, {work.first + consumer() * shape::rows, work.head, work.batch}, tile);
      wait_for_stores_to_read();
      arrive(memory.query_empty());
    }
  }

  //! The same for a part of the keys: to scratch, in float.
  __forceinline__ __device__ void finish_split(hopper_work const& work) {
    meet_warpgroup(consumer()); // nobody multiplies queries any more
    if (threadIdx.x % 128 == 0) {
      arrive(memory.query_empty());
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const r = row() + half * 8;
      float const sum = sum_of_row(state.sum[half]);
      float const share = sum > 0 ? 1 / sum : 0.0f;
      if (r < work.rows) {
        auto const at =
          ((work.split * c.p.batch + work.batch) * c.p.heads + work.head) * c.p.query_length +
          work.first + r;
        if (column() == 0) {
          splits.log_sum_exp[at] =
            sum > 0 ? state.most[half] * factor() * ln_of_2 + logf(sum) : -INFINITY;
        }
#pragma unroll
        for (int n = 0; n < Dim / 8; ++n) {
          *reinterpret_cast<float2*>(splits.output + at * Dim + n * 8 + column()) = {
            output[4 * n + 2 * half] * share, output[4 * n + 2 * half + 1] * share};
        }
      }
    }
  }

  __forceinline__ __device__ void run() {
    if (next_turn() == 0) {
      give_turn(0);
    }
    each_work<shape::queries>(c.p, splits.count, [&](hopper_work const& work) {
      start(work);
      wait_for(memory.query_full(), query_parity);
      query_parity ^= 1;
      visit_tiles(work);
      if constexpr (is_split) {
        finish_split(work);
      } else {
        finish(work);
      }
    });
    if (threadIdx.x % 128 == 0) {
      wait_for_stores();
    }
  }
};

//! The work of one block.
template <int Dim, class Element, mask Mask, score Score, class Splits>
__device__ inline void forward_hopper_block(forward_call<Element, Mask, Score> const& c,
                                            hopper_forward_maps const& maps,
                                            Splits const& splits,
                                            unsigned char* shared) {
  using shape = hopper_forward_shape<Dim, Score>;
  hopper_memory<Dim, Score> const memory{shared_address(shared)};
  if (threadIdx.x == 0) {
    check_alignment(memory.start);
    begin_barrier(memory.query_full(), 1);
    begin_barrier(memory.query_empty(), shape::consumers);
    for (int stage = 0; stage < shape::stages; ++stage) {
      begin_barrier(memory.key_full(stage), 1);
      begin_barrier(memory.value_full(stage), 1);
      begin_barrier(memory.key_empty(stage), 4 * shape::consumers); // one arrival per warp
      begin_barrier(memory.value_empty(stage), 4 * shape::consumers);
    }
    publish_barriers();
  }
  __syncthreads();
  int const warpgroup = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  if (warpgroup == shape::consumers) {
    give_registers<shape::copy_registers>();
    if (threadIdx.x == 128 * shape::consumers) {
      copy_tiles(c, maps, splits, memory);
    }
  } else {
    take_registers<shape::consumer_registers>();
    hopper_consumer<Dim, Element, Mask, Score, Splits> consumer{
      c, maps, splits, memory, threadIdx.x % 32 == 0, memory.query_piece(warpgroup), warpgroup};
    consumer.run();
  }
}

} // namespace detail

} // namespace pipelining::inline v0_2::attention
