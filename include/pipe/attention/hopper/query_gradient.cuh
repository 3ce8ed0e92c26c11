// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Kernel of dQ for sm_90a: one warp copies tiles, two warpgroups multiply them.
//!
//! A block keeps 128 queries of one head with their dO and visits the keys as forward does. The
//! weights are made while dO meets the values; the gradients of the last products meet their keys
//! while queries meet the next ones.
//!
//! dQ and the pair (dK, dV) have a kernel each, as in backward_mma.cuh: seven products of tiles in
//! place of five. In return every sum stays in registers and has one order: no dQ in float in
//! memory (query_length x heads x dim), no atomics, no block that waits for another, and no tile
//! of gradients through shared memory, whose bandwidth is what limits the five. Seven products at
//! 1.9 times the rate at which FlashAttention-2 does five (250 to 330 TFLOP/s on an H200) are 1.35
//! times as fast. Published forward kernels of this build, with fewer products for each power, do
//! 590 to 690 TFLOP/s there, so that is expected; it has not been measured.
//! @source Dao 2023 (FlashAttention-2), section 3.1, for the formulas; Shah et al. 2024
//! (FlashAttention-3), sections 3.1 and 3.2, for roles and overlap

#include <pipe/attention/hopper/gradient_block.cuh>
#include <pipe/attention/kernel/query_statistics.cuh>

#include <cstdint>

namespace pipelining::inline v0_2::attention::detail {

//! The copying thread.
template <int Dim, class Element, mask Mask, score Score>
__device__ inline void
copy_for_queries(backward_call<Element, Mask, Score> const& c,
                 hopper_backward_maps const& maps,
                 gradient_memory<hopper_query_gradient_shape<Dim, Score>> const& memory) {
  using shape = hopper_query_gradient_shape<Dim, Score>;
  ring_place<shape::stages> place;
  std::uint32_t own_parity = 1;
  int const tiles = (static_cast<int>(c.p.key_length) + shape::step - 1) / shape::step;
  each_work<shape::own>(c.p, 1, [&](hopper_work const& work) {
    wait_for(memory.own_empty(), own_parity);
    own_parity ^= 1;
    arrive_expecting(memory.own_full(), shape::own_bytes);
    for (int consumer = 0; consumer < shape::consumers; ++consumer) {
      tile_place const at{work.first + consumer * shape::rows, work.head, work.batch};
      load_tile(memory.own(0, consumer), maps.query_tile, at, memory.own_full());
      load_tile(memory.own(1, consumer), maps.output_gradient_tile, at, memory.own_full());
    }
    each_key_tile<shape::own, shape::step>(c, work, 0, tiles, [&](int tile, bool whole) {
      wait_for(memory.empty(place.stage), place.parity ^ 1);
      write_slot(memory.slot(place.stage), 2 * tile + (whole ? 0 : 1));
      arrive_expecting(memory.full(place.stage), 2 * shape::tile_bytes);
      tile_place const from{tile * shape::step, work.key_head, work.batch};
      load_tile(memory.step(0, place.stage), maps.key_step, from, memory.full(place.stage));
      load_tile(memory.step(1, place.stage), maps.value_step, from, memory.full(place.stage));
      place.advance();
    });
    wait_for(memory.empty(place.stage), place.parity ^ 1);
    write_slot(memory.slot(place.stage), no_more_tiles);
    arrive(memory.full(place.stage));
    place.advance();
  });
}

//! One consumer: 64 queries.
template <int Dim, class Element, mask Mask, score Score>
struct query_gradient_consumer {
  using shape = hopper_query_gradient_shape<Dim, Score>;

  backward_call<Element, Mask, Score> const& c;
  hopper_backward_maps const& maps;
  float* means; // of the block's queries, in shared memory
  gradient_consumer<shape> walk;
  float sum[Dim / 2]; // [64, Dim] of the warpgroup, not yet times scale
  float lse[2];       // of the lane's rows, as powers of two
  float mean[2];

  //! Finds dO . O while the tiles are on their way.
  __forceinline__ __device__ void start(hopper_work const& work) {
    int const row_of_warp = walk.row() / 16 * 16;
    __syncwarp(); // everybody has read the means of the work before
    find_means<16, Dim>(
      c, {work.batch, work.head, 0, 0}, work.first, row_of_warp, work.rows, means, walk.lane());
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const r = walk.row() + half * 8;
      mean[half] = means[r];
      lse[half] =
        r < work.rows ? power_of(c.t.log_sum_exp.at(work.batch, work.head, work.first + r)) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < Dim / 2; ++i) {
      sum[i] = 0;
    }
  }

