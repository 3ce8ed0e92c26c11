// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Kernel of dK and dV for sm_90a: one warp copies tiles, two warpgroups multiply them.
//!
//! A block keeps 128 keys of one head with their values and visits the queries of all heads of the
//! group in turn, so that it alone has all that its keys get and adds it to the running gradients
//! once. Products are transposed: rows are keys, so weights and gradients never leave the
//! registers. The weights are made while values meet dO, the gradients while the weights meet dO,
//! and the last gradients meet their queries while keys meet the next ones.
//! @source as query_gradient_hopper.cuh

#include <pipe/attention/hopper/gradient_block.cuh>
#include <pipe/attention/kernel/query_statistics.cuh>
#include <pipe/attention/kernel/tile_search.cuh>

#include <cstdint>

namespace pipelining::inline v0_2::attention::detail {

//! A tile of keys of one key head.
struct hopper_key_work {
  int batch;
  int key_head;
  int first; // key of the call
  int rows;  // that exist
};

//! Calls visit(work) for the tiles of keys of this block. Early keys, which most queries see where
//! a mask is causal, go first.
template <int Keys, class Visit>
__device__ __forceinline__ void each_key_work(parameters const& p, Visit const& visit) {
  int const heads = static_cast<int>(p.key_heads);
  int const sequences = static_cast<int>(p.batch);
  int const length = static_cast<int>(p.key_length);
  each_piece((length + Keys - 1) / Keys * heads * sequences, [&](int n) {
    int const first = n / heads / sequences * Keys;
    visit(hopper_key_work{n / heads % sequences, n % heads, first, min(Keys, length - first)});
  });
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

//! Fetches rows of a running gradient to L2, by one warp: they are read all at once when the last
//! queries are done, and nothing is multiplied meanwhile.
template <int Dim>
__device__ inline void
fetch_running(tensor_view<float> const& running, hopper_key_work const& work, int lane) {
  constexpr int line = 32; // floats of a line of the cache
#pragma unroll 1
  for (int row = lane; row < work.rows; row += 32) {
    float const* const from = running.row(work.batch, work.first + row, work.key_head);
#pragma unroll
    for (int d = 0; d < Dim; d += line) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from + d)));
    }
  }
}

//! The copying warp. Its first lane starts the copies, all of them bring the numbers.
template <int Dim, class Element, mask Mask, score Score>
__device__ inline void copy_for_keys(backward_call<Element, Mask, Score> const& c,
                                     hopper_backward_maps const& maps,
                                     gradient_memory<hopper_key_gradient_shape<Dim>> const& memory,
                                     int lane) {
  using shape = hopper_key_gradient_shape<Dim>;
  ring_place<shape::stages> place;
  std::uint32_t own_parity = 1;
  each_key_work<shape::own>(c.p, [&](hopper_key_work const& work) {
    int const first_head = work.key_head * static_cast<int>(c.p.group());
    int const position = static_cast<int>(c.p.key_offset) + work.first;
    tile_position const mine{work.batch, first_head, 0, 0, position, position + work.rows};
    auto now = find_query_tile<shape::step>(c.p, c.m, mine, 0, 0);
    bool const is_seen = now.cover != tile_cover::skip;
    if (is_seen) {
      wait_for(memory.own_empty(), own_parity);
      own_parity ^= 1;
      if (lane == 0) {
        arrive_expecting(memory.own_full(), shape::own_bytes);
        for (int consumer = 0; consumer < shape::consumers; ++consumer) {
          tile_place const at{work.first + consumer * shape::rows, work.key_head, work.batch};
          load_tile(memory.own(0, consumer), maps.key_tile, at, memory.own_full());
          load_tile(memory.own(1, consumer), maps.value_tile, at, memory.own_full());
        }
      }
    }
    while (now.cover != tile_cover::skip) {
      bool const whole = now.cover == tile_cover::full && work.rows == shape::own;
      int const head = first_head + now.head;
      int const begin = now.index * shape::step;
      wait_for(memory.empty(place.stage), place.parity ^ 1);
      if (lane == 0) {
        write_slot(memory.slot(place.stage), 2 * now.index + (whole ? 0 : 1));
        write_slot(memory.head(place.stage), head);
        arrive_expecting(memory.full(place.stage), 2 * shape::tile_bytes);
        tile_place const from{begin, head, work.batch};
        load_tile(memory.step(0, place.stage), maps.query_step, from, memory.full(place.stage));
        load_tile(
          memory.step(1, place.stage), maps.output_gradient_step, from, memory.full(place.stage));
      }
      tell_numbers<shape::step>(c, memory.numbers(place.stage), work.batch, head, begin, lane);
      arrive_warp(memory.full(place.stage), lane == 0);
      place.advance();
      now = find_query_tile<shape::step>(c.p, c.m, mine, now.head, now.index + 1);
    }
    if (is_seen) {
      fetch_running<Dim>(c.t.key_gradient, work, lane);
      fetch_running<Dim>(c.t.value_gradient, work, lane);
    }
    wait_for(memory.empty(place.stage), place.parity ^ 1);
    if (lane == 0) {
      write_slot(memory.slot(place.stage), no_more_tiles);
      arrive(memory.full(place.stage));
      arrive(memory.full(place.stage));
    }
    place.advance();
  });
}

//! One consumer: 64 keys.
template <int Dim, class Element, mask Mask, score Score>
struct key_gradient_consumer {
  using shape = hopper_key_gradient_shape<Dim>;
  // Groups that may be under way while gradients are made: that of dV. At 128 the registers do not
  // suffice for it; the other consumer multiplies meanwhile.
  static constexpr int still_open = Dim == 64 ? 1 : 0;

