// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Errors of NCCL as exceptions. Header for pipelining::cuda::nccl_error.

#include <pipe/cuda/error.cuh>

#include <nccl.h>

#if !defined(NCCL_VERSION_CODE) || NCCL_VERSION_CODE < 22700
#error                                                                                             \
  "pipelining: the runner over NCCL needs NCCL 2.27 or later; install it, or set NCCL_HOME to where it is"
#endif

namespace pipelining::inline v0_3::cuda {

//! @brief A call of NCCL that failed.
using nccl_error = detail::failed_call<ncclResult_t>;

//! @brief Throws if a call has failed. A call that a communicator has not completed yet has not
//! failed.
//! @param code what the call returned. @param call its name.
//! @throws nccl_error
inline void check(ncclResult_t code,
                  char const* call,
                  char const* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (code == ncclSuccess || code == ncclInProgress)
    return;
  throw nccl_error("nccl", call, file, line, ncclGetErrorString(code), code);
}

} // namespace pipelining::inline v0_3::cuda
