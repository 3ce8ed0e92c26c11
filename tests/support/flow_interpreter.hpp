// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A sequential interpreter of flows, and the same out of the slots that runners hand to
//! passes: what every pass of any flow reads, as one number each.

#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/lower/global_order.hpp>
#include <pipe/run/context.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <tests/support/stage_graphs.hpp>
#include <vector>

namespace support {

inline std::uint64_t mixed(std::uint64_t with, std::uint64_t value) {
  std::uint64_t const word = (with ^ value) * 0x9e3779b97f4a7c15U + 0xd1b54a32d192ed03U;
  return word ^ (word >> 29U);
}

// What a pass reads and fills, in the order of its effects: `read(effect, number)` is asked for
// the values that it reads, `fill(effect, number, value)` is told those that it makes;
// `neighbours(step)` says how many units there are on a side.
template <class Neighbours, class Read, class Fill>
std::uint64_t compute(pipelining::pipeline_view const& over,
                      pipelining::pass const& what,
                      Neighbours neighbours,
                      Read read,
                      Fill fill) {
  pipelining::kind_of_pass const& kind = (*over.declared)[what.kind];
  std::uint64_t digest = static_cast<std::uint64_t>(what.kind) * 64 + what.stage;
  digest = (digest * 64 + what.microbatch) * 64 + what.chunk;
  auto const each = [&](bool brought, auto const& go) {
    for (int i = 0; i < kind.effect_count; ++i) {
      pipelining::effect const& one = kind.effects[i];
      pipelining::datum const& of = over.declared->data[one.of];
      bool const brings =
        one.what == pipelining::does::makes || one.what == pipelining::does::adds_to;
      if (one.what >= pipelining::does::needs || of.lives == pipelining::residence::nowhere ||
          brings != brought || (of.only_chunked && over.extents.chunks == 1))
        continue;
      int const step = one.stage == pipelining::of_stage::before  ? -1
                       : one.stage == pipelining::of_stage::after ? 1
                       : one.stage == pipelining::of_stage::group ? pipelining::detail::group_step
                       : of.instance == pipelining::datum::per::reader
                         ? over.declared->reader_step[one.of]
                         : 0;
      int const count = step == 0 ? 1 : neighbours(step);
      for (int number = 0; number < count; ++number)
        go(i, number);
    }
  };
  // Memory that the pass works in, and a sum that it begins, hold nothing before.
  auto const begins = [&](int i) {
    pipelining::effect const& one = kind.effects[i];
    for (int k = 0; k < i; ++k)
      if (kind.effects[k].of == one.of && kind.effects[k].stage == one.stage)
        return true;
    int const first = one.order == pipelining::effect::chunk_order::ascending
                        ? 0
                        : over.chunks_of(what.microbatch) - 1;
    return one.what == pipelining::does::makes ||
           (one.what == pipelining::does::adds_to && what.chunk == first);
  };
  each(true, [&](int i, int number) {
    if (!begins(i))
      digest = mixed(digest, read(i, number));
  });
  each(false, [&](int i, int number) {
    if (!begins(i))
      digest = mixed(digest, read(i, number));
  });
  each(true, [&](int i, int number) {
    fill(i, number, mixed(digest, static_cast<std::uint64_t>(i * 64 + number)));
  });
  return digest;
}

using digests = std::map<std::array<int, 4>, std::uint64_t>; // by kind, stage, microbatch, chunk

inline std::array<int, 4> key_of(pipelining::pass const& what) {
  return {static_cast<int>(what.kind), what.stage, what.microbatch, what.chunk};
}

// The units on a side of a pass, and which of their neighbours on the other side the pass is. With
// groups, or in a chain, as the library has it; else by the edges.
inline std::vector<pipelining::detail::stage_neighbour>
neighbours_of(pipelining::pipeline_view const& over,
              edge_list const& edges,
              pipelining::pass const& what,
              int step) {
  std::vector<pipelining::detail::stage_neighbour> result;
  if (over.edges == nullptr || step == pipelining::detail::group_step) {
    for (int k = 0; k < over.graph().edges(what.stage, step); ++k) {
      result.push_back(over.graph().edge(what.stage, step, k));
      result.back().chunk = what.chunk;
    }
    return result;
  }
  int const chunks = over.chunks_of(what.microbatch);
  stage_and_chunk const own{what.stage, what.chunk};
  for (stage_and_chunk const& unit : units_beside(edges, own, step, chunks)) {
    auto const back = units_beside(edges, unit, -step, chunks);
    result.push_back({unit.stage,
                      static_cast<int>(std::find(back.begin(), back.end(), own) - back.begin()),
                      unit.chunk});
  }
  return result;
}

// What all passes read, one after the other in the order of their starts.
inline digests interpret(pipelining::timetable_view table, edge_list const& edges) {
  pipelining::pipeline_view const over = table.over;
  std::vector<int> order = pipelining::detail::order_merge(table).run();
  std::map<std::array<int, 5>, std::uint64_t> values; // by datum, stage, microbatch, chunk, reader
  digests result;
  for (int const entry : order) {
    pipelining::pass const& what = table.passes[entry];
    pipelining::kind_of_pass const& kind = (*over.declared)[what.kind];
    auto const at = [&](int i, int number) -> std::uint64_t& {
      pipelining::effect const& one = kind.effects[i];
      pipelining::datum::per const instance = over.declared->data[one.of].instance;
      pipelining::detail::stage_neighbour whose{what.stage, number, what.chunk};
      if (one.stage != pipelining::of_stage::own)
        whose =
          neighbours_of(over,
                        edges,
                        what,
                        pipelining::detail::step_to(one.stage))[static_cast<std::size_t>(number)];
      return values[{one.of,
                     whose.stage,
                     what.microbatch,
                     instance == pipelining::datum::per::microbatch ? 0 : whose.chunk,
                     instance == pipelining::datum::per::reader ? whose.number : 0}];
    };
    if (kind.calls == pipelining::stage_call::copy) { // moves a slot, or merely stands there
      int from = -1;
      int to = -1;
      for (int i = 0; i < kind.effect_count; ++i)
        if (over.declared->data[kind.effects[i].of].lives != pipelining::residence::nowhere)
          (kind.effects[i].what == pipelining::does::frees ? from : to) = i;
      if (from >= 0 && to >= 0)
        at(to, 0) = at(from, 0);
      continue;
    }
    result[key_of(what)] = compute(
      over,
      what,
      [&](int step) { return static_cast<int>(neighbours_of(over, edges, what, step).size()); },
      at,
      [&](int i, int number, std::uint64_t value) { at(i, number) = value; });
  }
  return result;
}

inline pipelining::buffer const*
member_of(pipelining::kind_of_pass const& of, pipelining::context const& where, int pool) {
  switch (static_cast<pipelining::slot_class>(pool)) {
  case pipelining::slot_class::activation: return &where.activation;
  case pipelining::slot_class::logits: return of.in_groups ? &where.activation : nullptr;
  case pipelining::slot_class::weight_input: return &where.weight_input;
  case pipelining::slot_class::sequence: return &where.state;
  case pipelining::slot_class::sequence_gradient: return &where.state_gradient;
  default: return nullptr;
  }
}

// As the documentation says it: the first datum of each pool of what stays has a member, all
// others stand in two lists, in the order of the effects.
inline pipelining::buffer slot_of(pipelining::pipeline_view const& over,
                                  pipelining::pass const& what,
                                  pipelining::context const& where,
                                  int wanted,
                                  int number) {
  pipelining::kind_of_pass const& kind = (*over.declared)[what.kind];
  std::set<pipelining::buffer const*> members;
  std::size_t inputs = 0;
  std::size_t outputs = 0;
  for (int i = 0; i <= wanted; ++i) {
    pipelining::effect const& one = kind.effects[i];
    pipelining::datum const& of = over.declared->data[one.of];
    if (of.lives == pipelining::residence::nowhere || one.what >= pipelining::does::needs)
      continue;
    bool const own = one.stage == pipelining::of_stage::own;
    bool const brings =
      one.what == pipelining::does::makes || one.what == pipelining::does::adds_to;
    pipelining::buffer const* const member = own ? member_of(kind, where, of.pool) : nullptr;
    bool again = false;
    for (int k = 0; k < i; ++k)
      again = again || (kind.effects[k].of == one.of && kind.effects[k].stage == one.stage);
    if (again)
      continue;
    if (member != nullptr && members.insert(member).second) {
      if (i == wanted)
        return *member;
      continue;
    }
    int const step =
      own ? over.declared->reader_step[one.of] : pipelining::detail::step_to(one.stage);
    int const all = step == 0 ? 1 : pipelining::detail::neighbours(over, what, step);
    bool const each = !own || of.instance == pipelining::datum::per::reader;
    int const count = of.only_chunked && over.extents.chunks == 1 ? 0
                      : each                                      ? all
                                                                  : std::min(all, 1);
    if (i == wanted && number >= count)
      return {};
    std::size_t& place = brings ? outputs : inputs;
    if (i == wanted) {
      std::size_t const at = place + static_cast<std::size_t>(number);
      if (at >= (brings ? where.outputs.size() : where.inputs.size()))
        return {};
      if (brings)
        return where.outputs[at];
      pipelining::input const from = where.inputs[at];
      return {from.slot, const_cast<std::byte*>(from.data), from.bytes};
    }
    place += static_cast<std::size_t>(count);
  }
  return {};
}

//! @brief Computes a pass on the slots that it is handed. What is not there on its stage is neither
//! read nor written; the interpreter notices.
inline std::uint64_t compute_in_slots(pipelining::pipeline_view const& over,
                                      pipelining::pass const& what,
                                      pipelining::context const& where) {
  auto const at = [&](int i, int number) {
    return slot_of(over, what, where, i, number).as<std::uint64_t>();
  };
  return compute(
    over,
    what,
    [&](int step) { return pipelining::detail::neighbours(over, what, step); },
    [&](int i, int number) {
      auto const values = at(i, number);
      return values.empty() ? 0 : values[0];
    },
    [&](int i, int number, std::uint64_t made) {
      if (auto const values = at(i, number); !values.empty())
        values[0] = made;
    });
}

//! @brief The pass that a stage is called for.
inline pipelining::pass pass_of(pipelining::pass_kind kind, pipelining::context const& where) {
  return {kind,
          false,
          static_cast<std::uint16_t>(where.stage),
          static_cast<std::uint16_t>(where.microbatch),
          static_cast<std::uint16_t>(where.chunk)};
}

//! @brief True where stages compute all that is in slots by `perform`, so that an interpreter can
//! say what they read.
inline bool is_performed(pipelining::flow const& declared) {
  for (pipelining::kind_of_pass const& kind : declared.kinds)
    if (kind.exists() && kind.calls != pipelining::stage_call::perform &&
        kind.calls != pipelining::stage_call::copy)
      return false;
  return true;
}

} // namespace support
