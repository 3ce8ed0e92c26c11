// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief bar and barrier: the sixteen named barriers of a block.
#include "access.hpp"
#include "operations.hpp"
#include "step.hpp"

namespace ptx {

namespace {

enum barrier_mode : u8 { wait_only, arrive_only, all_of, any_of, count_of };
// op: barrier, thread count (or -1), result (or -1), predicate (or -1); flags 1: predicate negated

u32 live_threads(block const& b) {
  u32 out = 0;
  for (auto const& w : b.warps) {
    out += w.alive != 0 ? 32U : 0U;
  }
  return out;
}

void deliver(warp& w, u32 lanes, named_barrier const& b) {
  instruction const& i = *w.now;
  if (i.mode == count_of) {
    for_lanes(lanes, [&](int l) { w.lanes<u32>(i.op[2])[l] = b.vote_count; });
  } else if (i.mode != wait_only) {
    u32& p = w.predicate(i.op[2]);
    bool const yes = i.mode == all_of ? b.vote_all != 0 : b.vote_any != 0;
    p = yes ? p | lanes : p & ~lanes;
  }
}

void complete(block& home, u32 id) {
  named_barrier& b = home.barriers[id];
  for (auto& [w, lanes] : b.waiting) {
    acquire(*w, lanes, b.clock);
    deliver(*w, lanes, b);
    w->blocked = false;
  }
  b = named_barrier{};
  ++home.launch->progress;
}

void vote(warp& w, instruction const& i, u32 mask, named_barrier& b) {
  if (i.op[3] < 0) {
    return;
  }
  u32 const raw = w.predicate(i.op[3]);
  u32 const yes = ((i.flags & 1) != 0 ? ~raw : raw) & mask;
  b.vote_all = b.vote_all != 0 && yes == mask ? 1 : 0;
  b.vote_any |= yes;
  b.vote_count += static_cast<u32>(std::popcount(yes));
}

void arrive(warp& w, instruction const& i, u32 mask) {
  int const lead = std::countr_zero(mask);
  u32 const id = w.lanes<u32>(i.op[0])[lead];
  if (id >= 16) {
    fail(w, i, lead, fault::barrier, "names barrier " + std::to_string(id) + ", a block has 16");
  }
  block& home = *w.home;
  named_barrier& b = home.barriers[id];
  bool const counted = i.op[1] >= 0;
  u32 const expected = counted ? w.lanes<u32>(i.op[1])[lead] : live_threads(home);
  if (counted && expected % 32 != 0) {
    fail(w,
         i,
         lead,
         fault::barrier,
         "waits for " + std::to_string(expected) +
           " threads, which is no multiple of the warp size");
  }
  if (b.arrived != 0 && b.counted != counted) {
    fail(w,
         i,
         lead,
         fault::barrier,
         "waits at barrier " + std::to_string(id) +
           " for a number of threads where others wait for the whole block, or the reverse");
  }
  if (b.arrived != 0 && counted && b.expected != expected) {
    fail(w,
         i,
         lead,
         fault::barrier,
         "waits at barrier " + std::to_string(id) + " for " + std::to_string(expected) +
           " threads, but earlier ones wait for " + std::to_string(b.expected));
  }
  b.counted = counted;
  b.expected = expected;
  b.arrived += 32;
  if (b.arrived > expected) {
    fail(w,
         i,
         lead,
         fault::barrier,
         "is one thread too many at barrier " + std::to_string(id) + ", which waits for " +
           std::to_string(expected));
  }
  vote(w, i, mask, b);
  release(w, mask, b.clock);
  ++home.launch->progress;
  if (i.mode != arrive_only) {
    b.waiting.emplace_back(&w, mask);
    w.blocked = true;
    w.barrier = id;
  }
  if (b.arrived == expected) {
    complete(home, id);
  }
}

} // namespace

void recheck_barriers(block& b) {
  u32 const live = live_threads(b);
  for (u32 id = 0; id < 16; ++id) {
    auto& one = b.barriers[id];
    if (one.arrived != 0 && !one.counted) {
      one.expected = live;
      if (one.arrived >= live) {
        complete(b, id);
      }
    }
  }
}

bool decode_barrier(decoder& d) {
  auto const& s = d.at();
  instruction& i = d.now();
  if ((s.parts[0] != "bar" && s.parts[0] != "barrier") || s.has("cluster") || s.has("warp")) {
    return false;
  }
  bool const reduces = s.has("red");
  i.mode = s.has("arrive") ? arrive_only
           : s.has("popc") ? count_of
           : s.has("and")  ? all_of
           : s.has("or")   ? any_of
                           : wait_only;
  i.kind = flow::aligned;
  std::size_t k = reduces ? 1 : 0;
  d.operand(s.operands.at(k++), type::b32);
  if (s.operands.size() > k + (reduces ? 1 : 0)) {
    d.operand(s.operands[k++], type::b32);
  } else {
    d.raw(-1);
  }
  if (!reduces) {
    d.raw(-1);
    d.raw(-1);
    return finish(d, arrive);
  }
  d.destination(s.operands[0], i.mode == count_of ? type::b32 : type::pred);
  i.flags = d.predicate(s.operands.at(k)) ? 1 : 0;
  return finish(d, arrive);
}

} // namespace ptx
