// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Backward kernel for sm_90a: one thread copies tiles, two warpgroups multiply them, one warp
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
#include <pipe/attention/hopper/query_sums.hpp>
#include <pipe/attention/kernel/query_statistics.cuh>

#include <cstdint>

namespace pipelining::inline v0_2::attention::detail {

//! The tile of keys of piece n. In order of n: where the order is kept, late keys first, as they add
//! to dQ, so that blocks only wait for pieces taken before theirs; else early keys, which most
//! queries see where a mask is causal.
template <query_order Order, int Keys>
__device__ __forceinline__ hopper_key_work key_work(parameters const& p, int n) {
  int const heads = static_cast<int>(p.key_heads);
  int const sequences = static_cast<int>(p.batch);
  int const length = static_cast<int>(p.key_length);
  int const tile = n / heads / sequences;
  int const first =
    (Order == query_order::kept ? (length + Keys - 1) / Keys - 1 - tile : tile) * Keys;
  return {n / heads % sequences, n % heads, first, min(Keys, length - first)};
}

//! Numbers of the queries of a stage: log-sum-exps as powers of two, then dO . O; by one warp.
template <int Queries, class Call>
__device__ inline void
tell_numbers(Call const& c, std::uint32_t to, int batch, int head, int begin, int lane) {
  int const present = static_cast<int>(c.p.query_length) - begin;
#pragma unroll
  for (int row = lane; row < Queries; row += 32) {
    bool const there = row < present;
    float const lse = there ? power_of(c.t.log_sum_exp.at(batch, head, begin + row)) : 0.0f;
    float const mean = there ? c.mean.at(batch, head, begin + row) : 0.0f;
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + row * 4), "f"(lse) : "memory");
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + (Queries + row) * 4), "f"(mean) : "memory");
  }
}

//! parameters::group, by a division of 32 bits: that of 64 takes more registers than copying warps
//! have.
__device__ inline int group_of(parameters const& p) {
  return static_cast<int>(p.heads) / static_cast<int>(p.key_heads);
}

//! How a step of queries and a tile of keys meet. Asks for everything anew, so that nothing stays in
//! a register from one tile to the next.
//! @param index of the tile of keys
template <class Shape, class Call>
__device__ inline tile_cover cover_of(
  Call const& c, backward_memory<Shape> const& memory, int head, int step, int index) {
  int const query = step * Shape::step;
  int const key = index * Shape::keys;
  int const queries = min(Shape::step, static_cast<int>(c.p.query_length) - query);
  int const keys = min(Shape::keys, static_cast<int>(c.p.key_length) - key);
  int const query_position = static_cast<int>(c.p.query_offset) + query;
  int const key_position = static_cast<int>(c.p.key_offset) + key;
  auto const covered = cover(c.m,
                             tile_position{read_slot(memory.work()),
                                           head,
                                           query_position,
                                           query_position + queries,
                                           key_position,
                                           key_position + keys});
  return covered == tile_cover::full && (queries < Shape::step || keys < Shape::keys)
           ? tile_cover::partial
           : covered;
}

