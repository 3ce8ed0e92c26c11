// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Timetables that own their arrays. Header for pipelining::dynamic_timetable.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/timetable/timetable_view.hpp>

#include <cstdint>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief The order of passes on every device, not timed yet; `never` stands nowhere in it.
struct device_orders {
  pipeline over{};            //!< the pipeline that they are of
  std::vector<pass> passes{}; //!< row after row
  std::vector<int> offsets{}; //!< [rows + 1]
};

//! @brief A timetable whose extents are known at run time. Owns its arrays.
struct dynamic_timetable {
  pipeline over{};              //!< the pipeline that it is of
  double latency = 0;           //!< time of a message
  std::vector<pass> passes{};   //!< row after row, each in its order
  std::vector<double> starts{}; //!< of every pass
  std::vector<double> ends{};   //!< of every pass
  std::vector<int> offsets{};   //!< as in the view
  group_times groups{};         //!< times between a group and other stages
  std::vector<double> links{};  //!< times of messages [P x P]; empty: all take `latency`

  [[nodiscard]] timetable_view view() const noexcept {
    return {.over = over,
            .latency = latency,
            .passes = passes.data(),
            .starts = starts.data(),
            .ends = ends.data(),
            .offsets = offsets.data(),
            .groups = groups,
            .links = links.empty() ? nullptr : links.data()};
  }
  operator timetable_view() const noexcept {
    return view();
  } // NOLINT(google-explicit-constructor): owning to view
};

} // namespace pipelining::inline v0_3
