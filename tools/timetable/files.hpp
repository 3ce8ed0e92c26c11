// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Files that the timetable tool reads.

#include <pipe/flow/shape.hpp>
#include <pipe/planner/model/cost_file.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/cost_table.hpp>

#include <string>
#include <string_view>

namespace examples {

//! The text of a file.
//! @throws usage_error
[[nodiscard]] std::string read_file(std::string const& name);

//! Whether the value of --cost names a file instead of times.
[[nodiscard]] bool names_cost_file(std::string_view word);

//! The costs of a file.
//! @throws usage_error that begins with the option
[[nodiscard]] pipelining::cut_costs read_cost_file(std::string_view option, std::string_view name);

//! The means over the stages and chunks of a pipeline.
[[nodiscard]] pipelining::uniform_cost mean_of(pipelining::cost_table const& costs,
                                               pipelining::shape const& extents);

} // namespace examples