//! The copying warp, which finds out what there is to do. It has few registers beside those that
//! masks take: it asks for its work again and again, and all lanes go the same way.
template <class Shape, query_order Order, class Call>
__device__ inline void copy_for_keys(Call const& c,
                                     hopper_backward_maps const& maps,
                                     hopper_query_sums const& sums,
                                     backward_memory<Shape> const& memory,
                                     bool is_first_lane) {
  if (is_first_lane) {
    auto const work = read_work(memory.work());
    arrive_expecting(memory.own_full(), Shape::own_bytes);
    for (int consumer = 0; consumer < Shape::consumers; ++consumer) {
      tile_place const at{work.first + consumer * Shape::rows, work.key_head, work.batch};
      load_tile(memory.own(0, consumer), maps.key, at, memory.own_full());
      load_tile(memory.own(1, consumer), maps.value, at, memory.own_full());
    }
  }
  __syncwarp();
  ring_place<Shape::stages> place;
  auto const tile = [&] { return read_slot(memory.work() + 8) / Shape::keys; };
  int const group = group_of(c.p);
#pragma unroll 1
  for (int member = 0; member < group; ++member) {
    auto const head = [&] { return read_slot(memory.work() + 4) * group_of(c.p) + member; };
#pragma unroll 1
    for (int step = 0; step < sums.steps; ++step) {
      auto const covered = cover_of(c, memory, head(), step, tile());
      if (__all_sync(0xffffffffu, covered == tile_cover::skip)) {
        continue;
      }
      bool const whole = __all_sync(0xffffffffu, covered == tile_cover::full);
      wait_for(memory.empty(place.stage), place.parity ^ 1);
      if (is_first_lane) {
        int const batch = read_slot(memory.work());
        write_slot(memory.slot(place.stage), 2 * step + (whole ? 0 : 1));
        write_slot(memory.head(place.stage), head());
        write_slot(memory.sums(place.stage), sums.first_step(c.p, batch, head()) + step);
        arrive_expecting(memory.full(place.stage), 2 * Shape::tile_bytes);
        tile_place const from{step * Shape::step, head(), batch};
        load_tile(memory.step(0, place.stage), maps.query, from, memory.full(place.stage));
        load_tile(memory.step(1, place.stage), maps.output_gradient, from, memory.full(place.stage));
      }
      __syncwarp();
      if constexpr (Order == query_order::kept) {
        int const tiles = (static_cast<int>(c.p.key_length) + Shape::keys - 1) / Shape::keys;
        int away = 1;
#pragma unroll 1
        while (__all_sync(0xffffffffu,
                          tile() + away < tiles &&
                            cover_of(c, memory, head(), step, tile() + away) == tile_cover::skip)) {
          ++away;
        }
        if (is_first_lane) {
          write_slot(memory.after(place.stage), tile() + away < tiles ? tile() + away + 1 : 0);
        }
      }
      arrive_warp(memory.told(place.stage), is_first_lane);
      place.advance();
    }
  }
  wait_for(memory.empty(place.stage), place.parity ^ 1);
  if (is_first_lane) {
    write_slot(memory.slot(place.stage), no_more_tiles);
    arrive(memory.told(place.stage));
    arrive(memory.full(place.stage));
  }
  wait_for(memory.own_full(), 0); // nobody else does where there is no step
}

//! The warp that brings what is known of the queries.
template <class Shape, class Call>
__device__ inline void
tell_all_numbers(Call const& c, backward_memory<Shape> const& memory, int lane) {
  ring_place<Shape::stages> place;
#pragma unroll 1
  for (bool more = true; more; place.advance()) {
    wait_for(memory.told(place.stage), place.parity);
    int const told = read_slot(memory.slot(place.stage));
    more = told != no_more_tiles;
    if (more) {
      tell_numbers<Shape::step>(c,
                                memory.numbers(place.stage),
                                read_slot(memory.work()),
                                read_slot(memory.head(place.stage)),
                                told / 2 * Shape::step,
                                lane);
    }
    arrive_warp(memory.full(place.stage), lane == 0);
  }
}

__device__ inline int read_after(std::int32_t const* from) {
  int tile;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
               : "=r"(tile)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return tile;
}

__device__ inline void write_after(std::int32_t* to, int tile) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "r"(tile)
               : "memory");
}

//! The thread that keeps the order: to each step the tiles of keys that see it add last tile first.
//! Gives the consumers their turn when the tile before has added, and hands it on when they have.
//! They release no stage before their turn, so what it tells stays till then.
template <class Shape>
__device__ inline void keep_order(hopper_query_sums const& sums,
                                  backward_memory<Shape> const& memory) {
  ring_place<Shape::stages> place;
  std::uint32_t parity = 0;
#pragma unroll 1
  while (true) {
    wait_for(memory.told(place.stage), place.parity);
    if (read_slot(memory.slot(place.stage)) == no_more_tiles) {
      return;
    }
    int const step = read_slot(memory.sums(place.stage));
    int const before = read_slot(memory.after(place.stage));
    while (read_after(sums.after + step) != before) {
    }
    arrive(memory.turn());
    wait_for(memory.added(), parity);
    parity ^= 1;
    // The stage may hold another step by now.
    write_after(sums.after + step, read_work(memory.work()).first / Shape::keys + 1);
    place.advance();
  }
}

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
  hopper_query_sums const& sums;
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
      static_cast<std::int64_t>(read_slot(walk.memory.sums(stage))) * (2 * hopper_query_sums::tile) +
      thread_anew() * 4 + walk.consumer() * (hopper_query_sums::tile - 128 * 4);
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
                                             hopper_query_sums const& sums,
                                             unsigned char* shared) {
  using shape = hopper_backward_shape<Dim>;
  run_roles<shape>(
    shared,
    [&] {
      // Blocks start in any order; whoever waits for another has to know that it has started.
      auto const n = Order == query_order::kept ? atomicAdd(sums.ticket, 1u) : blockIdx.x;
      return key_work<Order, shape::keys>(c.p, static_cast<int>(n));
    },
    [&](backward_memory<shape> const& memory, bool is_first_lane) {
      copy_for_keys<shape, Order>(c, maps, sums, memory, is_first_lane);
    },
    [&](backward_memory<shape> const& memory, int lane) { tell_all_numbers(c, memory, lane); },
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
