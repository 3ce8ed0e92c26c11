// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief A launch: starts blocks, gives warps their turns, finds deadlocks.
#include "launch.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "decode.hpp"
#include "step.hpp"

namespace ptx {

namespace {

// Rounds of turns of a full quantum in which nobody writes: some 50,000 instructions of each warp.
u64 idle_rounds_allowed(run_state const& run) {
  return run.how.warps == order::shuffled ? 50 : 5;
}

u64 quantum_of(run_state& run) {
  return run.how.warps == order::shuffled ? 1 + run.random() % 2000 : 20000;
}

u64 special_value(warp const& w, special_slot const& s, int lane) {
  run_state const& run = *w.home->launch;
  u32 const t = w.index * 32 + static_cast<u32>(lane);
  auto const& size = run.block_size;
  u32 const bit = 1U << lane;
  switch (s.which) {
  case special_tid_x: return t % size.x;
  case special_tid_y: return t / size.x % size.y;
  case special_tid_z: return t / size.x / size.y;
  case special_ctaid_x: return w.home->index.x;
  case special_ctaid_y: return w.home->index.y;
  case special_ctaid_z: return w.home->index.z;
  case special_ntid_x: return size.x;
  case special_ntid_y: return size.y;
  case special_ntid_z: return size.z;
  case special_nctaid_x: return run.grid.x;
  case special_nctaid_y: return run.grid.y;
  case special_nctaid_z: return run.grid.z;
  case special_laneid: return static_cast<u64>(lane);
  case special_warpid: return w.index;
  case special_nwarpid: return w.home->warps.size();
  case special_one: return 1;
  case special_lanemask_eq: return bit;
  case special_lanemask_le: return bit | (bit - 1);
  case special_lanemask_lt: return bit - 1;
  case special_lanemask_ge: return ~(bit - 1);
  case special_lanemask_gt: return ~(bit | (bit - 1));
  case special_dynamic_shared: return run.dynamic_shared;
  case special_total_shared: return w.home->shared_bytes;
  case special_parameter: return reinterpret_cast<u64>(run.parameters) + s.addend;
  default: return 0;
  }
}

void start_registers(warp& w) {
  kernel const& k = *w.code;
  w.registers.assign(k.register_bytes / 8 + 8, ~u64{0});
  for (auto const& [where, value] : k.constants) {
    bool const wide = (where >> 30 & 1) != 0;
    s32 const at = where & ((1 << 30) - 1);
    for (int l = 0; l < 32; ++l) {
      if (wide) {
        w.lanes<u64>(at)[l] = value;
      } else {
        w.lanes<u32>(at)[l] = static_cast<u32>(value);
      }
    }
  }
  for (auto const& s : k.specials) {
    for (int l = 0; l < 32; ++l) {
      u64 const value = special_value(w, s, l);
      if (s.wide) {
        w.lanes<u64>(s.offset)[l] = value;
      } else {
        w.lanes<u32>(s.offset)[l] = static_cast<u32>(value);
      }
    }
  }
}

std::unique_ptr<block> start_block(run_state& run, u32 serial) {
  auto b = std::make_unique<block>();
  auto const& g = run.grid;
  b->launch = &run;
  b->serial = serial;
  b->index = {serial % g.x, serial / g.x % g.y, serial / g.x / g.y};
  b->threads = run.block_size.x * run.block_size.y * run.block_size.z;
  u32 const warps = (b->threads + 31) / 32;
  b->shared_bytes = run.entry->shared_bytes + run.dynamic_shared;
  b->shared_storage.assign(b->shared_bytes / 8 + 129, ~u64{0});
  b->shared = reinterpret_cast<std::byte*>(b->shared_storage.data());
  b->shared_state.assign(b->shared_bytes, 0);
  if (run.how.races) {
    b->shared_history = std::make_unique<shadow>(b->shared_bytes + 16);
  }
  b->local.assign(std::size_t{warps} * 32 * run.entry->facts.local_bytes, std::byte{255});
  b->local_state.assign(b->local.size(), 0);
  b->live_warps = warps;
  b->warps.resize(warps);
  auto nothing = std::make_shared<vector_clock>();
  nothing->seen.resize(b->actors());
  nothing->fenced.resize(run.entry->uses_async_proxy ? b->actors() : 0);
  for (u32 k = 0; k < warps; ++k) {
    warp& w = b->warps[k];
    w.home = b.get();
    w.code = run.entry;
    w.index = k;
    u32 const lanes = std::min(32U, b->threads - k * 32);
    w.alive = lanes == 32 ? ~0U : (1U << lanes) - 1;
    w.now = run.entry->code.data();
    start_registers(w);
    for (auto& c : w.clocks) {
      c.known = nothing;
    }
  }
  return b;
}

std::vector<u32> turns(run_state& run, block const& b) {
  std::vector<u32> out(b.warps.size());
  std::iota(out.begin(), out.end(), 0U);
  if (run.how.warps == order::reverse) {
    std::reverse(out.begin(), out.end());
  } else if (run.how.warps == order::shuffled) {
    for (std::size_t k = out.size(); k > 1; --k) {
      std::swap(out[k - 1], out[run.random() % k]);
    }
  }
  return out;
}

// One turn for every warp that can run; returns true if a quantum ended some turn.
bool round(run_state& run, block& b) {
  bool busy = false;
  for (u32 const k : turns(run, b)) {
    warp& w = b.warps[k];
    if (w.alive == 0 || w.blocked) {
      continue;
    }
    busy = run_warp(w, quantum_of(run)) || busy;
    if (w.alive == 0) {
      --b.live_warps;
      recheck_barriers(b);
    }
  }
  if (run.how.warps == order::shuffled && !b.engine.empty() && run.random() % 4 == 0) {
    complete_bulk_copy(b);
  }
  if (b.live_warps == 0) {
    end_block(b);
  }
  return busy;
}

class scheduler {
public:
  scheduler(run_state& run, u32 blocks) : run_(run), blocks_(blocks) {}

