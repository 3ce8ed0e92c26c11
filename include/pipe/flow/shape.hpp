// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief How large a pipeline is and which device holds which stage. Header for pipelining::shape.

#include <pipe/flow/pass.hpp>

#include <cstdint>
#include <stdexcept>

namespace pipelining::inline v0_3 {

//! @brief The map from stages to devices.
enum class placement : std::uint8_t {
  looped,        //!< stage s on device s mod P (linear when a device owns one stage)
  wave,          //!< down the devices and up again, alternating (V when a device owns two stages)
  bidirectional, //!< two copies of a wave: the first half of the microbatches enters at device 0,
                 //!< the second half at device P - 1 (DualPipe)
  custom         //!< a table that the schedule fills: `device_of(stage, route)`
};

//! @brief The extents of a pipeline: P devices, M microbatches, C chunks, V stages per device, and
//! the placement.
//!
//! Stages are numbered in forward order, 0 ... S - 1 with S = `stages()`: P V, and more where
//! a custom placement says so.
struct shape {
  int devices = 1;                     //!< P
  int microbatches = 1;                //!< M
  int chunks = 1;                      //!< C, slices of each sequence
  int stages_per_device = 1;           //!< V; of a bidirectional placement, of each copy
  placement where = placement::looped; //!< which device holds which stage
  //! For `placement::custom`: how many ways microbatches take through the devices; microbatch m
  //! takes way m mod `custom_routes`.
  int custom_routes = 1;
  //! For `placement::custom`: stages of the model more than V on each device, or fewer where it is
  //! negative. They belong to whom the table says: a chain of 2L + 1 stages on P devices has V =
  //! 2L/P and one more; D pipelines of S stages side by side have P = D S, V = 1 and S - P more.
  int extra_stages = 0;

  //! The number of stages of the model.
  [[nodiscard]] constexpr int stages() const noexcept {
    return devices * stages_per_device + extra_stages;
  }
  //! How many ways microbatches take through the devices.
  [[nodiscard]] constexpr int routes() const noexcept {
    return where == placement::bidirectional ? 2 : where == placement::custom ? custom_routes : 1;
  }
  //! True when this microbatch enters a bidirectional pipeline at its last device.
  [[nodiscard]] constexpr bool enters_at_end(int microbatch) const noexcept {
    return where == placement::bidirectional && microbatch >= microbatches / 2;
  }
  //! The way that a microbatch takes.
  [[nodiscard]] constexpr int route_of(int microbatch) const noexcept {
    return where == placement::custom  ? microbatch % custom_routes
           : enters_at_end(microbatch) ? 1
                                       : 0;
  }
  //! The `local`-th stage of a device, in forward order.
  //! @pre `where` is looped or wave, 0 <= local < stages_per_device.
  [[nodiscard]] constexpr int stage_of(int device, int local) const noexcept {
    int const position = where == placement::wave && local % 2 == 1 ? devices - 1 - device : device;
    return local * devices + position;
  }
  //! Units that flow through the pipeline where all microbatches have as many chunks.
  [[nodiscard]] constexpr int units() const noexcept { return microbatches * chunks; }

  friend constexpr bool operator==(shape const&, shape const&) = default;
};

//! @brief The device that holds `stage` for `microbatch` (which matters only for bidirectional
//! placements).
//! @pre `extents.where` is not custom; timetables and plans know those: `device_of(table, ...)`.
[[nodiscard]] constexpr int
device_of(shape const& extents, int stage, int microbatch = 0) noexcept {
  int const position = stage % extents.devices;
  if (extents.where == placement::looped)
    return position;
  bool const goes_up = (stage / extents.devices) % 2 == 1;
  return goes_up != extents.enters_at_end(microbatch) ? extents.devices - 1 - position : position;
}

namespace detail {

//! A microbatch that takes a way, where there is one.
[[nodiscard]] constexpr int microbatch_of(shape const& extents, int route) noexcept {
  return route > 0 && extents.where == placement::bidirectional ? extents.microbatches - 1 : route;
}

//! Refuses what a rule is about, where it does not hold. The rule is a literal in each call, so
//! that compilers print it where that is a constant.
//! @throws std::invalid_argument
constexpr void require(bool holds, char const* rule) {
  if (!holds)
    throw std::invalid_argument(rule);
}

//! Checks that every extent is positive and that the whole fits the numbers of a pass.
//! @throws std::invalid_argument with one sentence that names the extent.
//! @param rows rows of the flow.
constexpr void check_extents(shape const& extents, int rows = 3) {
  // Larger timetables would take gigabytes before anything runs.
  constexpr std::int64_t most_passes = std::int64_t{1} << 28;
  constexpr int most = 65535; // stage, microbatch and chunk of a pass are 16 bits wide
  require(extents.devices >= 1, "shape: the number of devices must be at least 1");
  require(extents.microbatches >= 1, "shape: the number of microbatches must be at least 1");
  require(extents.chunks >= 1, "shape: the number of chunks must be at least 1");
  require(extents.stages_per_device >= 1,
          "shape: the number of stages per device must be at least 1");
  require(extents.custom_routes >= 1, "shape: the number of routes must be at least 1");
  require(extents.extra_stages == 0 || extents.where == placement::custom,
          "shape: more or fewer stages than P V are for placement::custom, whose table says where "
          "they are");
  require(
    extents.devices <= most && extents.stages_per_device <= most && extents.extra_stages <= most &&
      std::int64_t{extents.devices} * extents.stages_per_device + extents.extra_stages <= most,
    "shape: more than 65535 stages do not fit the stage number of a pass");
  require(extents.extra_stages >= -most && extents.stages() >= 1,
          "shape: fewer stages than P V leave none; keep one at least");
  require(extents.microbatches <= most, "shape: at most 65535 microbatches are supported");
  require(extents.chunks <= most, "shape: at most 65535 chunks are supported");
  require(
    std::int64_t{rows} * extents.stages() <= most_passes / extents.custom_routes,
    "shape: the routes give more than 2^28 lines of stages and rows of the flow; choose fewer "
    "routes");
  std::int64_t const per_stage = std::int64_t{rows} * extents.microbatches * extents.chunks;
  require(per_stage <= most_passes / extents.stages(),
          "shape: devices x stages per device x microbatches x chunks gives more than 2^28 passes; "
          "choose smaller extents");
}

} // namespace detail

} // namespace pipelining::inline v0_3
