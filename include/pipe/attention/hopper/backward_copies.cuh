// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Three warps that serve the consumers in the backward kernel for Hopper: they take work,
//! find its steps, bring them, and keep the order of dQ.

#include <pipe/attention/hopper/backward_block.cuh>
#include <pipe/attention/kernel/query_order.cuh>
#include <pipe/attention/kernel/tile_search.cuh>
#include <pipe/attention/query_sums.hpp>
#include <pipe/config.hpp>

#include <cstdint>
#include <type_traits>

namespace pipelining::inline v0_3::attention::detail {

//! Numbers of the queries of a stage: log-sum-exps as powers of two, then dO . O; by one warp.
//! @param from two of each query
template <int Queries>
__device__ inline void tell_numbers(std::uint32_t to, float const* from, int lane) {
#pragma unroll
  for (int row = lane; row < Queries; row += 32) {
    float2 const of = reinterpret_cast<float2 const*>(from)[row];
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + row * 4), "f"(of.x) : "memory");
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + (Queries + row) * 4), "f"(of.y) : "memory");
  }
}

//! How a step of queries and a tile of keys meet. Asks for everything anew, so that nothing stays
//! in a register from one tile to the next.
//! @param index of the tile of keys
template <class Shape, class Call>
PIPELINING_HOST_DEVICE inline tile_cover
cover_of(Call const& c, int batch, int head, int step, int index) {
  int const query = step * Shape::step;
  int const key = index * Shape::keys;
  int const queries = min(Shape::step, static_cast<int>(c.p.query_length) - query);
  int const keys = min(Shape::keys, static_cast<int>(c.p.key_length) - key);
  int const at_query = static_cast<int>(c.p.query_offset) + query;
  int const at_key = static_cast<int>(c.p.key_offset) + key;
  tile_position const at{batch, head, at_query, at_query + queries, at_key, at_key + keys};
  auto const covered = cover(c.m, at);
  bool const whole = queries == Shape::step && keys == Shape::keys;
  return covered == tile_cover::full && !whole ? tile_cover::partial : covered;
}

//! The first step that sees a tile of keys at most, and one after the last; of a mask that does not
//! say, all.
//! @param steps of the queries of a head
template <class Shape, class Call>
PIPELINING_HOST_DEVICE inline position_range
steps_seen(Call const& c, int steps, int batch, int head, int index) {
  if constexpr (band_mask<std::remove_cvref_t<decltype(c.m)>>) {
    int const key = static_cast<int>(c.p.key_offset) + index * Shape::keys;
    int const end = static_cast<int>(c.p.key_offset + c.p.key_length);
    int const query = static_cast<int>(c.p.query_offset);
    int const query_end = query + static_cast<int>(c.p.query_length);
    tile_position const at{batch, head, query, query_end, key, min(end, key + Shape::keys)};
    auto const seen = c.m.queries_seeing(at);
    return {(seen.begin - query) / Shape::step, (seen.end - query + Shape::step - 1) / Shape::step};
  } else {
    return {0, steps};
  }
}

//! The copying warp, which takes pieces of work, finds their steps and brings them. It has few
//! registers next to the registers for masks: it asks for its work again and again, and all lanes
//! go the same way.
template <class Shape, query_order Order, class Call>
struct copying_warp {
  using mask_type = std::remove_cvref_t<decltype(Call::m)>;
  static constexpr bool asks_for_first = takes_turns<Order, mask_type>;
  //! Whether tiles that have added to a step are counted.
  static constexpr bool counts = asks_for_first && Order == query_order::free;

  Call const& c;
  hopper_backward_maps const& maps;
  query_sums const& sums;
  backward_memory<Shape> const& memory;
  bool is_first_lane;
  ring_place<Shape::stages> place{};

  __device__ __forceinline__ int batch() const { return read_slot(memory.told_work()); }
  __device__ __forceinline__ int tile() const {
    return read_slot(memory.told_work() + 8) / Shape::keys;
  }
  //! First step and head, or one after the last ones.
  __device__ __forceinline__ int step(int end) const {
    return read_slot(steps_of(memory.told_work(), end));
  }
  __device__ __forceinline__ int head(int end) const {
    return read_slot(heads_of(memory.told_work(), end));
  }

  //! Starts to copy a step to the next stage and says what the stage holds; by one lane.
  //! @param told twice the step, and 1 more where pairs have to be asked for
  __device__ __forceinline__ void bring_step(int head, int told) const {
    int const stage = place.stage;
    int const batch = this->batch();
    int const step = told / 2;
    write_slot(memory.slot(stage), told);
    write_slot(memory.head(stage), head);
    write_slot(memory.sums(stage), sums.first_step(c.p, batch, head) + step);
    write_slot(memory.tile(stage), tile());
    arrive_expecting(memory.full(stage), Shape::stage_bytes);
    tile_place const from{step * Shape::step, head, batch};
    load_tile<Shape::query_dim, Shape::step>(
      memory.step(0, stage), maps.query, from, memory.full(stage));
    load_tile<Shape::value_dim, Shape::step>(
      memory.step(1, stage), maps.output_gradient, from, memory.full(stage));
  }

