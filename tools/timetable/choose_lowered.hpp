// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Which candidates of `timetable choose` can be run: the lowering decides.

#include <cstddef>
#include <optional>

#include "choose.hpp"

namespace examples {

//! Adds a candidate. Where model or user need more than a plain plan, it is lowered, or another one
//! of its schedule, adapter and stages was, and says why it cannot be run. One that may be the pick
//! keeps its timetable.
void add_candidate(choose_command const& asked, evaluated const& made, candidates& found);

//! Moves single layers of candidates whose timetables are kept, the fastest first, as long as that
//! makes them faster and a bound on simulated passes allows.
void improve_cuts(choose_command const& asked, candidates& found);

//! The pick, lowered and proven as it is printed; what cannot be lowered says so and is none.
[[nodiscard]] pipelining::memory_choice choose_lowered(choose_command const& asked,
                                                       candidates& found);

//! Memory and time of what can be run; without end of the rest.
[[nodiscard]] std::vector<pipelining::choice_point> points_of(candidates const& found);

} // namespace examples
