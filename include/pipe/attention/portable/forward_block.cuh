// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Tile sizes, shared memory and work of the forward kernel for sm_80 and up.

#include <pipe/attention/head_dims.hpp>
#include <pipe/attention/kernel/kept_pairs.cuh>
#include <pipe/attention/kernel/tile_search.cuh>
#include <pipe/attention/kernel_call.hpp>
#include <pipe/attention/key_splits.hpp>
#include <pipe/attention/portable/shared_tile.cuh>

#include <cstdint>
#include <type_traits>

namespace pipelining::inline v0_3::attention::detail {

//! Shared memory of a multiprocessor that each block takes in addition to its own.
inline constexpr int bytes_around_block = 1 << 10;

//! Tile sizes of the forward kernel: the largest that ptxas fits into 255 registers without
//! spills. Scores other than plain need some registers themselves.
//! @tparam Compact two blocks fit on a multiprocessor with 100 KiB of shared memory
template <int Dim, score Score = plain, bool Compact = false>
struct forward_shape {
  static constexpr int query_dim = kernel_dims<Dim>::query; //!< of queries and keys
  static constexpr int value_dim = kernel_dims<Dim>::value; //!< of values and outputs
  static constexpr int warps = 4;                           //!< of a block
  static constexpr int threads = 32 * warps;                //!< of a block
  //! True where registers suffice for two tiles of queries in a warp.
  static constexpr bool roomy = Dim == 64 || (Dim != 256 && std::is_same_v<Score, plain>);
  static constexpr int row_tiles = roomy ? 2 : 1;        //!< tiles of 16 queries in a warp
  static constexpr int queries = warps * row_tiles * 16; //!< of a block
  static constexpr int query_bytes = queries * row_bytes<query_dim>; //!< of queries
  static constexpr int slot_bytes = 32;                              //!< the block's work
  //! Keys of one step that registers allow.
  static constexpr int most_keys = Dim == 256 ? 32 : value_dim > 96 && roomy ? 48 : 64;
  //! Keys of one step that a compact block has room for.
  static constexpr int fitting_keys =
    ((100 << 10) / 2 - bytes_around_block - slot_bytes - query_bytes) /
    (row_bytes<query_dim> + row_bytes<value_dim>) / 16 * 16;
  //! Keys of one step.
  static constexpr int keys = Compact && fitting_keys < most_keys ? fitting_keys : most_keys;
  static constexpr int key_bytes = keys * row_bytes<query_dim>;   //!< of keys
  static constexpr int value_bytes = keys * row_bytes<value_dim>; //!< of values
  static constexpr int value_places = Compact ? 1 : 2;            //!< tiles of values at a time
  //! Blocks on an SM: so many registers may a thread take. Not told, ptxas saves registers where
  //! products need them.
  static constexpr int blocks = 2;
  //! Bytes of shared memory that a block takes.
  static constexpr int shared_bytes =
    query_bytes + key_bytes + value_places * value_bytes + slot_bytes;
  //! True where two compact blocks are faster than one. Head dims 192/128 without a score have room
  //! for half of the queries: two would take 1.10 of the time.
  static constexpr bool has_compact = Dim != 64 && fitting_keys >= 16;
};

//! Calls run.operator()<Shape>() with the tile sizes for a GPU whose multiprocessors have so much
//! shared memory.
template <int Dim, score Score, class Run>
auto with_forward_shape(int shared_bytes, Run const& run) {
  using usual = forward_shape<Dim, Score>;
  if constexpr (usual::has_compact) {
    if (shared_bytes < usual::blocks * (usual::shared_bytes + bytes_around_block)) {
      return run.template operator()<forward_shape<Dim, Score, true>>();
    }
  }
  return run.template operator()<usual>();
}

//! A block: its work, and how it finds and brings tiles of keys. Sums need the registers, so the
//! work is read from shared memory each time.
template <class Shape, class Element, mask Mask, score Score, class Splits>
struct forward_block {
  using shape = Shape;
  static constexpr bool is_split = !std::is_same_v<Splits, no_key_splits>;

  forward_call<Element, Mask, Score> const& c;
  Splits const& splits;
  unsigned char* memory; // queries, keys, a tile or two of values, slots

  __forceinline__ __device__ static int lane() { return thread_anew() & 31; }
  //! First query of the warp within the block's.
  __forceinline__ __device__ static int warp_row() {
    return static_cast<int>(static_cast<unsigned>(thread_anew()) / 32) * (shape::row_tiles * 16);
  }
  __forceinline__ __device__ static lane_place place() {
    return {warp_row() + lane() / 4, lane() % 4 * 2};
  }

  __forceinline__ __device__ std::uint32_t queries() const { return shared_address(memory); }
  __forceinline__ __device__ std::uint32_t keys() const { return queries() + shape::query_bytes; }
  __forceinline__ __device__ std::uint32_t values(int stage) const {
    return keys() + shape::key_bytes + stage * shape::value_bytes;
  }
  __forceinline__ __device__ std::uint32_t slot(int n) const {
    return values(shape::value_places) + 4 * n;
  }

