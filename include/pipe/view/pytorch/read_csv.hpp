// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Reads the schedule files of torch.distributed.pipelining. Header for
//! pipelining::read_pytorch_csv. The format is described in <pipe/view/pytorch/actions.hpp>.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/timetable/verify.hpp>
#include <pipe/view/append.hpp>
#include <pipe/view/pytorch/actions.hpp>
#include <pipe/view/pytorch/messages.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief What a file says.
struct pytorch_schedule {
  device_orders orders;      //!< the passes of every device
  std::vector<int> cells;    //!< [n] the cell of every pass in its line, counted from 1
  bool has_messages = false; //!< SEND and RECV stand in the file, and have been checked
  int skipped = 0;           //!< UNSHARD, RESHARD, REDUCE_GRAD and WAIT_REDUCE_GRAD actions
};

namespace detail {

//! The device of every stage, [S], from the passes alone.
[[nodiscard]] inline std::vector<std::uint16_t>
devices_of_stages(std::vector<pytorch_action> const& actions, int stage_count) {
  std::vector<pytorch_action const*> owner(static_cast<std::size_t>(stage_count));
  for (pytorch_action const& action : actions) {
    if (!is_pass(action))
      continue;
    pytorch_action const*& first = owner[action.stage];
    if (first == nullptr)
      first = &action;
    if (first->line == action.line)
      continue;
    std::string reason;
    append(reason, "stage ", action.stage, " is on this device, but also on that of ");
    reject(action.line, action.cell, reason + place_of(first->line, first->cell));
  }
  std::vector<std::uint16_t> devices;
  for (pytorch_action const* const first : owner) {
    std::string reason = "PyTorch CSV: stage ";
    if (first == nullptr) {
      append(reason, devices.size(), " has no passes, but stage ", stage_count - 1, " has");
      throw std::invalid_argument(reason);
    }
    devices.push_back(static_cast<std::uint16_t>(first->line - 1));
  }
  return devices;
}

//! The placement with this device for every stage; custom where it has no name.
[[nodiscard]] inline placement infer_placement(shape extents,
                                               std::vector<std::uint16_t> const& devices) {
  if (extents.extra_stages > 0)
    return placement::custom;
  for (placement const where : {placement::looped, placement::wave}) {
    extents.where = where;
    bool same = true;
    for (int stage = 0; stage < stages(extents); ++stage)
      same = same && device_of(extents, stage) == devices[static_cast<std::size_t>(stage)];
    if (same)
      return where;
  }
  return placement::custom;
}

//! Every microbatch has its forward pass on every stage; what else may be missing, `verify` finds.
//! Needs no more memory than the file has passes, however large the numbers in it are.
inline void find_missing_forward(std::vector<pytorch_action> const& actions,
                                 int stage_count,
                                 int microbatch_count) {
  std::vector<std::uint32_t> found;
  for (pytorch_action const& action : actions)
    if (action.verb == pytorch_verb::forward)
      found.push_back(std::uint32_t{action.stage} << 16 | action.microbatch);
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  std::size_t at = 0;
  for (int stage = 0; stage < stage_count; ++stage) {
    for (int microbatch = 0; microbatch < microbatch_count; ++microbatch, ++at) {
      auto const wanted =
        static_cast<std::uint32_t>(stage) << 16 | static_cast<std::uint32_t>(microbatch);
      if (at < found.size() && found[at] == wanted)
        continue;
      std::string reason = "PyTorch CSV: the forward pass of stage ";
      append(reason, stage, ", microbatch ", microbatch, " is missing; the file has stages 0 to ");
      append(reason, stage_count - 1, " and microbatches 0 to ", microbatch_count - 1);
      throw std::invalid_argument(reason);
    }
  }
}

//! The extents of a file: lines, and the largest numbers of its passes.
//! @pre every line has a pass
[[nodiscard]] inline shape extents_of(std::vector<pytorch_action> const& actions, int line_count) {
  int last_stage = -1;
  int last_microbatch = -1;
  for (pytorch_action const& action : actions) {
    if (!is_pass(action))
      continue;
    last_stage = std::max<int>(last_stage, action.stage);
    last_microbatch = std::max<int>(last_microbatch, action.microbatch);
  }
  // With fewer stages than lines one stands on two of them, which `devices_of_stages` refuses.
  int const stage_count = std::max(last_stage + 1, line_count);
  shape const extents{.devices = line_count,
                      .microbatches = last_microbatch + 1,
                      .stages_per_device = stage_count / line_count,
                      .where = placement::custom,
                      .extra_stages = stage_count % line_count};
  check_extents(extents);
  return extents;
}

} // namespace detail

