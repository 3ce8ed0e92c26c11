// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Files and layouts of stages that the timetable tool reads.

#include "command_line.hpp"

namespace examples {

//! The text of a file.
//! @throws usage_error
[[nodiscard]] std::string read_file(std::string const& name);

//! Whether the value of --cost names a file instead of times.
[[nodiscard]] bool names_cost_file(std::string_view word);

//! The costs of a file.
//! @throws usage_error that begins with the option
[[nodiscard]] pp::cut_costs
read_cost_file(std::string_view option, std::string_view name, pp::flow const& of = pp::training);

//! The means over the stages, microbatches and chunks of a pipeline.
[[nodiscard]] pp::uniform_cost mean_of(pp::cost_table const& costs, pp::shape const& extents);

//! The letters of every stage.
//! @throws usage_error that begins with the option and names the character
[[nodiscard]] std::vector<std::string> read_stages(std::string_view option, std::string_view word);

//! The costs of stages that have these parts.
[[nodiscard]] pp::cut_costs costs_of_layout(stage_layout const& layout);

//! The costs of --cost FILE, or of --layout, for a pipeline.
//! @pre one of them was given
//! @throws std::invalid_argument where it has another number of stages than the layout
[[nodiscard]] pp::cost_table costs_of_stages(command const& asked, pp::shape const& extents);

} // namespace examples
