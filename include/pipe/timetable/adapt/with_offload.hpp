// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A schedule whose activations wait on the host, and rules that say which. Header for
//! pipelining::with_offload and pipelining::offload.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/sort_stably.hpp>
#include <pipe/flow/training_flows.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief Rules of `with_offload`: which activations go to the host, and what a rule is asked of.
struct offload {
  struct idle_activation;
  struct in_slots;
  struct chunks;
};

//! @brief An activation of a device: who makes it, and when it is there without being used.
struct offload::idle_activation {
  pass forward;        //!< the pass that makes it
  double took = 0;     //!< how long that one takes
  double made = 0;     //!< when it ends
  double needed = 0;   //!< start of the backward that reads it
  double backward = 0; //!< how long that takes
  double copy_out = 0; //!< how long a copy of it to the host takes
  double copy_in = 0;  //!< and one back
  bool moves = false;  //!< what a rule decides: it goes to the host
  double leaves = 0;   //!< and at what time it begins to leave
  double returns = 0;  //!< and to come back
};

//! @brief PipeOffload's rule: the copy lane of a device is cut into slots of the longest copy,
//! even ones out, odd ones in. Two neighbouring devices share a switch, so the lane of the odd
//! one starts a slot later and their copies never meet.
//!
//! An activation moves when it idles for more than six copies, a backward before its own not
//! counted. It leaves in the first free slot after its forward, and comes back in the last free
//! one that ends a backward before it is needed. Where slots run out, it stays: copies that are
//! too slow move what fits.
//! @source Wan et al., "PipeOffload", ICML 2025, section 4 and its repository; refusing one
//! activation instead of the whole schedule is own.
struct offload::in_slots {
  double share = 1;            //!< of the activations that may move, those that idle longest first
  int stages = 0;              //!< only those of the first stages of a device; below 1: of all
  std::span<int const> only{}; //!< only those of these stages; empty: of all. They outlive the rule

  //! PipeOffload's half: of the activations that may move, the half that idles longest.
  [[nodiscard]] static constexpr in_slots half() noexcept { return {.share = 0.5}; }

  void operator()(int device, std::vector<idle_activation>& all) const {
    double slot = 0;
    for (idle_activation const& one : all)
      slot = std::max({slot, one.copy_out, one.copy_in});
    if (!(slot > 0))
      return;
    int const last = last_stage(all);
    double const first = all.front().made + (device % 2 == 1 ? slot : 0);
    std::vector<int> chosen; // of all
    for (idle_activation const& one : all)
      if (one.forward.stage <= last && is_given(one.forward.stage) &&
          one.needed - one.backward - one.made > 6 * slot)
        chosen.push_back(static_cast<int>(&one - all.data()));
    if (share < 1) { // else all, which are in the order made
      auto const idles = [&all](int which) {
        idle_activation const& one = all[static_cast<std::size_t>(which)];
        return one.needed - one.made;
      };
      detail::sort_numbers(chosen, [&](int a, int b) { return idles(a) > idles(b); });
      chosen.resize(static_cast<std::size_t>(std::ceil(share * double(chosen.size()))));
      detail::sort_numbers(chosen, [](int, int) { return false; }); // in the order made again
    }
    take_outward(chosen, all.data(), first, slot);
    take_inward(chosen, all.data(), first, slot);
  }

private:
  static constexpr double rounding = 1e-9;

