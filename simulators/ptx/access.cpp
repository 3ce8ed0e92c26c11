// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "access.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace ptx {

namespace {

std::string hex(u64 v) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(v));
  return text;
}

std::string bytes_text(u32 n) {
  return std::to_string(n) + (n == 1 ? " byte" : " bytes");
}

region locate_shared(warp& w, instruction const& i, int lane, u64 address, u32 bytes, bool write) {
  block& b = *w.home;
  u64 const offset = (address >= shared_window ? address - shared_window : address) - shared_base;
  if (offset + bytes > b.shared_bytes || offset > b.shared_bytes) {
    fail(w,
         i,
         lane,
         fault::bounds,
         std::string(write ? "writes " : "reads ") + bytes_text(bytes) + " at " +
           spell(b, space::shared, address) + ", outside the block's " +
           std::to_string(b.shared_bytes) + " bytes of shared memory");
  }
  return {b.shared + offset,
          b.shared_state.data() + offset,
          b.shared_history.get(),
          offset,
          space::shared};
}

region locate_local(warp& w, instruction const& i, int lane, u64 address, u32 bytes, bool write) {
  u64 const offset = address >= local_window ? address - local_window : address;
  u64 const size = w.code->facts.local_bytes;
  if (offset > size || offset + bytes > size) {
    fail(w,
         i,
         lane,
         fault::bounds,
         std::string(write ? "writes " : "reads ") + bytes_text(bytes) + " at local+" +
           hex(offset) + ", outside the thread's " + std::to_string(size) +
           " bytes of local memory");
  }
  u64 const at = (w.index * 32 + static_cast<u32>(lane)) * size + offset;
  return {
    w.home->local.data() + at, w.home->local_state.data() + at, nullptr, offset, space::local};
}

[[noreturn]] void
outside(warp& w, instruction const& i, int lane, u64 address, u32 bytes, bool write) {
  std::string what = std::string(write ? "writes " : "reads ") + bytes_text(bytes) +
                     " at global address " + hex(address) + ", which lies in no allocation";
  if (auto const* near = w.home->launch->code->where->nearest(address); near != nullptr) {
    what += " (the nearest below starts at " + hex(near->begin) + ", has " +
            std::to_string(near->bytes) + " bytes" +
            (near->name.empty() ? "" : " and is " + near->name) + ", the access is " +
            std::to_string(address - near->begin) + " bytes after its start)";
  }
  fail(w, i, lane, fault::bounds, what);
}

region locate_global(warp& w, instruction const& i, int lane, u64 address, u32 bytes, bool write) {
  run_state& run = *w.home->launch;
  if (run.last == nullptr || address - run.last->begin >= run.last->bytes) {
    run.last = run.code->where->find(address);
    if (run.last == nullptr) {
      outside(w, i, lane, address, bytes, write);
    }
    run.last_history = nullptr;
    if (run.how.races && run.last->writable) {
      auto& history = run.global_history[run.last->begin];
      if (history == nullptr) {
        history = std::make_unique<shadow>(run.last->bytes + 16);
      }
      run.last_history = history.get();
    }
  }
  u64 const offset = address - run.last->begin;
  if (offset + bytes > run.last->bytes) {
    outside(w, i, lane, address, bytes, write);
  }
  if (write && !run.last->writable) {
    fail(w,
         i,
         lane,
         fault::bounds,
         "writes " + bytes_text(bytes) + " to read-only memory (" + run.last->name + ")");
  }
  run.last->reach(offset, bytes);
  // History lines follow the address, so that a 16-byte access is one line wherever it starts.
  return {reinterpret_cast<std::byte*>(address),
          run.last->state.data() + offset,
          run.last_history,
          offset + run.last->begin % 16};
}

space resolved(space where, u64 address) {
  if (where != space::generic) {
    return where;
  }
  return address >= local_window    ? space::local
         : address >= shared_window ? space::shared
                                    : space::global;
}

std::string actor_text(block const& b, actor_id who) {
  u32 const index = actor_index(who);
  std::string const where =
    actor_block(who) == b.serial ? "" : " of block number " + std::to_string(actor_block(who));
  if (index >= b.agent(copy_agents)) {
    return "a wgmma of warp " + std::to_string(index - b.agent(copy_agents)) + where;
  }
  if (index >= b.agent(0)) {
    return "a bulk copy" + where;
  }
  auto const& size = b.launch->block_size;
  return "thread (" + std::to_string(index % size.x) + "," +
         std::to_string(index / size.x % size.y) + "," + std::to_string(index / size.x / size.y) +
         ")" + where;
}

