/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* As much of NCCL's header as the check of its version needs; the test says which version it is. */
#pragma once
typedef enum { ncclSuccess = 0, ncclInProgress = 7 } ncclResult_t;
extern "C" char const* ncclGetErrorString(ncclResult_t code);
