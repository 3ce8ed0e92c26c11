// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Damages to texts that keep their structure: cells swap, keys stand twice, numbers become
//! extreme.

#include <string>
#include <string_view>

namespace fuzz {

//! @brief The text after one to three damages. The same seed gives the same ones.
std::string mutate(std::string_view text, unsigned seed);

} // namespace fuzz
