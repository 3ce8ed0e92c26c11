// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// FlashAttention-3's order of work, by its published scheduler: forward with a causal mask hands
// out tiles of queries one by one, longest first, in sections of heads whose keys and values fit 32
// MB; with a full mask the tiles of a head follow each other and are dealt. Backward has a block
// for each tile of keys and query head; with a causal mask in sections of heads whose queries, dO
// and sums of dQ fit 40 MB. Only numbers were taken over.
#include <algorithm>
#include <memory>

#include "work.hpp"

namespace whole_gpu {

namespace {

struct tile {
  std::int64_t queries, keys;
};

std::int64_t pieces_in(std::int64_t length, std::int64_t of) {
  return (length + of - 1) / of;
}

//! A power of two of streams that fit, at least one.
std::int64_t section_of(std::int64_t room, std::int64_t bytes) {
  std::int64_t count = 1;
  while (2 * count * bytes <= room) {
    count *= 2;
  }
  return count;
}

tile forward_tile(call const& c) {
  switch (c.dim) {
  case 64: return {192, 128};
  case 256: return {128, 80};
  default: return {128, c.mask == mask_kind::full ? 176 : 128};
  }
}

tile backward_tile(call const& c) {
  switch (c.dim) {
  case 64: return {128, 128};
  case 256: return {64, 80};
  default: return {c.mask == mask_kind::full ? 80 : 64, 128};
  }
}

//! Calls visit(head of all sequences, tile) for `tiles` of each head: section by section, tile by
//! tile; or head by head where a section is 0.
template <class Visit>
void each_tile(std::int64_t heads, std::int64_t section, std::int64_t tiles, Visit const& visit) {
  auto const step = section == 0 ? 1 : section;
  for (std::int64_t begin = 0; begin < heads; begin += step) {
    for (std::int64_t t = 0; t < tiles; ++t) {
      for (auto head = begin; head < std::min(heads, begin + step); ++head) {
        visit(head, t);
      }
    }
  }
}

work forward(call const& c, gpu const& on) {
  auto const t = forward_tile(c);
  bool const causal = c.mask == mask_kind::causal;
  auto const group = c.heads / c.key_heads;
  auto const tiles = pieces_in(c.queries, t.queries);
  auto const key_tiles = pieces_in(c.keys, t.keys);
  work out;
  auto const section = causal ? group * section_of(32'000'000, c.keys * c.dim * 4) : 0;
  each_tile(c.batch * c.heads, section, tiles, [&](std::int64_t head, std::int64_t n) {
    auto const m = causal ? tiles - 1 - n : n;
    auto const last = std::min(c.queries, (m + 1) * t.queries) - 1 + c.keys - c.queries;
    auto const seen = causal ? std::min(key_tiles, last / t.keys + 1) : key_tiles;
    auto const begin = static_cast<std::int64_t>(out.visits.size());
    for (auto k = seen - 1; k >= 0; --k) {
      bool const cut = causal && (k + 1) * t.keys - 1 > m * t.queries + c.keys - c.queries;
      out.visits.push_back({static_cast<std::int32_t>(head / group * key_tiles + k), -1, cut});
    }
    auto const own = static_cast<std::int32_t>(head * tiles + m);
    out.pieces.push_back({begin, begin + seen, own, own, -1});
  });
  out.bytes = {t.keys * c.dim * 4, 0, t.queries * c.dim * 2, t.queries * c.dim * 2};
  out.visited_objects = static_cast<std::int32_t>(c.batch * c.key_heads * key_tiles);
  out.own_objects = out.result_objects = static_cast<std::int32_t>(c.batch * c.heads * tiles);
  auto const count = static_cast<int>(out.pieces.size());
  out.blocks = std::min(count, static_cast<int>(on.multiprocessors));
  out.stages = 2;
  out.next_asked = handover::early;
  auto const taken = std::make_shared<int>(0);
  out.next = [=, blocks = out.blocks](int block, int last) {
    return causal ? (*taken)++ : last < 0 ? block : last + blocks;
  };
  return out;
}

work backward(call const& c) {
  auto const t = backward_tile(c);
  bool const causal = c.mask == mask_kind::causal;
  auto const group = c.heads / c.key_heads;
  auto const tiles = pieces_in(c.keys, t.keys);
  auto const steps = pieces_in(c.queries, t.queries);
  work out;
  auto const section = causal ? section_of(40'000'000, c.queries * c.dim * 8) : 0;
  each_tile(c.batch * c.heads, section, tiles, [&](std::int64_t head, std::int64_t n) {
    auto const first = std::max<std::int64_t>(0, n * t.keys - (c.keys - c.queries));
    auto const begin = static_cast<std::int64_t>(out.visits.size());
    for (auto step = causal ? first / t.queries : 0; step < steps; ++step) {
      bool const cut = causal && (n + 1) * t.keys - 1 > step * t.queries + c.keys - c.queries;
      out.visits.push_back({static_cast<std::int32_t>(head * steps + step), -1, cut});
    }
    auto const own = static_cast<std::int32_t>(head / group * tiles + n);
    out.pieces.push_back({begin, static_cast<std::int64_t>(out.visits.size()), own, own, -1});
  });
  out.bytes = {t.queries * c.dim * 4,
               t.queries * c.dim * 4,
               t.keys * c.dim * 4,
               t.keys * c.dim * (group == 1 ? 4 : 8)};
  out.visited_objects = static_cast<std::int32_t>(c.batch * c.heads * steps);
  out.own_objects = out.result_objects = static_cast<std::int32_t>(c.batch * c.key_heads * tiles);
  out.adds_results = group > 1;
  out.blocks = static_cast<int>(out.pieces.size());
  out.stages = 2;
  out.next = [count = out.blocks](int block, int last) { return last < 0 ? block : count; };
  return out;
}

} // namespace

work peer_work_of(call const& of, gpu const& on) {
  return of.which == way::forward ? forward(of, on) : backward(of);
}

} // namespace whole_gpu
