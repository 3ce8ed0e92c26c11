// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Orders and times of stages that only go forward, because neither they nor those before
//! them are trained.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/sort_stably.hpp>
#include <pipe/flow/stage_graph.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! Leaves out the passes that stages do not have which only go forward.
inline void leave_out_unneeded(device_orders& orders) {
  int kept = 0;
  bool halved = false; // the pass before, of a composite pass, is left out
  for (int row = 0, i = 0; row < row_count(orders.over); ++row) {
    int const end = orders.offsets[static_cast<std::size_t>(row) + 1];
    for (; i < end; ++i) {
      pass what = orders.passes[static_cast<std::size_t>(i)];
      bool const stays =
        what.stage >= stages(orders.over.extents) || is_wanted(orders.over, what.kind, what.stage);
      what.overlapped = what.overlapped && !halved;
      halved = !stays;
      if (stays)
        orders.passes[static_cast<std::size_t>(kept++)] = what;
    }
    orders.offsets[static_cast<std::size_t>(row) + 1] = kept;
  }
  orders.passes.resize(static_cast<std::size_t>(kept));
}

//! Moves passes of such stages to the latest times that keep nobody waiting. They could run ahead
//! as far as there are microbatches, and what they make would fill memory. What they make arrives
//! before the pass in front of its reader begins, so that there is a pass to hide the message.
//! @pre passes that have no times have a circular order
//! @complexity O(1) for a chain, O(n log n) for n passes of such stages
inline void hold_back(dynamic_timetable& table) {
  pipeline_view const over = table.over;
  bool any = false;
  for (int stage = 0; over.edges != nullptr && stage < stages(over.extents); ++stage)
    any = any || goes_forward_only(over, stage);
  if (!any)
    return;
  auto const at = [](int number) { return static_cast<std::size_t>(number); };
  auto const unit = [&](int stage, int number) { return at(stage * units(over) + number); };
  int const devices = over.extents.devices;
  double const* const links = table.links.empty() ? nullptr : table.links.data();
  std::vector<int> forward(unit(stages(over.extents), 0), -1); // entries, by stage and unit
  std::vector<int> held;
  for (int row = 0; row < devices; ++row)
    for (int i = table.offsets[at(row)]; i < table.offsets[at(row) + 1]; ++i) {
      pass const& what = table.passes[at(i)];
      if ((*over.declared)[what.kind].calls != stage_call::forward)
        continue;
      forward[unit(what.stage, unit_of(over, what))] = i;
      bool const paired = what.overlapped || (i + 1 < table.offsets[at(row) + 1] &&
                                              table.passes[at(i) + 1].overlapped);
      if (goes_forward_only(over, what.stage) && !paired && table.starts[at(i)] >= 0)
        held.push_back(i);
    }
  sort_stably(held, [&](int one, int other) {
    return table.starts[at(one)] != table.starts[at(other)]
             ? table.starts[at(one)] > table.starts[at(other)]
             : one > other;
  });
  for (int const entry : held) {
    pass const& what = table.passes[at(entry)];
    int const device = device_of(over, what);
    int const readers = neighbours(over, what, 1);
    double latest = entry + 1 == table.offsets[at(device) + 1]
                      ? std::numeric_limits<double>::infinity()
                      : table.starts[at(entry) + 1];
    for (int k = 0; k < readers; ++k) {
      stage_neighbour const next = neighbour(over, what, 1, k);
      int const stage = next.stage;
      int const reader = forward[unit(stage, unit_of(over, what) + next.chunk - what.chunk)];
      if (reader < 0) {
        latest = 0; // nobody reads it: verify says so
        break;
      }
      int const to = device_of(over, stage, what.microbatch);
      double const message = message_time(links, devices, table.latency, device, to);
      bool const ahead = to != device && reader > table.offsets[at(to)];
      double const start = table.starts[at(ahead ? reader - 1 : reader)];
      double arrives = start - message;
      while (arrives + message > start) // has been rounded up
        arrives = std::nextafter(arrives, 0.0);
      latest = std::min(latest, arrives);
    }
    double const later = latest - table.ends[at(entry)];
    if (readers == 0 || later <= 0)
      continue;
    table.starts[at(entry)] += later;
    table.ends[at(entry)] = latest;
  }
}

} // namespace pipelining::inline v0_3::detail
