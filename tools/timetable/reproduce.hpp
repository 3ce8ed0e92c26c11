// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief `timetable reproduce`: figures of papers beside those of this library.

namespace examples {

//! Follows the words behind "reproduce": the name of a table.
//! @throws usage_error for another name
void reproduce(int count, char const* const* words);

} // namespace examples
