// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Closed forms that papers give for their schedules.

#include <string>

namespace examples {

//! A table of bubbles and peaks: by the published form, and of our timetables.
std::string closed_forms();

} // namespace examples
