// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief Instructions between the lanes of a warp, and hints.
#include <algorithm>

#include "access.hpp"
#include "operations.hpp"

namespace ptx {

namespace {

enum shuffle_mode : u8 { shuffle_index, shuffle_up, shuffle_down, shuffle_xor };

// op: d, predicate (or -1), a, b, c
void shuffle(warp& w, instruction const& i, u32 mask) {
  std::array<u32, 32> values{};
  std::copy_n(w.lanes<u32>(i.op[2]), 32, values.begin());
  auto* d = w.lanes<u32>(i.op[0]);
  auto const* b = w.lanes<u32>(i.op[3]);
  auto const* c = w.lanes<u32>(i.op[4]);
  u32 in_range = 0;
  for_lanes(mask, [&](int l) {
    int const clamp = static_cast<int>(c[l] & 31);
    int const segment = static_cast<int>(c[l] >> 8 & 31);
    int const highest = (l & segment) | (clamp & ~segment);
    int const lowest = l & segment;
    int const by = static_cast<int>(b[l] & 31);
    int const from = i.mode == shuffle_up     ? l - by
                     : i.mode == shuffle_down ? l + by
                     : i.mode == shuffle_xor  ? l ^ by
                                              : lowest | (by & ~segment);
    bool const inside = i.mode == shuffle_up ? from >= highest : from <= highest;
    int const source = inside ? from : l;
    if ((mask >> source & 1) == 0) {
      fail(w,
           i,
           l,
           fault::divergence,
           "reads from lane " + std::to_string(source) +
             ", which does not execute this instruction with it");
    }
    d[l] = values[static_cast<std::size_t>(source)];
    in_range |= static_cast<u32>(inside) << l;
  });
  if (i.op[1] >= 0) {
    u32& p = w.predicate(i.op[1]);
    p = (p & ~mask) | in_range;
  }
}

bool decode_shuffle(decoder& d) {
  auto const& s = d.at();
  instruction& i = d.now();
  i.mode = s.has("up")     ? shuffle_up
           : s.has("down") ? shuffle_down
           : s.has("bfly") ? shuffle_xor
                           : shuffle_index;
  auto const targets = split(s.operands.at(0), '|');
  d.destination(targets.at(0), type::b32);
  if (targets.size() > 1) {
    d.destination(targets[1], type::pred);
  } else {
    d.raw(-1);
  }
  for (std::size_t k = 1; k < 4; ++k) {
    d.operand(s.operands.at(k), type::b32);
  }
  if (s.operands.size() < 5) {
    d.refuse("shuffles without .sync are not known");
  }
  i.kind = flow::masked;
  d.operand(s.operands[4], type::b32);
  return finish(d, shuffle);
}

enum vote_mode : u8 { vote_all, vote_any, vote_uniform, vote_ballot };

// op: d, predicate, members
void vote(warp& w, instruction const& i, u32 mask) {
  u32 const raw = w.predicate(i.op[1]);
  u32 const p = ((i.flags & 1) != 0 ? ~raw : raw) & mask;
  if (i.mode == vote_ballot) {
    auto* d = w.lanes<u32>(i.op[0]);
    for_lanes(mask, [&](int l) { d[l] = p; });
    return;
  }
  bool const yes = i.mode == vote_all   ? p == mask
                   : i.mode == vote_any ? p != 0
                                        : p == mask || p == 0;
  u32& d = w.predicate(i.op[0]);
  d = yes ? d | mask : d & ~mask;
}

bool decode_vote(decoder& d) {
  auto const& s = d.at();
  instruction& i = d.now();
  i.mode = s.has("ballot") ? vote_ballot
           : s.has("any")  ? vote_any
           : s.has("uni")  ? vote_uniform
                           : vote_all;
  d.destination(s.operands.at(0), i.mode == vote_ballot ? type::b32 : type::pred);
  i.flags = d.predicate(s.operands.at(1)) ? 1 : 0;
  d.operand(s.operands.at(2), type::b32);
  i.kind = flow::masked;
  return finish(d, vote);
}

// op: d, predicate (or -1), a, members; mode 1: all, else any
template <class T>
void match(warp& w, instruction const& i, u32 mask) {
  auto* d = w.lanes<u32>(i.op[0]);
  auto const* a = w.lanes<T>(i.op[2]);
  for_lanes(mask, [&](int l) {
    u32 same = 0;
    for_lanes(mask, [&](int k) { same |= static_cast<u32>(a[k] == a[l]) << k; });
    d[l] = i.mode == 1 && same != mask ? 0 : same;
    if (i.op[1] >= 0) {
      u32& p = w.predicate(i.op[1]);
      p = same == mask ? p | 1U << l : p & ~(1U << l);
    }
  });
}

bool decode_match(decoder& d) {
  auto const& s = d.at();
  instruction& i = d.now();
  i.mode = s.has("all") ? 1 : 0;
  auto const targets = split(s.operands.at(0), '|');
  d.destination(targets.at(0), type::b32);
  if (targets.size() > 1) {
    d.destination(targets[1], type::pred);
  } else {
    d.raw(-1);
  }
  d.operand(s.operands.at(1), i.t);
  d.operand(s.operands.at(2), type::b32);
  i.kind = flow::masked;
  return finish(d, size_of(i.t) == 8 ? match<u64> : match<u32>);
}

// mode: 0 add, 1 min, 2 max, 3 and, 4 or, 5 xor
template <class T>
void reduce(warp& w, instruction const& i, u32 mask) {
  auto const* a = w.lanes<T>(i.op[1]);
  T sum = get<T>(a[std::countr_zero(mask)]);
  for_lanes(mask & (mask - 1), [&](int l) {
    T const v = get<T>(a[l]);
    switch (i.mode) {
    case 0: sum = static_cast<T>(static_cast<u32>(sum) + static_cast<u32>(v)); break;
    case 1: sum = std::min(sum, v); break;
    case 2: sum = std::max(sum, v); break;
    case 3: sum = static_cast<T>(sum & v); break;
    case 4: sum = static_cast<T>(sum | v); break;
    default: sum = static_cast<T>(sum ^ v);
    }
  });
  auto* d = w.lanes<T>(i.op[0]);
  for_lanes(mask, [&](int l) { d[l] = put<T>(sum); });
}

bool decode_reduce(decoder& d) {
  static constexpr char const* names[] = {"add", "min", "max", "and", "or", "xor"};
  for (u8 k = 0; k < 6; ++k) {
    d.now().mode = d.at().has(names[k]) ? k : d.now().mode;
  }
  plain_operands(d, d.now().t, d.now().t);
  d.now().kind = flow::masked;
  return finish(d,
                d.now().t == type::int32 ? reduce<s32>
                : is_float(d.now().t)    ? nullptr
                                         : reduce<u32>);
}

void active_lanes(warp& w, instruction const& i, u32 mask) {
  auto* d = w.lanes<u32>(i.op[0]);
  for_lanes(mask, [&](int l) { d[l] = mask; });
}

// op: d, predicate, members; the lowest lane is the leader
void elect(warp& w, instruction const& i, u32 mask) {
  auto const leader = static_cast<u32>(std::countr_zero(mask));
  auto* d = w.lanes<u32>(i.op[0]);
  for_lanes(mask, [&](int l) { d[l] = leader; });
  u32& p = w.predicate(i.op[1]);
  p = (p & ~mask) | 1U << leader;
}

bool decode_elect(decoder& d) {
  auto const targets = split(d.at().operands.at(0), '|');
  d.destination(targets.at(0), type::b32);
  d.destination(targets.at(1), type::pred);
  d.operand(d.at().operands.at(1), type::b32);
  d.now().kind = flow::masked;
  return finish(d, elect);
}

void synchronise_warp(warp& w, instruction const&, u32 mask) {
  clock_pointer all;
  release(w, mask, all);
  acquire(w, mask, all);
}

void sleep(warp& w, instruction const& i, u32 mask) {
  u32 longest = 0;
  for_lanes(mask, [&](int l) { longest = std::max(longest, w.lanes<u32>(i.op[0])[l]); });
  w.home->launch->out.counts.nanoseconds += longest;
  w.rest(mask);
}

void trap(warp& w, instruction const& i, u32 mask) {
  fail(w, i, std::countr_zero(mask), fault::trap, "the kernel gives up");
}

void nothing(warp&, instruction const&, u32) {}

// The member mask is the last operand.
bool with_members(decoder& d, bool known) {
  if (known && d.now().kind == flow::masked) {
    d.now().members = d.last_operand();
  }
  return known;
}

} // namespace

bool decode_warp(decoder& d) {
  auto const& s = d.at();
  auto const& name = s.parts[0];
  if (name == "shfl") {
    return with_members(d, decode_shuffle(d));
  }
  if (name == "vote") {
    return with_members(d, decode_vote(d));
  }
  if (name == "match") {
    return with_members(d, decode_match(d));
  }
  if (name == "redux") {
    return with_members(d, decode_reduce(d));
  }
  if (name == "elect") {
    return with_members(d, decode_elect(d));
  }
  if (name == "activemask") {
    d.destination(s.operands.at(0), type::b32);
    return finish(d, active_lanes);
  }
  if (s.name == "bar.warp.sync") {
    d.operand(s.operands.at(0), type::b32);
    d.now().kind = flow::masked;
    return with_members(d, finish(d, synchronise_warp));
  }
  if (name == "nanosleep") {
    d.operand(s.operands.at(0), type::b32);
    return finish(d, sleep);
  }
  if (name == "trap") {
    return finish(d, trap);
  }
  if (name == "setmaxnreg") {
    d.now().kind = flow::aligned;
    return finish(d, nothing);
  }
  if (name == "createpolicy") { // cache hints change nothing here
    d.destination(s.operands.at(0), type::b64);
    return finish(d, nothing);
  }
  return (name == "griddepcontrol" || name == "brkpt" || name == "pmevent") && finish(d, nothing);
}

} // namespace ptx
