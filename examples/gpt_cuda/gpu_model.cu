// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/run/clock.hpp>

namespace gpt {
using model_clock = pipelining::polling_clock;
}
#include "gpu_model_with_clock.cuh"
