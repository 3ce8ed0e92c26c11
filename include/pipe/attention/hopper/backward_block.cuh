// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Tile sizes, shared memory and roles of the backward kernel for Hopper.

#include <pipe/attention/hopper/forward_block.cuh>
#include <pipe/attention/hopper/instructions.cuh>
#include <pipe/attention/hopper/products.cuh>
#include <pipe/attention/kernel/query_order.cuh>
#include <pipe/attention/kernel/tile_search.cuh>
#include <pipe/attention/kernel_call.hpp>
#include <pipe/attention/query_sums.hpp>

#include <cuda.h>

#include <cstdint>

namespace pipelining::inline v0_3::attention::detail {

//! Tile sizes of the backward kernel for Hopper: 128 keys, above head dim 128 64, stay with
//! their values, queries and dO come in steps, through a ring of stages.
template <int Dim>
struct hopper_backward_shape {
  static constexpr int query_dim = kernel_dims<Dim>::query; //!< of queries and keys
  static constexpr int value_dim = kernel_dims<Dim>::value; //!< of values and dO
  static constexpr int consumers = 2;                       //!< warpgroups that multiply
  static constexpr int threads = 128 * (1 + consumers);     //!< of a block: one warpgroup copies
  //! True where consumers share all keys and have a part of the head dim each; else each has its
  //! own keys.
  static constexpr bool is_wide = query_dim > 128;
  static constexpr int rows = 64;                           //!< keys of one tile
  static constexpr int own_tiles = is_wide ? 1 : consumers; //!< of keys, and of values
  static constexpr int keys = own_tiles * rows;             //!< of a block
  static constexpr int step =
    queries_of_step(kernel_family::hopper, query_dim); //!< queries of a stage
  //! Queries whose weights a consumer makes at once.
  static constexpr int part = is_wide ? 32 : 64;
  static constexpr int parts = Dim == 64 ? 2 : 1;               //!< of a step that a consumer makes
  static constexpr int stages = Dim == 256 ? 2 : 3;             //!< steps on the way
  static constexpr int query_row = row_elements(query_dim) * 2; //!< bytes of a query or key
  static constexpr int value_row = row_elements(value_dim) * 2; //!< bytes of a value or dO
  static constexpr int key_tile_bytes = rows * query_row;       //!< one tile of keys
  static constexpr int value_tile_bytes = rows * value_row;     //!< one tile of values
  static constexpr int own_bytes = own_tiles * (key_tile_bytes + value_tile_bytes); //!< all of both
  static constexpr int query_tile_bytes = step * query_row;                         //!< of a stage
  static constexpr int stage_bytes = query_tile_bytes + step * value_row;           //!< with dO
  //! Gradients of the logits of 64 queries, or their weights.
  static constexpr int gradient_bytes = keys * 64 * 2;
  //! Places for these in a step: one for each part; or one for weights and one for gradients.
  static constexpr int places = is_wide ? 2 : parts;
  static constexpr int number_bytes = 2 * step * 4; //!< of a stage: two floats per query
  //! Bytes of the barriers, and of the numbers about stages.
  static constexpr int barrier_bytes = 8 * (3 + 3 * stages) + 20 * stages + 2 * 40;
  //! Bytes of shared memory that a block takes.
  static constexpr int shared_bytes =
    own_bytes + stages * (stage_bytes + number_bytes) + 2 * places * gradient_bytes + barrier_bytes;
  // What setmaxnreg hands over: the launch gives every thread 168.
  static constexpr int copy_registers = Dim == 64 ? 40 : 24;       //!< of a thread that copies
  static constexpr int consumer_registers = Dim == 64 ? 232 : 240; //!< of a thread that multiplies
};

//! The tensors of a backward call as the copy engine sees them. Boxes: keys and values of
//! one consumer, queries and dO of one step.
struct hopper_backward_maps {
  CUtensorMap key;             //!< read
  CUtensorMap value;           //!< read
  CUtensorMap query;           //!< read
  CUtensorMap output_gradient; //!< read
};

//! Shared memory of a block: keys, then values [tile][panel][row]; stages of queries, then dO
//! [panel][row]; gradients of the logits [turn][place][key]; numbers, barriers, slots. `which` is 0
//! for keys and queries, 1 for values and dO.
template <class Shape>
struct backward_memory {
  std::uint32_t start; // shared address, a multiple of 1024

