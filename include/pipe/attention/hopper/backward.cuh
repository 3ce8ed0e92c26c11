// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Backward kernel for sm_90a: one warp copies tiles, two warpgroups multiply them, one warp
//! brings what is known of the queries, one thread keeps the order of dQ.
//!
//! A block keeps 128 keys of one head with their values and visits the queries of all heads of the
//! group in turn, so that it alone has all that its keys get and adds it to the running gradients
//! once. Products are transposed: rows are keys, so weights never leave the registers. Gradients of
//! the logits do: dK takes them from registers, dQ from shared memory, where both warpgroups put
//! theirs. dQ is a sum over blocks: lanes add it to floats in memory, straight from their registers.
//!
//! Five products of tiles. While the weights are made, dO meets the values; while dQ is added, dK
//! is summed and the next queries meet their keys.
//! @source Dao 2023 (FlashAttention-2), section 3.1, for the formulas; Shah et al. 2024
//! (FlashAttention-3), sections 3.1 and 3.2, for roles and overlap; the order of dQ as in
//! FlashAttention's deterministic backward

#include <pipe/attention/hopper/backward_block.cuh>
#include <pipe/attention/hopper/backward_copies.cuh>
#include <pipe/attention/hopper/backward_weights.cuh>
#include <pipe/attention/query_sums.hpp>

#include <cstdint>

namespace pipelining::inline v0_2::attention::detail {

//! Adds four floats to memory; does not wait.
__device__ inline void add_four(float* to, float const* four) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(
                 __cvta_generic_to_global(to)),
               "f"(four[0]),
               "f"(four[1]),
               "f"(four[2]),
               "f"(four[3])
               : "memory");
}

__device__ inline void add_two(float* to, float x, float y) {
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(
                 __cvta_generic_to_global(to)),
               "f"(x),
               "f"(y)
               : "memory");
}

//! One consumer: 64 keys.
template <int Dim, query_order Order, class Element, mask Mask, score Score>
struct key_consumer {
  using shape = hopper_backward_shape<Dim>;

  backward_call<Element, Mask, Score> const& c;
  query_sums const& sums;
  backward_consumer<shape> walk;
  // Groups that may be under way while gradients are made: that of dV. At 128 the registers do not
  // suffice for it; the other consumer multiplies meanwhile.
  static constexpr int still_open = Dim == 64 ? 1 : 0;

  int turn = 0;            // which place the gradients of a step take
  float of_key[Dim / 2];   // [64, Dim] of the warpgroup, not yet times scale
  float of_value[Dim / 2]; // [64, Dim]
  float of_query[32];      // [64, 64] of this consumer's share of dQ, not yet times scale
  std::uint32_t order_parity = 0;

  //! Two numbers of a stage for each eight queries of a part, alike in both rows of the lane.
  __forceinline__ __device__ auto numbers(int stage, int part, int which) const {
    auto const from = walk.memory.numbers(stage) +
                      (which * shape::step + part * shape::part + walk.column()) * 4;
    return [from](int n) {
      float2 const two = read_two(from + n * 32);
      return numbers_of_part{{two.x, two.y, two.x, two.y}};
    };
  }

  __forceinline__ __device__ void
  weigh(float (&s)[32], std::uint32_t (&weights)[16], int stage, int part, int told) {
    auto const work = read_work(walk.memory.work());
    int const column_of_tile = told / 2 * shape::step + part * shape::part + walk.column();
    int const row_of_tile = walk.row();
    pair_position const at{work.batch,
                           read_slot(walk.memory.head(stage)),
                           static_cast<int>(c.p.query_offset) + column_of_tile,
                           static_cast<int>(c.p.key_offset) + work.first + row_of_tile};
    int const rows = work.rows - row_of_tile;
    int const columns = static_cast<int>(c.p.query_length) - column_of_tile;
    auto const base = numbers(stage, part, 0);
    auto const keep = [&](int n, float const(&weight)[4]) {
      weights[2 * n] = pack<Element>(weight[0], weight[1]);
      weights[2 * n + 1] = pack<Element>(weight[2], weight[3]);
    };
    if (told % 2 == 0) {
      make_hopper_weights<true, true>(s, at, rows, columns, c.scale, c.m, c.f, base, keep);
    } else {
      make_hopper_weights<false, true>(s, at, rows, columns, c.scale, c.m, c.f, base, keep);
    }
  }

