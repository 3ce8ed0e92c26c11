// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief `timetable choose --lengths`: groups of GPUs that share sequences, in place of a
//! pipeline.

#include <cstddef>
#include <string>
#include <vector>

#include "choose.hpp"

namespace examples {

//! The sequences of a microbatch.
using sequence_numbers = std::vector<int>;

//! Ways to make microbatches of sequences of like length: of all with so many microbatches those
//! whose largest has the fewest tokens.
[[nodiscard]] std::vector<std::vector<sequence_numbers>>
like_microbatches(std::vector<int> const& lengths);

//! How the report calls it.
[[nodiscard]] std::string groups_label(std::size_t microbatches);

//! FlexSP: for each microbatch the groups of GPUs whose slowest is fastest. Within the memory where
//! that can be, else as fast as can be.
//! @throws std::invalid_argument where the model or the GPUs cannot have it.
[[nodiscard]] candidate evaluate_groups(choose_command const& asked,
                                        std::vector<sequence_numbers> const& microbatches);

} // namespace examples