  //! Waits until consumers are done with a stage.
  //! @tparam Counts then counts this tile as one that has added to the step that was there
  template <bool Counts = counts>
  __device__ __forceinline__ void wait_for_place(ring_place<Shape::stages> const& at) const {
    wait_for(memory.empty(at.stage), at.parity ^ 1);
    if constexpr (Counts) {
      if (is_first_lane) {
        if (int const step = read_slot(memory.sums(at.stage)); step >= 0) {
          count_after(sums.after + step, 1);
          write_slot(memory.sums(at.stage), -1);
        }
      }
    }
  }

  //! Starts to copy the keys and values of a piece; by one lane.
  __device__ __forceinline__ void bring_own_tiles() const {
    auto const work = read_work(memory.told_work());
    arrive_expecting(memory.own_full(), Shape::own_bytes);
    for (int tile = 0; tile < Shape::own_tiles; ++tile) {
      tile_place const at{work.first + tile * Shape::rows, work.key_head, work.batch};
      load_tile<Shape::query_dim, Shape::rows>(
        memory.own(0, tile), maps.key, at, memory.own_full());
      load_tile<Shape::value_dim, Shape::rows>(
        memory.own(1, tile), maps.value, at, memory.own_full());
    }
  }

  //! Narrows the steps of a piece to those that its tile sees. Lanes ask for a head each, since
  //! masks may read tables; lanes beyond the heads ask for the last one.
  __device__ __forceinline__ void find_steps() const {
    if (head(0) + 32 < head(1)) {
      return; // masks skip the others
    }
    auto const seen = steps_seen<Shape>(
      c, sums.steps, batch(), min(head(0) + thread_anew() % 32, head(1) - 1), tile());
    int const begin = seen.begin < seen.end ? seen.begin : sums.steps;
    int const end = seen.begin < seen.end ? seen.end : 0;
    int const first = max(__reduce_min_sync(0xffffffffu, begin), step(0));
    int const last = min(__reduce_max_sync(0xffffffffu, end), step(1));
    __syncwarp(); // all lanes have read the steps
    if (thread_anew() % 32 == 0) {
      write_slot(steps_of(memory.told_work(), 0), first);
      write_slot(steps_of(memory.told_work(), 1), last);
    }
    __syncwarp();
  }

  //! Takes a piece of work and finds its steps; false where none is left. Pieces of ranges that
  //! their tile does not see are passed on at once: who waits for them has taken a later one.
  __device__ __forceinline__ bool find_work() const {
    auto const to = memory.told_work();
#pragma unroll 1
    while (true) {
      int const n = __shfl_sync(0xffffffffu, is_first_lane ? take_piece(sums) : 0, 0);
      if (n >= sums.pieces) {
        return false;
      }
      auto const work = work_of_piece<Shape::keys>(c.p, sums, n);
      __syncwarp(); // all lanes have read the piece before
      if (is_first_lane) {
        write_work(to, work);
      }
      __syncwarp();
      find_steps();
      if (step(0) < step(1)) {
        return true;
      }
      if (is_first_lane) {
        auto const work = read_work(to);
#pragma unroll 1
        for (int slice = 0; Order == query_order::kept && slice < query_sums::slices; ++slice) {
          auto* const written = written_of<Shape::keys>(c.p, sums, work) + slice;
          wait_for_tile(written, work.part);
          write_after(written, work.part);
        }
      }
    }
  }

  //! Brings the steps of a piece, last step first, of all heads in turn: where a mask is causal the
  //! blocks of a head begin at one step, and each adds to it after the tile before.
  __device__ __forceinline__ void bring_steps() {
#pragma unroll 1
    for (int step = this->step(1) - 1; step >= this->step(0); --step) {
#pragma unroll 1
      for (int head = this->head(0); head < this->head(1); ++head) {
        auto const covered = cover_of<Shape>(c, batch(), head, step, tile());
        if (__all_sync(0xffffffffu, covered == tile_cover::skip)) {
          continue;
        }
        bool const whole = __all_sync(0xffffffffu, covered == tile_cover::full);
        wait_for_place(place);
        if (is_first_lane) {
          bring_step(head, 2 * step + (whole ? 0 : 1));
        }
        __syncwarp();
        if constexpr (asks_for_first) {
          auto const sees = [&](int other) {
            return cover_of<Shape>(c, batch(), head, step, other) != tile_cover::skip;
          };
          int const before = tile_before<band_mask<mask_type>>(tile(), thread_anew() % 32, sees);
          if (is_first_lane) {
            write_slot(memory.after(place.stage), before);
          }
        }
        arrive_warp(memory.told(place.stage), is_first_lane);
        place.advance();
      }
    }
  }

