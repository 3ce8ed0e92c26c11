// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The common part of consumers of the backward kernel for Hopper, whatever their share of a
//! tile: weights of a step, sums of dQ, dK and dV to memory.

#include <pipe/attention/hopper/backward_block.cuh>
#include <pipe/attention/hopper/backward_copies.cuh>
#include <pipe/attention/hopper/backward_weights.cuh>
#include <pipe/attention/kernel/query_sums.cuh>
#include <pipe/attention/query_sums.hpp>

#include <cstdint>
#include <type_traits>

namespace pipelining::inline v0_3::attention::detail {

//! Adds four floats to memory; does not wait.
__device__ inline void add_four(float* to, float const* four) {
  asm volatile(
    "red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
    "f"(four[0]),
    "f"(four[1]),
    "f"(four[2]),
    "f"(four[3])
    : "memory");
}

__device__ inline void add_two(float* to, float x, float y) {
  asm volatile(
    "red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)),
    "f"(x),
    "f"(y)
    : "memory");
}

//! A consumer at its steps.
template <int Dim, query_order Order, class Element, mask Mask, score Score>
struct key_steps {
  using shape = hopper_backward_shape<Dim>;
  //! Slices of dK, and of dV; one of each where nobody waits.
  static constexpr int slices = Order == query_order::kept ? query_sums::slices / 2 : 1;
  //! True where the last tile of keys of a step can be told, see query_sums::is_rounded.
  static constexpr bool can_round = band_mask<Mask>;

  backward_call<Element, Mask, Score> const& c;
  query_sums const& sums;
  backward_consumer<shape> walk;
  std::uint32_t order_parity = 0;

  //! Two numbers of a stage for each eight queries of a part, alike in both rows of the lane.
  __forceinline__ __device__ auto numbers(int stage, int part, int which) const {
    auto const from =
      walk.memory.numbers(stage) + (which * shape::step + part * shape::part + walk.column()) * 4;
    return [from](int n) { return read_two(from + n * 32); };
  }

  //! Products of the keys with a part of a step to weights times derivatives of the score, in
  //! place, and to weights alone, packed.
  template <int Count>
  __forceinline__ __device__ void weigh(
    float (&s)[Count], std::uint32_t (&weights)[Count / 2], int stage, int part, int told) const {
    __builtin_assume(told >= 0);
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
      make_hopper_weights<true>(s, at, rows, columns, c.scale, c.m, c.f, base, keep);
    } else {
      make_hopper_weights<false>(s, at, rows, columns, c.scale, c.m, c.f, base, keep);
    }
  }

  //! Adds what this consumer has of the dQ of a stage.
  //! @param first of its columns; at head dim 64, where it has half of the queries, 0 or 64
  template <int Count>
  __forceinline__ __device__ void
  add_queries(float const (&of_query)[Count], int stage, int first) {
    if constexpr (Order == query_order::kept) {
      wait_for(walk.memory.turn(), order_parity);
      order_parity ^= 1;
    }
    auto* const to = sums.sums + static_cast<unsigned>(first * 64 + walk.thread() % 128 * 4) +
                     static_cast<std::int64_t>(read_slot(walk.memory.sums(stage))) *
                       (shape::step * shape::query_dim);
#pragma unroll
    for (int n = 0; n < Count / 4; ++n) {
      // Of heads that are not whole panels the second consumer has the rest.
      constexpr int rest = shape::query_dim % panel_width / 8;
      if (rest == 0 || n < rest || walk.number == 0) {
        add_four(to + n * 128 * 4, of_query + 4 * n);
      }
    }
    if constexpr (Order == query_order::kept) {
      arrive_warp(walk.memory.added(), walk.lane() == 0);
    }
  }

  //! Before this consumer adds a slice to the running gradients, and after: where the order is kept
  //! and a tile has several pieces, each adds after the piece before.
  __forceinline__ __device__ void wait_for_part(int slice) const {
    if (Order == query_order::kept && sums.has_parts()) {
      auto const work = read_work(walk.memory.work());
      wait_for_tile(written_of<shape::keys>(c.p, sums, work) + slice, work.part);
    }
  }
  __forceinline__ __device__ void hand_on_part(int slice) const {
    if (Order == query_order::kept && sums.has_parts()) {
      meet_consumers();
      if (thread_anew() == 0) {
        auto const work = read_work(walk.memory.work());
        write_after(written_of<shape::keys>(c.p, sums, work) + slice, work.part);
      }
    }
  }

  //! Adds a slice of the sums of this lane to a running gradient. At a time no other block adds to
  //! these numbers where the order is kept.
  //! @param column of the head dim where the sums begin
  template <int Count>
  __forceinline__ __device__ void add_to(tensor_view<float> const& running,
                                         float const (&sum)[Count],
                                         float factor,
                                         int column,
                                         int slice) const {
    auto const work = read_work(walk.memory.work());
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const r = walk.row() + half * 8;
      if (r < work.rows) {
        float* const to =
          running.row(work.batch, work.first + r, work.key_head) + column + walk.column();
#pragma unroll
        for (int n = 0; n < Count / 4; ++n) { // of fixed length, so that sums stay in registers
          if (n >= Count / 4 * slice / slices && n < Count / 4 * (slice + 1) / slices) {
            add_two(to + n * 8, factor * sum[4 * n + 2 * half], factor * sum[4 * n + 2 * half + 1]);
          }
        }
      }
    }
  }
};

