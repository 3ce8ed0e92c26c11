// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Forward kernel for sm_90a: one warp copies tiles, two or three warpgroups multiply them.
//!
//! Blocks stay: each takes the next piece of work (a tile of queries of one head) until none is
//! left. The copying thread finds these out, asks the mask which tiles of keys to visit and tells
//! the consumers, in slots next to the tiles. Queries meet the next keys while the weights of the
//! last ones meet their values and while the softmax runs. Warpgroups start products in turn, so
//! that the softmax of one also runs next to the products of the others.
//! @source Shah et al. 2024 (FlashAttention-3), sections 3.1 and 3.2: roles and overlap

#include <pipe/attention/hopper/forward_block.cuh>
#include <pipe/attention/hopper/forward_copies.cuh>
#include <pipe/attention/hopper/instructions.cuh>
#include <pipe/attention/hopper/products.cuh>
#include <pipe/attention/hopper/softmax.cuh>
#include <pipe/attention/kernel/warp_matrix.cuh>
#include <pipe/attention/kernel_call.hpp>
#include <pipe/attention/key_splits.hpp>

#include <climits>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace pipelining::inline v0_3::attention {

namespace detail {

//! One consumer: a warpgroup, or 64 rows of the block.
template <int Dim, class Element, mask Mask, score Score, class Splits>
struct hopper_consumer {
  using shape = hopper_forward_shape<Dim, Score>;
  using call = forward_call<Element, Mask, Score>;
  static constexpr bool is_plain = std::is_same_v<Score, plain>;
  static constexpr bool is_split = !std::is_same_v<Splits, no_key_splits>;
  //! True where outputs leave while the next piece begins.
  static constexpr bool leaves_late = !is_split && shape::outputs_apart;

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
  float output[shape::value_dim / 2];     // [64, value_dim], not yet divided by the sum
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

  //! Of the piece of work, read anew: it takes no register meanwhile.
  __forceinline__ __device__ int work(work_number n) const {
    return read_slot(memory.work(query_parity ^ 1, n));
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
  __forceinline__ __device__ void release_queries() const {
    arrive_warp(memory.query_empty(), is_first_lane);
  }

  __forceinline__ __device__ void start_logits(float (&s)[shape::keys / 2]) const {
    start_rows<Element, shape::query_dim, shape::keys>(
      s, describe_tile(queries, 16), describe_tile(memory.key_piece(key.stage), 16));
  }
  __forceinline__ __device__ void start_output() {
    start_sum<Element>(output, weights, memory.value_piece(value.stage));
  }

  //! Products of a tile to powers of two of their weights. Whether the bases have to follow.
  __forceinline__ __device__ bool make_powers(float (&s)[shape::keys / 2], int told) const {
    bool const whole = told % 2 == 0;
    if (!whole || !is_plain) { // else positions do not matter
      int const column_of_tile = told / 2 * shape::keys + column();
      int const row_of_tile = row();
      pair_position const at{work(work_number::batch),
                             work(work_number::head),
                             static_cast<int>(c.p.query_offset) + work(work_number::first) +
                               row_of_tile,
                             static_cast<int>(c.p.key_offset) + column_of_tile};
      int const rows = work(work_number::rows) - row_of_tile;
      int const columns = static_cast<int>(c.p.key_length) - column_of_tile;
      if (whole) {
        make_hopper_logits<true>(s, at, rows, columns, c.scale, c.m, c.f);
      } else {
        make_hopper_logits<false>(s, at, rows, columns, c.scale, c.m, c.f);
      }
    }
    return state.compare(s, factor());
  }

  //! Rounds the weights, once no product uses the last ones.
  __forceinline__ __device__ void take_weights(float const (&s)[shape::keys / 2]) {
#pragma unroll
    for (int i = 0; i < shape::keys / 4; ++i) {
      weights[i] = pack<Element>(s[2 * i], s[2 * i + 1]);
    }
  }

  //! Starts from nothing, or from the (O, log-sum-exp) of other keys.
  __forceinline__ __device__ void start() {
    int const rows = work(work_number::rows);
    int const head = work(work_number::head);
    int const batch = work(work_number::batch);
    state.most = INT_MIN;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const r = row() + half * 8;
      int const query = work(work_number::first) + r;
      bool const carried = !is_split && c.p.from == carry::in && r < rows;
      float const lse = carried ? c.t.log_sum_exp.at(batch, head, query) : -INFINITY;
      bool const some = lse != -INFINITY;
      state.base[half] = some ? lse * log2_of_e : 0.0f;
      state.sum[half] = some && column() == 0 ? 1.0f : 0.0f;
#pragma unroll
      for (int n = 0; n < shape::value_dim / 8; ++n) {
        float2 before{0, 0};
        if (some) {
          before = unpack<Element>(*reinterpret_cast<std::uint32_t const*>(
            c.t.output.row(batch, query, head) + n * 8 + column()));
        }
        output[4 * n + 2 * half] = before.x;
        output[4 * n + 2 * half + 1] = before.y;
      }
    }
  }

