// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <span>
#include <string_view>

#include "file_readers.hpp"
#include "reader.hpp"

namespace fuzz {

namespace {

//! A reader with a mistake that one swap of cells finds: fuzzers that see nothing look like readers
//! without mistakes.
void read_with_mistake(std::string_view text) {
  check(!text.starts_with("0B0,0F0"), "planted");
}

} // namespace

std::span<reader const> readers() {
  static constexpr reader all[] = {{"csv", &read_csv},
                                   {"timetable", &read_timetable},
                                   {"costs", &read_cost_file},
                                   {"model", &read_model_file},
                                   {"gpu", &read_gpu_file},
                                   {"layout", &read_layout_text},
                                   {"tensors", &read_tensor_files},
                                   {"frames", &read_frames},
                                   {"answers", &read_answers},
                                   {"address", &read_address},
                                   {"launch", &read_launch_variables},
                                   {"flow", &read_flow},
                                   {"planted", &read_with_mistake}};
  return all;
}

} // namespace fuzz
