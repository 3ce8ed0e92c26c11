// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What is said of a file of PyTorch's that cannot be a schedule.

#include <pipe/timetable/make_timetable.hpp>
#include <pipe/view/pytorch/read_csv.hpp>

#include <stdexcept>
#include <string>
#include <string_view>

namespace io_tests {

//! The sentence with which a file is refused, by the reader or by the verification; "" for none.
inline std::string refusal(std::string_view text) {
  try {
    static_cast<void>(pipelining::make_timetable(pipelining::read_pytorch_csv(text)));
    return "";
  } catch (std::invalid_argument const& error) {
    return error.what();
  }
}

} // namespace io_tests
