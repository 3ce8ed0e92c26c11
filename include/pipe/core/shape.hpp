// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief How large a pipeline is and which device holds which stage. Header for pipelining::shape.

#include <pipe/core/pass.hpp>

#include <cstdint>
#include <stdexcept>

namespace pipelining::inline v0_1 {

//! @brief The map from stages to devices.
enum class placement : std::uint8_t {
  looped,        //!< stage s on device s mod P (linear when a device owns one stage)
  wave,          //!< down the devices and up again, alternating (V when a device owns two stages)
  bidirectional, //!< two copies of a linear pipeline: the first half of the microbatches enters at
                 //!< device 0, the second half at device P - 1 (DualPipe)
  custom         //!< a table, `shape::custom_devices`
};

//! @brief The extents of a pipeline: P devices, M microbatches, C chunks, V stages per device, and
//! the placement.
//!
//! Stages are numbered in forward order, 0 ... S - 1 with S = `stages(shape)`.
struct shape {
  int devices = 1;
  int microbatches = 1;
  int chunks = 1;
  int stages_per_device = 1;
  placement where = placement::looped;
  //! For `placement::custom`: the device of every stage; not owned, `stages_per_device * devices`
  //! entries.
  std::uint16_t const* custom_devices = nullptr;
};

//! @brief The number of stages of the model.
[[nodiscard]] constexpr int stages(shape const& extents) noexcept {
  return extents.where == placement::bidirectional ? extents.devices
                                                   : extents.devices * extents.stages_per_device;
}

//! @brief True when this microbatch enters a bidirectional pipeline at its last device.
[[nodiscard]] constexpr bool enters_at_end(shape const& extents, int microbatch) noexcept {
  return extents.where == placement::bidirectional && microbatch >= extents.microbatches / 2;
}

//! @brief The device that holds `stage` for `microbatch` (which matters for bidirectional
//! placements alone).
[[nodiscard]] constexpr int
device_of(shape const& extents, int stage, int microbatch = 0) noexcept {
  int const last = extents.devices - 1;
  switch (extents.where) {
  case placement::looped: return stage % extents.devices;
  case placement::wave: {
    int const position = stage % extents.devices;
    return (stage / extents.devices) % 2 == 0 ? position : last - position;
  }
  case placement::bidirectional: return enters_at_end(extents, microbatch) ? last - stage : stage;
  case placement::custom: return extents.custom_devices[stage];
  }
  return 0;
}

//! @brief The device that runs `what`.
[[nodiscard]] constexpr int device_of(shape const& extents, pass const& what) noexcept {
  return device_of(extents, what.stage, what.microbatch);
}

//! @brief The `local`-th stage of a device, in forward order.
//! @pre `extents.where` is looped or wave, 0 <= local < stages_per_device.
[[nodiscard]] constexpr int stage_of(shape const& extents, int device, int local) noexcept {
  int const position =
    extents.where == placement::wave && local % 2 == 1 ? extents.devices - 1 - device : device;
  return local * extents.devices + position;
}

//! @brief Units that flow through the pipeline: chunks of microbatches.
[[nodiscard]] constexpr int units(shape const& extents) noexcept {
  return extents.microbatches * extents.chunks;
}

//! @brief The three rows that every stage keeps of a unit: forward, gradient of the input, gradient
//! of the weights.
inline constexpr int pass_classes = 3;

//! @brief The number of values of `pass_index`.
[[nodiscard]] constexpr int pass_indices(shape const& extents) noexcept {
  return pass_classes * stages(extents) * units(extents);
}

//! @brief The most passes that one device can have.
[[nodiscard]] constexpr int row_capacity(shape const& extents) noexcept {
  int most = extents.stages_per_device;
  if (extents.where == placement::custom) {
    most = 0;
    for (int device = 0; device < extents.devices; ++device) {
      int held = 0;
      for (int stage = 0; stage < stages(extents); ++stage)
        held += extents.custom_devices[stage] == device ? 1 : 0;
      most = held > most ? held : most;
    }
  } else if (extents.where == placement::bidirectional) {
    most = 2;
  }
  return pass_classes * most * units(extents);
}

//! @brief A dense number for a pass: `backward` and `backward_input` of a unit on a stage share
//! one, since either
//!        produces the gradient of the input and a unit has one of them.
[[nodiscard]] constexpr int pass_index(shape const& extents, pass const& what) noexcept {
  int const row = what.kind == pass_kind::forward           ? 0
                  : what.kind == pass_kind::backward_weight ? 2
                                                            : 1;
  return ((row * stages(extents) + what.stage) * extents.microbatches + what.microbatch) *
           extents.chunks +
         what.chunk;
}

//! @brief The pass of a number; the row of input gradients gives `backward`.
//! @pre 0 <= index < pass_indices(extents)
[[nodiscard]] constexpr pass pass_at(shape const& extents, int index) noexcept {
  constexpr pass_kind kinds[pass_classes] = {
    pass_kind::forward, pass_kind::backward, pass_kind::backward_weight};
  int const unit = index % units(extents);
  int const row_and_stage = index / units(extents);
  return {kinds[row_and_stage / stages(extents)],
          false,
          static_cast<std::uint16_t>(row_and_stage % stages(extents)),
          static_cast<std::uint16_t>(unit / extents.chunks),
          static_cast<std::uint16_t>(unit % extents.chunks)};
}

//! @brief True when stage, microbatch and chunk of a pass exist.
[[nodiscard]] constexpr bool contains(shape const& extents, pass const& what) noexcept {
  return what.stage < stages(extents) && what.microbatch < extents.microbatches &&
         what.chunk < extents.chunks;
}

//! @brief The most passes of one timetable. Larger ones would take gigabytes before anything runs.
inline constexpr std::int64_t most_passes = std::int64_t{1} << 28;

//! @brief Checks that every extent is positive and that the whole fits the numbers of a pass.
//! @throws std::invalid_argument with one sentence that names the extent.
constexpr void check_extents(shape const& extents) {
  constexpr int most = 65535; // stage, microbatch and chunk of a pass are 16 bits wide
  if (extents.devices < 1)
    throw std::invalid_argument("shape: the number of devices must be at least 1");
  if (extents.microbatches < 1)
    throw std::invalid_argument("shape: the number of microbatches must be at least 1");
  if (extents.chunks < 1)
    throw std::invalid_argument("shape: the number of chunks must be at least 1");
  if (extents.stages_per_device < 1)
    throw std::invalid_argument("shape: the number of stages per device must be at least 1");
  if (extents.devices > most || extents.stages_per_device > most ||
      std::int64_t{extents.devices} * extents.stages_per_device > most)
    throw std::invalid_argument(
      "shape: more than 65535 stages do not fit the stage number of a pass");
  if (extents.microbatches > most)
    throw std::invalid_argument("shape: at most 65535 microbatches are supported");
  if (extents.chunks > most)
    throw std::invalid_argument("shape: at most 65535 chunks are supported");
  std::int64_t const per_stage = std::int64_t{pass_classes} * extents.microbatches * extents.chunks;
  if (per_stage > most_passes / stages(extents))
    throw std::invalid_argument(
      "shape: devices x stages per device x microbatches x chunks gives more than 2^28 "
      "passes; choose smaller extents");
}

} // namespace pipelining::inline v0_1