  backward_call<Element, Mask, Score> const& c;
  gradient_consumer<shape> walk;
  float of_key[Dim / 2];   // [64, Dim] of the warpgroup, not yet times scale
  float of_value[Dim / 2]; // [64, Dim]

  //! Two numbers of a stage for each part, alike in both rows of the lane.
  __forceinline__ __device__ auto numbers(int stage, int which) const {
    auto const from = walk.memory.numbers(stage) + (which * shape::step + walk.column()) * 4;
    return [from](int n) {
      float2 const two = read_two(from + n * 32);
      return numbers_of_part{{two.x, two.y, two.x, two.y}};
    };
  }

  __forceinline__ __device__ void weigh(float (&s)[shape::step / 2],
                                        std::uint32_t (&weights)[shape::step / 4],
                                        hopper_key_work const& work,
                                        int stage,
                                        int told) {
    int const column_of_tile = told / 2 * shape::step + walk.column();
    int const row_of_tile = walk.row();
    pair_position const at{work.batch,
                           read_slot(walk.memory.head(stage)),
                           static_cast<int>(c.p.query_offset) + column_of_tile,
                           static_cast<int>(c.p.key_offset) + work.first + row_of_tile};
    int const rows = work.rows - row_of_tile;
    int const columns = static_cast<int>(c.p.query_length) - column_of_tile;
    auto const base = numbers(stage, 0);
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

  //! Gradients of the logits of a tile whose logits s, and then d, are under way; adds to dV.
  __forceinline__ __device__ void make_gradients(std::uint32_t (&gradients)[shape::step / 4],
                                                 float (&s)[shape::step / 2],
                                                 float (&d)[shape::step / 2],
                                                 hopper_key_work const& work,
                                                 int stage,
                                                 int told) {
    std::uint32_t weights[shape::step / 4];
    wait_for_products<1>(s);
    weigh(s, weights, work, stage, told);
    before_products();
    start_sum<Element>(of_value, weights, walk.memory.step_piece(1, stage));
    wait_for_products<still_open>(d);
    make_hopper_gradients<Element>(gradients, s, d, numbers(stage, 1));
  }

  //! All tiles of queries from the first one on.
  __forceinline__ __device__ void visit_tiles(hopper_key_work const& work, int told) {
    float s[shape::step / 2];
    float d[shape::step / 2];
    std::uint32_t gradients[shape::step / 4];
    int stage = walk.take();
    before_products();
    walk.template start<Element>(s, 0, stage);
    walk.template start<Element>(d, 1, stage);
    make_gradients(gradients, s, d, work, stage, told);
    for (told = walk.next_tile(); told != no_more_tiles; told = walk.next_tile()) {
      int const next = walk.take();
      before_products();
      start_sum<Element>(of_key, gradients, walk.memory.step_piece(0, stage));
      walk.template start<Element>(s, 0, next);
      wait_for_products<1>(of_key);
      walk.release(stage);
      stage = next;
      before_products();
      walk.template start<Element>(d, 1, stage);
      make_gradients(gradients, s, d, work, stage, told);
    }
    before_products();
    start_sum<Element>(of_key, gradients, walk.memory.step_piece(0, stage));
    wait_for_products<0>(of_value);
    wait_for_products<0>(of_key);
    walk.release(stage);
  }

  //! Adds the sums of this lane to a running gradient.
  __forceinline__ __device__ void add_to(tensor_view<float> const& running,
                                         hopper_key_work const& work,
                                         float const (&sum)[Dim / 2],
                                         float factor) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const r = walk.row() + half * 8;
      if (r < work.rows) {
        float* const to =
          running.row(anew(work.batch), anew(work.first) + r, anew(work.key_head)) + walk.column();
#pragma unroll
        for (int n = 0; n < Dim / 8; ++n) {
          auto* const two = reinterpret_cast<float2*>(to + n * 8);
          float2 before = *two;
          before.x += factor * sum[4 * n + 2 * half];
          before.y += factor * sum[4 * n + 2 * half + 1];
          *two = before;
        }
      }
    }
  }

  __forceinline__ __device__ void run() {
    each_key_work<shape::own>(c.p, [&](hopper_key_work const& work) {
      int const told = walk.next_tile();
      if (told != no_more_tiles) { // else the running gradients stay as they are
#pragma unroll
        for (int i = 0; i < Dim / 2; ++i) {
          of_key[i] = 0;
          of_value[i] = 0;
        }
        walk.wait_for_own();
        visit_tiles(work, told);
        arrive_warp(walk.memory.own_empty(), walk.lane() == 0);
        add_to(c.t.key_gradient, work, of_key, c.scale);
        add_to(c.t.value_gradient, work, of_value, 1.0f);
      }
      walk.release(walk.take());
    });
  }
};

//! The work of one block.
template <int Dim, class Element, mask Mask, score Score>
__device__ inline void key_gradient_hopper_block(backward_call<Element, Mask, Score> const& c,
                                                 hopper_backward_maps const& maps,
                                                 unsigned char* shared) {
  using shape = hopper_key_gradient_shape<Dim>;
  run_roles<shape>(
    shared,
    2, // of the copies and of the numbers
    4 * shape::consumers,
    [&](gradient_memory<shape> const& memory, int lane) {
      copy_for_keys<Dim>(c, maps, memory, lane);
    },
    [&](gradient_consumer<shape> const& walk) {
      key_gradient_consumer<Dim, Element, Mask, Score> consumer{c, walk};
      consumer.run();
    });
}

} // namespace pipelining::inline v0_2::attention::detail