  [[nodiscard]] bool is_given(int stage) const {
    return only.empty() || std::find(only.begin(), only.end(), stage) != only.end();
  }
  //! The last stage whose activations may move.
  [[nodiscard]] int last_stage(std::vector<idle_activation> const& all) const {
    int last = -1;
    for (int taken = 0; stages <= 0 || taken < stages; ++taken) {
      int next = std::numeric_limits<int>::max();
      for (idle_activation const& one : all)
        if (one.forward.stage > last)
          next = std::min<int>(next, one.forward.stage);
      if (next == std::numeric_limits<int>::max())
        break;
      last = next;
    }
    return last;
  }
  static void
  take_outward(std::vector<int> const& chosen, idle_activation* all, double first, double slot) {
    double next = 0; // free even slot
    for (int const which : chosen) {
      idle_activation& one = all[which];
      double const earliest = std::ceil((one.made - first) / (2 * slot) - rounding) * 2;
      next = std::max(next, earliest);
      one.leaves = first + next * slot;
      next += 2;
    }
  }
  static void
  take_inward(std::vector<int> chosen, idle_activation* all, double first, double slot) {
    double previous = std::numeric_limits<double>::infinity(); // odd slot, taken
    detail::sort_numbers(chosen, [all](int a, int b) { return all[a].needed < all[b].needed; });
    for (; !chosen.empty(); chosen.pop_back()) { // from the last on
      idle_activation& one = all[chosen.back()];
      double const latest = (one.needed - one.backward - first) / slot - 1;
      double number = std::floor((latest - 1) / 2 + rounding) * 2 + 1;
      number = std::min(number, previous - 2);
      one.returns = first + number * slot;
      one.moves = one.returns >= one.leaves + slot - rounding * slot;
      if (one.moves)
        previous = number;
    }
  }
};

//! @brief SPPO's rule: the chunks of a sequence but the last leave as soon as they have been
//! made, and come back as late as they can: a pass before it is needed, since a copy begins
//! between two passes. Copies go one after the other each way; what would not be back in time
//! stays.
//! @source Chen et al., "SPPO", 2025 (arXiv:2503.10377), section 5.2: which chunks move, and how
//! much of each (`hidden_share`). Where one copy waits for another, the order is own.
struct offload::chunks {
  int staying = 1; //!< chunks at the end of a sequence that do not move

  void operator()(int, std::vector<idle_activation>& all) const {
    std::vector<int> last; // chunk of each microbatch
    double longest = 0;    // pass of the device
    for (idle_activation const& one : all) {
      auto const microbatch = static_cast<std::size_t>(one.forward.microbatch);
      last.resize(std::max(last.size(), microbatch + 1));
      last[microbatch] = std::max<int>(last[microbatch], one.forward.chunk);
      longest = std::max({longest, one.took, one.backward});
    }
    std::vector<int> back; // of all
    double free_from = 0;
    for (idle_activation& one : all)
      if (one.forward.chunk + staying <= last[static_cast<std::size_t>(one.forward.microbatch)]) {
        one.leaves = std::max(one.made, free_from);
        free_from = one.leaves + one.copy_out;
        back.push_back(static_cast<int>(&one - all.data()));
      }
    idle_activation* const of = all.data();
    detail::sort_numbers(back, [of](int a, int b) { return of[a].needed > of[b].needed; });
    double free_until = std::numeric_limits<double>::infinity();
    for (int const which : back) {
      idle_activation& one = of[which];
      one.returns = std::min(one.needed - longest, free_until) - one.copy_in;
      one.moves = one.returns >= one.leaves + one.copy_out;
      if (one.moves)
        free_until = one.returns;
    }
  }
};

//! @brief Decides which activations of a device go to the host, and when: `rule(device,
//! activations)`, in the order in which they are made.
template <class Rule>
concept offload_rule = detail::copyable<Rule> &&
  requires(Rule const rule, std::vector<offload::idle_activation>& activations) {
  rule(0, activations);
};

namespace detail {

//! The share of a chunk's activation that moves under SPPO, so that its copy is no longer
//! than the forward pass of the next chunk: min(1, F(c + 1) / copy(c)). For `partial_cost`.
//!
//! Slots of activations then hold what moves; what stays is up to the stage. Keys and values,
//! which later chunks read, never move: they have slots of their own.
//! @source Chen et al., "SPPO", 2025 (arXiv:2503.10377), section 5: the offloading ratio, with
//! which the copy of a chunk takes as long as the next chunk, and what stays whatever the ratio.
template <cost_model Cost>
struct hidden_share {
  Cost of{};      //!< the times of whole activations
  int chunks = 1; //!< of a sequence

