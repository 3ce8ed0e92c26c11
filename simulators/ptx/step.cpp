// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief One warp's turn: lockstep execution with a mask, lanes with the smallest pc first.
#include "step.hpp"

namespace ptx {

namespace {

[[noreturn]] void divergent(warp& w) {
  u32 const first_pc = w.pcs[static_cast<std::size_t>(std::countr_zero(w.parked))];
  std::string others;
  for_lanes(w.alive, [&](int l) {
    u32 const pc = w.pcs[static_cast<std::size_t>(l)];
    if (others.empty() && pc != first_pc) {
      auto const& s = w.code->text->body.at(w.code->code[pc].statement);
      others = "lane " + std::to_string(l) + " is at PTX line " + std::to_string(s.line) + " `" +
               s.text() + "`";
    }
  });
  fail(w,
       w.code->code[first_pc],
       std::countr_zero(w.parked),
       fault::divergence,
       "executes an instruction that lanes of the warp must execute together, but " +
         (others.empty() ? "some of them have been left out" : others));
}

// The lanes that go next, or 0 if the turn is over.
u32 choose(warp& w) {
  u32 const candidates = w.alive & ~w.resting & ~w.parked;
  if (candidates == 0) {
    if (w.resting == 0) {
      divergent(w);
    }
    w.resting = 0;
    return 0;
  }
  u32 pc = ~0U;
  for_lanes(candidates, [&](int l) { pc = std::min(pc, w.pcs[static_cast<std::size_t>(l)]); });
  u32 group = 0;
  for_lanes(w.alive & ~w.resting, [&](int l) {
    group |= static_cast<u32>(w.pcs[static_cast<std::size_t>(l)] == pc) << l;
  });
  w.parked &= ~group;
  w.pc = pc;
  w.diverged = group != w.alive;
  return group;
}

void advance(warp& w, u32 lanes, u32 from, u32 to) {
  if (!w.diverged) {
    if (lanes == w.alive) {
      w.pc = to;
      return;
    }
    w.pcs.fill(from);
    w.diverged = true;
  }
  for_lanes(lanes, [&](int l) { w.pcs[static_cast<std::size_t>(l)] = to; });
}

void park(warp& w, u32 group, u32 pc) {
  if (!w.diverged) {
    w.parked = group;
    w.pcs.fill(pc);
    divergent(w);
  }
  w.parked |= group;
}

// Returns false if the group has to wait for other lanes.
bool run_collective(warp& w, instruction const& i, u32 group, u32 active) {
  if (i.kind == flow::aligned) {
    if (active != w.alive) {
      park(w, group, w.pc);
      return false;
    }
    i.run(w, i, active);
    return true;
  }
  auto const* members = w.lanes<u32>(i.members);
  for (u32 rest = active; rest != 0;) {
    int const lead = std::countr_zero(rest);
    u32 const named = members[lead];
    if ((named >> lead & 1) == 0) {
      fail(w, i, lead, fault::divergence, "executes with a member mask that does not name it");
    }
    if ((named & w.alive & ~active) != 0) {
      park(w, group, w.pc);
      return false;
    }
    rest &= ~named;
  }
  for (u32 rest = active; rest != 0;) {
    u32 const together = members[std::countr_zero(rest)] & active;
    i.run(w, i, together);
    rest &= ~together;
  }
  return true;
}

} // namespace

bool run_warp(warp& w, u64 quantum) {
  auto& counts = w.home->launch->out.counts;
  instruction const* const code = w.code->code.data();
  for (; w.alive != 0; --quantum) {
    if (quantum == 0) {
      return true;
    }
    u32 const group = w.diverged ? choose(w) : w.alive;
    if (group == 0) {
      return false;
    }
    u32 const pc = w.pc;
    instruction const& i = code[pc];
    u32 active = group;
    if (i.guard >= 0) {
      u32 const p = w.predicate(i.guard);
      active &= i.guard_negated ? ~p : p;
    }
    ++counts.warp_instructions;
    w.now = &i;
    if (!w.busy.empty() && active != 0) {
      check_busy(w, i);
    }
    switch (i.kind) {
    case flow::ordinary:
      if (active != 0) {
        i.run(w, i, active);
      }
      break;
    case flow::branch:
      if (active != 0) {
        if (u32 const stay = group & ~active; stay != 0) {
          advance(w, stay, pc, pc + 1);
        }
        advance(w, active, pc, static_cast<u32>(i.target));
        continue;
      }
      break;
    case flow::exit:
      if (active != 0) {
        if (u32 const stay = group & ~active; stay != 0) {
          advance(w, stay, pc, pc + 1);
        }
        w.alive &= ~active;
        ++w.home->launch->progress;
        continue;
      }
      break;
    default:
      if (active != 0 && !run_collective(w, i, group, active)) {
        continue;
      }
    }
    advance(w, group, pc, pc + 1);
    if (w.blocked || w.yields) {
      w.yields = false;
      return false;
    }
  }
  return false;
}

std::string waiting_text(warp const& w) {
  std::string const who = "warp " + std::to_string(w.index);
  auto const& s = w.home->launch->entry->text->body.at(w.now->statement);
  std::string const where = " at PTX line " + std::to_string(s.line) + " `" + s.text() + "`";
  if (!w.blocked) {
    return who + " spins" + where;
  }
  auto const& b = w.home->barriers[w.barrier];
  return who + " waits" + where + " (barrier " + std::to_string(w.barrier) + ", " +
         std::to_string(b.arrived) + " of " + std::to_string(b.expected) + " threads arrived)";
}

} // namespace ptx
