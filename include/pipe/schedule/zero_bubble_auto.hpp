// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Zero bubble under a memory limit, with the times of every stage. Header for
//! pipelining::ZeroBubbleAuto.

#include <pipe/schedule/schedule.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <stdexcept>

namespace pipelining::inline v0_3 {
namespace detail {

//! What the search for a zero-bubble order knows: one stage per device, times by stage.
struct zero_bubble_problem {
  int devices;
  int microbatches;
  double limit; //!< microbatches that a device may hold
  double kept;  //!< share of an activation that is held between the two halves of the backward
  double latency;
  double const* forward; //!< [P]
  double const* input;   //!< [P]
  double const* weight;  //!< [P]
};

struct zero_bubble_figures {
  double span = std::numeric_limits<double>::infinity();
  double makespan = std::numeric_limits<double>::infinity();

  [[nodiscard]] constexpr bool better_than(zero_bubble_figures const& other) const noexcept {
    return span < other.span || (span == other.span && makespan < other.makespan);
  }
};

//! How a device decides, where it has a choice.
struct zero_bubble_policy {
  //! Microbatches between forward and backward_input on device d: 1 + reach (P - 1 - d) / 2,
  //! rounded up; 0 stands for as many forward passes as fit before the first gradient returns.
  int reach;
  int extra;          //!< one more than that, but for the last device
  bool forward_first; //!< when a forward and a backward_input could both start
  double least_wait;  //!< a wait longer than this share of a backward_weight is worth one
  bool spare_worst;   //!< so is a wait that would make this device the one that waited longest
};

//! Found by greedy selection: each is the one that shortens the spans of 2000 pipelines with random
//! times and limits, and of the reference's own examples, most, given those before it. On the
//! random pipelines the spans are 0.2 % above the best of 234 policies.
inline constexpr zero_bubble_policy zero_bubble_policies[] = {
  {4, 0, true, 0.5, true},
  {0, 0, true, 1, true},
  {4, 1, false, 0.5, false},
  {2, 0, true, 0.75, false},
  {3, 0, true, 0.75, true},
  {0, 0, true, 0.25, true},
  {4, 1, true, 0, false},
  {0, 0, true, 0, false},
};

//! A bound that no order goes below.
//!
//! When device j starts its last forward, all but `limit` of its gradients of weights are behind
//! it. From there the last gradient of an input climbs to any device e <= j, which still has one
//! gradient of weights to do. On the other side, a device waits for its first gradient, and has at
//! most `limit` forward passes to fill that time with.
//! @source own derivation, see docs/explanation/zero_bubble_auto.md.
[[nodiscard]] constexpr zero_bubble_figures zero_bubble_bound(zero_bubble_problem const& p) {
  zero_bubble_figures bound{0, 0};
  double head = 0;  // until device j can begin
  double down = 0;  // from the start of a device to device j and back to its last gradient
  double up = 0;    // the way back alone
  double below = 0; // from device j to the last one and back
  for (int e = 1; e < p.devices; ++e)
    below += p.forward[e] + p.input[e] + 2 * p.latency;
  for (int j = 0; j < p.devices; ++j) {
    double const busy = p.microbatches * (p.forward[j] + p.input[j] + p.weight[j]);
    double const freed_by_input = (1 - p.kept) * (p.microbatches - 1);
    double const to_free = p.microbatches - p.limit - freed_by_input;
    int weights = 0;
    while (weights + 1 < p.microbatches && p.kept * weights < to_free - 1e-6)
      ++weights;
    double const last_input = p.microbatches * (p.forward[j] + p.input[j]) + weights * p.weight[j];
    down = std::max(down, p.weight[j]);
    up = std::max(up, p.weight[j]);
    double const filled = std::min(static_cast<double>(p.microbatches), p.limit) * p.forward[j];
    double const wait = std::max(0.0, p.forward[j] + below - filled);
    bound.span = std::max({bound.span, last_input + down, busy + wait});
    bound.makespan = std::max({bound.makespan, head + last_input + up, head + busy + wait});
    head += p.forward[j] + p.latency;
    down += p.forward[j] + p.input[j] + 2 * p.latency;
    up += p.input[j] + p.latency;
    if (j + 1 < p.devices)
      below -= p.forward[j + 1] + p.input[j + 1] + 2 * p.latency;
  }
  return bound;
}

//! Runs a pipeline forward in time: the device that can decide first decides first, with what it
//! knows then. A device that has nothing to do waits for the neighbour that will give it something.
class zero_bubble_run {
public:
  constexpr explicit zero_bubble_run(zero_bubble_problem const& problem)
      : p_(problem), leaves_(leaves(problem.devices)), forward_ends_(cells(problem)),
        input_ends_(cells(problem)), at_(static_cast<std::size_t>(problem.devices)),
        wake_(static_cast<std::size_t>(leaves_)), first_(static_cast<std::size_t>(2 * leaves_)) {}