void report_conflict(warp& w,
                     instruction const& i,
                     int lane,
                     region const& r,
                     u32 bytes,
                     touch how,
                     conflict const& c) {
  std::string const what =
    std::string(how.write ? "writes " : "reads ") + bytes_text(bytes) + " at " + spell(*w.home, r);
  std::string const who = actor_text(*w.home, c.earlier);
  if (c.what == conflict::in_flight) {
    report_fault(w,
                 i,
                 lane,
                 fault::in_flight,
                 what + " while an asynchronous copy of " + who + " to it has not been waited for");
  } else if (c.what == conflict::proxy) {
    report_fault(w,
                 i,
                 lane,
                 fault::proxy,
                 what + " through the async proxy, but " + who +
                   " wrote it without a fence.proxy.async after the write");
  } else {
    report_fault(w,
                 i,
                 lane,
                 fault::race,
                 what + " without being ordered after " + who + ", which " +
                   (c.earlier_write ? "wrote" : "read") + " it");
  }
}

// Eight state bytes at a time.
constexpr u64 eight_of(u8 each) {
  return 0x0101010101010101U * each;
}

bool all_initialised(u8 const* state, u32 bytes) {
  u64 all = eight_of(state_initialised);
  for (; bytes >= 8; bytes -= 8, state += 8) {
    u64 eight = 0;
    std::memcpy(&eight, state, 8);
    all &= eight;
  }
  return all == eight_of(state_initialised) &&
         std::all_of(state, state + bytes, [](u8 s) { return (s & state_initialised) != 0; });
}

// A byte counts as read only where the kernel has not written it.
template <class Bits>
Bits marked(Bits state, Bits every, touch how) {
  static_assert(state_read * 2 == state_written);
  Bits const written = how.write ? every * (state_written | state_initialised) : 0;
  Bits const read = how.read ? (~state & every * state_written) / 2 : 0;
  return state | written | read;
}

void mark(u8* state, u32 bytes, touch how) {
  for (; bytes >= 8; bytes -= 8, state += 8) {
    u64 eight = 0;
    std::memcpy(&eight, state, 8);
    eight = marked(eight, eight_of(1), how);
    std::memcpy(state, &eight, 8);
  }
  for (; bytes > 0; --bytes, ++state) {
    *state = static_cast<u8>(marked(u32{*state}, 1U, how));
  }
}

} // namespace

std::string spell(block const&, space where, u64 address) {
  if (where == space::shared) {
    return "shared+" +
           hex((address >= shared_window ? address - shared_window : address) - shared_base);
  }
  return "global address " + hex(address);
}

std::string spell(block const& b, region const& r) {
  if (r.where == space::local) {
    return "local+" + hex(r.offset);
  }
  return r.where == space::shared ? spell(b, space::shared, r.offset + shared_base)
                                  : spell(b, space::global, reinterpret_cast<u64>(r.data));
}

u64 address_of(warp& w, instruction const& i, unsigned k, int lane) {
  s32 const at = i.op[i.address + k];
  u64 const base = (i.wide >> k & 1) != 0 ? w.lanes<u64>(at)[lane] : w.lanes<u32>(at)[lane];
  return base + static_cast<u64>(i.offset[k]);
}

region locate(warp& w,
              instruction const& i,
              int lane,
              space where,
              u64 address,
              u32 bytes,
              u32 alignment,
              bool write) {
  if (address % alignment != 0) {
    space const s = resolved(where, address);
    fail(w,
         i,
         lane,
         fault::alignment,
         "accesses " + bytes_text(bytes) + " at " + spell(*w.home, s, address) +
           ", which is no multiple of " + std::to_string(alignment));
  }
  switch (resolved(where, address)) {
  case space::shared: return locate_shared(w, i, lane, address, bytes, write);
  case space::local: return locate_local(w, i, lane, address, bytes, write);
  default: return locate_global(w, i, lane, address, bytes, write);
  }
}

void note_as(warp& w,
             instruction const& i,
             int lane,
             region const& r,
             u32 bytes,
             touch how,
             access const& who) {
  options const& check = w.home->launch->how;
  if (how.read && check.initialisation && !all_initialised(r.state, bytes)) {
    report_fault(w,
                 i,
                 lane,
                 fault::uninitialised,
                 "reads " + bytes_text(bytes) + " at " + spell(*w.home, r) +
                   ", which nobody has written");
  }
  mark(r.state, bytes, how);
  w.home->launch->progress += how.write && !how.read ? 1 : 0;
  if (check.races && r.history != nullptr) {
    if (auto const c = r.history->touch(r.offset, bytes, who)) {
      report_conflict(w, i, lane, r, bytes, how, *c);
    }
  }
}

access thread_access(warp& w, int lane) {
  access a;
  a.who = a.issuer = w.home->actor(w.index * 32 + static_cast<u32>(lane));
  a.now = w.home->launch->clock;
  a.known = w.clocks[static_cast<std::size_t>(lane)].known.get();
  a.own_fenced = w.clocks[static_cast<std::size_t>(lane)].fenced;
  return a;
}

void note(warp& w, instruction const& i, int lane, region const& r, u32 bytes, touch how) {
  access a = thread_access(w, lane);
  a.write = how.write;
  a.strong = how.strong;
  note_as(w, i, lane, r, bytes, how, a);
}

} // namespace ptx
