// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The bytes that the stages of the tests send and keep.

#include <pipe/plan/lower/hooks.hpp>
#include <pipe/plan/sizes.hpp>

#include <tests/support/training.hpp>

namespace support {

//! Of stages that compute in 64-bit numbers: three of them in a message, so that a part that was
//! not sent shows.
inline constexpr pipelining::uniform_sizes words{
  .message = 24, .activation = 8, .weight_input = 8, .sequence = 8, .sequence_gradient = 8};

//! The same with one number in a message.
inline constexpr pipelining::uniform_sizes single_words{
  .message = 8, .activation = 8, .weight_input = 8, .sequence = 8, .sequence_gradient = 8};

//! Of a training_stage.
inline constexpr pipelining::uniform_sizes training_sizes{.message = 4,
                                                          .activation = 4,
                                                          .weight_input = 4,
                                                          .tied_bytes = 4,
                                                          .totals_bytes = sizeof(training_row),
                                                          .copied_gradient = sizeof(copied_row)};

} // namespace support
