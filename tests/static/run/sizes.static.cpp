// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/plan/lower/hooks.hpp>
#include <pipe/plan/sizes.hpp>

#include <cstddef>
#include <cstdint>

namespace pp = pipelining;

namespace {

// Braces take variables of every whole type, as sizes are computed from `sizeof`.
constexpr pp::uniform_sizes
sizes_of(std::size_t width, int tokens, std::int64_t kept, unsigned row) {
  return {.message = width * sizeof(float),
          .activation = tokens,
          .weight_input = kept,
          .totals_bytes = row};
}
constexpr pp::uniform_sizes sizes = sizes_of(8, 3, std::int64_t{1} << 40, 16);
static_assert(sizes.message == 32 && sizes.activation == 3 && sizes.totals_bytes == 16);
static_assert(sizes.bytes(pp::slot_class::weight_input, {}) == std::int64_t{1} << 40);
static_assert(sizes_of(SIZE_MAX / sizeof(float), 0, 0, 0).message < 0); // which plans refuse

} // namespace
