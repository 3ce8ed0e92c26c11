// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Who verifies, lowers and proves the devices of a plan: the calling thread, or several
//! side by side.

#include <concepts>
#include <cstdint>

namespace pipelining::inline v0_3::detail {

//! Workers do the parts of some work, perhaps side by side. `count()` says how many there are, and
//! `run(parts, part)` calls `part(i)` once for every i in [0, parts) and returns when all have
//! returned. It throws what a part throws: of several, that of the first one.
template <class Workers>
concept worker_group = requires(Workers const& own, void (*part)(int)) {
  { own.count() } -> std::convertible_to<int>;
  own.run(1, part);
};

//! The calling thread by itself.
struct one_worker {
  [[nodiscard]] static constexpr int count() noexcept { return 1; }
  template <class Part>
  static constexpr void run(int parts, Part const& part) {
    for (int i = 0; i < parts; ++i)
      part(i);
  }
};

//! How devices, or rows, are cut into parts, one for each worker; one where there are none.
struct worker_parts {
  int all;
  int count; //!< of parts

  constexpr worker_parts(int whole, int workers) noexcept
      : all(whole), count(workers < 1 || whole < 1 ? 1
                          : workers < whole        ? workers
                                                   : whole) {}
  //! The first device of a part; of the part after the last, the number of devices.
  [[nodiscard]] constexpr int first(int part) const noexcept {
    return static_cast<int>(std::int64_t{all} * part / count);
  }
};

} // namespace pipelining::inline v0_3::detail
