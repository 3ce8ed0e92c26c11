// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief From the edges of a graph of stages to its table. Header for
//! pipelining::detail::edge_table.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/stage_graph.hpp>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! The neighbours of each stage, in the order of the edges.
using stage_side = owned<owned_list<stage_neighbour>>;

[[noreturn]] inline void refuse_edge(stage_edge const& edge, char const* why) {
  throw std::invalid_argument("stage graph: the edge from stage " + std::to_string(edge.from) +
                              " to stage " + std::to_string(edge.to) + " " + why);
}

//! For each stage, `only_forward` where it is frozen.
//! @throws std::invalid_argument for a stage that is none, groups, and where nothing is trained.
[[nodiscard]] inline std::vector<int>
forward_only(int stage_count, bool grouped, std::span<int const> frozen) {
  std::vector<int> result(static_cast<std::size_t>(stage_count));
  for (int const stage : frozen) {
    if (stage < 0 || stage >= stage_count)
      throw std::invalid_argument("frozen stages: there is no stage " + std::to_string(stage) +
                                  "; stages are 0 to " + std::to_string(stage_count - 1));
    result[static_cast<std::size_t>(stage)] = only_forward;
  }
  if (!frozen.empty() && grouped)
    throw std::invalid_argument(
      "frozen stages: shards of a vocabulary are trained together; leave one of both out");
  if (!frozen.empty() && std::find(result.begin(), result.end(), 0) == result.end())
    throw std::invalid_argument("frozen stages: all stages are frozen, so nothing is trained; "
                                "leave one out, or evaluate");
  return result;
}

//! Finds who takes a gradient from each stage, and which frozen stages only go forward.
//! @param still for each stage, not 0 where it is frozen
inline void find_takers(std::vector<int>& still,
                        stage_side const& before,
                        stage_side& after,
                        stage_side& takers_of) {
  for (bool changed = true; changed;) { // again where edges lead back
    changed = false;
    for (std::size_t to = 0; to < still.size(); ++to)
      for (stage_neighbour const& from : before[to])
        if (still[to] != 0 && still[static_cast<std::size_t>(from.stage)] == 0) {
          still[to] = 0;
          changed = true;
        }
  }
  for (std::size_t to = 0; to < still.size(); ++to)
    for (stage_neighbour const& from : before[to]) {
      auto const stage = static_cast<std::size_t>(from.stage);
      if (still[stage] != 0)
        continue;
      after[stage][static_cast<std::size_t>(from.number)].number =
        static_cast<int>(takers_of[to].size());
      takers_of[to].push_back(from);
    }
}

//! How many chunks on the stage that is read is, or `all_chunks`.
[[nodiscard]] inline int code_of(of_unit unit) noexcept {
  return unit == of_unit::previous ? -1
         : unit == of_unit::next   ? 1
         : unit == of_unit::all    ? all_chunks
                                   : 0;
}

//! Refuses an edge that cannot mean what its stages need: which chunk is unsaid, or passes may wait
//! for themselves.
//! @param leads_back whether an edge of the graph does @param grouped whether there are groups
inline void check_unit(stage_edge const& edge, int chunks, bool leads_back, bool grouped) {
  if (edge.unit > of_unit::all)
    refuse_edge(edge, "has a unit that is none; use the enumerators");
  if (edge.from >= edge.to && edge.unit != of_unit::previous)
    refuse_edge(edge,
                "leads back; number stages so that each reads of lower ones, or let it be about "
                "the chunk before: of_unit::previous");
  if (chunks > 1 && edge.unit == of_unit::unsaid)
    refuse_edge(edge,
                "does not say which chunk is read, and sequences are cut into several; write "
                "of_unit::same, previous, next or all as its third member");
  if (leads_back && (edge.unit == of_unit::next || edge.unit == of_unit::all))
    refuse_edge(edge,
                "reads a later chunk, and another edge leads back, so that passes may wait for "
                "themselves; leave one of both out");
  if (grouped && code_of(edge.unit) != 0)
    refuse_edge(edge,
                "reads other chunks, but groups share out the work of one; write of_unit::same");
}

//! The most neighbours that one pass makes something for. A pass of a group may make something for
//! each of its neighbours, other passes for one side. An edge to all chunks is as many.
[[nodiscard]] inline int widest_side(stage_side const& before,
                                     stage_side const& after,
                                     stage_side const& beside_all,
                                     int chunks) {
  auto const width = [chunks](owned_list<stage_neighbour> const& side) {
    int result = 0;
    for (stage_neighbour const& other : side)
      result += other.chunk == all_chunks ? chunks : 1;
    return result;
  };
  int widest = 1;
  for (std::size_t stage = 0; stage < before.room; ++stage) {
    int const together = width(before[stage]) + width(beside_all[stage]);
    int const all = beside_all[stage].empty() ? 0 : together + width(after[stage]);
    widest = std::max({widest, together, width(after[stage]), all});
  }
  return widest;
}

