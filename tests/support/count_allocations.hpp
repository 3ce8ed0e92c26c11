// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

namespace support {

//! @brief How often this program has called operator new, on all threads. Link
//! count_allocations.cpp.
[[nodiscard]] long allocations() noexcept;

} // namespace support
