// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Header for pipelining::detail::array_of.

#include <cstddef>

namespace pipelining::inline v0_3::detail {

//! @brief An array whose bound is an int, as extents are; `T of[count]` makes g++ warn of the sign
//! in the builds of users who ask for -Wsign-conversion.
//! @pre Count >= 1; another one does not compile.
template <class T, int Count>
using array_of = T[static_cast<std::size_t>(Count)];

} // namespace pipelining::inline v0_3::detail