  __forceinline__ __device__ void
  weigh(float (&s)[shape::step / 2], hopper_work const& work, int told) {
    int const column_of_tile = told / 2 * shape::step + walk.column();
    int const row_of_tile = walk.row();
    pair_position const at{work.batch,
                           work.head,
                           static_cast<int>(c.p.query_offset) + work.first + row_of_tile,
                           static_cast<int>(c.p.key_offset) + column_of_tile};
    int const rows = work.rows - row_of_tile;
    int const columns = static_cast<int>(c.p.key_length) - column_of_tile;
    auto const base = [&](int) { return numbers_of_part{{lse[0], lse[0], lse[1], lse[1]}}; };
    auto const drop = [](int, float const(&)[4]) {};
    if (told % 2 == 0) {
      make_hopper_weights<true, false>(s, at, rows, columns, c.scale, c.m, c.f, base, drop);
    } else {
      make_hopper_weights<false, false>(s, at, rows, columns, c.scale, c.m, c.f, base, drop);
    }
  }

  //! All tiles of keys.
  __forceinline__ __device__ void visit_tiles(hopper_work const& work) {
    float s[shape::step / 2];
    float d[shape::step / 2];
    std::uint32_t gradients[shape::step / 4];
    auto const base = [&](int) { return numbers_of_part{{mean[0], mean[0], mean[1], mean[1]}}; };
    int told = walk.next_tile();
    if (told != no_more_tiles) {
      int stage = walk.take();
      before_products();
      walk.template start<Element>(s, 0, stage);
      walk.template start<Element>(d, 1, stage);
      wait_for_products<1>(s);
      weigh(s, work, told);
      wait_for_products<0>(d);
      make_hopper_gradients<Element>(gradients, s, d, base);
      for (told = walk.next_tile(); told != no_more_tiles; told = walk.next_tile()) {
        int const next = walk.take();
        before_products();
        start_sum<Element>(sum, gradients, walk.memory.step_piece(0, stage));
        walk.template start<Element>(s, 0, next);
        wait_for_products<1>(sum);
        walk.release(stage);
        stage = next;
        before_products();
        walk.template start<Element>(d, 1, stage);
        wait_for_products<1>(s);
        weigh(s, work, told);
        wait_for_products<0>(d);
        make_hopper_gradients<Element>(gradients, s, d, base);
      }
      before_products();
      start_sum<Element>(sum, gradients, walk.memory.step_piece(0, stage));
      wait_for_products<0>(sum);
      walk.release(stage);
    }
    walk.release(walk.take());
  }

  //! Writes dQ, or adds to it.
  __forceinline__ __device__ void finish(hopper_work const& work) {
    int const first = anew(work.first);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const r = walk.row() + half * 8;
      bool const carried = c.p.from == carry::in && r < work.rows;
#pragma unroll
      for (int n = 0; n < Dim / 8; ++n) {
        float2 before{0, 0};
        if (carried) {
          before = unpack<Element>(*reinterpret_cast<std::uint32_t const*>(
            c.t.query_gradient.row(anew(work.batch), first + r, anew(work.head)) + n * 8 +
            walk.column()));
        }
        float* const two = sum + 4 * n + 2 * half;
        two[0] = before.x + c.scale * two[0];
        two[1] = before.y + c.scale * two[1];
      }
    }
    meet_warpgroup(walk.consumer()); // nobody multiplies queries any more
    auto const tile = walk.memory.own(0, walk.consumer());
    keep_hopper_rows<Element>(tile, sum, walk.row() % shape::rows, walk.column());
    show_to_copies();
    meet_warpgroup(walk.consumer());
    if (threadIdx.x % 128 == 0) {
      store_tile(maps.query_gradient_tile,
                 {work.first + walk.consumer() * shape::rows, work.head, work.batch},
                 tile);
      wait_for_stores_to_read();
      arrive(walk.memory.own_empty());
    }
  }

  __forceinline__ __device__ void run() {
    each_work<shape::own>(c.p, 1, [&](hopper_work const& work) {
      start(work);
      walk.wait_for_own();
      visit_tiles(work);
      finish(work);
    });
    if (threadIdx.x % 128 == 0) {
      wait_for_stores();
    }
  }
};

//! The work of one block.
template <int Dim, class Element, mask Mask, score Score>
__device__ inline void query_gradient_hopper_block(backward_call<Element, Mask, Score> const& c,
                                                   hopper_backward_maps const& maps,
                                                   unsigned char* shared) {
  using shape = hopper_query_gradient_shape<Dim, Score>;
  static_assert(shape::own * 4 <= shape::stages * shape::number_bytes);
  run_roles<shape>(
    shared,
    1,
    shape::consumers,
    [&](gradient_memory<shape> const& memory, int lane) {
      if (lane == 0) {
        copy_for_queries<Dim>(c, maps, memory);
      }
    },
    [&](gradient_consumer<shape> const& walk) {
      auto* const means =
        reinterpret_cast<float*>(shared + (walk.memory.numbers(0) - walk.memory.start));
      query_gradient_consumer<Dim, Element, Mask, Score> consumer{c, maps, means, walk};
      consumer.run();
    });
}

} // namespace pipelining::inline v0_2::attention::detail
