// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Which stage reads what which stage makes, where stages are no chain. Header for
//! pipelining::stage_edge.

#include <cstdint>

namespace pipelining::inline v0_3 {

//! @brief The chunk of a microbatch that a stage reads of another one, as counted from its own.
enum class of_unit : std::uint8_t {
  unsaid,   //!< the only one; refused where sequences are cut into several
  same,     //!< that of the pass itself
  previous, //!< the one before it; the first chunk reads nothing
  next,     //!< the one after it; the last chunk reads nothing
  all       //!< all of the microbatch
};

//! @brief Stage `to` reads what stage `from` makes. Stages are numbered so that from < to. An edge
//! that leads back, or to its own stage, is about the chunk before: where chunks are steps, the
//! last stage hands on to the first for the next step.
struct stage_edge {
  int from = 0;                   //!< makes
  int to = 0;                     //!< reads
  of_unit unit = of_unit::unsaid; //!< of which chunk

  friend constexpr bool operator==(stage_edge const&, stage_edge const&) = default;
};

//! @brief Stages that share out one piece of work, such as the shards of a vocabulary: `count`
//! stages from `first` on. What each makes for the group, all of them read.
struct stage_group {
  int first = 0; //!< the first of them
  int count = 0; //!< how many there are

  friend constexpr bool operator==(stage_group const&, stage_group const&) = default;
};

namespace detail {

//! The step from a stage to those of its group, itself among them. To those before it: -1,
//! to those after it: +1.
inline constexpr int group_step = 2;

//! The step from a stage of a graph to those before it that take a gradient from it.
inline constexpr int takers = -2;
//! The step from a stage to those that read what it makes, where `step` leads there in a chain.
[[nodiscard]] constexpr int to_readers(int const* edges, int step) noexcept {
  return edges != nullptr && step == -1 ? takers : step;
}

//! A stage at the other end of an edge.
struct stage_neighbour {
  int stage = 0;  //!< its number
  int number = 0; //!< which of its neighbours on that side this edge leads to, as it counts them
  int chunk = 0;  //!< which of its chunks; of an edge of `edge_table`, from there: its code
};

//! Marks of a stage in a table of edges: stages before and after it, as edges of the same chunk say
//! it, and whether it only goes forward.
enum stage_mark : std::uint8_t { has_before = 1, has_after = 2, only_forward = 4 };

//! Where the neighbours of a stage begin in a table of edges: 1 + 5 (S + 1) + 2 n numbers. The
//! first is the most stages that read of one, below zero where edges lead to other chunks; then,
//! for every step from `group_step` down to `takers`, where each stage's neighbours begin, in place
//! of step 0 the `stage_mark`s of each stage; then stage and number of every neighbour; then, where
//! edges lead to other chunks, how many chunks on each neighbour is, or `all_chunks`.
[[nodiscard]] constexpr int const*
first_neighbour(int const* edges, int stage_count, int stage, int step) noexcept {
  return edges + 1 + (group_step - step) * (stage_count + 1) + stage;
}

//! How many stages are before (step -1), after (step +1) or `group_step` a stage.
//! @param edges a table of edges; null for a chain.
[[nodiscard]] constexpr int
neighbours(int const* edges, int stage_count, int stage, int step) noexcept {
  if (edges == nullptr)
    return step != group_step && stage + step >= 0 && stage + step < stage_count ? 1 : 0;
  int const* const first = first_neighbour(edges, stage_count, stage, step);
  return first[1] - first[0];
}

//! One of them, in the order in which the edges were given.
//! @pre 0 <= number < neighbours(edges, stage_count, stage, step)
[[nodiscard]] constexpr stage_neighbour
neighbour(int const* edges, int stage_count, int stage, int step, int number) noexcept {
  if (edges == nullptr)
    return {stage + step, 0};
  int const at = *first_neighbour(edges, stage_count, stage, step) + number;
  int const* const pair = edges + 1 + 5 * (stage_count + 1) + 2 * at;
  return {pair[0], pair[1]};
}

//! Leads to all chunks, where others lead some chunks on.
inline constexpr int all_chunks = 2;

//! Whether an edge of a table leads to other chunks. @param edges null for a chain.
[[nodiscard]] constexpr bool names_chunks(int const* edges) noexcept {
  return edges != nullptr && edges[0] < 0;
}

//! The numbers of a table of edges.
[[nodiscard]] constexpr int table_size(int const* edges, int stage_count) noexcept {
  int const each = names_chunks(edges) ? 3 : 2;
  return 1 + 5 * (stage_count + 1) +
         each * *first_neighbour(edges, stage_count, stage_count, takers);
}

//! A unit of a stage: one of the chunks of a microbatch.
struct stage_unit {
  int stage = 0;
  int chunk = 0;
  int chunks = 1;
};

//! The chunks at the other end of an edge.
struct chunk_range {
  int first = 0;
  int count = 0;
};
[[nodiscard]] constexpr chunk_range chunks_at(int code, stage_unit const& from) noexcept {
  int const chunk = from.chunk + code;
  return code == all_chunks                  ? chunk_range{0, from.chunks}
         : chunk < 0 || chunk >= from.chunks ? chunk_range{}
                                             : chunk_range{chunk, 1};
}

//! How many chunks on the neighbours of a stage are, in the order of its edges.
//! @pre names_chunks(edges)
[[nodiscard]] constexpr int const*
chunk_codes(int const* edges, int stage_count, int stage, int step) noexcept {
  int const all = *first_neighbour(edges, stage_count, stage_count, takers);
  return edges + 1 + 5 * (stage_count + 1) + 2 * all +
         *first_neighbour(edges, stage_count, stage, step);
}
//! The neighbours that a unit has on a side by the first `most` edges of its stage there.
[[nodiscard]] constexpr int neighbours_by(
  int const* edges, int stage_count, stage_unit const& of, int step, int most) noexcept {
  int const* const codes = chunk_codes(edges, stage_count, of.stage, step);
  int const all = neighbours(edges, stage_count, of.stage, step);
  int count = 0;
  for (int edge = 0; edge < all && edge < most; ++edge)
    count += chunks_at(codes[edge], of).count;
  return count;
}

//! How many units of other stages are before (step -1), after (step +1) or `group_step` a unit.
[[nodiscard]] constexpr int
neighbours(int const* edges, int stage_count, stage_unit const& of, int step) noexcept {
  return names_chunks(edges) ? neighbours_by(edges, stage_count, of, step, stage_count)
                             : neighbours(edges, stage_count, of.stage, step);
}

//! One of them where edges lead to other chunks.
//! @pre 0 <= number < neighbours(edges, stage_count, of, step)
[[nodiscard]] constexpr stage_neighbour unit_neighbour(
  int const* edges, int stage_count, stage_unit const& of, int step, int number) noexcept {
  int const* const codes = chunk_codes(edges, stage_count, of.stage, step);
  int edge = 0;
  for (; number >= chunks_at(codes[edge], of).count; ++edge)
    number -= chunks_at(codes[edge], of).count;
  stage_neighbour result = neighbour(edges, stage_count, of.stage, step, edge);
  result.chunk = chunks_at(codes[edge], of).first + number;
  // As the other end counts them: its edges before this one, and of this one the chunks before.
  int const back = step == group_step ? group_step : step == 1 ? takers : 1;
  result.number =
    neighbours_by(edges, stage_count, {result.stage, result.chunk, of.chunks}, back, result.number);
  result.number += codes[edge] == all_chunks ? of.chunk : 0;
  return result;
}

} // namespace detail

} // namespace pipelining::inline v0_3
