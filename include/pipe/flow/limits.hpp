// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The numbers that files and command lines may give. Header for
//! pipelining::detail::number_range.
//!
//! All sums and products of such numbers are finite, so no table and no file has an infinite one.

namespace pipelining::inline v0_3::detail {

//! The numbers from `least` to `most`, and 0 where `words` says so.
struct number_range {
  double least;      //!< the smallest
  double most;       //!< the largest
  bool or_zero;      //!< whether 0 is among them
  char const* words; //!< for a sentence that ends in "must be ..."

  //! Whether a number is one of them; NaN is not.
  [[nodiscard]] constexpr bool contains(double number) const noexcept {
    return (or_zero && number == 0) || (number >= least && number <= most);
  }
};

//! Times per byte of a message.
inline constexpr number_range byte_time_range{1e-24, 1, true, "0 or between 1e-24 and 1"};

//! Layers, widths and other whole numbers of a model.
inline constexpr number_range model_range{1, 16777216, true, "a whole number from 0 to 2^24"};

//! Times of passes and messages, in any one unit.
inline constexpr number_range time_range{1e-12, 1e12, true, "0 or between 1e-12 and 1e12"};
//! Bytes of messages and buffers.
inline constexpr number_range byte_range{1, 1099511627776.0, true, "0 or between 1 and 2^40"};
//! Rates and memory of a GPU, in the units of pipelining::gpu.
inline constexpr number_range gpu_range{1e-6, 1e9, false, "between 1e-6 and 1e9"};
//! Shares of a GPU's peak rate.
inline constexpr number_range share_range{1e-6, 1, false, "between 1e-6 and 1"};

} // namespace pipelining::inline v0_3::detail
