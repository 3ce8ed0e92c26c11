// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Tile sizes, shared memory and steps of the backward kernel for sm_80 and up.

#include <pipe/attention/head_dims.hpp>
#include <pipe/attention/kernel/query_order.cuh>
#include <pipe/attention/kernel/tile_search.cuh>
#include <pipe/attention/kernel_call.hpp>
#include <pipe/attention/portable/shared_tile.cuh>
#include <pipe/attention/query_sums.hpp>

#include <cstdint>
#include <type_traits>

namespace pipelining::inline v0_3::attention::detail {

//! Tile sizes of the backward kernel. Scores other than plain need some registers themselves.
template <int Dim, score Score = plain>
struct backward_shape {
  static constexpr int query_dim = kernel_dims<Dim>::query; //!< of queries and keys
  static constexpr int value_dim = kernel_dims<Dim>::value; //!< of values and outputs
  static constexpr bool wide = query_dim > 128;             //!< registers are short
  static constexpr int warps = Dim == 64 || wide ? 4 : 8;   //!< of a block
  static constexpr int threads = 32 * warps;                //!< of a block
  static constexpr int row_tiles = Dim == 64 ? 2 : 1;       //!< tiles of 16 keys in a warp
  static constexpr int keys = warps * row_tiles * 16;       //!< of a block
  static constexpr int step =
    queries_of_step(kernel_family::portable, query_dim); //!< queries at once
  //! Queries whose weights are made at once.
  static constexpr int part = std::is_same_v<Score, plain> && !wide ? 32 : 16;
  static constexpr int parts = step / part; //!< of a step
  //! True where the logits of a step are made at once: keys are read from shared memory once.
  static constexpr bool reads_keys_once = warps == 8 && std::is_same_v<Score, plain>;
  //! Blocks that share the columns of a head.
  static constexpr int halves = query_sums::halves(kernel_family::portable, query_dim);
  static constexpr int key_width = query_dim / halves;   //!< columns of dQ and dK in one block
  static constexpr int value_width = value_dim / halves; //!< columns of dV in one block
  static constexpr bool holds_values = Dim != 64;        //!< in registers, not in shared memory
  static constexpr int key_bytes = keys * row_bytes<query_dim>;      //!< of keys
  static constexpr int value_bytes = keys * row_bytes<value_dim>;    //!< of values
  static constexpr int query_bytes = step * row_bytes<query_dim>;    //!< of queries
  static constexpr int output_bytes = step * row_bytes<value_dim>;   //!< of dO
  static constexpr int number_bytes = step * 8;                      //!< two floats of each query
  static constexpr int gradient_columns = 64;                        //!< of a key, some unused
  static constexpr int gradient_bytes = keys * gradient_columns * 2; //!< gradients of the logits
  //! True where values that pass to registers lie where the first queries are later.
  static constexpr bool values_lie_on_queries =
    holds_values && value_bytes > gradient_bytes + query_bytes;
  static constexpr int slot_bytes = 4 * 16 + 32; //!< what four steps are, and the block's work
  //! Bytes of shared memory that a block takes: queries and their numbers are there twice.
  static constexpr int shared_bytes = key_bytes + (holds_values ? 0 : value_bytes) + output_bytes +
                                      2 * query_bytes + gradient_bytes + 2 * number_bytes +
                                      slot_bytes;
};

//! Shared memory of a block: keys; values, unless they are held in registers; dO; gradients of the
//! logits [keys, gradient_columns]; queries of two stages; their numbers; slots.
template <class Shape>
struct portable_backward_memory {
  unsigned char* start; // a multiple of 1024