  //! Puts gradients where products for dQ read them: a row for each key, a panel of queries.
  __forceinline__ __device__ void keep_gradients(std::uint32_t const (&gradients)[16], int part) {
    int const lane = walk.lane();
    int const row = walk.row() / 16 * 16 + lane % 16;
    auto const to = walk.memory.gradients(turn, part) + row * panel_row_bytes;
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      store_matrices(to + ((n + lane / 16) ^ row % 8) * piece_bytes, gradients + 2 * n);
    }
  }

  //! Starts dQ: gradients [64 queries, 128 keys] times keys [128, 64]. At head dim 64 a consumer
  //! has half of the queries, at 128 half of the head dim.
  __forceinline__ __device__ void start_queries() {
    int const share = walk.consumer();
    auto const gradients =
      describe_tile(walk.memory.gradient_piece(turn, Dim == 64 ? share : 0), 16);
    auto const keys = describe_tile(
      walk.memory.own_piece(0, 0) +
        (Dim == 64 ? 0 : share) * (shape::rows * panel_row_bytes / piece_bytes),
      16);
#pragma unroll
    for (int n = 0; n < shape::keys / 16; ++n) {
      start_product_across<Element>(of_query,
                                    moved(gradients, n * 2 * eight_rows_bytes),
                                    moved(keys,
                                          n / 4 * shape::consumer_bytes +
                                            n % 4 * 2 * eight_rows_bytes),
                                    n > 0);
    }
    end_products();
    turn ^= 1;
  }

  //! Adds to dQ of a stage.
  __forceinline__ __device__ void add_queries(int stage) {
    if constexpr (Order == query_order::kept) {
      wait_for(walk.memory.turn(), order_parity);
      order_parity ^= 1;
    }
    auto* const to =
      sums.sums +
      static_cast<std::int64_t>(read_slot(walk.memory.sums(stage))) * (shape::step * Dim) +
      thread_anew() * 4 + walk.consumer() * (shape::step * Dim / 2 - 128 * 4);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      add_four(to + n * 128 * 4, of_query + 4 * n);
    }
    if constexpr (Order == query_order::kept) {
      arrive_warp(walk.memory.added(), walk.lane() == 0);
    }
  }

  //! Weights and gradients of a step whose first logits s are under way; adds to dV, and all but
  //! the last part to dK.
  __forceinline__ __device__ void
  visit_step(float (&s)[32], std::uint32_t (&gradients)[16], int stage, int told) {
    float d[32];
    std::uint32_t weights[16];
#pragma unroll
    for (int part = 0; part < shape::parts; ++part) {
      before_products();
      walk.template start<Element>(d, 1, stage, part);
      wait_for_products<1>(s);
      weigh(s, weights, stage, part, told);
      before_products();
      start_sum<Element>(of_value, weights, walk.memory.step_piece(1, stage, part));
      wait_for_products<still_open>(d);
      make_hopper_gradients<Element>(gradients, s, d, numbers(stage, part, 1));
      keep_gradients(gradients, part);
      if (part + 1 < shape::parts) {
        before_products();
        start_sum<Element>(of_key, gradients, walk.memory.step_piece(0, stage, part));
        walk.template start<Element>(s, 0, stage, part + 1);
      }
    }
    show_to_copies();
    meet_consumers();
  }

  //! All steps of queries from the first one on.
  __forceinline__ __device__ void visit_steps(int told) {
    constexpr int last_part = shape::parts - 1;
    float s[32];
    std::uint32_t gradients[16];
    int stage = walk.take();
    before_products();
    walk.template start<Element>(s, 0, stage, 0);
    visit_step(s, gradients, stage, told);
    for (told = walk.next_tile(); told != no_more_tiles; told = walk.next_tile()) {
      int const next = walk.take();
      before_products();
      start_queries();
      start_sum<Element>(of_key, gradients, walk.memory.step_piece(0, stage, last_part));
      walk.template start<Element>(s, 0, next, 0);
      wait_for_products<2>(of_query);
      add_queries(stage);
      wait_for_products<1>(of_key);
      walk.release(stage);
      stage = next;
      visit_step(s, gradients, stage, told);
    }
    before_products();
    start_queries();
    start_sum<Element>(of_key, gradients, walk.memory.step_piece(0, stage, last_part));
    wait_for_products<1>(of_query);
    add_queries(stage);
    wait_for_products<0>(of_value);
    wait_for_products<0>(of_key);
    walk.release(stage);
  }

  //! Adds the sums of this lane to a running gradient. No other block adds to these rows, so the
  //! order does not matter.
  __forceinline__ __device__ void
  add_to(tensor_view<float> const& running, float const (&sum)[Dim / 2], float factor) const {
    auto const work = read_work(walk.memory.work());
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const r = walk.row() + half * 8;
      if (r < work.rows) {
        float* const to =
          running.row(work.batch, work.first + r, work.key_head) + walk.column();
#pragma unroll
        for (int n = 0; n < Dim / 8; ++n) {
          add_two(to + n * 8, factor * sum[4 * n + 2 * half], factor * sum[4 * n + 2 * half + 1]);
        }
      }
    }
  }

  __forceinline__ __device__ void run() {
    int const told = walk.next_tile();
    if (told == no_more_tiles) {
      return; // the running gradients stay as they are
    }
#pragma unroll
    for (int i = 0; i < Dim / 2; ++i) {
      of_key[i] = 0;
      of_value[i] = 0;
    }
    wait_for(walk.memory.own_full(), 0);
    visit_steps(told);
    add_to(c.t.key_gradient, of_key, c.scale);
    add_to(c.t.value_gradient, of_value, 1.0f);
  }
};

//! The work of one block.
template <int Dim, query_order Order, class Element, mask Mask, score Score>
__device__ inline void backward_hopper_block(backward_call<Element, Mask, Score> const& c,
                                             hopper_backward_maps const& maps,
                                             query_sums const& sums,
                                             unsigned char* shared) {
  using shape = hopper_backward_shape<Dim>;
  run_roles<shape>(
    shared,
    [&] { return work_of_piece<Order, shape::keys>(c.p, take_piece<Order>(sums)); },
    [&](backward_memory<shape> const& memory, bool is_first_lane) {
      copy_for_keys<shape, Order>(c, maps, sums, memory, is_first_lane);
    },
    [&](backward_memory<shape> const& memory, int lane) { tell_all_numbers(sums, memory, lane); },
    [&](backward_memory<shape> const& memory) {
      if constexpr (Order == query_order::kept) {
        keep_order(sums, memory);
      }
    },
    [&](backward_consumer<shape> const& walk) {
      key_consumer<Dim, Order, Element, Mask, Score> consumer{c, sums, walk};
      consumer.run();
    });
}

} // namespace pipelining::inline v0_2::attention::detail
