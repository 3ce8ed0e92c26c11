// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The arithmetic of collectives, in rank order, rounded to the element type after every
//! step.

#include "model.hpp"

namespace standin::detail::reduce {

//! @brief What every rank receives; empty for a rank that receives nothing.
//! @param parts one per rank
std::vector<std::vector<char>> results(std::vector<part const*> const& parts);

} // namespace standin::detail::reduce