  void all() {
    u64 idle = 0;
    while (next_ < blocks_ || !active_.empty()) {
      while (next_ < blocks_ && (active_.empty() || (run_.how.together &&
                                                     active_.size() < run_.how.resident_blocks))) {
        admit();
      }
      u64 const before = run_.progress;
      bool busy = false;
      for (auto& b : active_) {
        busy = round(run_, *b) || busy;
      }
      std::erase_if(active_, [](auto const& b) { return b->live_warps == 0; });
      idle = run_.progress != before ? 0 : idle + 1;
      if (busy && next_ < blocks_ && active_.size() < run_.how.resident_blocks) {
        admit(); // whoever takes that long may be waiting for a block that has not started
      }
      if (idle == 0 || (busy && idle < idle_rounds_allowed(run_))) {
        continue;
      }
      if (!help()) {
        deadlock();
      }
      idle = 0;
    }
  }

private:
  run_state& run_;
  u32 blocks_;
  u32 next_ = 0;
  std::vector<std::unique_ptr<block>> active_;

  void admit() { active_.push_back(start_block(run_, next_++)); }

  // Something that lets waiting warps go on: an asynchronous copy ends, or one more block starts.
  bool help() {
    for (auto& b : active_) {
      if (!b->engine.empty()) {
        complete_bulk_copy(*b);
        return true;
      }
    }
    if (next_ < blocks_ && active_.size() < run_.how.resident_blocks) {
      admit();
      return true;
    }
    return false;
  }

  [[noreturn]] void deadlock() const {
    std::string text = "kernel " + run_.entry->text->name + ": nobody can go on:";
    for (auto const& b : active_) {
      text += " block (" + std::to_string(b->index.x) + "," + std::to_string(b->index.y) + "," +
              std::to_string(b->index.z) + "):";
      for (auto const& w : b->warps) {
        text += w.alive == 0 ? "" : " " + waiting_text(w) + ";";
      }
    }
    text.back() = '.';
    throw stop{fault::deadlock, text};
  }
};

void set_parameters(run_state& run, void* const* arguments) {
  auto const& facts = run.entry->facts;
  std::size_t const count = facts.parameter_bytes.size();
  std::size_t const bytes =
    count == 0 ? 0 : facts.parameter_offsets.back() + facts.parameter_bytes.back();
  run.parameter_storage.assign(bytes / 8 + 9, 0);
  auto const raw = reinterpret_cast<std::uintptr_t>(run.parameter_storage.data());
  run.parameters = reinterpret_cast<std::byte*>((raw + 63) / 64 * 64);
  for (std::size_t k = 0; k < count; ++k) {
    std::memcpy(
      run.parameters + facts.parameter_offsets[k], arguments[k], facts.parameter_bytes[k]);
  }
}

std::string shape_error(run_state const& run) {
  auto const& b = run.block_size;
  auto const& g = run.grid;
  u64 const threads = u64{b.x} * b.y * b.z;
  u64 const blocks = u64{g.x} * g.y * g.z;
  if (threads == 0 || blocks == 0) {
    return "the grid and the block must not be empty";
  }
  if (run.entry->facts.cluster != extent{}) {
    return "the kernel wants clusters of blocks, which the interpreter does not have";
  }
  if (threads > 1024 || threads > run.entry->facts.max_threads) {
    return "the block has " + std::to_string(threads) + " threads, the kernel allows " +
           std::to_string(std::min(1024U, run.entry->facts.max_threads));
  }
  if (blocks >= u64{1} << 20) {
    return "the interpreter runs fewer than 2^20 blocks per launch";
  }
  if (run.entry->shared_bytes + run.dynamic_shared > 227 * 1024) {
    return "the block wants " + std::to_string(run.entry->shared_bytes + run.dynamic_shared) +
           " bytes of shared memory, an SM has 232448";
  }
  return {};
}

} // namespace

result launch(module& code,
              std::string_view name,
              extent grid,
              extent block_size,
              std::size_t dynamic_shared_bytes,
              void* const* arguments,
              options const& how) {
  run_state run;
  run.code = &code.loaded();
  run.entry = &run.code->ready(name);
  run.how = how;
  run.grid = grid;
  run.block_size = block_size;
  run.dynamic_shared = dynamic_shared_bytes;
  run.random.seed(how.seed);
  if (auto const error = shape_error(run); !error.empty()) {
    run.out.reports.push_back({fault::invalid, "kernel " + std::string(name) + ": " + error});
    return run.out;
  }
  set_parameters(run, arguments);
  memory& where = *run.code->where;
  where.add(run.parameter_storage.data(),
            run.parameter_storage.size() * 8,
            true,
            "the kernel's parameters",
            false);
  try {
    scheduler(run, grid.x * grid.y * grid.z).all();
  } catch (stop const& s) {
    run.out.reports.push_back({s.kind, s.text});
  } catch (...) {
    where.remove(run.parameter_storage.data());
    throw;
  }
  where.remove(run.parameter_storage.data());
  auto touched = where.take_touched();
  run.out.reads = std::move(touched.reads);
  run.out.writes = std::move(touched.writes);
  return run.out;
}

} // namespace ptx
