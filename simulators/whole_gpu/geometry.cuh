// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The library's own launch geometry, walked on the host: kernels run the same code, which
//! decides pieces, order and tiles.

#include <pipe/attention/head_dims.hpp>
#include <pipe/attention/hopper/backward_copies.cuh>
#include <pipe/attention/hopper/forward_block.cuh>
#include <pipe/attention/kernel/query_order.cuh>
#include <pipe/attention/key_splits.hpp>
#include <pipe/attention/mask.hpp>
#include <pipe/attention/work_order.hpp>
#include <pipe/config.hpp>

#include <cuda_bf16.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "work.hpp"

namespace whole_gpu {

namespace at = pipelining::attention;

//! A mask that counts how often it is asked about a tile.
template <at::band_mask Mask>
struct counting {
  Mask of;
  std::int64_t* asked;

  [[nodiscard]] PIPELINING_HOST_DEVICE bool keep(at::pair_position pair) const {
    return of.keep(pair);
  }
  [[nodiscard]] PIPELINING_HOST_DEVICE at::tile_cover cover(at::tile_position tile) const {
    ++*asked;
    return of.cover(tile);
  }
  [[nodiscard]] PIPELINING_HOST_DEVICE at::position_range keys_seen(at::tile_position tile) const {
    return of.keys_seen(tile);
  }
  [[nodiscard]] PIPELINING_HOST_DEVICE at::position_range
  queries_seeing(at::tile_position tile) const {
    return of.queries_seeing(tile);
  }
};

//! Tiles that a piece of forward visits, one after the other.
struct seen_tile {
  int tile;
  bool masked;
};
struct visited_tiles {
  seen_tile* to;
  int* count;
  PIPELINING_HOST_DEVICE void operator()(int tile, bool whole) const {
    seen_tile& next = to[(*count)++];
    next.tile = tile;
    next.masked = !whole;
  }
};

//! Counts a piece.
struct one_more {
  std::uint32_t* taken;
  PIPELINING_HOST_DEVICE std::uint32_t operator()() const { return (*taken)++; }
};

inline at::parameters parameters_of(call const& c, int value_dim) {
  at::parameters p;
  p.batch = c.batch;
  p.query_length = c.queries;
  p.query_offset = c.keys - c.queries;
  p.key_length = c.keys;
  p.heads = c.heads;
  p.key_heads = c.key_heads;
  p.head_dim = c.dim;
  p.value_dim = value_dim;
  return p;
}

//! Calls run(mask), and adds to `asked` how often tiles were asked about.
template <class Run>
void with_mask(call const& c, std::int64_t& asked, Run const& run) {
  std::vector<std::int32_t> first;
  switch (c.mask) {
  case mask_kind::full: return run(counting<at::full>{{}, &asked});
  case mask_kind::causal: return run(counting<at::causal>{{}, &asked});
  case mask_kind::window:
    return run(counting<at::sliding_window>{{static_cast<std::int32_t>(c.extent - 1), 0}, &asked});
  case mask_kind::documents:
    for (std::int64_t i = 0; i < c.keys; ++i) {
      first.push_back(static_cast<std::int32_t>(i / c.extent * c.extent));
    }
    return run(counting<at::both<at::causal, at::document>>{{{}, {first.data(), 0}}, &asked});
  }
}

//! Blocks that a multiprocessor of a Hopper GPU has at a time: by its 228 KiB of shared memory, of
//! which a block takes 1 KiB more, and by its 65536 registers.
template <class Shape>
constexpr int resident_of() {
  constexpr int registers =
    128 * (Shape::copy_registers + Shape::consumers * Shape::consumer_registers);
  return std::min((228 << 10) / (Shape::shared_bytes + (1 << 10)), (1 << 16) / registers);
}

template <int Dim, class Mask>
void walk_forward(call const& c, gpu const& on, Mask const& m, work& out) {
  using shape = at::detail::hopper_forward_shape<Dim>;
  auto const p = parameters_of(c, at::detail::value_dim(Dim));
  auto const splits = at::detail::choose_key_splits<shape>(p, on.multiprocessors, c.said);
  auto const count = static_cast<int>(at::detail::pieces_of<shape>(p) * splits);
  auto const taken = std::make_shared<std::uint32_t>(0);
  at::detail::piece_order const order{
    taken.get(), at::detail::heads_together(p, on.multiprocessors, on.cache_bytes)};
  at::detail::forward_call<__nv_bfloat16, Mask, at::plain> const call{p, {}, m, {}, 1};
  int const tiles = static_cast<int>((c.queries + shape::queries - 1) / shape::queries);
  int const key_tiles = static_cast<int>((c.keys + shape::keys - 1) / shape::keys);
  std::vector<seen_tile> seen(static_cast<std::size_t>(key_tiles));
  for (int n = 0; n < count; ++n) {
    auto const piece = at::detail::work_of<shape::queries>(p, order, splits, tiles, n);
    int visits = 0;
    at::detail::each_key_tile<shape::queries, shape::keys>(
      call, piece, splits, visited_tiles{seen.data(), &visits});
    auto const begin = static_cast<std::int64_t>(out.visits.size());
    auto const stream = piece.batch * static_cast<int>(c.key_heads) + piece.key_head;
    for (int i = 0; i < visits; ++i) {
      out.visits.push_back({stream * key_tiles + seen[i].tile, -1, seen[i].masked});
    }
    auto const own =
      (piece.batch * static_cast<int>(c.heads) + piece.head) * tiles + piece.first / shape::queries;
    out.pieces.push_back({begin, begin + visits, own, own * splits + piece.split, -1});
  }
  auto const rows = static_cast<int>(c.batch * c.heads) * tiles;
  constexpr int values = at::detail::value_dim(Dim);
  auto const result_bytes =
    splits == 1 ? shape::queries * values * 2 : shape::queries * (values + 1) * 4;
  out.bytes = {shape::keys * (c.dim + values) * 2, 0, shape::queries * c.dim * 2, result_bytes};
  out.visited_objects = static_cast<int>(c.batch * c.key_heads) * key_tiles;
  out.own_objects = rows;
  out.result_objects = rows * splits;
  out.blocks = static_cast<int>(
    at::detail::blocks_of_pieces(count, order.taken != nullptr, on.multiprocessors));
  out.stages = shape::stages;
  out.shared_bytes = shape::shared_bytes;
  out.resident = resident_of<shape>();
  out.next_asked = splits == 1 && shape::outputs_apart ? handover::overlapped : handover::early;
  out.key_parts = splits;
  out.heads_together = order.heads;
  out.next = [=, blocks = out.blocks](int block, int last) {
    return at::detail::next_piece(order, count, last, block, blocks, one_more{taken.get()});
  };
}

//! Gives each visit the one before it at the same sums, which it clears where there is none, and
//! each piece the one before it at the same keys.
inline void keep_order(work& out) {
  std::vector<std::int32_t> latest(static_cast<std::size_t>(out.visited_objects), -1);
  for (std::size_t n = 0; n < out.visits.size(); ++n) {
    auto& last = latest[static_cast<std::size_t>(out.visits[n].object)];
    out.visits[n].clears = last < 0;
    out.visits[n].before = std::exchange(last, static_cast<std::int32_t>(n));
  }
  latest.assign(static_cast<std::size_t>(out.own_objects), -1);
  for (std::size_t n = 0; n < out.pieces.size(); ++n) {
    auto& last = latest[static_cast<std::size_t>(out.pieces[n].own)];
    out.pieces[n].before = std::exchange(last, static_cast<std::int32_t>(n));
  }
}

//! Tiles add as they come, and results are not in slices.
inline void forget_order(work& out) {
  out.result_slices = 1;
  for (auto& v : out.visits) {
    v.before = -1;
  }
  for (auto& p : out.pieces) {
    p.before = -1;
  }
}

//! Counts the visits of each piece that are the last ones of their sums: where masks are causal
//! they end it.
inline void count_last_visits(work& out) {
  std::vector<char> is_last(out.visits.size(), 1);
  for (auto const& v : out.visits) {
    if (v.before >= 0) {
      is_last[static_cast<std::size_t>(v.before)] = 0;
    }
  }
  for (auto& p : out.pieces) {
    auto const begin = is_last.begin() + p.begin;
    p.rounded = static_cast<std::int32_t>(std::count(begin, is_last.begin() + p.end, 1));
  }
}

//! The steps of a piece that some of its heads see, as find_steps narrows them.
template <class Shape, class Call>
at::position_range steps_of_heads(Call const& c, int steps, at::detail::key_work const& work) {
  at::position_range all{work.end, work.begin};
  for (int head = work.head; head < work.heads; ++head) {
    auto const seen =
      at::detail::steps_seen<Shape>(c, steps, work.batch, head, work.first / Shape::keys);
    if (seen.begin < seen.end) {
      all = {std::min(all.begin, std::max(seen.begin, work.begin)),
             std::max(all.end, std::min(seen.end, work.end))};
    }
  }
  return all;
}

//! Steps that a block of backward visits, of all heads of its piece in turn, as bring_steps does
//! it.
template <class Shape, class Call>
void visit_steps(Call const& c,
                 at::detail::query_sums const& sums,
                 at::detail::key_work const& piece,
                 at::position_range const& seen,
                 work& out) {
  int const tile = piece.first / Shape::keys;
  for (int step = seen.end - 1; step >= seen.begin; --step) {
    for (int head = piece.head; head < piece.heads; ++head) {
      auto const covered = at::detail::cover_of<Shape>(c, piece.batch, head, step, tile);
      if (covered != at::tile_cover::skip) {
        out.visits.push_back(
          {sums.first_step(c.p, piece.batch, head) + step, -1, covered == at::tile_cover::partial});
      }
    }
  }
}

template <int Dim, at::query_order Order, class Mask>
void walk_backward(call const& c, gpu const& on, Mask const& m, work& out) {
  using shape = at::detail::hopper_backward_shape<Dim>;
  auto const p = parameters_of(c, at::detail::value_dim(Dim));
  at::detail::query_sums sums;
  sums.steps = static_cast<int>(at::detail::query_sums::steps_of(p, at::kernel_family::hopper));
  at::detail::share_work(
    sums, p, Order, {shape::keys, shape::step}, on.multiprocessors, on.cache_bytes);
  at::detail::backward_call<__nv_bfloat16, Mask, at::plain> const call{p, {}, {}, m, {}, 1};
  int const tiles = static_cast<int>((c.keys + shape::keys - 1) / shape::keys);
  auto const streams = static_cast<int>(c.batch * c.key_heads);
  auto const count = static_cast<int>(sums.blocks(p, shape::keys, at::kernel_family::hopper));
  for (int n = 0; n < count; ++n) {
    auto const piece = at::detail::work_of_piece<shape::keys>(p, sums, n);
    auto const seen = steps_of_heads<shape>(call, sums.steps, piece);
    if (seen.begin >= seen.end) {
      continue; // passed on by the block that takes the next one
    }
    auto const begin = static_cast<std::int64_t>(out.visits.size());
    visit_steps<shape>(call, sums, piece, seen, out);
    auto const own = (piece.batch * static_cast<int>(c.key_heads) + piece.key_head) * tiles +
                     piece.first / shape::keys;
    out.pieces.push_back({begin, static_cast<std::int64_t>(out.visits.size()), own, own, -1});
  }
  auto const dims = c.dim + c.value_dim(); // of a query with its dO, a key with its value
  out.bytes = {shape::step * dims * 2,
               shape::step * c.dim * 4,
               shape::keys * dims * 2,
               shape::keys * dims * 4};
  out.visited_objects = static_cast<int>(c.batch * c.heads) * sums.steps;
  out.own_objects = out.result_objects = streams * tiles;
  out.adds_results = true;
  out.result_slices = at::detail::query_sums::slices;
  out.blocks = static_cast<int>(at::detail::blocks_of_pieces(count, true, on.multiprocessors));
  out.stages = shape::stages;
  out.shared_bytes = shape::shared_bytes;
  out.resident = resident_of<shape>();
  out.group_parts = sums.parts;
  out.step_cut = sums.cut;
  out.heads_together = sums.section;
  out.brings_early = true;
  auto const taken = std::make_shared<std::uint32_t>(0);
  out.next = [taken](int, int) { return static_cast<int>((*taken)++); };
  out.starts_at_0 = !at::detail::takes_turns<Order, Mask>;
  if (!out.starts_at_0) {
    keep_order(out);
  }
  out.is_rounded = at::detail::rounds_sums(p, m.of);
  if (out.is_rounded) {
    count_last_visits(out);
  }
  if (Order == at::query_order::free) {
    forget_order(out);
  }
}

template <int Dim>
work walk(call const& c, gpu const& on) {
  work out;
  with_mask(c, out.asked, [&](auto const& m) {
    if (c.which == way::forward) {
      walk_forward<Dim>(c, on, m, out);
    } else if (c.which == way::kept) {
      walk_backward<Dim, at::query_order::kept>(c, on, m, out);
    } else {
      walk_backward<Dim, at::query_order::free>(c, on, m, out);
    }
  });
  return out;
}

} // namespace whole_gpu
