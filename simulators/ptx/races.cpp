// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "races.hpp"

#include <algorithm>

namespace ptx {

namespace {

template <class Combine>
void combine(std::vector<u32>& into, std::vector<u32> const& other, Combine f) {
  u32* const to = into.data();
  u32 const* const from = other.data();
  for (std::size_t i = 0, count = std::min(into.size(), other.size()); i < count; ++i) {
    to[i] = f(to[i], from[i]);
  }
}

//! Whether the first has seen all that the second has.
bool covers(std::vector<u32> const& a, std::vector<u32> const& b) {
  u32 is_less = 0;
  u32 const* const mine = a.data();
  u32 const* const other = b.data();
  for (std::size_t i = 0, count = std::min(a.size(), b.size()); i < count; ++i) {
    is_less |= static_cast<u32>(mine[i] < other[i]);
  }
  return is_less == 0;
}

bool covers(vector_clock const& a, vector_clock const& b) {
  return covers(a.seen, b.seen) && covers(a.fenced, b.fenced) &&
         std::all_of(b.elsewhere.begin(), b.elsewhere.end(), [&](auto const& e) {
           auto const mine = a.elsewhere.find(e.first);
           return mine != a.elsewhere.end() &&
                  (mine->second == e.second || covers(*mine->second, *e.second));
         });
}

//! What one of two blocks' counts has, actor by actor, whichever `f` takes. One of both where that
//! is it: few are copied.
template <class Combine>
seen_actors combined(seen_actors const& a, seen_actors const& b, Combine f) {
  if (a == b) {
    return a;
  }
  auto out = *a;
  combine(out, *b, f);
  return out == *a ? a : out == *b ? b : std::make_shared<std::vector<u32> const>(std::move(out));
}

} // namespace

clock_pointer joined(clock_pointer const& a, clock_pointer const& b) {
  if (a == b || b == nullptr) {
    return a;
  }
  if (a == nullptr) {
    return b;
  }
  if (covers(*a, *b)) {
    return a;
  }
  auto out = std::make_shared<vector_clock>(*a);
  auto const larger = [](u32 x, u32 y) { return std::max(x, y); };
  combine(out->seen, b->seen, larger);
  combine(out->fenced, b->fenced, larger);
  for (auto const& [block, seen] : b->elsewhere) {
    auto& mine = out->elsewhere[block];
    mine = mine == nullptr ? seen : combined(mine, seen, larger);
  }
  return out;
}

clock_pointer common(clock_pointer const& a, clock_pointer const& b) {
  if (a == b) {
    return a;
  }
  auto out = std::make_shared<vector_clock>(*a);
  auto const smaller = [](u32 x, u32 y) { return std::min(x, y); };
  combine(out->seen, b->seen, smaller);
  combine(out->fenced, b->fenced, smaller);
  std::erase_if(out->elsewhere, [&](auto const& e) { return !b->elsewhere.contains(e.first); });
  for (auto& [block, seen] : out->elsewhere) {
    seen = combined(seen, b->elsewhere.at(block), smaller);
  }
  return out;
}

shadow::shadow(std::size_t bytes) : pages_((bytes >> 12) + 1) {}

bool shadow::ordered(actor_id who, u32 clock, access const& a) {
  if (clock == 0 || who == a.who || who == a.issuer) {
    return true;
  }
  if (actor_block(who) == actor_block(a.who)) {
    return a.known->seen[actor_index(who)] >= clock;
  }
  auto const found = a.known->elsewhere.find(actor_block(who));
  return found != a.known->elsewhere.end() && (*found->second)[actor_index(who)] >= clock;
}

bool shadow::readers_ordered(cell const& c, access const& a, actor_id& who) const {
  auto const one = [&](u32 clock, actor_id group, u32 lanes) {
    for (; lanes != 0; lanes &= lanes - 1) {
      who = group + static_cast<u32>(std::countr_zero(lanes));
      if (!ordered(who, clock, a)) {
        return false;
      }
    }
    return true;
  };
  if (!c.many_readers) {
    return one(c.read_clock, c.read_group, c.read_lanes);
  }
  auto const& list = readers_[c.read_lanes];
  return std::all_of(
    list.begin(), list.end(), [&](reader const& r) { return one(r.clock, r.group, r.lanes); });
}

std::optional<conflict> shadow::check(cell const& c, access const& a) const {
  if (c.pending) {
    return conflict{conflict::in_flight, true, true, c.write_actor};
  }
  if (!(c.strong && a.strong) && !ordered(c.write_actor, c.write_clock, a)) {
    return conflict{
      c.asynchronous ? conflict::in_flight : conflict::race, true, c.asynchronous, c.write_actor};
  }
  if (a.asynchronous && !c.asynchronous && c.write_clock != 0 &&
      actor_block(c.write_actor) == actor_block(a.who)) {
    u32 const fenced =
      c.write_actor == a.issuer ? a.own_fenced : a.known->fenced[actor_index(c.write_actor)];
    if (fenced < c.write_clock) {
      return conflict{conflict::proxy, true, false, c.write_actor};
    }
  }
  bool const strong = c.strong_readers && a.strong;
  if (actor_id who = 0; a.write && !strong && !readers_ordered(c, a, who)) {
    return conflict{conflict::race, false, false, who};
  }
  return std::nullopt;
}

void shadow::drop_readers(cell& c) {
  if (c.many_readers) {
    readers_[c.read_lanes].clear();
    free_readers_.push_back(c.read_lanes);
  }
  c.many_readers = false;
  c.read_lanes = 0;
  c.read_clock = 0;
}

void shadow::record_read(cell& c, access const& a) {
  actor_id const group = a.who & ~31U;
  u32 const lane = 1U << (a.who & 31U);
  if (!c.many_readers) {
    if (c.read_lanes != 0 && c.read_group == group && c.read_clock == a.now) {
      c.read_lanes |= lane;
      return;
    }
    actor_id unused = 0;
    if (c.read_lanes == 0 || readers_ordered(c, a, unused)) {
      c.read_group = group;
      c.read_clock = a.now;
      c.read_lanes = lane;
      return;
    }
    u32 index = static_cast<u32>(readers_.size());
    if (free_readers_.empty()) {
      readers_.emplace_back();
    } else {
      index = free_readers_.back();
      free_readers_.pop_back();
    }
    readers_[index].push_back({c.read_clock, c.read_group, c.read_lanes});
    c.many_readers = true;
    c.read_lanes = index;
  }
  auto& list = readers_[c.read_lanes];
  for (auto& r : list) {
    if (r.group == group && (r.clock == a.now || r.lanes == lane)) {
      r.lanes |= lane;
      r.clock = a.now;
      return;
    }
  }
  list.push_back({a.now, group, lane});
}

void shadow::record(cell& c, access const& a) {
  if (!a.write) {
    c.strong_readers = a.strong && (c.strong_readers || (c.read_lanes == 0 && !c.many_readers));
    record_read(c, a);
    return;
  }
  drop_readers(c);
  c.write_clock = a.now;
  c.write_actor = a.who;
  c.strong = a.strong;
  c.asynchronous = a.asynchronous;
}

void shadow::refine(line& l, u32 granule) {
  if (l.granule == 16) {
    if (free_fine_.empty()) {
      l.fine = static_cast<u32>(fine_.size() / 16);
      fine_.resize(fine_.size() + 16);
    } else {
      l.fine = free_fine_.back();
      free_fine_.pop_back();
    }
    fine_[l.fine * 16] = l.whole;
  }
  cell* const cells = &fine_[l.fine * 16];
  u32 const copies = l.granule / granule;
  for (u32 i = 16U / l.granule; i-- > 0;) {
    cell const source = cells[i];
    for (u32 k = copies; k-- > 0;) {
      cells[i * copies + k] = source;
      if (source.many_readers && k > 0) { // every cell owns its list
        auto list = readers_[source.read_lanes];
        cells[i * copies + k].read_lanes = static_cast<u32>(readers_.size());
        readers_.push_back(std::move(list));
      }
    }
  }
  l.granule = static_cast<u8>(granule);
}

void shadow::coarsen(line& l) {
  for (u32 i = 0; i < 16U / l.granule; ++i) {
    drop_readers(fine_[l.fine * 16 + i]);
  }
  l.whole = fine_[l.fine * 16];
  l.granule = 16;
  free_fine_.push_back(l.fine);
}

template <class Function>
void shadow::for_cells(u64 offset, u32 bytes, Function f) {
  for (u64 const end = offset + bytes; offset < end;) {
    line& l = line_of(offset);
    u32 const here = static_cast<u32>(std::min<u64>(end - offset, 16 - offset % 16));
    if (u32 const granule = static_cast<u32>((here | offset) & (0 - (here | offset)));
        l.granule > granule) {
      refine(l, granule);
    }
    if (l.granule == 16) {
      f(l.whole);
    } else {
      for (u32 i = 0; i < here / l.granule; ++i) {
        f(fine_[l.fine * 16 + offset % 16 / l.granule + i]);
      }
    }
    offset += here;
  }
}

std::optional<conflict> shadow::touch(u64 offset, u32 bytes, access const& a) {
  std::optional<conflict> out;
  for_cells(offset, bytes, [&](cell& c) {
    if (!out) {
      out = check(c, a);
    }
    record(c, a);
  });
  if (a.write && bytes >= 16) {
    for (u64 at = offset; at < offset + bytes; at += 16) {
      if (line& l = line_of(at); l.granule != 16) {
        coarsen(l);
      }
    }
  }
  return out;
}

void shadow::pending(u64 offset, u32 bytes, bool on) {
  for_cells(offset, bytes, [&](cell& c) { c.pending = on; });
}

} // namespace ptx
