// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Attention on the host, and its parameters, masks and scores. Kernels for GPUs are in
//! <pipe/attention/on_gpu.cuh>.

#include <pipe/config.hpp>

#if __cplusplus >= 202002L // what comes below would bury the one error of config.hpp
// IWYU pragma: begin_exports
#include <pipe/attention/backward.hpp>
#include <pipe/attention/forward.hpp>
#include <pipe/attention/merge.hpp>
#include <pipe/attention/packed_mask.hpp>
#include <pipe/attention/sinks.hpp>
// IWYU pragma: end_exports
#endif
