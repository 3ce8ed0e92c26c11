// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief How a run can fail. Header for pipelining::run_error.

#include <pipe/config.hpp>

#include <exception>
#include <stdexcept>
#include <string>

namespace pipelining::inline v0_3 {

//! @brief A run that ended early on all devices. `what()` is one or more lines that name device,
//! pass and cause.
//!
//! Where a stage threw, the stage's own exception is nested (`std::rethrow_if_nested`).
class run_error : public std::runtime_error {
public:
  //! The exit status of a process that ended because a stage or a hook has not returned. Where
  //! passes run on the caller's own thread nothing else can end one.
  static constexpr int hung_status = 86;

  //! The sentence, as `what()` gives it, and the device with which it began.
  run_error(std::string const& sentence, int device)
      : std::runtime_error(sentence), device_(device) {}

  //! @brief The device on which it failed first.
  [[nodiscard]] int device() const noexcept { return device_; }

private:
  int device_;
};

namespace detail {

//! The words of the exception in flight. @pre called from a handler.
[[nodiscard]] inline std::string words_of_exception() {
  try {
    throw;
  } catch (std::exception const& thrown) {
    return thrown.what();
  } catch (...) {
    return "an exception of a type that is no std::exception";
  }
}

} // namespace detail

} // namespace pipelining::inline v0_3
