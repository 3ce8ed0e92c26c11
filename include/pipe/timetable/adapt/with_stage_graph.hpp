// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A schedule whose stages are joined otherwise, or of which some are not trained. Header
//! for pipelining::with_stage_graph and with_frozen_stages.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/stage_graph.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <vector>

namespace pipelining::inline v0_3 {

//! @brief A schedule whose stages read of those that the edges name, in place of the stage before.
//!
//! ```cpp
//! // Two encoders (stages 0 and 1) into a decoder (2 and 3), with a skip from the second to the
//! end. pp::with_stage_graph<pp::OneFOneB> schedule{{}, {{0, 2}, {1, 2}, {2, 3}, {1, 3}}};
//! ```
//!
//! The order of passes is that of the schedule. An order that suits a chain suits every graph whose
//! edges lead from lower to higher stages: in the chain, a stage already waits for all stages below
//! it. Passes start as soon as the edges allow, so branches run next to each other.
//!
//! A stage with several inputs finds them in `context.inputs`, one for each stage before it, in the
//! order of the edges; in its backward, `context.outputs` are their gradients, and `context.inputs`
//! the gradients from all stages that read it. What several stages of one device read is sent there
//! once.
//!
//! For timetables that the program makes.
//!
//! @throws make_timetable throws std::invalid_argument for an edge that cannot be: see
//! `edge_table`.
//! @complexity that of the schedule.
//! @source own derivation, see docs/explanation/flow.md
template <schedule Schedule>
struct with_stage_graph {
  static constexpr flow declared = detail::flow_of<Schedule>();

  Schedule of{};                   //!< whose order it is
  std::vector<stage_edge> edges{}; //!< who reads of whom

  //! The extents of the schedule.
  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    return of.arrange(devices, microbatches);
  }
  //! The edges.
  [[nodiscard]] std::vector<stage_edge> const& edges_of(shape const&) const noexcept {
    return edges;
  }
  //! The orders of all devices.
  constexpr void
  generate(shape const& extents, cost_model auto const& cost, row_writer* rows) const {
    detail::order_all(of, extents, cost, rows);
  }
};

//! @brief A schedule of stages of which some have no weights to train.
//!
//! ```cpp
//! // A vision encoder on stages 0 and 1 stays as it is.
//! pp::with_frozen_stages<pp::OneFOneB> schedule{{}, {0, 1}};
//! ```
//!
//! A frozen stage that no trained stage is before, in the order of the chain or of the graph, has
//! only forward passes: no backward passes, no gradients, no message that would carry one, and no
//! activation beyond the pass. The timetable is the schedule's without what such stages do not
//! need; a schedule of one's own may leave that out itself. A frozen stage after a trained one has
//! its backward passes; its functor says `frozen`, too, so that its weights get no gradients.
//!
//! Goes with all adapters but shards of a vocabulary and of weights, in either order.
//!
//! For timetables that the program makes.
//!
//! @throws make_timetable throws std::invalid_argument for a stage that is none, and where all
//! stages are frozen.
//! @complexity that of the schedule.
//! @source own derivation, see docs/explanation/flow.md
template <schedule Schedule>
struct with_frozen_stages {
  static constexpr flow declared = detail::flow_of<Schedule>();

  Schedule of{};             //!< whose order it is
  std::vector<int> frozen{}; //!< numbers of stages

  //! The extents of the schedule.
  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    return of.arrange(devices, microbatches);
  }
  //! The orders of all devices.
  constexpr void
  generate(shape const& extents, cost_model auto const& cost, row_writer* rows) const {
    detail::order_all(of, extents, cost, rows);
  }
};

} // namespace pipelining::inline v0_3