//! Enters edges at both of their ends.
void enter_edges(
  auto const& edges, int chunks, bool grouped, stage_side& before, stage_side& after) {
  bool leads_back = false;
  for (stage_edge const& edge : edges)
    leads_back = leads_back || edge.from >= edge.to;
  for (stage_edge const& edge : edges) {
    for (int const stage : {edge.from, edge.to})
      if (stage < 0 || static_cast<std::size_t>(stage) >= before.room)
        refuse_edge(edge, "names a stage that does not exist; stages are 0 to S - 1");
    check_unit(edge, chunks, leads_back, grouped);
    owned_list<stage_neighbour>& out = after[static_cast<std::size_t>(edge.from)];
    owned_list<stage_neighbour>& in = before[static_cast<std::size_t>(edge.to)];
    for (stage_neighbour const& other : out)
      if (other.stage == edge.to)
        refuse_edge(edge, "is there twice; put what both carry into one output");
    int const code = code_of(edge.unit);
    out.push_back({edge.to, static_cast<int>(in.size()), code == all_chunks ? code : -code});
    in.push_back({edge.from, static_cast<int>(out.size()) - 1, code});
  }
}

//! Enters the stages of each group at one another.
void enter_groups(auto const& groups, int stage_count, stage_side& beside_all) {
  for (stage_group const& group : groups)
    for (int member = 0; member < group.count || group.count < 1; ++member) {
      if (group.first < 0 || group.count < 1 || group.count > stage_count - group.first ||
          !beside_all[static_cast<std::size_t>(group.first + member)].empty())
        throw std::invalid_argument("stage graph: a group of " + std::to_string(group.count) +
                                    " stages from stage " + std::to_string(group.first) +
                                    " on has stages that do not exist, none, or those of another");
      for (int other = 0; other < group.count; ++other)
        beside_all[static_cast<std::size_t>(group.first + member)].push_back(
          {group.first + other, member});
    }
}

//! The table of the edges of a graph of stages.
//! @param groups no stage is in two of them. @param frozen stages without weights to train: where
//! none before them has any, they only go forward. @param chunks the most of a microbatch
//! @throws std::invalid_argument with a sentence for an edge that leads to no stage, twice to the
//! same stage, or cannot mean what `check_unit` says, and for a group of no stages or of those of
//! another.
//! @complexity O(S^2 + E n + G^2) for n edges of one stage and groups of G stages.
template <class Edges = std::initializer_list<stage_edge>,
          class Groups = std::initializer_list<stage_group>>
[[nodiscard]] std::vector<int> edge_table(Edges const& edges,
                                          int stage_count,
                                          Groups const& groups = {},
                                          std::span<int const> frozen = {},
                                          int chunks = 1) {
  stage_side sides[group_step - takers + 1]; // by step
  for (stage_side& side : sides)
    side.get(stage_count);
  auto& [beside_all, after_all, none, before_all, takers_all] = sides;
  bool const grouped = std::size(groups) > 0;
  enter_edges(edges, chunks, grouped, before_all, after_all);
  enter_groups(groups, stage_count, beside_all);
  std::vector<int> still = forward_only(stage_count, grouped, frozen);
  find_takers(still, before_all, after_all, takers_all);
  bool names_chunks = false;
  for (stage_edge const& edge : edges)
    names_chunks = names_chunks || code_of(edge.unit) != 0;
  for (std::size_t stage = 0; stage < still.size(); ++stage)
    still[stage] |=
      (before_all[stage].empty() ? 0 : has_before) | (after_all[stage].empty() ? 0 : has_after);
  still.push_back(0);
  std::vector<int> table{(names_chunks ? -1 : 1) *
                         widest_side(before_all, after_all, beside_all, chunks)};
  int at = 0;
  for (stage_side const& side : sides) {
    if (&side == &none) {
      for (int const each : still)
        table.push_back(each);
      continue;
    }
    for (std::size_t stage = 0; stage < side.room; ++stage) {
      table.push_back(at);
      at += static_cast<int>(side[stage].size());
    }
    table.push_back(at);
  }
  for (stage_side const& side : sides)
    for (std::size_t stage = 0; stage < side.room; ++stage)
      for (stage_neighbour const& other : side[stage])
        for (int const each : {other.stage, other.number, other.chunk})
          table.push_back(each);
  return table;
}

} // namespace pipelining::inline v0_3::detail