  __device__ std::uint32_t keys() const { return shared_address(start); }
  //! The values. On the way to registers they lie where gradients and the first queries come later.
  __device__ std::uint32_t values() const {
    return Shape::holds_values ? shared_address(gradients()) : keys() + Shape::key_bytes;
  }
  __device__ std::uint32_t outputs() const {
    return shared_address(gradients()) - Shape::output_bytes;
  }
  __device__ unsigned char* gradients() const {
    return start + Shape::key_bytes + (Shape::holds_values ? 0 : Shape::value_bytes) +
           Shape::output_bytes;
  }
  __device__ std::uint32_t queries(int stage) const {
    return shared_address(gradients()) + Shape::gradient_bytes + stage * Shape::query_bytes;
  }
  __device__ unsigned char* numbers(int stage) const {
    return gradients() + Shape::gradient_bytes + 2 * Shape::query_bytes +
           stage * Shape::number_bytes;
  }
  //! Of step n: what it is (told), its query head, after which tile of keys this block adds.
  __device__ std::uint32_t slot(unsigned n, int which) const {
    return shared_address(numbers(2)) + n % 4u * 16 + which * 4;
  }
  //! The block's work: four numbers of key_work, and which half of the columns.
  __device__ std::uint32_t work(int which) const {
    return shared_address(numbers(2)) + 4 * 16 + which * 4;
  }
};

//! A block: its work, and how it finds and brings steps of queries. Next to nothing stays in
//! registers, which sums need: numbers are read from shared memory, or asked for, each time.
template <int Dim, query_order Order, class Element, mask Mask, score Score>
struct backward_block {
  using shape = backward_shape<Dim, Score>;

  backward_call<Element, Mask, Score> const& c;
  query_sums const& sums;
  portable_backward_memory<shape> memory;

  __forceinline__ __device__ static int lane() { return thread_anew() & 31; }
  __forceinline__ __device__ static int warp() {
    return static_cast<int>(static_cast<unsigned>(thread_anew()) / 32);
  }
  //! First key of the warp within the block's.
  __forceinline__ __device__ static int warp_row() { return warp() * (shape::row_tiles * 16); }
  __forceinline__ __device__ static lane_place place() {
    return {warp_row() + lane() / 4, lane() % 4 * 2};
  }

  __forceinline__ __device__ int batch() const { return read_slot(memory.work(0)); }
  __forceinline__ __device__ int key_head() const { return read_slot(memory.work(1)); }
  __forceinline__ __device__ int first_key() const { return read_slot(memory.work(2)); }
  __forceinline__ __device__ int present_keys() const { return read_slot(memory.work(3)); }
  __forceinline__ __device__ int half() const {
    return shape::halves == 1 ? 0 : read_slot(memory.work(4));
  }
  __forceinline__ __device__ int tile() const { return first_key() / shape::keys; }
  __forceinline__ __device__ int first_head() const { return key_head() * group_of(c.p); }
  //! Piece of 16 bytes at which this block's columns of a row begin.
  __forceinline__ __device__ int first_piece() const { return half() * (shape::key_width / 8); }

  //! Step n: 2 * index, + 1 where every pair has to be asked; or no_more_tiles.
  __forceinline__ __device__ int told(unsigned n) const { return read_slot(memory.slot(n, 0)); }
  __forceinline__ __device__ int head(unsigned n) const { return read_slot(memory.slot(n, 1)); }
  __forceinline__ __device__ int before(unsigned n) const { return read_slot(memory.slot(n, 2)); }
  __forceinline__ __device__ int first_query(unsigned n) const { return told(n) / 2 * shape::step; }
  //! The number of step n among the steps of all heads.
  __forceinline__ __device__ std::int64_t number(unsigned n) const {
    return sums.first_step(c.p, batch(), head(n)) + told(n) / 2;
  }
  //! The mark of the last tile of keys that added to the dQ of step n: 1 + its number.
  __forceinline__ __device__ std::int32_t* after(unsigned n) const {
    return sums.after + number(n) * shape::halves + half();
  }

