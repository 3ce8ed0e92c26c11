// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Any schedule on stages of which some are not trained. Header for
//! pipelining::with_frozen_stages.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/schedule/schedule.hpp>

#include <vector>

namespace pipelining::inline v0_3 {

//! @brief A schedule of stages of which some have no weights to train.
//!
//! ```cpp
//! // A vision encoder on stages 0 and 1 stays as it is.
//! pp::with_frozen_stages<pp::OneFOneB> schedule{{}, {0, 1}};
//! ```
//!
//! A frozen stage that no trained stage is before, in the order of the chain or of the graph, has
//! forward passes alone: no backward passes, no gradients, no message that would carry one, and no
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
  //! The order of a device.
  constexpr void order(shape const& extents,
                       int device,
                       row_writer& row) const requires closed_form_schedule<Schedule> {
    of.order(extents, device, row);
  }
  //! The orders of all devices.
  template <cost_model Cost>
  constexpr void generate(shape const& extents, Cost const& cost, row_writer* rows) const
    requires(!closed_form_schedule<Schedule>) {
    of.generate(extents, cost, rows);
  }
};

} // namespace pipelining::inline v0_3