  //! All tiles of keys. @param begin what is done before the first sums, while the first logits are
  //! made
  template <class Begin>
  __forceinline__ __device__ void visit_tiles(Begin const& begin) {
    // One warpgroup of three computes exponentials next to the products of the others; its own
    // outputs, which take an eighth of a pass, are over by then.
    constexpr bool is_beside_outputs = shape::consumers == 2;
    float s[shape::keys / 2];
    int told = next_tile();
    if (told != no_more_tiles) {
      before_products();
      start_logits(s);
      begin();
      wait_for_products<0>(s);
      release_key();
      if (make_powers(s, told)) {
        state.follow(s, output);
      }
      state.add(s);
      take_weights(s);
      told = next_tile();
      wait_for(memory.value_full(value.stage), value.parity);
      while (told != no_more_tiles) {
        wait_for_turn(turn);
        before_products();
        start_logits(s);
        start_output();
        give_turn(next_turn());
        wait_for_products<1>(s);
        release_key();
        if (make_powers(s, told)) {
          wait_for_products<0>(output);
          state.follow(s, output);
        }
        if constexpr (is_beside_outputs) {
          state.add(s);
        }
        // Before the wait for the outputs: ptxas moves that wait up, but not across a loop, so that
        // the softmax stays next to the products.
        told = next_tile();
        wait_for_products<0>(output);
        release_value();
        if constexpr (!is_beside_outputs) {
          state.add(s);
        }
        take_weights(s);
        wait_for(memory.value_full(value.stage), value.parity);
      }
      release_queries();
      before_products();
      start_output();
      wait_for_products<0>(output);
      release_value();
    } else {
      begin();
      release_queries();
    }
    release_key();
  }

  //! Divides by the sums, rounds O and writes the log-sum-exp.
  __forceinline__ __device__ void
  round_outputs(std::uint32_t (&rounded)[shape::value_dim / 4]) const {
    int const rows = work(work_number::rows);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const r = row() + half * 8;
      float const sum = sum_of_row(state.sum[half]);
      float const share = sum > 0 ? 1 / sum : 0.0f;
      if (column() == 0 && r < rows) {
        c.t.log_sum_exp.at(work(work_number::batch),
                           work(work_number::head),
                           work(work_number::first) + r) = log_sum_exp(sum, half);
      }
#pragma unroll
      for (int n = 0; n < shape::value_dim / 8; ++n) {
        rounded[2 * n + half] =
          pack<Element>(output[4 * n + 2 * half] * share, output[4 * n + 2 * half + 1] * share);
      }
    }
  }

  //! Writes O of the last piece of work, if there was one.
  __forceinline__ __device__ void
  write_outputs(std::uint32_t const (&rounded)[shape::value_dim / 4], std::uint32_t which) const {
    auto const of = [&](work_number n) { return read_slot(memory.work(which, n)); };
    if constexpr (shape::outputs_apart) {
      if (threadIdx.x % 128 == 0) {
        wait_for_stores_to_read(); // of the piece before
      }
      meet_warpgroup(consumer());
    } else { // until nobody multiplies the values in their place any more
      wait_for(memory.value_empty(consumer()), value.parity ^ (consumer() < value.stage ? 0 : 1));
    }
    auto const tile = memory.output(consumer());
    int const thread = thread_anew() % 128;
    keep_hopper_rows<row_elements(shape::value_dim)>(tile, rounded, thread / 32 * 16, thread % 32);
    show_to_copies();
    meet_warpgroup(consumer());
    if (threadIdx.x % 128 == 0 && of(work_number::rows) > 0) {
      tile_place const to{of(work_number::first) + consumer() * shape::rows,
                          of(work_number::head),
                          of(work_number::batch)};
      store_tile<shape::value_dim, shape::rows>(maps.output, to, tile);
      if constexpr (!shape::outputs_apart) {
        wait_for_stores_to_read();
        arrive(memory.outputs_gone());
      }
    }
  }