  //! Takes work; to be called by one thread, before all meet.
  __device__ void take_work() const {
    int const piece = Order == query_order::kept ? take_piece(sums) : static_cast<int>(blockIdx.x);
    auto const work = work_of_piece<shape::keys>(c.p, sums, piece / shape::halves);
    write_slot(memory.work(0), work.batch);
    write_slot(memory.work(1), work.key_head);
    write_slot(memory.work(2), work.first);
    write_slot(memory.work(3), work.rows);
    write_slot(memory.work(4), piece % shape::halves);
  }

  //! Writes a slot; by a warp.
  __forceinline__ __device__ static void tell(std::uint32_t slot, int number) {
    if (lane() == 0) {
      write_slot(slot, number);
    }
  }

  //! Says that step n is the first that the block sees from (head, index) on; by a warp.
  //! @param head within the group
  __device__ void find_step(unsigned n, int head, int index) const {
    int const rows = present_keys();
    int const length = static_cast<int>(c.p.key_length);
    auto const offset = static_cast<int>(c.p.key_offset);
    int const first = offset + first_key();
    tile_position at{batch(), first_head(), 0, 0, first, first + rows};
    auto const found = find_query_tile<shape::step>(c.p, c.m, at, head, index);
    if (found.cover == tile_cover::skip) {
      tell(memory.slot(n, 0), no_more_tiles);
      return;
    }
    bool const whole = found.cover == tile_cover::full && rows == shape::keys;
    int const of_head = first_head() + found.head;
    if constexpr (Order == query_order::kept) {
      int const begin = found.index * shape::step;
      at.head = of_head;
      at.query_begin = static_cast<int>(c.p.query_offset) + begin;
      at.query_end = at.query_begin + min(shape::step, static_cast<int>(c.p.query_length) - begin);
      int const before = tile_before<band_mask<Mask>>(tile(), lane(), [&](int other) {
        at.key_begin = offset + other * shape::keys;
        at.key_end = offset + min(length, (other + 1) * shape::keys);
        return cover(c.m, at) != tile_cover::skip;
      });
      tell(memory.slot(n, 2), before);
    }
    tell(memory.slot(n, 0), 2 * found.index + (whole ? 0 : 1));
    tell(memory.slot(n, 1), of_head);
  }
  //! The step after step n - 1, where there is one.
  __device__ void find_next(unsigned n) const {
    if (told(n - 1) == no_more_tiles) {
      tell(memory.slot(n, 0), no_more_tiles);
    } else {
      find_step(n, head(n - 1) - first_head(), told(n - 1) / 2 - 1);
    }
  }

  //! Starts to copy the block's keys or values.
  template <int Columns>
  __forceinline__ __device__ void copy_own(std::uint32_t to,
                                           tensor_view<Element const> const& from) const {
    copy_tile<shape::keys, Columns, shape::threads>(
      to, from, batch(), key_head(), first_key(), static_cast<int>(c.p.key_length), thread_anew());
  }
  //! Starts to copy queries or dO of step n.
  template <int Columns>
  __forceinline__ __device__ void
  copy_step(unsigned n, std::uint32_t to, tensor_view<Element const> const& from) const {
    copy_tile<shape::step, Columns, shape::threads>(to,
                                                    from,
                                                    batch(),
                                                    head(n),
                                                    first_query(n),
                                                    static_cast<int>(c.p.query_length),
                                                    thread_anew());
  }
  __forceinline__ __device__ void copy_queries(unsigned n) const {
    copy_step<shape::query_dim>(n, memory.queries(n % 2u), c.t.query);
    int const thread = thread_anew();
    if (thread < shape::step / 2) {
      copy_16_bytes(shared_address(memory.numbers(n % 2u)) + thread * 16,
                    sums.numbers + number(n) * (2 * shape::step) + thread * 4,
                    true);
    }
  }
  __forceinline__ __device__ void copy_outputs(unsigned n) const {
    copy_step<shape::value_dim>(n, memory.outputs(), c.t.output_gradient);
  }
};

} // namespace pipelining::inline v0_3::attention::detail