  //! @param longest a span that is no better; a run that cannot stay below it ends early, without
  //! figures.
  //! @param rows where to write the passes, or null for the figures alone.
  constexpr zero_bubble_figures
  operator()(zero_bubble_policy const& policy, double longest, row_writer* rows) {
    begin(policy);
    longest_ = longest * (1 + 1e-12);
    rows_ = rows;
    while (wake_.of[first_.of[1]] < never_again) {
      if (hopeless_)
        return {};
      int const d = first_.of[1];
      sleep_until(d, decide(policy, d, wake_.of[d]));
    }
    zero_bubble_figures result{0, 0};
    for (int d = 0; d < p_.devices; ++d) {
      double const began = forward_ends_.of[index(d, 0)] - p_.forward[d];
      result.span = std::max(result.span, at_.of[d].now - began);
      result.makespan = std::max(result.makespan, at_.of[d].now);
    }
    return result;
  }

private:
  static constexpr double never_again = std::numeric_limits<double>::max();

  struct device {
    double now;    //!< when its last pass ends
    double waited; //!< since its first pass
    int forwards;
    int inputs;
    int weights;
    int reach;
  };

  [[nodiscard]] static constexpr int leaves(int devices) noexcept {
    int power = 1;
    while (power < devices)
      power *= 2;
    return power;
  }
  [[nodiscard]] static constexpr std::size_t cells(zero_bubble_problem const& p) noexcept {
    return static_cast<std::size_t>(p.devices) * static_cast<std::size_t>(p.microbatches);
  }
  [[nodiscard]] constexpr std::size_t index(int d, int microbatch) const noexcept {
    return static_cast<std::size_t>(d) * static_cast<std::size_t>(p_.microbatches) +
           static_cast<std::size_t>(microbatch);
  }

  constexpr void begin(zero_bubble_policy const& policy) {
    longest_wait_ = 0;
    hopeless_ = false;
    double round_trip = 0;
    for (int d = p_.devices - 1; d >= 0; --d) {
      int const behind = p_.devices - 1 - d;
      double reach = 1 + (policy.reach * behind + 1) / 2 + (behind > 0 ? policy.extra : 0);
      if (policy.reach == 0)
        reach = p_.forward[d] > 0 ? 1 + round_trip / p_.forward[d] + 1e-9 : p_.microbatches;
      at_.of[d] = {0, 0, 0, 0, 0, static_cast<int>(std::min<double>(reach, p_.microbatches))};
      round_trip += p_.forward[d] + p_.input[d] + 2 * p_.latency;
    }
    for (int leaf = 0; leaf < leaves_; ++leaf) {
      wake_.of[leaf] = leaf < p_.devices ? 0 : never_again;
      first_.of[leaves_ + leaf] = leaf;
    }
    for (int node = leaves_ - 1; node > 0; --node)
      first_.of[node] = earlier(node);
  }

  //! The next thing that a device does at a time when it is free; returns when it is free again,
  //! or has something new to decide.
  constexpr double decide(zero_bubble_policy const& policy, int d, double time) {
    device const& own = at_.of[d];
    bool const pending = own.weights < own.inputs;
    bool const room =
      own.forwards - own.inputs + p_.kept * (own.inputs - own.weights) + 1 <= p_.limit + 1e-6;
    bool const may_forward =
      own.forwards < p_.microbatches && own.forwards - own.inputs < own.reach && (room || pending);
    double const forward_ready = may_forward ? forward_arrival(d) : never_again;
    double const input_ready = input_arrival(d);
    bool const forward_now = forward_ready <= time;
    if (forward_now && (policy.forward_first || input_ready > time))
      return room ? forward(d, time) : weight(d, time);
    if (input_ready <= time)
      return input(d, time);
    double const next = std::min(forward_ready, input_ready);
    if (!pending)
      return next;
    double const wait = next - time;
    bool const worth_one = wait >= p_.weight[d] || wait > policy.least_wait * p_.weight[d] ||
                           (policy.spare_worst && own.waited + wait > longest_wait_ * (1 + 1e-12));
    return worth_one ? weight(d, time) : next;
  }

