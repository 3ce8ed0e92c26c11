// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The architectures that this program is compiled for, as a type.

#include <pipe/config.hpp>

namespace pipelining::inline v0_3::attention {

namespace detail {

template <int... Architectures>
struct built_for {};

} // namespace detail

//! @brief The architectures of this compilation, as a part of the names of kernels: two libraries
//! that are built for different GPUs keep their own kernels.
using built_here = detail::built_for<__CUDA_ARCH_LIST__>;

} // namespace pipelining::inline v0_3::attention
