// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The executor on CUDA streams. What needs NCCL too is <pipe/cuda/nccl.cuh>.

#include <pipe/config.hpp>

#if __cplusplus >= 202002L // what comes below would bury the one error of config.hpp
#include <pipe/cuda/device_board.cuh>
#include <pipe/cuda/error.cuh>
#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/ranges.cuh>
#include <pipe/cuda/stream_plan.cuh>
#include <pipe/cuda/streams.cuh>
#endif
