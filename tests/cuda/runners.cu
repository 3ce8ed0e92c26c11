// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One source for nvcc, which takes longer to read the headers of the library than to compile one of
// these.
#include "example.cu"
#include "flows.cu"
#include "nccl.cu"
#include "round_pipe.cu"
#include "streams.cu"
#include "training.cu"
