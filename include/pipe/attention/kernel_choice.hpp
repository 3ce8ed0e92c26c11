// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The attention kernel that runs on a GPU, and why: a value that can be printed.

#include <pipe/config.hpp>

#include <cstdint>
#include <string>

namespace pipelining::inline v0_3::attention {

//! @brief The kernels there are.
enum class kernel_family : std::uint8_t {
  portable, //!< mma.sync, compute capability 8.0 and up
  hopper,   //!< wgmma and tensor copies, compute capability 9.0 only
};

//! @brief Why a family was chosen.
enum class choice_reason : std::uint8_t {
  all_there,     //!< hopper: the GPU and the program have what it takes
  other_gpu,     //!< portable: the compute capability is not 9.0
  no_code,       //!< portable: nothing in the program is compiled for sm_90a
  asked,         //!< portable: the caller asked for them
  strides,       //!< portable: the tensor copies of Hopper cannot take these strides
  few_registers, //!< portable: the sm_90a code launches with fewer registers than it shares out
  unclear        //!< portable: the runtime does not report which code it has loaded
};

//! @brief The kernels that a call gets, and why these.
struct kernel_choice {
  kernel_family family = kernel_family::portable;  //!< the kernels
  choice_reason reason = choice_reason::other_gpu; //!< why these

  [[nodiscard]] friend constexpr bool operator==(kernel_choice const&,
                                                 kernel_choice const&) = default;
};

//! @brief "portable" or "hopper".
[[nodiscard]] constexpr char const* name_of(kernel_family family) {
  return family == kernel_family::hopper ? "hopper" : "portable";
}

//! @brief The reason as half a sentence.
[[nodiscard]] constexpr char const* text_of(choice_reason reason) {
  switch (reason) {
  case choice_reason::all_there: return "compute capability 9.0, and the program has sm_90a code";
  case choice_reason::other_gpu: return "the GPU has another compute capability than 9.0";
  case choice_reason::no_code:
    return "this program has no sm_90a code; compile with -gencode arch=compute_90a,code=sm_90a";
  case choice_reason::asked: return "the call asks for them";
  case choice_reason::strides:
    return "the tensor copies of Hopper take strides above 0 and below 2^40 bytes only";
  case choice_reason::few_registers:
    return "the sm_90a code of this program has too few registers; compile without -maxrregcount";
  case choice_reason::unclear:
    return "the runtime does not report the launch bounds that tell of sm_90a code";
  }
  return "";
}

//! @brief "hopper: compute capability 9.0, and ...".
[[nodiscard]] inline std::string describe(kernel_choice const& choice) {
  std::string text = name_of(choice.family);
  text += ": ";
  return text += text_of(choice.reason);
}

} // namespace pipelining::inline v0_3::attention
