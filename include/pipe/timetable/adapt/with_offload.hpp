// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Any schedule with activations that wait on the host. Header for pipelining::with_offload.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training_flows.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/adapt/offload_rules.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! A copy of a device, and the pass that it is about.
struct planned_copy {
  double at;
  pass forward;
  std::size_t number; // of those of one time, the first made goes first
};

//! The activations of a device that a forward pass keeps and a backward reads.
[[nodiscard]] inline std::vector<idle_activation> idle_activations(timetable_view const& table,
                                                                   int device) {
  std::vector<idle_activation> result;
  std::vector<int> number(static_cast<std::size_t>(pass_indices(table.over)), -1);
  for (int i = table.offsets[device]; i < table.offsets[device + 1]; ++i) {
    pass what = table.passes[i];
    bool const reads = what.kind == pass_kind::backward || what.kind == pass_kind::backward_input;
    if (what.kind != pass_kind::forward && !reads)
      continue;
    what.kind = pass_kind::forward;
    what.overlapped = false;
    int& index = number[static_cast<std::size_t>(pass_index(table.over, what))];
    if (!reads) {
      index = static_cast<int>(result.size());
      result.push_back({what, table.ends[i] - table.starts[i], table.ends[i]});
    } else if (index >= 0) {
      result[static_cast<std::size_t>(index)].needed = table.starts[i];
      result[static_cast<std::size_t>(index)].backward = table.ends[i] - table.starts[i];
    }
  }
  return result;
}

//! Writes the three rows of a device: its passes with requests among them, and the copies.
inline void write_offloaded(timetable_view const& table,
                            int device,
                            std::vector<idle_activation> const& all,
                            row_writer* rows) {
  std::vector<planned_copy> out;
  std::vector<planned_copy> in;
  std::vector<char> moves(static_cast<std::size_t>(pass_indices(table.over)));
  for (idle_activation const& one : all)
    if (one.moves) {
      moves[static_cast<std::size_t>(pass_index(table.over, one.forward))] = 1;
      out.push_back({one.leaves, one.forward, out.size()});
      in.push_back({one.returns, one.forward, in.size()});
    }
  auto const earlier = [](planned_copy const& a, planned_copy const& b) {
    return a.at != b.at ? a.at < b.at : a.number < b.number;
  };
  std::sort(out.begin(), out.end(), earlier);
  std::sort(in.begin(), in.end(), earlier);
  auto const push = [](row_writer& row, pass what, pass_kind kind) {
    what.kind = kind;
    row.push(what);
  };
  std::size_t asked = 0;
  for (int i = table.offsets[device]; i < table.offsets[device + 1]; ++i) {
    pass what = table.passes[i];
    // A request stands behind the pass that is under way when the copy is due. The slot ends a
    // backward before it must, so the copy is still in time.
    while (asked < in.size() && table.starts[i] >= in[asked].at && !what.overlapped)
      push(rows[device], in[asked++].forward, pass_kind::copy_request);
    if (what.kind == pass_kind::forward) {
      pass key = what;
      key.overlapped = false;
      if (moves[static_cast<std::size_t>(pass_index(table.over, key))] != 0)
        what.kind = pass_kind::offloaded_forward;
    }
    rows[device].push(what);
  }
  int const devices = table.over.extents.devices;
  for (planned_copy const& one : out)
    push(rows[devices + device], one.forward, pass_kind::copy_out);
  for (planned_copy const& one : in)
    push(rows[2 * devices + device], one.forward, pass_kind::copy_in);
}

} // namespace detail

//! @brief A schedule whose activations wait on the host while nobody needs them: a copy engine
//! takes them there behind their forward, another one brings them back before their backward.
//!
//! Orders the passes as the schedule does, times them by the cost model, and asks the rule. Moves
//! whole activations of plain forward passes; what the schedule recomputes stays as it is.
//!
//! @tparam Schedule any schedule of `training` or `frugal_training`. @tparam Rule what moves, and
//! when.
//! @throws as the schedule does.
//! @complexity O(n log n) for n passes of a device, on top of the schedule.
//! @source Wan et al., "PipeOffload: Improving Scalability of Pipeline Parallelism with Memory
//! Optimization", ICML 2025.
template <schedule Schedule, offload_rule Rule = offload_in_slots>
struct with_offload {
  static constexpr flow declared = frugal_training;
  static_assert(!detail::flow_of<Schedule>().reads_in_groups,
                "with_offload: a vocabulary in shards does not go with copies to the host");

  Schedule of{};
  Rule rule{};

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    return of.arrange(devices, microbatches);
  }
  template <cost_model Cost>
  void generate(shape const& extents, Cost const& cost, row_writer* rows) const {
    dynamic_timetable const plain =
      make_timetable(of, {extents.devices, extents.microbatches}, cost);
    timetable_view const table = plain;
    for (int device = 0; device < extents.devices; ++device) {
      std::vector<idle_activation> all = detail::idle_activations(table, device);
      for (idle_activation& one : all) {
        pass copied = one.forward;
        copied.kind = pass_kind::copy_out;
        one.copy_out = cost.duration(copied);
        copied.kind = pass_kind::copy_in;
        one.copy_in = cost.duration(copied);
      }
      if (!all.empty())
        rule(device, all);
      detail::write_offloaded(table, device, all, rows);
    }
  }
};

} // namespace pipelining::inline v0_3
