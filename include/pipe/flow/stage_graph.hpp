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
  int chunk = 0;  //!< which of its chunks; of an edge, how many on it leads, or `all_chunks`
};

//! Marks of a stage in a table of edges: stages before and after it, as edges of the same chunk say
//! it, and whether it only goes forward.
enum stage_mark : std::uint8_t { has_before = 1, has_after = 2, only_forward = 4 };

//! A unit of a stage: one of the chunks of a microbatch.
struct stage_unit {
  int stage = 0;
  int chunk = 0;
  int chunks = 1;
};

//! Leads to all chunks, where others lead some chunks on.
inline constexpr int all_chunks = 2;

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

//! The edges between stages: those of a chain, or of a graph with a table.
struct stage_graph {
  //! Null for a chain, else 1 + 5 (S + 1) + 3 n numbers. The first is the most stages that read of
  //! one, below zero where edges lead to other chunks. Then, for every step from `group_step` down
  //! to `takers`, where each stage's edges begin; in place of step 0 the `stage_mark`s of each
  //! stage. Then of every edge the stage, the number, and how many chunks on it leads, or
  //! `all_chunks`.
  int const* table;
  int stages; //!< S

  //! Whether an edge leads to other chunks.
  [[nodiscard]] constexpr bool names_chunks() const noexcept {
    return table != nullptr && table[0] < 0;
  }
  //! Where the edges of a stage begin on a side; of step 0 its marks. @pre no chain
  [[nodiscard]] constexpr int const* first(int stage, int step) const noexcept {
    return table + 1 + (group_step - step) * (stages + 1) + stage;
  }
  //! The numbers of the table.
  [[nodiscard]] constexpr int size() const noexcept {
    return table == nullptr ? 0 : 1 + 5 * (stages + 1) + 3 * *first(stages, takers);
  }
  //! How many edges lead to stages before (step -1), after (step +1) or `group_step` a stage.
  [[nodiscard, gnu::always_inline]] constexpr int edges(int stage, int step) const noexcept {
    if (table == nullptr)
      return step != group_step && stage + step >= 0 && stage + step < stages ? 1 : 0;
    int const* const at = first(stage, step);
    return at[1] - at[0];
  }
  //! The other end of one of them, in the order in which they were given.
  //! @pre 0 <= number < edges(stage, step)
  [[nodiscard, gnu::always_inline]] constexpr stage_neighbour
  edge(int stage, int step, int number) const noexcept {
    if (table == nullptr)
      return {stage + step};
    int const* const at = table + 1 + 5 * (stages + 1) + 3 * (*first(stage, step) + number);
    return {at[0], at[1], at[2]};
  }
  //! How many units of other stages are before, after or `group_step` a unit.
  [[nodiscard]] constexpr int neighbours(stage_unit of, int step) const noexcept {
    int const all = edges(of.stage, step);
    return names_chunks() ? neighbours_by(of, step, all) : all;
  }
  //! Where a unit stands: `has_before` + `has_after`.
  [[nodiscard, gnu::noinline]] constexpr int position(stage_unit of) const noexcept {
    return (neighbours(of, -1) > 0 ? has_before : 0) + (neighbours(of, 1) > 0 ? has_after : 0);
  }
  //! The neighbours that a unit has on a side by the first `most` edges of its stage there.
  //! @pre names_chunks()
  [[nodiscard]] constexpr int neighbours_by(stage_unit of, int step, int most) const noexcept {
    int count = 0;
    for (int number = 0; number < most; ++number)
      count += chunks_at(edge(of.stage, step, number).chunk, of).count;
    return count;
  }
  //! One of its neighbours. @pre names_chunks(), 0 <= number < neighbours(of, step)
  [[nodiscard]] constexpr stage_neighbour
  neighbour(stage_unit of, int step, int number) const noexcept {
    stage_neighbour result = edge(of.stage, step, 0);
    for (int k = 1; number >= chunks_at(result.chunk, of).count; ++k) {
      number -= chunks_at(result.chunk, of).count;
      result = edge(of.stage, step, k);
    }
    bool const to_all = result.chunk == all_chunks;
    result.chunk = chunks_at(result.chunk, of).first + number;
    // As the other end counts them: its edges before this one, and of this one the chunks before.
    int const back = step == group_step ? group_step : step == 1 ? takers : 1;
    result.number = neighbours_by({result.stage, result.chunk, of.chunks}, back, result.number);
    result.number += to_all ? of.chunk : 0;
    return result;
  }
};

} // namespace detail

} // namespace pipelining::inline v0_3
