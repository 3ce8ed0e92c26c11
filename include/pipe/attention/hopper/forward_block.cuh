// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Tile sizes and shared memory of the forward kernel for Hopper, and what it shares with
//! backward: the rings of stages, the order of work and of tiles.

#include <pipe/attention/head_dims.hpp>
#include <pipe/attention/hopper/products.cuh>
#include <pipe/attention/kernel/tile_search.cuh>
#include <pipe/attention/kernel_call.hpp>
#include <pipe/attention/mask.hpp>
#include <pipe/attention/score.hpp>
#include <pipe/config.hpp>

#include <cuda.h>

#include <cstdint>
#include <type_traits>

namespace pipelining::inline v0_3::attention::detail {

//! Tile sizes of the forward kernel for Hopper: the largest that ptxas fits into its
//! registers without spills. Scores other than plain need some registers themselves. Below 128 the
//! exponentials take as long as the products, and a third consumer keeps both busy.
template <int Dim, score Score = plain>
struct hopper_forward_shape {
  static constexpr int query_dim = kernel_dims<Dim>::query; //!< of queries and keys
  static constexpr int value_dim = kernel_dims<Dim>::value; //!< of values and outputs
  //! Warpgroups that multiply.
  static constexpr int consumers = Dim < 128 && std::is_same_v<Score, plain> ? 3 : 2;
  static constexpr int threads = 128 * (1 + consumers); //!< of a block: one warpgroup copies
  static constexpr int rows = 64;                       //!< queries of one consumer
  static constexpr int queries = consumers * rows;      //!< of a block
  //! Keys of one tile.
  static constexpr int keys = Dim == 64                       ? 128
                              : !std::is_same_v<Score, plain> ? 64
                              : Dim < 128                     ? 96
                              : Dim != 256                    ? 128
                                                              : 80;
  //! Tiles of keys, and of values, on the way.
  static constexpr int stages = row_elements(query_dim) * keys <= 128 * 64 ? 4
                                : consumers == 3                           ? 3
                                                                           : 2;
  static constexpr int row_bytes = row_elements(query_dim) * 2;          //!< of a query or key
  static constexpr int consumer_bytes = rows * row_bytes;                //!< queries of one
  static constexpr int query_bytes = consumers * consumer_bytes;         //!< of a block
  static constexpr int key_bytes = keys * row_bytes;                     //!< of a tile of keys
  static constexpr int value_bytes = keys * row_elements(value_dim) * 2; //!< of values
  //! of the outputs of a block
  static constexpr int output_bytes = queries * row_elements(value_dim) * 2;
  //! of the barriers, the numbers of tiles and those of two pieces of work
  static constexpr int barrier_bytes = 8 * (3 + 4 * stages) + 4 * stages + 2 * 4 * 5;
  //! True where outputs have a place of their own; else those of a consumer take that of a tile of
  //! values. So do rows that are not whole panels, since copies read panels.
  static constexpr bool outputs_apart =
    value_dim % 64 == 0 &&
    query_bytes + stages * (key_bytes + value_bytes) + output_bytes + barrier_bytes <= 227 << 10;
  static_assert(outputs_apart || (stages >= consumers && value_bytes >= output_bytes / consumers));
  //! Bytes of shared memory that a block takes.
  static constexpr int shared_bytes = query_bytes + stages * (key_bytes + value_bytes) +
                                      (outputs_apart ? output_bytes : 0) + barrier_bytes;
  // What setmaxnreg hands over: the launch gives every thread 168, or 128 of four warpgroups.
  static constexpr int copy_registers = consumers == 3 ? 32 : 40; //!< of a thread that copies
  //! Of a thread that multiplies.
  static constexpr int consumer_registers = consumers == 3 ? 160 : 232;
};

//! The tensors of a forward call as the copy engine sees them. Boxes: queries and outputs of
//! one consumer, keys and values of one tile.
struct hopper_forward_maps {
  CUtensorMap query;  //!< read
  CUtensorMap key;    //!< read
  CUtensorMap value;  //!< read
  CUtensorMap output; //!< written
};

//! Numbers of a piece of work, as consumers get them; no_more_work stands in place of `first`.
enum class work_number { first, rows, head, batch, split };
inline constexpr int no_more_work = -1;

//! Shared memory of a block. Queries and outputs are [consumer][panel][row].
template <int Dim, score Score>
struct hopper_memory {
  using shape = hopper_forward_shape<Dim, Score>;
  std::uint32_t start; // shared address, a multiple of 1024

