// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Errors of NCCL as exceptions. Header for pipelining::cuda::nccl_error.

#include <pipe/config.hpp>

#include <nccl.h>

#if !defined(NCCL_VERSION_CODE) || NCCL_VERSION_CODE < 22700
#error                                                                                             \
  "pipelining: the runner over NCCL needs NCCL 2.27 or later; install it, or set NCCL_HOME to where it is"
#endif

#include <stdexcept>
#include <string>

namespace pipelining::inline v0_3::cuda {

//! @brief A call of NCCL that failed. `what()` names the call, its place in the source and the
//! error.
class nccl_error : public std::runtime_error {
public:
  //! The sentence, as `what()` gives it, and the error in NCCL's words.
  nccl_error(std::string const& sentence, ncclResult_t code)
      : std::runtime_error(sentence), code_(code) {}

  //! The result that NCCL returned.
  [[nodiscard]] ncclResult_t code() const noexcept { return code_; }

private:
  ncclResult_t code_;
};

//! @brief Throws if a call has failed. A call that a communicator has not completed yet has not
//! failed.
//! @param code what the call returned. @param call its name.
//! @throws nccl_error
inline void check(ncclResult_t code,
                  char const* call,
                  char const* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (code == ncclSuccess || code == ncclInProgress)
    return;
  throw nccl_error(std::string("nccl: ") + call + " failed at " + file + ":" +
                     std::to_string(line) + ": " + ncclGetErrorString(code),
                   code);
}

} // namespace pipelining::inline v0_3::cuda
