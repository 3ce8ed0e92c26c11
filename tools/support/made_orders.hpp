// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Orders of schedules that were made before, for programs that put one into several
//! adapters.

#include <pipe/timetable/timetable.hpp>

#include <deque>
#include <vector>

#include "named_schedules.hpp"

namespace examples {

//! What schedules without their adapters have come to under the times that they were asked for.
//! Searched ones take seconds, and most adapters leave them the times that they have alone.
class made_orders {
public:
  //! The orders of a choice, as if it were in no adapter.
  //! @pre the times of passes are the same for all microbatches
  //! @throws as `make_named_timetable` does
  [[nodiscard]] pipelining::device_orders const& get(schedule_choice choice, any_cost const& cost);

private:
  struct made {
    schedule_choice choice;
    std::vector<double> times; //!< all that the orders depend on
    pipelining::device_orders orders;
  };
  std::deque<made> all_; // who has been given one keeps it
};

} // namespace examples
