// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Any schedule with recomputed activations. Header for pipelining::with_recompute.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/flow/training_flows.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>

#include <algorithm>
#include <concepts>
#include <span>
#include <utility>

namespace pipelining::inline v0_3 {

//! @brief Says which forward passes keep only their input: `rule(extents, pass)`.
template <class Rule>
concept recompute_rule = detail::copyable<Rule> &&
  requires(Rule const rule, shape const extents, pass const forward) {
  { rule(extents, forward) } -> std::convertible_to<bool>;
};

//! @brief Says how much of an activation is dropped and brought back, in shares of the forward's
//! time from 0 to 1: `share(pass)`, which looks only at stage, microbatch and chunk. Selective
//! recomputation has one number (norms and activation functions, say); InfiniPipe recomputes k of
//! the n layers of a stage, k by stage and unit: k / n.
template <class Share>
concept recompute_share = detail::copyable<Share> && requires(Share const share, pass const what) {
  { share(what) } -> std::convertible_to<double>;
};

//! @brief Rules of `with_recompute`: which activations are recomputed.
struct recompute {
  //! @brief Every activation is recomputed.
  struct all {
    [[nodiscard]] constexpr bool operator()(shape const&, pass const&) const noexcept {
      return true;
    }
  };

  //! @brief Every activation, but where that frees nothing: a forward pass right before its own
  //! backward, such as those of the last stage of 1F1B, keeps it. Where some devices lack memory,
  //! only activations of their stages.
  struct where_it_frees {
    static constexpr bool only_where_it_frees = true; //!< asks for this of any rule that has it
    std::span<int const> stages{}; //!< only those of these; empty: all. They outlive the schedule

    [[nodiscard]] constexpr bool operator()(shape const&, pass const& forward) const noexcept {
      return stages.empty() ||
             std::find(stages.begin(), stages.end(), forward.stage) != stages.end();
    }
  };

  //! @brief Every activation but those of the last stage, whose backward follows its forward at
  //! once.
  struct all_but_last {
    [[nodiscard]] constexpr bool operator()(shape const& extents,
                                            pass const& forward) const noexcept {
      return forward.stage + 1 < extents.stages();
    }
  };

  //! @brief The activations of the first stages of every device, which wait longest where a device
  //! has several: those of the stages below `count` P.
  struct first_stages {
    int count = 1; //!< stages of a device

    [[nodiscard]] constexpr bool operator()(shape const& extents,
                                            pass const& forward) const noexcept {
      return forward.stage < count * extents.devices;
    }
  };

  //! @brief The activations of which something is dropped. `partial_cost` has the times, and
  //! `peak_device_bytes` the memory.
  template <recompute_share Share>
  struct in_part {
    Share share{}; //!< of the forward's time

    [[nodiscard]] constexpr bool operator()(shape const&, pass const& forward) const {
      return share(forward) > 0;
    }
  };
};

namespace detail {

//! Turns the forward passes of a row that `rule` names into checkpointed ones, and puts a recompute
//! before the backward of each. What starts together stays together: its recomputes come before
//! both.
template <recompute_rule Rule>
constexpr void add_recomputes(shape const& extents, Rule rule, row_writer& row) {
  int const count = std::exchange(row.count, 0);
  owned<pass> const plain(count);
  std::copy_n(row.passes, count, plain.data);
  auto const of_unit = [](pass const& what, pass_kind kind) {
    return row_writer::make(kind, what.stage, what.microbatch, what.chunk);
  };
  auto const recomputed = [&](pass const& what) {
    return rule(extents, of_unit(what, pass_kind::forward));
  };
  auto const reads_activation = [](pass const& what) {
    return what.kind == pass_kind::backward || what.kind == pass_kind::backward_input;
  };
  auto const joins = [&](int i) { return i < count && plain[i].overlapped; };
  // Whether pass i is the backward pass of the forward pass right before it.
  auto const follows_at_once = [&](int i) {
    if constexpr (!requires { Rule::only_where_it_frees; })
      return false;
    return i > 0 && i < count && !joins(i) && !joins(i + 1) && reads_activation(plain[i]) &&
           plain[i - 1] == of_unit(plain[i], pass_kind::forward);
  };
  for (int first = 0, end = 0; first < count; first = end) {
    for (end = first + 1; joins(end);)
      ++end;
    for (int i = first; i < end; ++i)
      if (reads_activation(plain[i]) && recomputed(plain[i]) && !follows_at_once(i))
        row.push(of_unit(plain[i], pass_kind::recompute));
    for (int i = first; i < end; ++i) {
      pass what = plain[i];
      if (what.kind == pass_kind::forward && recomputed(what) && !follows_at_once(i + 1))
        what.kind = pass_kind::checkpointed_forward;
      row.push(what);
    }
  }
}

//! A schedule, such as ZeroBubbleAuto, that has another order where activations are
//! recomputed, since little is held before that.
template <class Schedule>
concept orders_for_recomputation = requires(Schedule const& plan,
                                            shape const& extents,
                                            bool (*recomputed)(pass const&),
                                            row_writer* rows) {
  plan.generate_recomputed(extents, no_cost{}, recomputed, rows);
};

//! A schedule in the order that it takes where activations are recomputed, without the
//! recomputations.
template <class Schedule, recompute_rule Rule = recompute::all>
struct order_for_recomputation {
  Schedule of{}; //!< the schedule
  Rule rule{};   //!< which activations are recomputed

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    return of.arrange(devices, microbatches);
  }
  constexpr void
  generate(shape const& extents, cost_model auto const& cost, row_writer* rows) const {
    auto const recomputed = [&](pass const& forward) -> bool { return rule(extents, forward); };
    if constexpr (orders_for_recomputation<Schedule>)
      of.generate_recomputed(extents, cost, recomputed, rows);
    else
      of.generate(extents, cost, rows);
  }
};

} // namespace detail

