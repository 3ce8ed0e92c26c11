// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What bounds presume of orders: relief of memory, and the passes that every order has,
//! whole or split. Header for pipelining::detail::bound_case and kinds_of_stage.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/schedule/schedule.hpp>

#include <algorithm>
#include <span>
#include <vector>

namespace pipelining::inline v0_3 {
namespace detail {

//! What bounds presume of the orders that they are for.
struct bound_case {
  std::span<double const> weights = {}; //!< of activations: by chunk, by unit, or equal
  bool pairs = false;
  bool limited = false; //!< there is a memory limit
  bool recomputes = false;
  bool recomputes_all = false;
  bool copies = false;
};

//! Of the kinds that make a row on a stage of a group, the one that is made for it: it reads a
//! stage before or after this one, else others of the group, else nobody.
[[nodiscard]] inline pass_kind kind_in_group(pipeline_view const& over, int row, int stage) {
  pass_kind best{};
  int rank = 0;
  for (int kind = 0; kind < over.declared->kind_count; ++kind) {
    pass const what = row_writer::make(static_cast<pass_kind>(kind), stage, 0);
    if (!holds(over.declared->makers[row], kind) || !contains(over, what))
      continue;
    kind_links const& links = links_of(over, what);
    int const found = links.input == kind_links::none                  ? 1
                      : neighbours(over, stage, links.input_step) == 0 ? 0
                      : links.input_step == beside                     ? 2
                                                                       : 3;
    best = found > rank ? what.kind : best;
    rank = std::max(rank, found);
  }
  return best;
}

//! What a unit has done on a stage, whole or split: passes of training, or, in a group, those that
//! make what has to be made there.
[[nodiscard]] inline std::vector<pass_kind> kinds_of_stage(pipeline_view const& over, int stage) {
  auto const split = split_kinds(*over.declared);
  if (!in_group(over, stage))
    return {split.begin(), split.end()};
  std::vector<pass_kind> result;
  for (int row = 0; row < over.declared->rows; ++row)
    if (pass_kind const kind = kind_in_group(over, row, stage);
        over.declared->wanted[row] && contains(over, row_writer::make(kind, stage, 0)) &&
        std::find(result.begin(), result.end(), kind) == result.end())
      result.push_back(kind);
  return result;
}

} // namespace detail
} // namespace pipelining::inline v0_3