  [[nodiscard]] constexpr double forward_arrival(int d) const noexcept {
    int const microbatch = at_.of[d].forwards;
    if (d == 0)
      return 0;
    return microbatch < at_.of[d - 1].forwards
             ? forward_ends_.of[index(d - 1, microbatch)] + p_.latency
             : never_again;
  }
  [[nodiscard]] constexpr double input_arrival(int d) const noexcept {
    int const microbatch = at_.of[d].inputs;
    if (microbatch == at_.of[d].forwards)
      return never_again;
    if (d + 1 == p_.devices)
      return forward_ends_.of[index(d, microbatch)];
    return microbatch < at_.of[d + 1].inputs ? input_ends_.of[index(d + 1, microbatch)] + p_.latency
                                             : never_again;
  }

  constexpr double forward(int d, double time) {
    int const microbatch = at_.of[d].forwards++;
    double const end = spend(d, time, p_.forward[d], pass_kind::forward, microbatch);
    forward_ends_.of[index(d, microbatch)] = end;
    if (d + 1 < p_.devices)
      wake(d + 1, end + p_.latency);
    return end;
  }
  constexpr double input(int d, double time) {
    int const microbatch = at_.of[d].inputs++;
    double const end = spend(d, time, p_.input[d], pass_kind::backward_input, microbatch);
    input_ends_.of[index(d, microbatch)] = end;
    if (d > 0)
      wake(d - 1, end + p_.latency);
    return end;
  }
  constexpr double weight(int d, double time) {
    int const microbatch = at_.of[d].weights++;
    return spend(d, time, p_.weight[d], pass_kind::backward_weight, microbatch);
  }
  constexpr double spend(int d, double time, double duration, pass_kind kind, int microbatch) {
    if (rows_ != nullptr)
      rows_[d].push(row_writer::make(kind, d, microbatch));
    device& own = at_.of[d];
    if (time > own.now && own.forwards + own.inputs > 1) {
      own.waited += time - own.now;
      longest_wait_ = std::max(longest_wait_, own.waited);
      double const busy = p_.microbatches * (p_.forward[d] + p_.input[d] + p_.weight[d]);
      hopeless_ = hopeless_ || busy + own.waited > longest_;
    }
    own.now = time + duration;
    return own.now;
  }

  constexpr void wake(int d, double time) {
    double const earliest = std::max(time, at_.of[d].now);
    if (earliest < wake_.of[d])
      sleep_until(d, earliest);
  }
  constexpr void sleep_until(int d, double time) {
    wake_.of[d] = time;
    for (int node = (leaves_ + d) / 2; node > 0; node /= 2) {
      int const before = first_.of[node];
      first_.of[node] = earlier(node);
      if (before != d && first_.of[node] != d)
        return; // nothing above has looked at this device, or will
    }
  }
  [[nodiscard]] constexpr int earlier(int node) const noexcept {
    int const left = first_.of[2 * node];
    int const right = first_.of[2 * node + 1];
    return wake_.of[right] < wake_.of[left] ? right : left;
  }

  zero_bubble_problem p_;
  int leaves_;
  double longest_wait_ = 0;
  double longest_ = 0;
  bool hopeless_ = false;
  row_writer* rows_ = nullptr;
  owned<double> forward_ends_; //!< [P, M]
  owned<double> input_ends_;   //!< [P, M]
  owned<device> at_;           //!< [P]
  owned<double> wake_;         //!< when a device next decides, padded to a power of two
  owned<int> first_;           //!< a tournament of devices: the earliest is at 1
};

//! A span that no schedule reaches.
inline constexpr double no_limit_on_span = std::numeric_limits<double>::infinity();

//! The times of the stages, those of microbatch 0: [3][P].
template <cost_model Cost>
constexpr void read_times(owned<double> const& times, int devices, Cost const& cost) {
  constexpr pass_kind kinds[] = {
    pass_kind::forward, pass_kind::backward_input, pass_kind::backward_weight};
  for (int i = 0; i < 3 * devices; ++i)
    times.of[i] = checked_duration(cost, row_writer::make(kinds[i / devices], i % devices, 0));
}

//! The best list schedule so far.
struct zero_bubble_choice {
  static constexpr int policies = sizeof zero_bubble_policies / sizeof *zero_bubble_policies;

