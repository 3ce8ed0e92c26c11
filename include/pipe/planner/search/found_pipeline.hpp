// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What a search over cuts, placements and orders may use, and what it finds. Header for
//! pipelining::pipeline_search_options, pipeline_search_progress and found_pipeline.

#include <pipe/planner/cut/layered_model.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstddef>
#include <cstdint>

namespace pipelining::inline v0_3 {

//! @brief What a search over cuts, placements and orders may use.
struct pipeline_search_options {
  std::uint64_t seed = 1; //!< the same seed gives the same pipeline, where nobody ends the search
  int rounds = 8;         //!< of tuning, each from another change by chance
  std::int64_t most_cuts = 20000;   //!< up to so many cuts of a schedule all are tried
  std::int64_t order_moves = 20000; //!< of each search for an order; 0: orders stay as they are
  bool split_backward = true;       //!< whether orders may take backward passes apart
};

//! @brief What such a search tells whoever watches.
struct pipeline_search_progress {
  std::int64_t looks = 0; //!< pipelines that were looked at
  double best = 0;        //!< the least makespan so far; infinite while nothing fits
  double bound = 0;       //!< no cut, placement and order takes less
};

//! @brief What a search over cuts, placements and orders has found.
struct found_pipeline {
  dynamic_timetable table; //!< verified; as early as its order allows
  arrangement how;         //!< its layers and devices
  std::size_t start = 0;   //!< of the orders given, the one that it comes from
  bool own_order = false;  //!< whether its order was searched, not given
  double makespan = 0;     //!< of the table
  double best_given = 0;   //!< the least makespan of a given order with the best cut tried for it
  double excess = 0;       //!< bytes beyond the memory of a device; above 0 where nothing fits
  double bound = 0;        //!< no cut, placement and order takes less
  double order_bound = 0;  //!< no order of this cut and placement takes less
  bool all_cuts = false;   //!< whether every cut of every given order was tried
  std::int64_t looks = 0;  //!< pipelines that were looked at

  //! Whether nothing that fits takes less.
  [[nodiscard]] bool proven() const noexcept {
    return excess == 0 && makespan <= bound * (1 + 1e-9);
  }
};

} // namespace pipelining::inline v0_3
