// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// case 1: expected-error {{the runner over NCCL needs NCCL 2\.27 or later; install it, or set NCCL_HOME to where it is}}
// case 2: expected-error {{the runner over NCCL needs NCCL 2\.27 or later; install it, or set NCCL_HOME to where it is}}
#if FAIL_CASE == 0
#define NCCL_VERSION_CODE 22700
#elif FAIL_CASE == 1
#define NCCL_VERSION_CODE 22609
#elif FAIL_CASE == 2 // before there was a version
#endif

#include <pipe/cuda/nccl_error.cuh>
