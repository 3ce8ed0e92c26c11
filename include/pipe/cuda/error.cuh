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

namespace detail {

//! A call that failed. `what()` names the call, its place in the source and the error.
template <class Code>
class failed_call : public std::runtime_error {
public:
  //! @param words the error, in the words of the library that was called.
  failed_call(char const* library,
              char const* call,
              char const* file,
              int line,
              std::string const& words,
              Code code)
      : std::runtime_error(std::string(library) + ": " + call + " failed at " + file + ":" +
                           std::to_string(line) + ": " + words),
        code_(code) {}
  //! @param sentence all of `what()`.
  failed_call(std::string const& sentence, Code code) : std::runtime_error(sentence), code_(code) {}

  //! The code that the call returned.
  [[nodiscard]] Code code() const noexcept { return code_; }

private:
  Code code_;
};

} // namespace detail

//! @brief A call of the CUDA runtime that failed.
using error = detail::failed_call<cudaError_t>;

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
  throw error("cuda",
              call,
              file,
              line,
              std::string(cudaGetErrorName(code)) + " (" + cudaGetErrorString(code) + ")",
              code);
}

} // namespace pipelining::inline v0_3::cuda