//! @brief A schedule whose forward passes keep only their input; `recompute`, right before the
//! backward, brings the activation back. It waits for nothing but its turn, so it runs while the
//! gradient is on its way.
//!
//! With 1F1B and f, b the times of forward and whole backward: makespan M (2f + b) + (P - 1)(f + b)
//! without messages, and at most one activation and P - 1 - d inputs on device d. A backward pass
//! that recomputes within itself (1F1B-R) is one of f + b under the schedule itself: (P - 1) f
//! more.
//!
//! Recomputing a part, the same of the units (stage s + i, microbatch j + i) for every i, adds to
//! 1F1B what the last stage recomputes, once and not P times.
//!
//! @tparam Schedule any schedule of `training`. @tparam Rule which activations are recomputed.
//! @throws as the schedule does.
//! @complexity O(1) per pass on top of the schedule.
//! @source activation checkpointing: Chen et al., "Training Deep Nets with Sublinear Memory Cost",
//! 2016; before the gradient arrives: Mario, PPoPP 2025; a part by stage and unit: InfiniPipe.
template <schedule Schedule, recompute_rule Rule = recompute::all>
struct with_recompute {
  static constexpr flow declared = detail::frugal_training<(sizeof(Schedule) > 0)>;
  static_assert(!detail::flow_of<Schedule>().reads_in_groups,
                "with_recompute: a vocabulary in shards does not go with recomputation");

  Schedule of{};
  Rule rule{};

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    return of.arrange(devices, microbatches);
  }
  constexpr void order(shape const& extents,
                       int device,
                       row_writer& row) const requires detail::orders_device<Schedule> {
    of.order(extents, device, row);
    detail::add_recomputes(extents, rule, row);
  }
  template <cost_model Cost>
  constexpr void generate(shape const& extents, Cost const& cost, row_writer* rows) const
    requires(!detail::orders_device<Schedule>) {
    detail::order_for_recomputation<Schedule, Rule>{of, rule}.generate(extents, cost, rows);
    for (int device = 0; device < extents.devices; ++device)
      detail::add_recomputes(extents, rule, rows[device]);
  }
};

namespace detail {

//! A cost model whose recomputes and copies are of a part of the activation: they take the
//! `share(pass)`, 0 to 1, of the time that `of` gives them. `peak_device_bytes` counts the memory.
//! @throws std::invalid_argument (duration) for a share that is not between 0 and 1.
template <cost_model Cost, class Share>
struct partial_cost {
  Cost of{};     //!< the times of whole activations
  Share share{}; //!< of a recompute or a copy

  //! The time of a pass of training.
  [[nodiscard]] constexpr double duration(pass const& what) const {
    return duration(kinds_of_training, what);
  }
  //! The time of a pass of a flow: less where only a share is recomputed or copied.
  [[nodiscard]] constexpr double duration(flow const& declared, pass const& what) const {
    double const whole = time_of(of, declared, what);
    stage_call const calls = declared[what.kind].calls;
    if (calls != stage_call::recompute && !is_copy(declared[what.kind]))
      return whole;
    double const part = share(what);
    if (!(part >= 0 && part <= 1))
      throw std::invalid_argument("partial_cost: the share of an activation that is recomputed or "
                                  "copied must be between 0 and 1");
    return part * whole;
  }
  [[nodiscard]] constexpr double latency() const { return of.latency(); }
  [[nodiscard]] constexpr group_times groups() const { return groups_of(of); }
  [[nodiscard]] constexpr double
  pair_duration(flow const& declared, pass const& first, pass const& second) const {
    return detail::pair_duration(of, declared, first, second);
  }
};

} // namespace detail

} // namespace pipelining::inline v0_3
