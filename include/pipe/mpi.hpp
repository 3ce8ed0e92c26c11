// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The runner on MPI ranks and the store that finds them. Needs <mpi.h>.

#include <pipe/config.hpp>

#if __cplusplus >= 202002L // what comes below would bury the one error of config.hpp
// IWYU pragma: begin_exports
#include <pipe/mpi/mpi.hpp>
#include <pipe/mpi/store.hpp>
// IWYU pragma: end_exports
#endif
