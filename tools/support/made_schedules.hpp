// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Schedules that a choice makes by name and in adapters, for the two files that do so.

#include <pipe/schedule/round_pipe.hpp>
#include <pipe/schedule/slim_pipe.hpp>

#include "named_schedules.hpp"

namespace examples {

[[nodiscard]] pipelining::SlimPipe<pipelining::dynamic, pipelining::dynamic>
slim_pipe_of(schedule_choice const& c);

//! With a layer in every stage that goes back: P of them have the forward passes of all layers but
//! the last in equal time, where a backward pass takes twice a forward pass.
[[nodiscard]] pipelining::RoundPipe<> round_pipe_of(schedule_choice const& c);

//! @throws std::invalid_argument for options that a schedule does not have, or lacks.
void check_options(named_schedule const& schedule, schedule_choice const& choice);

} // namespace examples
