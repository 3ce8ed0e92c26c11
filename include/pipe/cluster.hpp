// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Processes that find each other: store, sockets, launchers, checkpoints, and who failed
//! first.

#include <pipe/config.hpp>

#if __cplusplus >= 202002L // what comes below would bury the one error of config.hpp
// IWYU pragma: begin_exports
#include <pipe/cluster/checkpoint.hpp>
#include <pipe/cluster/failure_origin.hpp>
#include <pipe/cluster/launch_environment.hpp>
#include <pipe/cluster/plan_agreement.hpp>
#include <pipe/cluster/store.hpp>
#include <pipe/cluster/tensor_checkpoint.hpp>
// IWYU pragma: end_exports
#endif
