// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "on_cuda.hpp"

#include "../backend.hpp"
#include "../compiled_layers.hpp"

int gpt::run_on_cuda(std::vector<std::string_view> const& words) {
  return train_on_cuda<pp::detail::polling_clock>(read_gpu_options(words));
}