//! @brief Reads a schedule from the text of a file, with or without messages.
//!
//! The number of lines is P; the largest stage and microbatch give S and M; the placement is
//! inferred: looped, wave, else custom, for any map of stages to devices. Messages, where there are
//! any, must be complete, stand on the right side of the passes they serve, and be exchangeable one
//! by one in the order of the file, each with both of its ends at once. That order is proven, not
//! kept: timetables have passes alone, and a plan places messages anew. Whether the passes are
//! complete and their order works, `make_timetable` says.
//!
//! @throws std::invalid_argument with line, cell and reason.
//! @complexity O(n log n) for n actions.
[[nodiscard]] inline pytorch_schedule read_pytorch_csv(std::string_view text) {
  int line_count = 0;
  std::vector<detail::pytorch_action> const actions = detail::parse_pytorch_lines(text, line_count);
  shape extents = detail::extents_of(actions, line_count);
  std::vector<std::uint16_t> devices = detail::devices_of_stages(actions, stages(extents));
  detail::find_missing_forward(actions, stages(extents), extents.microbatches);
  extents.where = detail::infer_placement(extents, devices);
  pytorch_schedule result{{{.extents = extents}, {}, {0}}, {}, false, 0};
  int line = 1;
  for (detail::pytorch_action const& action : actions) {
    for (; line < action.line; ++line)
      result.orders.offsets.push_back(static_cast<int>(result.orders.passes.size()));
    if (detail::is_pass(action)) {
      result.orders.passes.push_back({static_cast<pass_kind>(action.verb),
                                      action.overlapped,
                                      action.stage,
                                      action.microbatch,
                                      0});
      result.cells.push_back(action.cell);
    } else if (action.verb == detail::pytorch_verb::skipped) {
      ++result.skipped;
    } else {
      result.has_messages = true;
    }
  }
  for (; line <= line_count; ++line)
    result.orders.offsets.push_back(static_cast<int>(result.orders.passes.size()));
  if (result.has_messages) {
    pipeline_view placed{extents};
    placed.holders = devices.data();
    detail::pytorch_messages(placed, actions).check();
  }
  if (extents.where == placement::custom)
    result.orders.over.holders = std::move(devices);
  return result;
}

//! @brief The verified timetable of a file.
//! @throws std::invalid_argument with the sentence of the first broken rule, and line and cell of
//! the pass that breaks it.
template <cost_model Cost = uniform_cost>
[[nodiscard]] dynamic_timetable make_timetable(pytorch_schedule const& file,
                                               Cost const& cost = {}) {
  dynamic_timetable table = simulate(file.orders, cost);
  report const verdict = verify(table);
  if (verdict)
    return table;
  std::string reason = describe(verdict, table.over);
  if (verdict.broken == rule::missing_pass)
    throw std::invalid_argument("PyTorch CSV: " + reason);
  auto const entry = static_cast<std::size_t>(
    file.orders.offsets[static_cast<std::size_t>(verdict.device)] + verdict.entry);
  detail::reject(verdict.device + 1, file.cells[entry], reason);
}

} // namespace pipelining::inline v0_3