  //! The same for a part of the keys: to scratch, in float.
  __forceinline__ __device__ void finish_split() {
    int const rows = work(work_number::rows);
    auto const begin =
      ((work(work_number::split) * c.p.batch + work(work_number::batch)) * c.p.heads +
       work(work_number::head)) *
        c.p.query_length +
      work(work_number::first);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const r = row() + half * 8;
      float const sum = sum_of_row(state.sum[half]);
      float const share = sum > 0 ? 1 / sum : 0.0f;
      if (r < rows) {
        auto const at = begin + r;
        if (column() == 0) {
          splits.log_sum_exp[at] = log_sum_exp(sum, half);
        }
#pragma unroll
        for (int n = 0; n < shape::value_dim / 8; ++n) {
          *reinterpret_cast<float2*>(splits.output + at * shape::value_dim + n * 8 + column()) = {
            output[4 * n + 2 * half] * share, output[4 * n + 2 * half + 1] * share};
        }
      }
    }
  }

  __forceinline__ __device__ float log_sum_exp(float sum, int half) const {
    return sum > 0 ? state.base[half] * ln_of_2 + logf(sum) : -INFINITY;
  }

  __forceinline__ __device__ void run() {
    if (next_turn() == 0) {
      give_turn(0);
    }
    std::uint32_t rounded[shape::value_dim / 4] = {};
    wait_for(memory.query_full(), 0);
    query_parity = 1;
    while (work(work_number::first) != no_more_work) {
      start();
      visit_tiles([&] {
        if constexpr (leaves_late) {
          write_outputs(rounded, query_parity);
        }
      });
      if constexpr (is_split) {
        finish_split();
      } else if constexpr (leaves_late) {
        round_outputs(rounded);
      } else {
        std::uint32_t rounded_now[shape::value_dim / 4];
        round_outputs(rounded_now);
        write_outputs(rounded_now, query_parity ^ 1);
      }
      wait_for(memory.query_full(), query_parity);
      query_parity ^= 1;
    }
    if constexpr (leaves_late) {
      write_outputs(rounded, query_parity);
    }
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
                                            piece_order const& order,
                                            unsigned char* shared) {
  using shape = hopper_forward_shape<Dim, Score>;
  using consumer_type = hopper_consumer<Dim, Element, Mask, Score, Splits>;
  hopper_memory<Dim, Score> const memory{shared_address(shared)};
  if (threadIdx.x == 0) {
    check_alignment(memory.start);
    begin_barrier(memory.query_full(), 1);
    begin_barrier(memory.query_empty(), 4 * shape::consumers);
    begin_barrier(memory.outputs_gone(), shape::consumers);
    for (int stage = 0; stage < shape::stages; ++stage) {
      begin_barrier(memory.key_full(stage), 1);
      begin_barrier(memory.value_full(stage), 1);
      begin_barrier(memory.key_empty(stage), 4 * shape::consumers); // one arrival per warp
      begin_barrier(memory.value_empty(stage), 4 * shape::consumers);
    }
    write_slot(memory.work(1, work_number::rows), 0); // before the first piece
    publish_barriers();
  }
  __syncthreads();
  int const warpgroup = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  if (warpgroup == shape::consumers) {
    give_registers<shape::copy_registers>();
    if (threadIdx.x == 128 * shape::consumers) {
      await_copies_by(maps.query, maps.key, maps.value, maps.output);
      copy_tiles(c, maps, splits, order, memory);
    }
  } else {
    take_registers<shape::consumer_registers>();
    consumer_type consumer{
      c, maps, splits, memory, threadIdx.x % 32 == 0, memory.query_piece(warpgroup), warpgroup};
    consumer.run();
  }
}

} // namespace detail

} // namespace pipelining::inline v0_3::attention
