// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Sizes of slots and the arena of a device.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/sizes.hpp>

#include <algorithm>
#include <cstdint>

namespace pipelining::inline v0_3::detail {

//! Slots start at multiples of this many bytes, which suits every copy engine and vector
//! load.
inline constexpr std::int64_t slot_alignment = 256;

//! Sums and products of bytes stop here: more than any memory, and the sum of two does not
//! overflow.
inline constexpr std::int64_t most_bytes = std::int64_t{1} << 62;

[[nodiscard]] constexpr std::int64_t times(std::int64_t bytes, std::int64_t count) noexcept {
  return count > 0 && bytes > most_bytes / count ? most_bytes : bytes * count;
}
[[nodiscard]] constexpr std::int64_t plus(std::int64_t one, std::int64_t other) noexcept {
  return one > most_bytes - other ? most_bytes : one + other;
}

//! The bytes of a datum: by a pass of its own stage and, of what each reader gets for itself, by
//! the reader where the size functions look at it.
//! @param reader says which that is
template <buffer_sizes Sizes>
[[nodiscard]] constexpr std::int64_t
bytes_for(Sizes const& sizes, datum const& of, pass const& maker, auto const& reader) {
  auto const made_in = static_cast<slot_class>(of.pool);
  if constexpr (requires { sizes.bytes(made_in, maker, reader()); })
    if (of.instance == datum::per::reader)
      return sizes.bytes(made_in, maker, reader());
  return sizes.bytes(made_in, maker);
}

//! True for a pool whose slots lie on the host.
[[nodiscard]] constexpr bool lies_on_host(flow const& declared, int pool) noexcept {
  return std::any_of(declared.data, declared.data + declared.data_count, [pool](datum const& of) {
    return of.pool == pool && of.lives == residence::host;
  });
}

//! @brief Lays the slots of all classes one after the other into the arenas of a device.
//!
//! Sums that do not fit 62 bits stay at 2^62, which no limit allows.
//!
//! @param layouts [slot_classes], receive offsets. @param device, host receive the bytes of the
//! arenas
constexpr void lay_out(flow const& declared,
                       slot_layout* layouts,
                       std::int64_t& device,
                       std::int64_t& host) noexcept {
  device = host = 0;
  for (int of = 0; of < slot_classes; ++of) {
    std::int64_t& end = lies_on_host(declared, of) ? host : device;
    layouts[of].offset = end;
    end = plus(end, times(layouts[of].bytes, layouts[of].count));
  }
}

} // namespace pipelining::inline v0_3::detail