  //! The share of the activation of a pass, from 0 to 1.
  [[nodiscard]] constexpr double operator()(pass what) const {
    what.overlapped = false;
    double const whole = of.duration(what);
    if (what.chunk + 1 >= chunks)
      return 1;
    ++what.chunk;
    what.kind = pass_kind::forward;
    double const most = of.duration(what);
    return whole > most ? most / whole : 1;
  }
};

//! The activations of a device that a forward pass keeps and a backward reads, in the order made.
//! @param entries those of the table
[[nodiscard]] inline std::vector<offload::idle_activation>
idle_activations(timetable_view const& table, std::vector<int> const& entries, int device) {
  std::vector<offload::idle_activation> result;
  for (int i = table.offsets[device]; i < table.offsets[device + 1]; ++i) {
    pass what = table.passes[i];
    if (what.kind != pass_kind::forward)
      continue;
    what.overlapped = false;
    result.push_back({what, table.ends[i] - table.starts[i], table.ends[i]});
    what.kind = pass_kind::backward; // or its half for the input
    int const reader = entries[static_cast<std::size_t>(pass_index(table.over, what))];
    if (reader >= 0) {
      result.back().needed = table.starts[reader];
      result.back().backward = table.ends[reader] - table.starts[reader];
    }
  }
  return result;
}

//! Writes the three rows of a device: its passes with requests among them, and the copies.
//! @param all its activations, in the order made
inline void write_offloaded(timetable_view const& table,
                            int device,
                            std::vector<offload::idle_activation> const& all,
                            row_writer* rows) {
  offload::idle_activation const* const of = all.data();
  std::vector<int> out; // of all
  for (offload::idle_activation const& one : all)
    if (one.moves)
      out.push_back(static_cast<int>(&one - of));
  std::vector<int> in = out;
  sort_numbers(out, [of](int a, int b) { return of[a].leaves < of[b].leaves; });
  sort_numbers(in, [of](int a, int b) { return of[a].returns < of[b].returns; });
  auto const push = [](row_writer& row, pass what, pass_kind kind) {
    what.kind = kind;
    row.push(what);
  };
  std::size_t asked = 0;
  auto made = all.begin();
  for (int i = table.offsets[device]; i < table.offsets[device + 1]; ++i) {
    pass const& what = table.passes[i];
    // A request stands after the pass that is under way when the copy is due. The slot ends a
    // backward before it must, so the copy is still in time.
    while (asked < in.size() && table.starts[i] >= of[in[asked]].returns && !what.overlapped)
      push(rows[device], of[in[asked++]].forward, pass_kind::copy_request);
    bool const moves = what.kind == pass_kind::forward && (made++)->moves;
    push(rows[device], what, moves ? pass_kind::offloaded_forward : what.kind);
  }
  int const devices = table.over.extents.devices;
  for (int const which : out)
    push(rows[devices + device], of[which].forward, pass_kind::copy_out);
  for (int const which : in)
    push(rows[2 * devices + device], of[which].forward, pass_kind::copy_in);
}

} // namespace detail

//! @brief A schedule whose activations wait on the host while nobody needs them: a copy engine
//! takes them there after their forward, another one brings them back before their backward.
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
template <schedule Schedule, offload_rule Rule = offload::in_slots>
struct with_offload {
  static constexpr flow declared = detail::frugal_training<(sizeof(Schedule) > 0)>;
  static_assert(!detail::flow_of<Schedule>().reads_in_groups,
                "with_offload: a vocabulary in shards does not go with copies to the host");

  Schedule of{};
  Rule rule{};

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    return of.arrange(devices, microbatches);
  }
  void generate(shape const& extents, cost_model auto const& cost, row_writer* rows) const {
    dynamic_timetable const plain =
      make_timetable(of, {extents.devices, extents.microbatches}, cost);
    timetable_view const table = plain;
    std::vector<int> const entries = detail::entries_of(table);
    for (int device = 0; device < extents.devices; ++device) {
      std::vector<offload::idle_activation> all = detail::idle_activations(table, entries, device);
      for (offload::idle_activation& one : all) {
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
