// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief `timetable choose --lengths`: schedules for sequences of unequal length.

#include <string_view>
#include <vector>

#include "choose.hpp"

namespace examples {

//! Lengths of sequences: "4096,1024x20" or a file with such words.
//! @throws usage_error
[[nodiscard]] std::vector<int> read_lengths(std::string_view option, std::string_view word);

//! Simulates the schedules for the sequences of a step: each padded to the longest; several packed
//! into one of that length; and cut into chunks of a size, the short ones packed; and groups of
//! GPUs that share sequences. Says on stderr what it is at.
[[nodiscard]] candidates evaluate_lengths(choose_command const& asked);

} // namespace examples