  int best = 0;
  zero_bubble_figures figures;

  //! Tries a policy, unless what is there already is proven to be the best.
  constexpr void consider(zero_bubble_problem const& problem, int policy) {
    zero_bubble_figures const bound = zero_bubble_bound(problem);
    if (figures.span <= bound.span * (1 + 1e-12) &&
        figures.makespan <= bound.makespan * (1 + 1e-12))
      return;
    zero_bubble_run run(problem);
    zero_bubble_figures const here = run(zero_bubble_policies[policy], figures.span, nullptr);
    if (!here.better_than(figures))
      return;
    figures = here;
    best = policy;
  }
};

} // namespace detail

//! @brief The automatic zero-bubble scheduler: split backward passes, ordered for the times of
//! every stage and the latency, under a limit on the activations that a device holds.
//!
//! With limit P it is ZB-1P, with 2P ZB-2P. Runs eight list schedules, which differ in how far
//! forward passes run ahead and in when a gradient of weights fills a wait that is shorter than
//! itself, and keeps the one with the shortest span, among equals the one with the shortest
//! makespan; stops early where a lower bound proves the best found to be the best there is. Any P
//! >= 1, M >= 1.
//!
//! Looks at the times of microbatch 0. With equal stages, limit P and no latency, the bubble is
//! that of ZB-H1, (P - 1)(F + I - W), for M >= P. With limit L <= M it is at least (P - 1)(F + I +
//! 2c) - (L - 1) W on the span.
//!
//! @tparam TimesDevices the limit in multiples of P, or `dynamic` for `memory_limit`.
//! @complexity O(log P) per pass.
//! @source own derivation, see docs/explanation/zero_bubble_auto.md; the problem is that of Qi et
//! al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (arXiv:2401.10241), section 3.
template <int TimesDevices = dynamic>
struct ZeroBubbleAuto {
  static_assert(TimesDevices == dynamic || TimesDevices >= 1,
                "ZeroBubbleAuto: the memory limit is at least one times the number of devices");

  //! Microbatches whose activations a device may hold; stored for `dynamic` alone.
  parameter<TimesDevices, 0> memory_limit{};
  //! Share of an activation that is still held after backward_input, until backward_weight.
  double kept_for_weight = 1;

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    if (TimesDevices == dynamic && memory_limit < 1)
      throw std::invalid_argument(
        "ZeroBubbleAuto: the memory limit must be at least 1 microbatch, because a device cannot "
        "run a forward pass without keeping its activation");
    if (!(kept_for_weight >= 0 && kept_for_weight <= 1))
      throw std::invalid_argument(
        "ZeroBubbleAuto: the share kept for backward_weight must be between 0 and 1");
    return {.devices = devices, .microbatches = microbatches};
  }

  //! @brief Writes the order of every device.
  //! @param rows [P]
  template <cost_model Cost>
  constexpr void generate(shape const& extents, Cost const& cost, row_writer* rows) const {
    detail::owned<double> const times(3 * static_cast<std::size_t>(extents.devices));
    detail::zero_bubble_problem const problem = problem_on(times, extents, cost);
    detail::zero_bubble_choice choice;
    for (int policy = 0; policy < detail::zero_bubble_choice::policies; ++policy)
      choice.consider(problem, policy);
    detail::zero_bubble_run run(problem);
    run(detail::zero_bubble_policies[choice.best], detail::no_limit_on_span, rows);
  }

private:
  template <cost_model Cost>
  [[nodiscard]] constexpr detail::zero_bubble_problem
  problem_on(detail::owned<double> const& times, shape const& extents, Cost const& cost) const {
    int const devices = extents.devices;
    double const latency = detail::checked_latency(cost);
    detail::read_times(times, devices, cost);
    double total = 2.0 * devices * latency;
    for (int i = 0; i < 3 * devices; ++i)
      total += extents.microbatches * times.of[i];
    detail::check_total(total);
    double const limit = 1.0 * memory_limit * (TimesDevices == dynamic ? 1 : devices);
    double const* const of = times.of;
    return {devices,
            extents.microbatches,
            limit,
            kept_for_weight,
            latency,
            of,
            of + devices,
            of + 2 * devices};
  }
};

} // namespace pipelining::inline v0_3
