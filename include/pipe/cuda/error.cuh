// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Errors of the CUDA runtime as exceptions. Header for pipelining::cuda::check.

#include <pipe/config.hpp>

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace pipelining::inline v0_3::detail {}
namespace pipelining::inline v0_3::cuda::detail {
namespace rooms = pipelining::detail; // what is internal to the rooms
} // namespace pipelining::inline v0_3::cuda::detail

namespace pipelining::inline v0_3::cuda {

//! @brief A call of the CUDA runtime that failed. `what()` names the call, its place in the source
//! and the error.
class error : public std::runtime_error {
public:
  //! The sentence, as `what()` gives it, and the error in CUDA's words.
  error(std::string const& sentence, cudaError_t code)
      : std::runtime_error(sentence), code_(code) {}

  //! The code that CUDA returned.
  [[nodiscard]] cudaError_t code() const noexcept { return code_; }

private:
  cudaError_t code_;
};

//! @brief Throws if a call has failed, and clears the error where the runtime keeps it for the next
//! call.
//! @param code what the call returned. @param call its name.
//! @throws error
inline void check(cudaError_t code,
                  char const* call,
                  char const* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (code == cudaSuccess)
    return;
  (void)cudaGetLastError();
  throw error(std::string("cuda: ") + call + " failed at " + file + ":" + std::to_string(line) +
                ": " + cudaGetErrorName(code) + " (" + cudaGetErrorString(code) + ")",
              code);
}

} // namespace pipelining::inline v0_3::cuda
