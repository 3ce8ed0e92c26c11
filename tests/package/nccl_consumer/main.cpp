// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/cuda.cuh>
#include <pipe/cuda/nccl.cuh>

int main() {
  int version = 0;
  pipelining::cuda::check(ncclGetVersion(&version), "ncclGetVersion");
  return version / 100 == NCCL_VERSION_CODE / 100 ? 0 : 1;
}
