// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "mbarrier.hpp"

#include "access.hpp"
#include "operations.hpp"

namespace ptx {

namespace {

constexpr s64 most_bytes = (1 << 20) - 1;

u32 key(u64 address) {
  return static_cast<u32>(address >= shared_window ? address - shared_window : address);
}

// op: address, count
void initialise(warp& w, instruction const& i, u32 mask) {
  for_lanes(mask, [&](int l) {
    u64 const address = address_of(w, i, 0, l);
    region const r = locate(w, i, l, space::shared, address, 8, 8, true);
    note(w, i, l, r, 8, {.write = true});
    mbarrier b;
    b.expected = b.pending = w.lanes<u32>(i.op[1])[l];
    if (b.expected == 0 || b.expected > most_bytes) {
      fail(w,
           i,
           l,
           fault::barrier,
           "initialises an mbarrier for " + std::to_string(b.expected) +
             " arrivals; it must be 1 ... 2^20 - 1");
    }
    w.home->mbarriers[key(address)] = b;
  });
}

void invalidate(warp& w, instruction const& i, u32 mask) {
  for_lanes(mask, [&](int l) {
    u64 const address = address_of(w, i, 0, l);
    static_cast<void>(mbarrier_at(w, i, l, address));
    w.home->mbarriers.erase(key(address));
  });
}

enum : u8 { expects = 1, arrives = 2, drops = 4, completes = 8, counted = 16 };

void expect(warp& w, instruction const& i, int lane, mbarrier& b, s64 bytes) {
  b.bytes += bytes;
  if (b.bytes > most_bytes || b.bytes < -most_bytes) {
    fail(w,
         i,
         lane,
         fault::barrier,
         "brings the pending bytes of the mbarrier to " + std::to_string(b.bytes) +
           ", beyond 2^20 - 1");
  }
}

// op: state, address, value (count, or bytes with expects)
void arrive(warp& w, instruction const& i, u32 mask) {
  for_lanes(mask, [&](int l) {
    mbarrier& b = mbarrier_at(w, i, l, address_of(w, i, 0, l));
    u32 const value = w.lanes<u32>(i.op[2])[l];
    w.lanes<u64>(i.op[0])[l] = b.phase;
    if ((i.flags & expects) != 0) {
      expect(w, i, l, b, value);
    }
    if ((i.flags & completes) != 0) {
      expect(w, i, l, b, -static_cast<s64>(value));
    }
    if ((i.flags & drops) != 0) {
      --b.expected;
    }
    if ((i.flags & arrives) != 0) {
      arrive_at(w, i, l, b, (i.flags & counted) != 0 ? value : 1);
    } else {
      step(*w.home->launch, b);
    }
  });
}

// op: predicate, address, state or parity; mode 1: parity
void try_wait(warp& w, instruction const& i, u32 mask) {
  u32 done = 0;
  // Lanes that wait for the same phase learn the same; they keep sharing one clock.
  clock_pointer last;
  u32 together = 0;
  for_lanes(mask, [&](int l) {
    mbarrier& b = mbarrier_at(w, i, l, address_of(w, i, 0, l));
    u32 const wanted =
      i.mode == 1 ? w.lanes<u32>(i.op[2])[l] : static_cast<u32>(w.lanes<u64>(i.op[2])[l]);
    if ((b.phase & 1) == (wanted & 1)) {
      return;
    }
    done |= 1U << l;
    if (b.completed != last) {
      acquire(w, together, last);
      last = b.completed;
      together = 0;
    }
    together |= 1U << l;
  });
  acquire(w, together, last);
  u32& p = w.predicate(i.op[0]);
  p = (p & ~mask) | done;
  w.rest(mask & ~done);
}

bool decode_arrive(decoder& d) {
  auto const& s = d.at();
  instruction& i = d.now();
  bool const tx = s.has("expect_tx");
  bool const complete = s.has("complete_tx");
  bool const arrive_too = s.parts[1] == "arrive" || s.parts[1] == "arrive_drop";
  i.flags = static_cast<u8>((tx ? expects : 0) | (complete ? completes : 0) |
                            (arrive_too ? arrives : 0) | (s.has("arrive_drop") ? drops : 0));
  std::size_t k = 0;
  if (arrive_too && s.operands.at(0)[0] != '[') {
    d.destination(s.operands[k++], type::b64);
  } else {
    d.destination("_", type::b64);
  }
  d.address(s.operands.at(k++));
  if (s.operands.size() > k) {
    i.flags = static_cast<u8>(i.flags | (tx ? 0 : counted));
    d.operand(s.operands[k], type::b32);
  } else {
    d.raw(d.constant(1, false));
  }
  return finish(d, arrive);
}

} // namespace

mbarrier& mbarrier_at(warp& w, instruction const& i, int lane, u64 address) {
  region const r = locate(w, i, lane, space::shared, address, 8, 8, false);
  auto const found = w.home->mbarriers.find(key(address));
  if (found == w.home->mbarriers.end()) {
    fail(w,
         i,
         lane,
         fault::barrier,
         "uses " + spell(*w.home, space::shared, address) +
           " as an mbarrier, but none has been "
           "initialised there");
  }
  note(w, i, lane, r, 8, {.read = true, .strong = true});
  return found->second;
}

void step(run_state& run, mbarrier& b) {
  if (b.pending == 0 && b.bytes == 0) {
    ++b.phase;
    b.pending = b.expected;
    b.completed = std::move(b.arriving);
    b.arriving = nullptr;
  }
  ++run.progress;
}

void arrive_at(warp& w, instruction const& i, int lane, mbarrier& b, u32 count) {
  if (count > b.pending) {
    fail(w,
         i,
         lane,
         fault::barrier,
         "arrives " + std::to_string(count) + " times at an mbarrier that waits for " +
           std::to_string(b.pending) + " more arrivals in this phase");
  }
  release(w, 1U << lane, b.arriving);
  b.pending -= count;
  step(*w.home->launch, b);
}

bool decode_mbarrier(decoder& d) {
  auto const& s = d.at();
  instruction& i = d.now();
  if (s.parts[0] != "mbarrier") {
    return false;
  }
  auto const& what = s.parts.at(1);
  if (what == "init") {
    d.address(s.operands.at(0));
    d.operand(s.operands.at(1), type::b32);
    return finish(d, initialise);
  }
  if (what == "inval") {
    d.address(s.operands.at(0));
    return finish(d, invalidate);
  }
  if (what == "test_wait" || what == "try_wait") {
    i.mode = s.has("parity") ? 1 : 0;
    d.destination(s.operands.at(0), type::pred);
    d.address(s.operands.at(1));
    d.operand(s.operands.at(2), i.mode == 1 ? type::b32 : type::b64);
    return finish(d, try_wait);
  }
  return (what == "arrive" || what == "arrive_drop" || what == "expect_tx" ||
          what == "complete_tx") &&
         decode_arrive(d);
}

} // namespace ptx