//! Rounds the dQ of steps that no later tile of keys sees: those from the first one on that sees
//! this tile. By all consumers, once they have added, and once all tiles before have.
template <int Dim, query_order Order, class Element, mask Mask, score Score>
__device__ __forceinline__ void
round_last_steps(key_steps<Dim, Order, Element, Mask, Score> const& steps) {
  using shape = hopper_backward_shape<Dim>;
  constexpr auto family = kernel_family::hopper;
  auto const& memory = steps.walk.memory;
  auto const work = read_work(memory.work());
  int const tile = work.first / shape::keys;
  bool const has_next = work.first + shape::keys < static_cast<int>(steps.c.p.key_length);
  meet_consumers();
#pragma unroll 1
  for (int head = read_slot(heads_of(memory.work(), 0));
       head < read_slot(heads_of(memory.work(), 1));
       ++head) {
    auto const sees = [&](int step, int of) {
      return cover_of<shape>(steps.c, work.batch, head, step, of) != tile_cover::skip;
    };
#pragma unroll 1
    for (int step = read_slot(steps_of(memory.work(), 0));
         step < read_slot(steps_of(memory.work(), 1)) && !(has_next && sees(step, tile + 1));
         ++step) {
      if (!sees(step, tile)) {
        continue;
      }
      auto const number = steps.sums.first_step(steps.c.p, work.batch, head) + step;
      if constexpr (Order == query_order::free) {
        if (thread_anew() == 0) {
          wait_for_tile(steps.sums.after + number, tile + 2);
        }
        meet_consumers();
      }
      auto const* const from =
        steps.sums.sums + static_cast<std::int64_t>(number) * numbers_of_step<family, Dim>;
#pragma unroll
      for (int n = 0; n < shares_of_step<family, Dim>; n += 128 * shape::consumers) {
        if (int const share = n + thread_anew(); share < shares_of_step<family, Dim>) {
          round_sums<family, Dim, Element>(
            steps.c, from, {work.batch, head, step * shape::step, 0}, share);
        }
      }
    }
  }
}

//! Copies the work that was told of, so that the next can be; by all consumers, once all are done
//! with the piece before.
template <class Shape>
__device__ __forceinline__ void take_told_work(backward_memory<Shape> const& memory) {
  meet_consumers();
  if (int const n = thread_anew(); n < 10) {
    write_slot(memory.work() + 4 * n, read_slot(memory.told_work() + 4 * n));
  }
  meet_consumers();
}

//! Adds the sums of a piece to the running gradients, which stay as they are where there is no
//! step.
template <class Consumer>
__forceinline__ __device__ void add_sums(Consumer const& me, bool has_steps) {
  auto const& steps = me.steps;
  constexpr int slices = std::remove_cvref_t<decltype(steps)>::slices;
#pragma unroll
  for (int slice = 0; slice < 2 * slices; ++slice) {
    steps.wait_for_part(slice);
    if (has_steps && slice < slices) {
      steps.add_to(steps.c.t.key_gradient, me.of_key, steps.c.scale, me.key_column(), slice);
    } else if (has_steps) {
      steps.add_to(steps.c.t.value_gradient, me.of_value, 1.0f, me.value_column(), slice - slices);
    }
    steps.hand_on_part(slice);
  }
}

//! All steps of queries of a piece, from the first one on: sums of a step are multiplied next to
//! the logits of the next one.
//! @param me as run_consumer has it
template <class Consumer>
__forceinline__ __device__ void visit_steps(Consumer& me, int told) {
  constexpr int groups = Consumer::groups_after_queries;
  auto& walk = me.steps.walk;
  float s[Consumer::logits];
  auto const visit = [&](int stage) {
    me.visit_step(s, stage, told);
    told = walk.next_tile(); // which nobody waits for after the meeting
    show_to_copies();
    meet_consumers();
  };
  int stage = walk.take();
  before_products();
  me.start_logits(s, stage);
  visit(stage);
  while (told != no_more_tiles) {
    int const next = walk.take();
    before_products();
    me.start_sums(stage);
    me.start_logits(s, next);
    wait_for_products<groups + 1>(me.of_query);
    me.steps.add_queries(me.of_query, stage, me.query_column());
    if constexpr (Consumer::shape::is_wide) {
      wait_for_products<1>(me.of_value);
    }
    wait_for_products<1>(me.of_key);
    walk.release(stage);
    stage = next;
    visit(stage);
  }
  before_products();
  me.start_sums(stage);
  wait_for_products<groups>(me.of_query);
  me.steps.add_queries(me.of_query, stage, me.query_column());
  wait_for_products<0>(me.of_value);
  wait_for_products<0>(me.of_key);
  walk.release(stage);
}

//! Runs all pieces of a consumer: sums up the gradients of its keys and adds them to the running
//! gradients.
//! @param me has steps; of_query, of_key, of_value, and the columns where these begin;
//! start_logits, of so many `logits` of a lane; visit_step, to their gradients, which it keeps;
//! start_sums, to dQ and then to what `groups_after_queries` groups of products say
template <class Consumer>
__forceinline__ __device__ void run_consumer(Consumer& me) {
  auto& steps = me.steps;
#pragma unroll 1
  for (int told = steps.walk.next_tile(); told != no_more_pieces; told = steps.walk.next_tile()) {
    take_told_work(steps.walk.memory);
    bool const has_steps = told != no_more_tiles;
    if (has_steps) {
#pragma unroll
      for (auto& sum : me.of_key) {
        sum = 0;
      }
#pragma unroll
      for (auto& sum : me.of_value) {
        sum = 0;
      }
      wait_for(steps.walk.memory.own_full(), read_slot(parity_of(steps.walk.memory.work())));
      visit_steps(me, told);
    }
    steps.walk.release(steps.walk.take()); // the end of the piece
    add_sums(me, has_steps);
    using steps_type = std::remove_cvref_t<decltype(steps)>;
    if constexpr (steps_type::can_round) {
      if (has_steps && steps.sums.is_rounded) {
        round_last_steps(steps);
      }
    }
  }
}

} // namespace pipelining::inline v0_3::attention::detail
