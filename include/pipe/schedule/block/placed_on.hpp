// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Placements of repeated blocks by a list of devices. Header for pipelining::placed_on and
//! pipelining::placed_by_list.

#include <pipe/flow/shape.hpp>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace pipelining::inline v0_3 {
namespace detail {

//! The extents of a pipeline whose stages lie where a list says.
//! @throws std::invalid_argument for a list of another length than P V.
[[nodiscard]] constexpr shape
arrange_list(std::size_t length, int devices, int microbatches, int chunks, int held) {
  if (length != static_cast<std::size_t>(devices) * static_cast<std::size_t>(held))
    throw std::invalid_argument("block: the list of devices has " + std::to_string(length) +
                                " entries, but " + std::to_string(devices) + " devices with " +
                                std::to_string(held) + " legs have " +
                                std::to_string(devices * held) + " stages; give each a device");
  return {.devices = devices,
          .microbatches = microbatches,
          .chunks = chunks,
          .stages_per_device = held,
          .where = placement::custom};
}

} // namespace detail

//! @brief A placement for `Repeat`: stage s on the device that stands s-th in the list.
//!
//! `Repeat<Block, placed_on<0, 1, 1, 0>>` is a V of two devices. A device that holds more stages
//! than the block has legs needs an interval with slots for all of them.
template <int... Device>
struct placed_on {
  [[nodiscard]] static constexpr shape
  //! The extents of such a pipeline.
  //! @throws std::invalid_argument for a list of another length than P V.
  arrange(int devices, int microbatches, int chunks, int held) {
    return detail::arrange_list(sizeof...(Device), devices, microbatches, chunks, held);
  }
  //! The device of a stage.
  [[nodiscard]] static constexpr int device_of(shape const&, int stage, int) noexcept {
    constexpr int list[] = {Device...};
    return list[stage];
  }
};

//! @brief The same with a list that is known at run time.
struct placed_by_list {
  std::vector<int> devices{}; //!< [P V], the device of each stage

  //! The extents of such a pipeline.
  //! @throws std::invalid_argument for a list of another length than P V.
  [[nodiscard]] shape arrange(int device_count, int microbatches, int chunks, int held) const {
    return detail::arrange_list(devices.size(), device_count, microbatches, chunks, held);
  }
  //! The device of a stage.
  [[nodiscard]] int device_of(shape const&, int stage, int) const {
    return devices[static_cast<std::size_t>(stage)];
  }
};

} // namespace pipelining::inline v0_3
