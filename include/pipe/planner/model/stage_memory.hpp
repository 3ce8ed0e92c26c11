// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Bytes that stages hold on their devices. Header for pipelining::stage_memory and
//! device_bytes.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/timetable/peaks.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstddef>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief Bytes of a pipeline by stage and chunk. A list that is empty counts nothing.
struct stage_memory {
  //! [S][C] of one microbatch, from the start of its forward pass to the end of its backward pass
  std::vector<double> activation{};
  //! [S][C] of these, the ones that wait from the end of backward_input to the end of
  //! backward_weight; empty: all of them do
  std::vector<double> weight_input{};
  std::vector<double> resident{}; //!< [S] always there: weights, gradients, state of the optimizer

  friend bool operator==(stage_memory const&, stage_memory const&) = default;
};

namespace detail {

//! The bytes that a pass adds to its device at its start, or at its end frees.
//! @param chunks of a sequence. @pre the flow is training's, backward passes free what forward
//! passes take
[[nodiscard]] inline double
moved_bytes(stage_memory const& memory, flow const& declared, int chunks, pass const& what) {
  std::size_t const at =
    static_cast<std::size_t>(what.stage) * static_cast<std::size_t>(chunks) + what.chunk;
  if (memory.activation.empty())
    return 0;
  double const all = memory.activation[at];
  double const waits = memory.weight_input.empty() ? all : memory.weight_input[at];
  switch (declared[what.kind].is) {
  case role::forward:
  case role::backward: return all;
  case role::input: return all - waits;
  case role::weights: return waits;
  default: return 0;
  }
}

//! The resident bytes of the stages of each device, [P].
[[nodiscard]] inline std::vector<double> resident_bytes(stage_memory const& memory,
                                                        pipeline_view const& over) {
  std::vector<double> result(static_cast<std::size_t>(over.extents.devices));
  for (std::size_t stage = 0; stage < memory.resident.size(); ++stage)
    for (int device = 0; device < over.extents.devices; ++device)
      if (int const at = static_cast<int>(stage);
          device_of(over, at, 0) == device ||
          device_of(over, at, over.extents.microbatches - 1) == device) // another one both ways
        result[static_cast<std::size_t>(device)] += memory.resident[stage];
  return result;
}

} // namespace detail

//! @brief The most bytes that each device of a timetable holds at once, [P].
//! @pre `memory` is of the stages and chunks of the timetable, whose flow is training's
//! @complexity O(n) for n passes
[[nodiscard]] inline std::vector<double> device_bytes(timetable_view table,
                                                      stage_memory const& memory) {
  std::vector<double> result = detail::resident_bytes(memory, table.over);
  for (int device = 0; device < table.over.extents.devices; ++device)
    result[static_cast<std::size_t>(device)] +=
      detail::peak_by<double>(table, device, [&](pass const& what, bool ends) {
        bool const takes = (*table.over.declared)[what.kind].is == role::forward;
        double const bytes =
          detail::moved_bytes(memory, *table.over.declared, table.over.extents.chunks, what);
        return takes == ends ? 0 : ends ? -bytes : bytes;
      });
  return result;
}

} // namespace pipelining::inline v0_3
