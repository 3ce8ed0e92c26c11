// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Which stage reads what which stage makes, where stages are no chain. Header for
//! pipelining::stage_edge.

namespace pipelining::inline v0_3 {

//! @brief Stage `to` reads what stage `from` makes. Stages are numbered so that from < to.
struct stage_edge {
  int from = 0; //!< makes
  int to = 0;   //!< reads

  friend constexpr bool operator==(stage_edge const&, stage_edge const&) = default;
};

//! @brief Stages that share out one piece of work, such as the shards of a vocabulary: `count`
//! stages from `first` on. What each makes for the group, all of them read.
struct stage_group {
  int first = 0; //!< the first of them
  int count = 0; //!< how many there are

  friend constexpr bool operator==(stage_group const&, stage_group const&) = default;
};

//! @brief The step from a stage to those of its group, itself among them. To those before it: -1,
//! to those after it: +1.
inline constexpr int beside = 2;

namespace detail {
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
};

//! Where the neighbours of a stage begin in a table of edges: 1 + 5 (S + 1) + 2 n numbers. The
//! first is the most stages that read of one; then, for every step from `beside` down to `takers`,
//! where each stage's neighbours begin, in place of step 0 whether a stage only goes forward; then
//! stage and number of every neighbour.
[[nodiscard]] constexpr int const*
first_neighbour(int const* edges, int stage_count, int stage, int step) noexcept {
  return edges + 1 + (beside - step) * (stage_count + 1) + stage;
}

//! How many stages are before (step -1), after (step +1) or `beside` a stage.
//! @param edges a table of edges; null for a chain.
[[nodiscard]] constexpr int
neighbours(int const* edges, int stage_count, int stage, int step) noexcept {
  if (edges == nullptr)
    return step != beside && stage + step >= 0 && stage + step < stage_count ? 1 : 0;
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

//! The numbers of a table of edges.
[[nodiscard]] constexpr int table_size(int const* edges, int stage_count) noexcept {
  return 1 + 5 * (stage_count + 1) + 2 * *first_neighbour(edges, stage_count, stage_count, takers);
}

} // namespace detail

} // namespace pipelining::inline v0_3
