// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Files and layouts of stages that the timetable tool reads.

#include <pipe/flow/shape.hpp>
#include <pipe/planner/model/cost_file.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/cost_table.hpp>

#include <string>
#include <string_view>
#include <vector>

#include "command_line.hpp"

namespace examples {

//! The text of a file.
//! @throws usage_error
[[nodiscard]] std::string read_file(std::string const& name);

//! Whether the value of --cost names a file instead of times.
[[nodiscard]] bool names_cost_file(std::string_view word);

//! The costs of a file.
//! @throws usage_error that begins with the option
[[nodiscard]] pipelining::cut_costs read_cost_file(std::string_view option, std::string_view name);

//! The means over the stages, microbatches and chunks of a pipeline.
[[nodiscard]] pipelining::uniform_cost mean_of(pipelining::cost_table const& costs,
                                               pipelining::shape const& extents);

//! The letters of every stage.
//! @throws usage_error that begins with the option and names the character
[[nodiscard]] std::vector<std::string> read_stages(std::string_view option, std::string_view word);

//! The costs of stages that have these parts.
[[nodiscard]] pipelining::cut_costs costs_of_layout(stage_layout const& layout);

//! The costs of --cost FILE, or of --layout, for a pipeline.
//! @pre one of them was given
//! @throws std::invalid_argument where it has another number of stages than the layout
[[nodiscard]] pipelining::cost_table costs_of_stages(command const& asked,
                                                     pipelining::shape const& extents);

} // namespace examples
