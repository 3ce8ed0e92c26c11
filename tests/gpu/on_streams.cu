// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Tests and the benchmark of the stream runner in one source: nvcc reads its headers once.
#include <benchmarks/pipeline/spin.cu>
#include <tests/gpu/streams.cu>
