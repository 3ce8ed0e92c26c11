// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief cp.async: copies of 4, 8 or 16 bytes that end when they are waited for.
#include <cstring>

#include "access.hpp"
#include "mbarrier.hpp"
#include "operations.hpp"

namespace ptx {

namespace {

std::size_t at(int lane) {
  return static_cast<std::size_t>(lane);
}

// op: to, from, source bytes. The target holds NaN patterns until the copy is waited for.
void issue(warp& w, instruction const& i, u32 mask) {
  for_lanes(mask, [&](int l) {
    small_copy c;
    c.by = &i;
    c.bytes = i.count;
    c.source_bytes = std::min<u32>(w.lanes<u32>(i.op[2])[l], c.bytes);
    if (i.flags != 0 && (w.predicate(i.op[3]) >> l & 1) != 0) {
      c.source_bytes = 0;
    }
    u64 const to = address_of(w, i, 0, l);
    c.to = static_cast<u32>(to);
    c.from = address_of(w, i, 1, l);
    region const target = locate(w, i, l, space::shared, to, c.bytes, c.bytes, true);
    if (c.source_bytes != 0) {
      region const source = locate(w, i, l, space::global, c.from, c.source_bytes, c.bytes, false);
      note(w, i, l, source, c.source_bytes, {.read = true});
    }
    note(w, i, l, target, c.bytes, {.write = true});
    if (target.history != nullptr) {
      target.history->pending(target.offset, c.bytes, true);
    }
    std::memset(target.data, 0xff, c.bytes);
    w.open_copies[at(l)].push_back(c);
  });
}

void finish_copy(warp& w, int lane, small_copy const& c) {
  region const target = locate(w, *c.by, lane, space::shared, c.to, c.bytes, c.bytes, true);
  if (target.history != nullptr) {
    target.history->pending(target.offset, c.bytes, false);
  }
  note(w, *c.by, lane, target, c.bytes, {.write = true});
  std::memset(target.data, 0, c.bytes);
  if (c.source_bytes != 0) {
    region const source = locate(w, *c.by, lane, space::global, c.from, c.source_bytes, 1, false);
    std::memcpy(target.data, source.data, c.source_bytes);
  }
  w.home->launch->out.counts.copied_bytes += c.bytes;
}

void commit(warp& w, instruction const&, u32 mask) {
  for_lanes(mask, [&](int l) {
    w.copy_groups[at(l)].push_back(std::move(w.open_copies[at(l)]));
    w.open_copies[at(l)].clear();
  });
}

void wait_for(warp& w, int lane, std::size_t left) {
  auto& groups = w.copy_groups[at(lane)];
  while (groups.size() > left) {
    for (auto const& c : groups.front()) {
      finish_copy(w, lane, c);
    }
    groups.erase(groups.begin());
  }
}

void wait_group(warp& w, instruction const& i, u32 mask) {
  for_lanes(mask, [&](int l) { wait_for(w, l, static_cast<std::size_t>(i.immediate)); });
}

void wait_all(warp& w, instruction const& i, u32 mask) {
  commit(w, i, mask);
  for_lanes(mask, [&](int l) { wait_for(w, l, 0); });
}

// The mbarrier learns of the end of all earlier copies of the thread. They end here, at the latest
// moment at which the interpreter can still attribute them; flags 1: noinc.
void arrive_after_copies(warp& w, instruction const& i, u32 mask) {
  wait_all(w, i, mask);
  for_lanes(mask, [&](int l) {
    mbarrier& b = mbarrier_at(w, i, l, address_of(w, i, 0, l));
    b.pending += i.flags != 0 ? 0 : 1;
    arrive_at(w, i, l, b, 1);
  });
}

bool decode_issue(decoder& d) {
  auto const& s = d.at();
  instruction& i = d.now();
  i.count = static_cast<u8>(std::strtoul(s.operands.at(2).c_str(), nullptr, 0));
  if (i.count != 4 && i.count != 8 && i.count != 16) {
    d.refuse("cp.async copies 4, 8 or 16 bytes");
  }
  d.address(s.operands.at(0));
  d.address(s.operands.at(1));
  std::size_t next = 3;
  bool const ignores = s.operands.size() > 3 && d.register_type(s.operands[3]) == type::pred;
  if (s.operands.size() > 3 && !ignores && !(s.has("L2::cache_hint") && s.operands.size() == 4)) {
    d.operand(s.operands[next++], type::b32);
  } else {
    d.raw(d.constant(i.count, false));
  }
  if (ignores) {
    d.predicate(s.operands[3]);
    i.flags = 1;
  }
  return finish(d, issue);
}

} // namespace

bool decode_copy(decoder& d) {
  auto const& s = d.at();
  instruction& i = d.now();
  if (!s.name.starts_with("cp.async.") || s.has("bulk")) {
    return false;
  }
  if (s.has("commit_group")) {
    return finish(d, commit);
  }
  if (s.has("wait_all")) {
    return finish(d, wait_all);
  }
  if (s.has("wait_group")) {
    i.immediate = std::strtol(s.operands.at(0).c_str(), nullptr, 0);
    return finish(d, wait_group);
  }
  if (s.has("mbarrier")) {
    i.flags = s.has("noinc") ? 1 : 0;
    d.address(s.operands.at(0));
    return finish(d, arrive_after_copies);
  }
  return (s.has("ca") || s.has("cg")) && decode_issue(d);
}

} // namespace ptx
