// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A pick of `timetable choose` as a C++ header.

#include <string>

#include "choose.hpp"

namespace examples {

//! The text of a header with the pick as a type, its costs, timetable and plan.
//! @throws usage_error for a pick that has no type.
[[nodiscard]] std::string choose_header(choose_command const& asked, candidate const& pick);

} // namespace examples