  //! Says in place of a step that the piece is over, or all work.
  __device__ __forceinline__ void tell_end(int told) const {
    if (is_first_lane) {
      write_slot(memory.slot(place.stage), told);
      arrive(memory.told(place.stage));
      arrive(memory.full(place.stage));
    }
  }

  //! Takes pieces until none is left. Once consumers are done with all stages of a piece, they
  //! multiply no more of its keys: the next ones come while they add its dK and dV.
  __device__ __forceinline__ void run() {
    auto const parity = parity_of(memory.told_work());
    if (is_first_lane) {
      await_copies_by(maps.key, maps.value, maps.query, maps.output_gradient);
      write_slot(parity, 1);
    }
    __syncwarp();
#pragma unroll 1
    while (find_work()) {
      if (is_first_lane) {
        write_slot(parity, 1 - read_slot(parity));
        bring_own_tiles();
      }
      bring_steps();
      wait_for_place(place);
      tell_end(no_more_tiles);
      place.advance();
      auto used = place;
#pragma unroll 1
      for (int stage = 0; stage < Shape::stages; ++stage, used.advance()) {
        wait_for_place(used);
      }
      // Nobody else does where there is no step.
      wait_for(memory.own_full(), read_slot(parity));
    }
    tell_end(no_more_pieces);
  }
};

//! Sets the sums of a step to 0; by a warp.
template <int Count>
__device__ inline void clear_sums(float* sums, int lane) {
#pragma unroll 4
  for (int n = lane; n < Count / 4; n += 32) {
    reinterpret_cast<float4*>(sums)[n] = {0, 0, 0, 0};
  }
}

//! Clears the sums of the step in a stage for the first tile of keys; else waits until the tile
//! before has added, or, in a free order, until the first one has cleared them. By a warp, whose
//! first lane alone waits.
template <class Shape, query_order Order>
__device__ __forceinline__ void
prepare_sums(query_sums const& sums, backward_memory<Shape> const& memory, int stage, int lane) {
  constexpr int count = Shape::step * Shape::query_dim;
  int const step = read_slot(memory.sums(stage));
  int const before = read_slot(memory.after(stage));
  if (before == 0) {
    clear_sums<count>(sums.sums + static_cast<std::int64_t>(step) * count, lane);
    if constexpr (Order == query_order::free) {
      __syncwarp(); // all lanes have cleared
      if (lane == 0) {
        count_after(sums.after + step, 1 + read_slot(memory.tile(stage)));
      }
    }
  } else if (lane == 0) {
    wait_for_turn<Order>(sums.after + step, before);
  }
}

//! The warp that brings the statistics of the queries.
//! @tparam Prepares the sums of dQ, too
template <class Shape, bool Prepares>
__device__ inline void
tell_all_numbers(query_sums const& sums, backward_memory<Shape> const& memory, int lane) {
  ring_place<Shape::stages> place;
#pragma unroll 1
  for (int told = 0; told != no_more_pieces; place.advance()) {
    wait_for(memory.told(place.stage), place.parity);
    told = read_slot(memory.slot(place.stage));
    if (told >= 0) {
      if constexpr (Prepares) {
        prepare_sums<Shape, query_order::free>(sums, memory, place.stage, lane);
      }
      tell_numbers<Shape::step>(memory.numbers(place.stage),
                                sums.numbers +
                                  static_cast<std::int64_t>(read_slot(memory.sums(place.stage))) *
                                    (2 * Shape::step),
                                lane);
    }
    arrive_warp(memory.full(place.stage), lane == 0);
  }
}

//! The warp that keeps the order: to each step the tiles of keys that see it add first tile first.
//! Gives the consumers their turn when the sums are prepared, and hands it on when they have added.
template <class Shape>
__device__ inline void
keep_order(query_sums const& sums, backward_memory<Shape> const& memory, int lane) {
  ring_place<Shape::stages> place;
  std::uint32_t parity = 0;
#pragma unroll 1
  for (int told = 0; told != no_more_pieces; place.advance()) {
    wait_for(memory.told(place.stage), place.parity);
    told = read_slot(memory.slot(place.stage));
    if (told < 0) {
      arrive_warp(memory.empty(place.stage), lane == 0);
      continue;
    }
    int const step = read_slot(memory.sums(place.stage));
    int const tile = read_slot(memory.tile(place.stage));
    prepare_sums<Shape, query_order::kept>(sums, memory, place.stage, lane);
    arrive_warp(memory.turn(), lane == 0);
    arrive_warp(memory.empty(place.stage), lane == 0); // it holds another step soon
    wait_for(memory.added(), parity);
    parity ^= 1;
    if (lane == 0) {
      write_after(sums.after + step, tile);
    }
  }
}

} // namespace pipelining::inline v0_3::attention::detail
