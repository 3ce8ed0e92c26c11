// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Measured costs of a model, for any cut of it. Header for pipelining::cut_costs and
//! costs_for.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/planner/model/links.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost_table.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief The times of a model that is cut into stages, its sequences into chunks.
struct cut_costs {
  int stages = 1;                             //!< S, equal shares of the layers
  int chunks = 1;                             //!< C, equal shares of a sequence
  cost_table times;                           //!< of that cut, in one unit; runners measure seconds
  std::vector<detail::measured_link> links{}; //!< where messages between devices were told apart
  double message_bytes = 0;                   //!< of a message of one chunk, for `links`
};

namespace detail {

//! The part of piece `piece` of `pieces` equal ones that lies in piece `other` of `others`.
[[nodiscard]] constexpr double
part_inside(std::int64_t piece, std::int64_t pieces, std::int64_t other, std::int64_t others) {
  std::int64_t const begin = std::max(piece * others, other * pieces);
  std::int64_t const end = std::min((piece + 1) * others, (other + 1) * pieces);
  return static_cast<double>(std::max<std::int64_t>(end - begin, 0)) / static_cast<double>(others);
}

} // namespace detail

//! @brief The costs of the same model in another cut, such as another schedule has: times are
//! spread evenly over the layers of a stage and the tokens of a chunk.
//!
//! Exact where the new stages and chunks consist of whole old ones, but for what a pass costs by
//! itself. Finer ones take equal shares, whatever they hold. A message of a chunk has its share of
//! the bytes: its time is that of its link, where that was measured, else that of the median
//! message.
//! @complexity O(S + S') (C + C') for the old and the new numbers of stages and chunks
//! @source own derivation
[[nodiscard]] inline cost_table costs_for(cut_costs const& measured, shape const& extents) {
  cost_table result = measured.times.reshaped(extents, measured.times.latency());
  for (detail::measured_link const& link : measured.links)
    if (link.from < extents.devices && link.to < extents.devices)
      result.set_link(link.from,
                      link.to,
                      link.seconds(measured.message_bytes * measured.chunks / extents.chunks));
  int const new_stages = stages(extents);
  auto const first = [](int piece, int old_pieces, int pieces) {
    return static_cast<int>(std::int64_t{piece} * old_pieces / pieces);
  };
  auto const behind_last = [](int piece, int old_pieces, int pieces) {
    return static_cast<int>((std::int64_t{piece + 1} * old_pieces + pieces - 1) / pieces);
  };
  for (int stage = 0; stage < new_stages; ++stage)
    for (int chunk = 0; chunk < extents.chunks; ++chunk)
      for (timed_kind const& one : measured.times.kinds()) {
        double time = 0;
        for (int s = first(stage, measured.stages, new_stages);
             s < behind_last(stage, measured.stages, new_stages);
             ++s)
          for (int c = first(chunk, measured.chunks, extents.chunks);
               c < behind_last(chunk, measured.chunks, extents.chunks);
               ++c)
            time += measured.times.duration(row_writer::make(one.kind, s, 0, c)) *
                    detail::part_inside(s, measured.stages, stage, new_stages) *
                    detail::part_inside(c, measured.chunks, chunk, extents.chunks);
        result.set(one.kind, stage, chunk, time);
      }
  return result;
}

} // namespace pipelining::inline v0_3
