// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The copying thread of the forward kernel for Hopper: finds out the work and the tiles
//! that each piece visits, brings the tiles and tells the consumers.

#include <pipe/attention/hopper/forward_block.cuh>
#include <pipe/attention/hopper/instructions.cuh>
#include <pipe/attention/kernel/warp_matrix.cuh>
#include <pipe/attention/kernel_call.hpp>
#include <pipe/attention/key_splits.hpp>

#include <cstdint>
#include <type_traits>

namespace pipelining::inline v0_3::attention::detail {

//! Tells the consumers what the next piece of work is. @param which of two places
template <class Memory>
__device__ inline void
tell_work(Memory const& memory, std::uint32_t which, hopper_work const& work) {
  write_slot(memory.work(which, work_number::first), work.first);
  write_slot(memory.work(which, work_number::rows), work.rows);
  write_slot(memory.work(which, work_number::head), work.head);
  write_slot(memory.work(which, work_number::batch), work.batch);
  write_slot(memory.work(which, work_number::split), work.split);
}

//! The copying thread.
template <int Dim, class Element, mask Mask, score Score, class Splits>
__device__ inline void copy_tiles(forward_call<Element, Mask, Score> const& c,
                                  hopper_forward_maps const& maps,
                                  Splits const& splits,
                                  piece_order const& order,
                                  hopper_memory<Dim, Score> const& memory) {
  using shape = hopper_forward_shape<Dim, Score>;
  ring_place<shape::stages> key;
  ring_place<shape::stages> value;
  std::uint32_t query_parity = 1;
  int const tiles = (static_cast<int>(c.p.query_length) + shape::queries - 1) / shape::queries;
  auto const count = [&] {
    return tiles * static_cast<int>(c.p.heads) * static_cast<int>(c.p.batch) * splits.count;
  };
#pragma unroll 1
  for (int n = -1; (n = take_piece(order, count(), n)) < count();) {
    wait_for(memory.query_empty(), query_parity);
    query_parity ^= 1;
    auto const work = work_of<shape::queries>(c.p, order, splits.count, tiles, n);
    tell_work(memory, query_parity, work);
    arrive_expecting(memory.query_full(), shape::query_bytes);
    for (int consumer = 0; consumer < shape::consumers; ++consumer) {
      load_tile<shape::query_dim, shape::rows>(
        memory.query(consumer),
        maps.query,
        {work.first + consumer * shape::rows, work.head, work.batch},
        memory.query_full());
    }
    each_key_tile<shape::queries, shape::keys>(c, work, splits.count, [&](int tile, bool whole) {
      tile_place const at{tile * shape::keys, work.key_head, work.batch};
      wait_for(memory.key_empty(key.stage), key.parity ^ 1);
      write_slot(memory.slot(key.stage), 2 * tile + (whole ? 0 : 1));
      arrive_expecting(memory.key_full(key.stage), shape::key_bytes);
      load_tile<shape::query_dim, shape::keys>(
        memory.key(key.stage), maps.key, at, memory.key_full(key.stage));
      key.advance();
      wait_for(memory.value_empty(value.stage), value.parity ^ 1);
      if constexpr (std::is_same_v<Splits, no_key_splits> && !shape::outputs_apart) {
        wait_for(memory.outputs_gone(), query_parity ^ 1); // those of the piece before
      }
      arrive_expecting(memory.value_full(value.stage), shape::value_bytes);
      load_tile<shape::value_dim, shape::keys>(
        memory.value(value.stage), maps.value, at, memory.value_full(value.stage));
      value.advance();
    });
    wait_for(memory.key_empty(key.stage), key.parity ^ 1);
    write_slot(memory.slot(key.stage), no_more_tiles);
    arrive(memory.key_full(key.stage));
    key.advance();
  }
  wait_for(memory.query_empty(), query_parity);
  write_slot(memory.work(query_parity ^ 1, work_number::first), no_more_work);
  arrive(memory.query_full());
}

} // namespace pipelining::inline v0_3::attention::detail
