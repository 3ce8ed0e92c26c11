// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Layouts of stages on command lines.

#include <pipe/flow/shape.hpp>
#include <pipe/planner/model/cost_file.hpp>
#include <pipe/timetable/cost_table.hpp>

#include <string>
#include <string_view>
#include <vector>

#include "command_line.hpp"

namespace examples {

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