  //! From the start to a tile, in the units of descriptors.
  __device__ static constexpr int own_place(int which, int tile) {
    return which == 0 ? tile * (Shape::key_tile_bytes / piece_bytes)
                      : Shape::own_tiles * (Shape::key_tile_bytes / piece_bytes) +
                          tile * (Shape::value_tile_bytes / piece_bytes);
  }
  __device__ static constexpr int step_place(int which, int stage) {
    return Shape::own_bytes / piece_bytes + stage * (Shape::stage_bytes / piece_bytes) +
           which * (Shape::query_tile_bytes / piece_bytes);
  }

  __device__ std::uint32_t own(int which, int tile) const {
    return start + own_place(which, tile) * piece_bytes;
  }
  __device__ std::uint32_t step(int which, int stage) const {
    return start + step_place(which, stage) * piece_bytes;
  }
  __device__ std::uint32_t gradients(int turn, int place) const {
    return step(0, Shape::stages) + (turn * Shape::places + place) * Shape::gradient_bytes;
  }
  //! Where tiles begin, in the units of descriptors.
  __device__ std::uint32_t own_piece(int which, int tile) const {
    return start / piece_bytes + own_place(which, tile);
  }
  __device__ std::uint32_t step_piece(int which, int stage, int part) const {
    return start / piece_bytes + step_place(which, stage) +
           part * (Shape::part * panel_row_bytes / piece_bytes);
  }
  __device__ std::uint32_t gradient_piece(int turn, int place) const {
    return step_piece(0, Shape::stages, 0) +
           (turn * Shape::places + place) * (Shape::gradient_bytes / piece_bytes);
  }
  //! Floats, two for each query of the stage.
  __device__ std::uint32_t numbers(int stage) const {
    return gradients(2, 0) + stage * Shape::number_bytes;
  }
  __device__ std::uint32_t barrier(int n) const { return numbers(Shape::stages) + 8 * n; }
  __device__ std::uint32_t own_full() const { return barrier(0); }
  //! Barriers of a step's dQ: this block's turn to add has come; all consumers have added.
  __device__ std::uint32_t turn() const { return barrier(1); }
  __device__ std::uint32_t added() const { return barrier(2); }
  __device__ std::uint32_t full(int stage) const { return barrier(3 + stage); }
  __device__ std::uint32_t empty(int stage) const { return barrier(3 + Shape::stages + stage); }
  //! The barrier after which the slot of a stage can be read; the tiles may still be on their way.
  __device__ std::uint32_t told(int stage) const { return barrier(3 + 2 * Shape::stages + stage); }
  //! The step in a stage: 2 * step, + 1 where every pair has to be asked; or no_more_tiles, or
  //! no_more_pieces.
  __device__ std::uint32_t slot(int stage) const {
    return barrier(3 + 3 * Shape::stages) + 4 * stage;
  }
  //! Of which query head.
  __device__ std::uint32_t head(int stage) const { return slot(Shape::stages) + 4 * stage; }
  //! Where its sums of dQ lie, in steps.
  __device__ std::uint32_t sums(int stage) const { return head(Shape::stages) + 4 * stage; }
  //! The tile of keys after which this block adds, as query_sums::after has it.
  __device__ std::uint32_t after(int stage) const { return sums(Shape::stages) + 4 * stage; }
  //! The tile of keys that meets it.
  __device__ std::uint32_t tile(int stage) const { return after(Shape::stages) + 4 * stage; }
  //! The piece of work whose steps are brought: ten numbers.
  __device__ std::uint32_t told_work() const { return tile(Shape::stages); }
  //! The one that consumers do, which copy it once they begin.
  __device__ std::uint32_t work() const { return told_work() + 40; }
};

//! Of a piece of work in shared memory, steps and heads: the first one, and one after the last.
__device__ inline std::uint32_t steps_of(std::uint32_t work, int end) {
  return work + 20 + 4 * end;
}
__device__ inline std::uint32_t heads_of(std::uint32_t work, int end) {
  return work + 28 + 4 * end;
}
//! Parity of the barrier of its keys and values.
__device__ inline std::uint32_t parity_of(std::uint32_t work) {
  return work + 36;
}

//! In place of a step: there is no more work.
inline constexpr int no_more_pieces = -2;

//! Writes the work of a block to shared memory: nobody keeps in registers what is seldom needed.
__device__ inline void write_work(std::uint32_t to, key_work const& work) {
  write_slot(to, work.batch);
  write_slot(to + 4, work.key_head);
  write_slot(to + 8, work.first);
  write_slot(to + 12, work.rows);
  write_slot(to + 16, work.part);
  write_slot(to + 20, work.begin);
  write_slot(to + 24, work.end);
  write_slot(to + 28, work.head);
  write_slot(to + 32, work.heads);
}
//! The work but for its steps and heads, which the copying warp alone reads.
__device__ inline key_work read_work(std::uint32_t from) {
  return {read_slot(from),
          read_slot(from + 4),
          read_slot(from + 8),
          read_slot(from + 12),
          read_slot(from + 16)};
}

//! A consumer, that is a warpgroup, and its way through the stages.
template <class Shape>
struct backward_consumer {
  backward_memory<Shape> memory;
  int number; // of the consumer, alike in all its lanes, as ptxas knows
  ring_place<Shape::stages> place{};

