// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
//! @file
//! @brief The arithmetic of bulk reductions.

#include "machine.hpp"

namespace ptx {

//! @brief Operations of cp.reduce.async.bulk, in instruction::mode.
enum class reduction : u8 { add, minimum, maximum, bit_and, bit_or, bit_xor };

//! @brief global = global op shared for `bytes` bytes of whole elements.
void reduce_bytes(bulk_copy const& c, std::byte* global, std::byte const* shared, u32 bytes);

} // namespace ptx
