// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief cp.async.bulk and cp.reduce.async.bulk, linear and by tensor map.
//!
//! A load holds NaN patterns in its target until it completes, which is as late as possible: when
//! nobody can go on without it (or at random with order::shuffled). A store is carried out when it
//! is waited for, so that a source reused too early shows in the numbers as well.
#include "bulk.hpp"

#include <algorithm>
#include <cstring>

#include "access.hpp"
#include "mbarrier.hpp"
#include "operations.hpp"
#include "step.hpp"

namespace ptx {

namespace {

enum : u8 { loads = 1, tensor = 2, reduces = 4 };

std::size_t at(int lane) {
  return static_cast<std::size_t>(lane);
}

u32 swizzled(u32 address, u32 span) {
  u32 const bits = span == 128 ? 0x70 : span == 64 ? 0x30 : span == 32 ? 0x10 : 0;
  return address ^ (address >> 3 & bits);
}

u32 box_bytes(tensor_map const& m) {
  u32 out = m.element_bytes;
  for (unsigned d = 0; d < m.rank; ++d) {
    out *= m.box[d];
  }
  return out;
}

// One row of a box along dimension 0: where it lies and which of its bytes exist in the tensor.
struct box_row {
  u32 linear = 0; // offset in the box
  u32 bytes = 0;
  u32 begin = 0; // existing bytes [begin, end) of the row
  u32 end = 0;
  u64 global = 0; // address of byte `begin`
};

template <class Function>
void for_rows(bulk_copy const& c, Function f) {
  if (!c.tensor) {
    f(box_row{0, c.bytes, 0, c.bytes, c.global});
    return;
  }
  tensor_map const& m = c.map;
  u32 const element = m.element_bytes;
  u32 const row_bytes = m.box[0] * element;
  s64 const first = c.coordinates[0];
  for (u32 r = 0; r < c.bytes / row_bytes; ++r) {
    box_row row{r * row_bytes, row_bytes, 0, 0, m.base};
    bool exists = true;
    u32 rest = r;
    for (unsigned d = 1; d < m.rank; ++d) {
      s64 const x = s64{c.coordinates[d]} + rest % m.box[d];
      rest /= m.box[d];
      exists = exists && x >= 0 && x < s64{m.size[d]};
      row.global += static_cast<u64>(x) * m.stride[d];
    }
    s64 const low = std::clamp<s64>(-first, 0, m.box[0]);
    s64 const high = std::clamp<s64>(s64{m.size[0]} - first, low, m.box[0]);
    if (exists) {
      row.begin = static_cast<u32>(low) * element;
      row.end = static_cast<u32>(high) * element;
      row.global += static_cast<u64>(first + low) * element;
    }
    f(row);
  }
}

access agent_access(warp& w, bulk_copy const& c, bool write, bool strong) {
  access a;
  a.who = w.home->actor(c.agent);
  a.issuer = w.home->actor(w.index * 32 + static_cast<u32>(c.lane));
  a.now = c.clock;
  a.known = c.known.get();
  a.own_fenced = w.clocks[at(c.lane)].fenced;
  a.write = write;
  a.strong = strong;
  a.asynchronous = true;
  return a;
}

tensor_map read_map(warp& w, instruction const& i, int lane, u64 address) {
  region const r = locate(w, i, lane, space::generic, address, 128, 64, false);
  note(w, i, lane, r, sizeof(tensor_map), {.read = true});
  tensor_map m;
  std::memcpy(&m, r.data, sizeof m);
  if (m.mark != tensor_map_mark) {
    fail(w,
         i,
         lane,
         fault::invalid,
         "uses " + spell(*w.home, space::global, address) +
           " as a tensor map, but none has been encoded there");
  }
  if (m.swizzle_bytes != 0 && m.box[0] * m.element_bytes != m.swizzle_bytes) {
    fail(w,
         i,
         lane,
         fault::invalid,
         "uses a swizzled box whose rows do not fill the swizzle span; the interpreter knows only "
         "full rows");
  }
  return m;
}

void read_operands(warp& w, bulk_copy& c) {
  instruction const& i = *c.by;
  int const l = c.lane;
  c.load = (i.flags & loads) != 0;
  c.tensor = (i.flags & tensor) != 0;
  u32 const from = c.load ? 2 : 1; // loads have the mbarrier between
  c.shared = static_cast<u32>(address_of(w, i, 0, l));
  c.barrier = c.load ? static_cast<u32>(address_of(w, i, 1, l)) : 0;
  s32 const* const rest = i.op + i.address + from + 1;
  if (!c.tensor) {
    c.global = address_of(w, i, from, l);
    c.bytes = w.lanes<u32>(rest[0])[l];
    if (c.bytes % 16 != 0 || c.global % 16 != 0) {
      fail(w,
           i,
           l,
           fault::alignment,
           "copies " + std::to_string(c.bytes) + " bytes at " +
             spell(*w.home, space::global, c.global) +
             "; size and address must be multiples of 16");
    }
    return;
  }
  c.map = read_map(w, i, l, address_of(w, i, from, l));
  c.bytes = box_bytes(c.map);
  if (c.map.rank != i.count) {
    fail(w, i, l, fault::invalid, "uses a tensor map of rank " + std::to_string(c.map.rank));
  }
  for (unsigned d = 0; d < i.count; ++d) {
    c.coordinates[d] = static_cast<s32>(w.lanes<u32>(rest[d])[l]);
  }
}

void issue_one(warp& w, instruction const& i, int lane) {
  block& b = *w.home;
  bulk_copy c;
  c.by = &i;
  c.lane = lane;
  read_operands(w, c);
  c.known = w.clocks[at(lane)].known;
  c.agent = b.agent(b.next_agent++ % copy_agents);
  c.clock = b.launch->clock++;
  u32 const alignment = c.tensor ? 128 : 16;
  region const inside = locate(w, i, lane, space::shared, c.shared, c.bytes, alignment, c.load);
  note_as(w,
          i,
          lane,
          inside,
          c.bytes,
          {.read = !c.load, .write = c.load},
          agent_access(w, c, c.load, false));
  bool const adds = (i.flags & reduces) != 0;
  for_rows(c, [&](box_row const& row) {
    if (u32 const n = row.end - row.begin; n != 0) {
      u32 const unit = c.tensor ? c.map.element_bytes : 16;
      region const outside = locate(w, i, lane, space::global, row.global, n, unit, !c.load);
      note_as(w,
              i,
              lane,
              outside,
              n,
              {.read = c.load || adds, .write = !c.load},
              agent_access(w, c, !c.load, adds));
    }
  });
  if (c.load) {
    static_cast<void>(mbarrier_at(w, i, lane, c.barrier));
    std::memset(inside.data, 0xff, c.bytes);
    b.engine.push_back(std::move(c));
  } else {
    w.open_bulk[at(lane)].push_back(std::move(c));
  }
}

void issue(warp& w, instruction const& i, u32 mask) {
  for_lanes(mask, [&](int l) { issue_one(w, i, l); });
}

// Moves the bytes, 16 at a time because that is the unit of the swizzle.
void carry_out(warp& w, bulk_copy const& c) {
  block& b = *w.home;
  u32 const span = c.tensor ? c.map.swizzle_bytes : 0;
  for_rows(c, [&](box_row const& row) {
    for (u32 k = 0; k < row.bytes; k += 16) {
      std::byte* const inside =
        b.shared + (swizzled(c.shared + row.linear + k, span) - shared_base);
      u32 const begin = std::clamp(row.begin, k, k + 16) - k;
      u32 const end = std::clamp(row.end, k, k + 16) - k;
      auto* const outside = reinterpret_cast<std::byte*>(row.global + k + begin - row.begin);
      if (c.load) {
        std::memset(inside, c.tensor && c.map.nan_fill != 0 ? 0xff : 0, 16);
      }
      if (begin == end) {
        continue;
      }
      if (c.load) {
        std::memcpy(inside + begin, outside, end - begin);
      } else if ((c.by->flags & reduces) != 0) {
        reduce_bytes(c, outside, inside + begin, end - begin);
      } else {
        std::memcpy(outside, inside + begin, end - begin);
      }
    }
  });
  b.launch->out.counts.copied_bytes += c.bytes;
  ++b.launch->progress;
}

void commit(warp& w, instruction const&, u32 mask) {
  for_lanes(mask, [&](int l) {
    w.bulk_groups[at(l)].push_back(std::move(w.open_bulk[at(l)]));
    w.open_bulk[at(l)].clear();
  });
}

void wait_group(warp& w, instruction const& i, u32 mask) {
  for_lanes(mask, [&](int l) {
    auto& groups = w.bulk_groups[at(l)];
    while (groups.size() > static_cast<std::size_t>(i.immediate)) {
      for (auto const& c : groups.front()) {
        carry_out(w, c);
        acquire_actor(w, 1U << l, c.agent, c.clock);
      }
      groups.erase(groups.begin());
    }
  });
}

bool decode_group(decoder& d) {
  auto const& s = d.at();
  if (s.has("commit_group")) {
    return finish(d, commit);
  }
  d.now().immediate = std::strtol(s.operands.at(0).c_str(), nullptr, 0);
  return finish(d, wait_group);
}

// "[map, {c0, c1}]"
void decode_tensor_operand(decoder& d, std::string const& text) {
  auto const inside = split(std::string_view(text).substr(1, text.size() - 2), ',');
  d.address("[" + inside.at(0) + "]");
  d.now().count = static_cast<u8>(d.list(inside.at(1), type::b32, false));
}

} // namespace

void complete_bulk_copy(block& b) {
  run_state& run = *b.launch;
  std::size_t const pick = run.how.warps == order::shuffled ? run.random() % b.engine.size() : 0;
  bulk_copy const c = std::move(b.engine[pick]);
  b.engine.erase(b.engine.begin() + static_cast<std::ptrdiff_t>(pick));
  carry_out(b.warps.front(), c);
  auto const found = b.mbarriers.find(c.barrier);
  if (found == b.mbarriers.end()) {
    return;
  }
  mbarrier& barrier = found->second;
  barrier.bytes -= c.bytes;
  if (run.how.races) {
    auto one = std::make_shared<vector_clock>();
    one->seen.resize(b.actors());
    one->fenced.resize(c.known->fenced.size());
    one->seen[c.agent] = c.clock;
    barrier.arriving = joined(one, barrier.arriving);
  }
  step(run, barrier);
}

void end_block(block& b) {
  auto const complain = [](warp& w, bulk_copy const& c) {
    report_fault(w,
                 *c.by,
                 c.lane,
                 fault::in_flight,
                 "starts a bulk copy that is still in flight when the block ends");
  };
  for (auto& w : b.warps) {
    for (int l = 0; l < 32; ++l) {
      w.bulk_groups[at(l)].push_back(std::move(w.open_bulk[at(l)]));
      for (auto const& group : w.bulk_groups[at(l)]) {
        for (auto const& c : group) {
          complain(w, c);
          carry_out(w, c);
        }
      }
    }
  }
  for (auto const& c : b.engine) {
    complain(b.warps.front(), c);
  }
}

bool decode_bulk(decoder& d) {
  auto const& s = d.at();
  instruction& i = d.now();
  if (s.parts[0] != "cp" || !s.has("bulk")) {
    return false;
  }
  if (s.has("prefetch")) {
    return finish(d, [](warp&, instruction const&, u32) {});
  }
  d.target().uses_async_proxy = true;
  if (s.has("commit_group") || s.has("wait_group")) {
    return decode_group(d);
  }
  bool const by_map = s.has("tensor");
  bool const reduction_too = s.parts[1] == "reduce";
  std::size_t const target = (by_map ? 5 : 3) + (reduction_too ? 1 : 0);
  bool const to_shared = s.parts.at(target).starts_with("shared");
  if (s.has("im2col") || s.has("tile::gather4") ||
      (to_shared && s.parts.at(target + 1) != "global")) {
    return false;
  }
  i.flags = static_cast<u8>((to_shared ? loads : 0) | (by_map ? tensor : 0) |
                            (reduction_too ? reduces : 0));
  static constexpr char const* names[] = {"add", "min", "max", "and", "or", "xor"};
  for (u8 k = 0; k < 6; ++k) {
    i.mode = s.has(names[k]) ? k : i.mode;
  }
  d.address(s.operands.at(to_shared ? 0 : 1));
  if (to_shared) {
    d.address(s.operands.at(by_map ? 2 : 3));
  }
  auto const& outside = s.operands.at(to_shared ? 1 : 0);
  if (by_map) {
    decode_tensor_operand(d, outside);
  } else {
    d.address(outside);
    d.operand(s.operands.at(2), type::b32);
  }
  return finish(d, issue);
}

} // namespace ptx