  //! Number of the thread in the block, asked for anew.
  __forceinline__ __device__ static int thread() {
    int const n = thread_anew();
    __builtin_assume(n >= 0); // so that parts of it are shifts
    return n;
  }
  __forceinline__ __device__ static int lane() { return thread() % 32; }
  //! Row of this lane within the block's keys; the second half is 8 further down.
  __forceinline__ __device__ static int row() {
    int const n = thread();
    return (Shape::is_wide ? n % 128 : n) / 32 * 16 + n % 32 / 4;
  }
  //! Column of this lane; then 8 further right for each part.
  __forceinline__ __device__ static int column() { return thread() % 4 * 2; }

  //! Waits for the next stage and says which step it holds, see backward_memory::slot.
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
  //! Puts weights or gradients where products read them: a row for each key, a panel of queries,
  //! of which wide consumers have a half each.
  template <int Count>
  __forceinline__ __device__ void
  keep(std::uint32_t const (&packed)[Count], int turn, int place) const {
    keep_hopper_rows<Shape::part>(memory.gradients(turn, place),
                                  packed,
                                  row() / 16 * 16,
                                  lane(),
                                  Shape::is_wide ? number * Shape::part : 0);
  }
  //! Products of own tile Which with a part of that of a stage.
  template <class Element, int Which, int Count>
  __forceinline__ __device__ void start(float (&d)[Count], int stage, int part) const {
    start_rows<Element, Which == 0 ? Shape::query_dim : Shape::value_dim, Shape::step>(
      d,
      describe_tile(memory.own_piece(Which, Shape::is_wide ? 0 : number), 16),
      describe_tile(memory.step_piece(Which, stage, part), 16));
  }
};

//! Makes the barriers and gives everybody a role: copy(memory, is_first_lane) and
//! tell(memory, lane), order(memory, lane) for a warp each, consume(consumer) for two warpgroups.
//! @tparam Keeps a warp keeps the order
template <class Shape, bool Keeps, class Copy, class Tell, class Order, class Consume>
__device__ __forceinline__ void run_roles(unsigned char* shared,
                                          Copy const& copy,
                                          Tell const& tell,
                                          Order const& order,
                                          Consume const& consume) {
  backward_memory<Shape> const memory{shared_address(shared)};
  if (threadIdx.x == 0) {
    check_alignment(memory.start);
    begin_barrier(memory.own_full(), 1);
    begin_barrier(memory.turn(), 1);
    begin_barrier(memory.added(), 4 * Shape::consumers); // one arrival per warp
    for (int stage = 0; stage < Shape::stages; ++stage) {
      begin_barrier(memory.full(stage), 2); // of the copies and of the numbers
      begin_barrier(memory.empty(stage), 4 * Shape::consumers + Keeps);
      begin_barrier(memory.told(stage), 1);
      write_slot(memory.sums(stage), -1); // nobody has added to a step
    }
    publish_barriers();
  }
  __syncthreads();
  // Alike in all lanes, as ptxas then knows: it has registers for that next to those shared out.
  int const warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
  int const lane = static_cast<int>(threadIdx.x % 32);
  constexpr int first_copying = 4 * Shape::consumers;
  if (warp >= first_copying) {
    give_registers<Shape::copy_registers>();
    if (warp == first_copying) {
      copy(memory, lane == 0);
    } else if (warp == first_copying + 1) {
      tell(memory, lane);
    } else if (Keeps && warp == first_copying + 2) {
      order(memory, lane);
    }
  } else {
    take_registers<Shape::consumer_registers>();
    consume(backward_consumer<Shape>{memory, warp / 4});
  }
}

} // namespace pipelining::inline v0_3::attention::detail