  __forceinline__ __device__ int batch() const { return read_slot(slot(0)); }
  __forceinline__ __device__ int head() const { return read_slot(slot(1)); }
  __forceinline__ __device__ int key_head() const { return read_slot(slot(2)); }
  __forceinline__ __device__ int first() const { return read_slot(slot(3)); } //!< query
  //! Queries that exist, from the first on.
  __forceinline__ __device__ int rows() const {
    return min(shape::queries, static_cast<int>(c.p.query_length) - first());
  }
  //! The part of the keys: its number, its first tile, and the key after its last.
  __forceinline__ __device__ int part() const { return is_split ? read_slot(slot(4)) : 0; }
  __forceinline__ __device__ int first_tile() const { return is_split ? read_slot(slot(5)) : 0; }
  __forceinline__ __device__ int end_of_keys() const {
    return is_split ? read_slot(slot(6)) : static_cast<int>(c.p.key_length);
  }

  //! Finds the block's work; to be called by one thread, before all meet. Parts of the keys of one
  //! tile of queries are neighbours. Late queries see most keys where a mask is causal: they go
  //! first.
  __device__ void take_work() const {
    auto const& p = c.p;
    auto const heads = static_cast<unsigned>(p.heads);
    auto const of_tile = heads * static_cast<unsigned>(p.batch);
    auto const parts = static_cast<unsigned>(splits.count);
    auto const part = blockIdx.x % parts;
    auto const block = blockIdx.x / parts;
    auto const head = static_cast<int>(block % heads);
    write_slot(slot(0), static_cast<int>(block / heads % static_cast<unsigned>(p.batch)));
    write_slot(slot(1), head);
    write_slot(slot(2), head / static_cast<int>(p.group()));
    write_slot(slot(3),
               static_cast<int>(gridDim.x / parts / of_tile - 1 - block / of_tile) *
                 shape::queries);
    if constexpr (is_split) {
      auto const count = (p.key_length + shape::keys - 1) / shape::keys;
      write_slot(slot(4), static_cast<int>(part));
      write_slot(slot(5), static_cast<int>(count * part / parts));
      write_slot(slot(6),
                 min(static_cast<int>(p.key_length),
                     static_cast<int>(count * (part + 1) / parts) * shape::keys));
    }
  }

  //! The first tile of keys at or after an index that the block sees: 2 * index, + 1 where every
  //! pair has to be asked; or one beyond the end.
  __forceinline__ __device__ int find_keys(int index) const {
    int const begin = static_cast<int>(c.p.query_offset) + first();
    tile_position const at{batch(), head(), begin, begin + rows(), 0, 0};
    auto const found = find_key_tile<shape::keys>(c.p, c.m, at, index, end_of_keys());
    return 2 * found.index + (found.cover == tile_cover::partial ? 1 : 0);
  }
  __forceinline__ __device__ bool is_tile(int told) const {
    return told / 2 * shape::keys < end_of_keys();
  }

  //! The lane's first pair with a tile of keys.
  __forceinline__ __device__ pair_position first_pair(int tile) const {
    auto const here = place();
    return {batch(),
            head(),
            static_cast<int>(c.p.query_offset) + first() + here.row,
            static_cast<int>(c.p.key_offset) + tile * shape::keys + here.column};
  }

  //! Asks for each pair of the lane with a tile of keys whether it is kept.
  __forceinline__ __device__ void ask_pairs(std::uint32_t (&kept)[2 * shape::row_tiles],
                                            int tile) const {
    auto const here = place();
    ask_mask<shape::keys / 4>(kept,
                              first_pair(tile),
                              rows() - here.row,
                              static_cast<int>(c.p.key_length) - tile * shape::keys - here.column,
                              c.m);
  }

  //! Starts to copy the queries.
  __forceinline__ __device__ void copy_queries() const {
    copy_tile<shape::queries, shape::query_dim, shape::threads>(queries(),
                                                                c.t.query,
                                                                batch(),
                                                                head(),
                                                                first(),
                                                                static_cast<int>(c.p.query_length),
                                                                thread_anew());
  }
  //! Starts to copy a tile of keys, and its values to a place where there are two: a group of
  //! copies each. Zeros, where the tile is beyond the end.
  __forceinline__ __device__ void copy_keys(int tile, std::uint32_t to) const {
    int const first = tile * shape::keys;
    int const length = end_of_keys();
    int const of_batch = batch();
    int const of_head = key_head();
    int const thread = thread_anew();
    copy_tile<shape::keys, shape::query_dim, shape::threads>(
      keys(), c.t.key, of_batch, of_head, first, length, thread);
    end_copies();
    if constexpr (shape::value_places == 2) {
      copy_tile<shape::keys, shape::value_dim, shape::threads>(
        to, c.t.value, of_batch, of_head, first, length, thread);
      end_copies();
    }
  }
  //! Starts to copy only the values, where they have one place.
  __forceinline__ __device__ void copy_late_values(int tile) const {
    if constexpr (shape::value_places == 1) {
      auto const first = tile * shape::keys;
      copy_tile<shape::keys, shape::value_dim, shape::threads>(
        values(0), c.t.value, batch(), key_head(), first, end_of_keys(), thread_anew());
      end_copies();
    }
  }
};

} // namespace pipelining::inline v0_3::attention::detail