  //! Where tiles begin, in the units of descriptors.
  __device__ std::uint32_t query_piece(int consumer) const {
    return start / piece_bytes + consumer * (shape::consumer_bytes / piece_bytes);
  }
  __device__ std::uint32_t key_piece(int stage) const {
    return start / piece_bytes + shape::query_bytes / piece_bytes +
           stage * (shape::key_bytes / piece_bytes);
  }
  __device__ std::uint32_t value_piece(int stage) const {
    return key_piece(shape::stages) + stage * (shape::value_bytes / piece_bytes);
  }
  __device__ std::uint32_t query(int consumer) const {
    return start + consumer * shape::consumer_bytes;
  }
  __device__ std::uint32_t key(int stage) const {
    return start + shape::query_bytes + stage * shape::key_bytes;
  }
  __device__ std::uint32_t value(int stage) const {
    return key(shape::stages) + stage * shape::value_bytes;
  }
  __device__ std::uint32_t output(int consumer) const {
    return shape::outputs_apart
             ? value(shape::stages) + consumer * (shape::output_bytes / shape::consumers)
             : value(consumer);
  }
  __device__ std::uint32_t barrier(int n) const {
    return value(shape::stages) + (shape::outputs_apart ? shape::output_bytes : 0) + 8 * n;
  }
  __device__ std::uint32_t query_full() const { return barrier(0); }
  __device__ std::uint32_t query_empty() const { return barrier(1); }
  //! The barrier after which outputs have left the place of values.
  __device__ std::uint32_t outputs_gone() const { return barrier(2); }
  __device__ std::uint32_t key_full(int stage) const { return barrier(3 + stage); }
  __device__ std::uint32_t key_empty(int stage) const { return key_full(shape::stages + stage); }
  __device__ std::uint32_t value_full(int stage) const {
    return key_full(2 * shape::stages + stage);
  }
  __device__ std::uint32_t value_empty(int stage) const {
    return key_full(3 * shape::stages + stage);
  }
  //! The tile of keys in a stage: twice its number, and 1 more where pairs have to be asked for; or
  //! no_more_tiles.
  __device__ std::uint32_t slot(int stage) const { return key_full(4 * shape::stages) + 4 * stage; }
  //! A number of the piece of work that the queries are of. @param which 0 and 1 in turn
  __device__ std::uint32_t work(std::uint32_t which, work_number n) const {
    return slot(shape::stages) + which * (4 * 5) + 4 * static_cast<int>(n);
  }
};

//! Position in a ring of stages. Consumers wait for `parity`, the copying thread for the other one.
template <int Stages>
struct ring_place {
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ void advance() {
    if (++stage == Stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

//! A tile of queries of one head, with one part of the keys.
struct hopper_work {
  int batch;
  int head;
  int key_head;
  int first; // query of the call
  int rows;  // that exist
  int split;
};

//! In which order blocks take the pieces of a call.
struct piece_order {
  //! Device memory that counts the pieces that were taken: 0 before the kernel and after it. Null:
  //! there is a block for each piece.
  std::uint32_t* taken = nullptr;
  //! Query heads, of all sequences, that are worked on together: as many as have their keys and
  //! values in the L2.
  std::int32_t heads = 0;
};

//! Blocks of a launch: one for each piece; where they stay until no piece is left, at most as many
//! as the GPU runs at a time.
[[nodiscard]] constexpr std::int64_t
blocks_of_pieces(std::int64_t pieces, bool stay, std::int64_t multiprocessors) {
  return stay && pieces > multiprocessors ? multiprocessors : pieces;
}

//! The piece of work that a block of `blocks` does after piece `last`, -1 before the first; at
//! least `count` where there is none. Whoever is free takes the next one: a block that starts late,
//! next to a kernel that holds multiprocessors, finds nothing left.
//! @param add_one to the count of pieces that were taken; gives the number before
template <class Add>
PIPELINING_HOST_DEVICE __forceinline__ int next_piece(
  piece_order const& order, int count, int last, int block, int blocks, Add const& add_one) {
  if (order.taken == nullptr) {
    return last < 0 ? block : count;
  }
  int const n = static_cast<int>(add_one());
  if (n == count + blocks - 1) { // nobody asks after this block
    *order.taken = 0;
  }
  return n;
}

//! The same for the block that asks.
__device__ __forceinline__ int take_piece(piece_order const& order, int count, int last) {
  auto const add_one = [&] { return atomicAdd(order.taken, 1u); };
  auto const block = static_cast<int>(blockIdx.x);
  return next_piece(order, count, last, block, static_cast<int>(gridDim.x), add_one);
}

//! Work that a piece is. Late queries, which see most keys where a mask is causal, go first.
//! @param tiles of the queries of a head
template <int Queries>
PIPELINING_HOST_DEVICE __forceinline__ hopper_work
work_of(parameters const& p, piece_order const& order, int splits, int tiles, int n) {
  int const heads = static_cast<int>(p.heads);
  int const whole = n / splits;
  int const begin = whole / (tiles * order.heads) * order.heads; // of the heads of the section
  int const section = min(order.heads, heads * static_cast<int>(p.batch) - begin);
  int const rest = whole - begin * tiles;
  int const stream = begin + rest % section;
  int const first = (tiles - 1 - rest / section) * Queries;
  int const head = stream % heads;
  return {stream / heads,
          head,
          head / static_cast<int>(p.group()),
          first,
          min(Queries, static_cast<int>(p.query_length) - first),
          n % splits};
}

//! Calls visit(tile, whole) for the tiles of keys that the queries of a piece of work see, last
//! first: where a mask is causal, the partial tiles come first. Of whole tiles no pair has to be
//! asked for.
//! @param splits parts of the keys
template <int Queries, int Keys, class Call, class Visit>
PIPELINING_HOST_DEVICE __forceinline__ void
each_key_tile(Call const& c, hopper_work const& work, int splits, Visit const& visit) {
  int const length = static_cast<int>(c.p.key_length);
  int const keys = static_cast<int>(c.p.key_offset);
  int const query = static_cast<int>(c.p.query_offset) + work.first;
  tile_position at{work.batch, work.head, query, query + work.rows, keys, keys + length};
  int const tiles = (length + Keys - 1) / Keys;
  int begin = tiles * work.split / splits;
  int tile = tiles * (work.split + 1) / splits - 1;
  if constexpr (band_mask<std::remove_cvref_t<decltype(c.m)>>) {
    auto const seen = c.m.keys_seen(at);
    begin = max(begin, (seen.begin - keys) / Keys);
    tile = min(tile, (seen.end - keys + Keys - 1) / Keys - 1);
  }
#pragma unroll 1
  for (; tile >= begin; --tile) {
    int const end = min(length, (tile + 1) * Keys);
    at.key_begin = keys + tile * Keys;
    at.key_end = keys + end;
    auto const covered = cover(c.m, at);
    if (covered == tile_cover::skip) {
      continue;
    }
    // Rows that do not exist only matter to scores, which may read tables of positions.
    bool const complete =
      end == (tile + 1) * Keys && (std::is_same_v<decltype(c.f), plain> || work.rows == Queries);
    visit(tile, covered == tile_cover::full && complete);
  }
}

} // namespace pipelining::inline v0_3::attention::detail
