// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Zero bubble under a memory limit, with the times of every stage. Header for
//! pipelining::ZeroBubbleAuto.

#include <pipe/flow/array_of.hpp>
#include <pipe/schedule/schedule.hpp>

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace pipelining::inline v0_3 {
namespace detail {

//! The input of the search for a zero-bubble order: one stage per device, times by stage and
//! microbatch.
struct zero_bubble_problem {
  int devices;
  int microbatches;
  double const* limits; //!< [P] microbatches that a device may hold
  double const* shares; //!< [P] of an activation, held between the two halves of the backward
  double latency;
  double const* times; //!< [3][P][M] forward, backward_input, backward_weight
  //! [P][M] time of the recomputation that makes the activation again, right before
  //! backward_input; negative where the activation is kept. Null: all are.
  double const* again = nullptr;
  double most = std::numeric_limits<double>::infinity(); //!< that any of these limits counts for

  [[nodiscard]] constexpr double limit_of(int d) const noexcept {
    return std::min(most, limits[d]);
  }
  //! Whether a device may hold more than one microbatch for each device.
  [[nodiscard]] constexpr bool has_more_than_devices() const noexcept {
    for (int d = 0; d < devices; ++d)
      if (limit_of(d) > devices)
        return true;
    return false;
  }
  [[nodiscard]] constexpr double forward(int d, int microbatch) const noexcept {
    return times[d * microbatches + microbatch];
  }
  [[nodiscard]] constexpr double input(int d, int microbatch) const noexcept {
    return times[(devices + d) * microbatches + microbatch];
  }
  [[nodiscard]] constexpr double weight(int d, int microbatch) const noexcept {
    return times[(2 * devices + d) * microbatches + microbatch];
  }
  //! Negative: the activation is kept.
  [[nodiscard]] constexpr double recompute(int d, int microbatch) const noexcept {
    return again == nullptr ? -1 : again[d * microbatches + microbatch];
  }
  //! The time of the first `count` passes of a kind on a device.
  [[nodiscard]] constexpr double first(int kind, int d, int count) const noexcept {
    double sum = 0;
    for (int i = 0; i < count; ++i)
      sum += times[(kind * devices + d) * microbatches + i];
    return sum;
  }
  //! All passes of a device.
  [[nodiscard]] constexpr double busy(int d) const noexcept {
    double sum = first(0, d, microbatches) + first(1, d, microbatches) + first(2, d, microbatches);
    for (int i = 0; again != nullptr && i < microbatches; ++i)
      sum += std::max(recompute(d, i), 0.0);
    return sum;
  }
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
  //! Passes in the turn of ZB-H1 (reach 2) or ZB-H2 (4), as far as the limit lets forward passes
  //! run ahead, and nothing else while the next one waits.
  bool in_turn = false;
};

//! The schedules that no other may be slower than: ZB-H1, and with more memory ZB-H2.
inline constexpr zero_bubble_policy plain_zero_bubble[] = {{2, 0, true, 1, false, true},
                                                           {4, 0, true, 1, false, true}};

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

//! A bound that no order goes below in which a device takes the microbatches one after the other.
//!
//! When device j starts its last forward, all but `limit` of its gradients of weights stand before
//! it. From there the last gradient of an input climbs to any device e <= j, which still has one
//! gradient of weights to do. On the other side, a device waits for its first gradient, and has at
//! most `limit` forward passes to fill that time with.
//! @source own derivation, see docs/explanation/zero_bubble_auto.md.
//! Nothing is known where activations are recomputed.
[[nodiscard]] constexpr zero_bubble_figures zero_bubble_bound(zero_bubble_problem const& p) {
  zero_bubble_figures bound{0, 0};
  if (p.again != nullptr)
    return bound;
  int const last = p.microbatches - 1;
  double head = 0;  // until device j can begin
  double down = 0;  // from the start of a device to device j and back to its last gradient
  double up = 0;    // the way back alone
  double below = 0; // from device j to the last one and back
  for (int e = 1; e < p.devices; ++e)
    below += p.forward(e, 0) + p.input(e, 0) + 2 * p.latency;
  for (int j = 0; j < p.devices; ++j) {
    double const both = p.first(0, j, p.microbatches) + p.first(1, j, p.microbatches);
    double const busy = both + p.first(2, j, p.microbatches);
    double const freed_by_input = (1 - p.shares[j]) * (p.microbatches - 1);
    double const to_free = p.microbatches - p.limit_of(j) - freed_by_input;
    int weights = 0;
    while (weights + 1 < p.microbatches && p.shares[j] * weights < to_free - 1e-6)
      ++weights;
    double const last_input = both + p.first(2, j, weights);
    down = std::max(down, p.weight(j, last));
    up = std::max(up, p.weight(j, last));
    int const held = static_cast<int>(std::min<double>(p.microbatches, p.limit_of(j)));
    double const wait = std::max(0.0, p.forward(j, 0) + below - p.first(0, j, held));
    bound.span = std::max({bound.span, last_input + down, busy + wait});
    bound.makespan = std::max({bound.makespan, head + last_input + up, head + busy + wait});
    head += p.forward(j, 0) + p.latency;
    down += p.forward(j, 0) + p.input(j, last) + 2 * p.latency;
    up += p.input(j, last) + p.latency;
    if (j + 1 < p.devices)
      below -= p.forward(j + 1, 0) + p.input(j + 1, 0) + 2 * p.latency;
  }
  return bound;
}

//! Runs a pipeline forward in time: the device that can decide first decides first, with what it
//! knows then. A device that has nothing to do waits for the neighbour that will give it something.
class zero_bubble_run {
public:
  constexpr explicit zero_bubble_run(zero_bubble_problem const& problem)
      : p_(problem), forward_ends_(problem.devices * problem.microbatches),
        input_ends_(problem.devices * problem.microbatches), at_(problem.devices),
        wake_(problem.devices), waking_(problem.devices) {}

  //! @param rows where to write the passes, or null for figures only.
  //! @param longest a span that is no better; a run that cannot stay below it ends early, without
  //! figures.
  constexpr zero_bubble_figures
  operator()(zero_bubble_policy const& policy,
             row_writer* rows = nullptr,
             double longest = std::numeric_limits<double>::infinity()) {
    begin(policy);
    longest_ = longest * (1 + 1e-12);
    rows_ = rows;
    while (!waking_.empty()) {
      if (hopeless_)
        return {};
      int const d = waking_.first();
      sleep_until(d, decide(policy, d, wake_[d]));
    }
    zero_bubble_figures result{0, 0};
    for (int d = 0; d < p_.devices; ++d) {
      if (at_[d].weights < p_.microbatches)
        return {}; // in turn, where a device waits for what another one has no room for
      double const began = forward_ends_[index(d, 0)] - p_.forward(d, 0);
      result.span = std::max(result.span, at_[d].now - began);
      result.makespan = std::max(result.makespan, at_[d].now);
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
    double busy; //!< with all its passes
    double held; //!< activations, after its last pass
    bool recomputes;
  };

  [[nodiscard]] constexpr int index(int d, int microbatch) const noexcept {
    return d * p_.microbatches + microbatch;
  }

  constexpr void begin(zero_bubble_policy const& policy) {
    longest_wait_ = 0;
    hopeless_ = false;
    double round_trip = 0;
    for (int d = p_.devices - 1; d >= 0; --d) {
      int const behind = p_.devices - 1 - d;
      double reach = 1 + (policy.reach * behind + 1) / 2 + (behind > 0 ? policy.extra : 0);
      if (policy.reach == 0)
        reach = 1 + ahead_of_first_gradient(d, round_trip);
      if (policy.in_turn && p_.again == nullptr)
        reach = std::min<double>(reach, static_cast<int>(p_.limit_of(d) + 1e-6));
      at_[d] = {0,
                0,
                0,
                0,
                0,
                static_cast<int>(std::min<double>(reach, p_.microbatches)),
                p_.busy(d),
                0,
                recomputes(d)};
      round_trip += p_.forward(d, 0) + p_.input(d, 0) + 2 * p_.latency;
    }
    for (int d = 1; policy.in_turn && d < p_.devices; ++d) // no device waits for more than come
      at_[d].reach = std::min(at_[d].reach, at_[d - 1].reach);
    for (int d = 0; d < p_.devices; ++d)
      sleep_until(d, 0);
  }

  //! Forward passes of a device after its first one that fit into a time.
  [[nodiscard]] constexpr int ahead_of_first_gradient(int d, double time) const noexcept {
    int count = 0;
    double sum = 0;
    while (count + 1 < p_.microbatches &&
           (sum += p_.forward(d, count)) <= time + 1e-9 * p_.forward(d, count))
      ++count;
    return count;
  }

  [[nodiscard]] constexpr bool recomputes(int d) const noexcept {
    for (int i = 0; p_.again != nullptr && i < p_.microbatches; ++i)
      if (p_.recompute(d, i) >= 0)
        return true;
    return false;
  }
  //! Whether one more activation fits, if only while the pass runs. Where some are recomputed and
  //! some are not, there is room left for one that is, unless nothing is under way.
  [[nodiscard]] constexpr bool has_room_for_forward(int d) const noexcept {
    device const& own = at_[d];
    if (own.forwards == p_.microbatches)
      return true;
    bool const stays = p_.recompute(d, own.forwards) < 0;
    bool const spare = stays && own.recomputes && own.forwards > own.inputs;
    return own.held + (spare ? 2 : 1) <= p_.limit_of(d) + 1e-6;
  }
  [[nodiscard]] constexpr bool has_room_for_input(int d) const noexcept {
    device const& own = at_[d];
    return own.inputs == p_.microbatches || p_.recompute(d, own.inputs) < 0 ||
           own.held + 1 <= p_.limit_of(d) + 1e-6;
  }

  //! The next pass in the turn of ZB-H1 or ZB-H2, where a gradient of weights comes as late as the
  //! limit allows, at most d or 2 d microbatches late; returns as `decide` does.
  constexpr double decide_in_turn(zero_bubble_policy const& policy, int d, double time) {
    device const& own = at_[d];
    int const latest = policy.reach / 2 * d;
    int const lag = p_.again == nullptr
                      ? std::min(latest, static_cast<int>(p_.limit_of(d) + 1e-6) - own.reach)
                      : latest;
    bool const forwards_left = own.forwards < p_.microbatches;
    bool const forward_next = forwards_left && own.forwards - own.inputs < own.reach;
    bool const room = forward_next ? has_room_for_forward(d) : has_room_for_input(d);
    if (own.inputs - own.weights > (own.inputs < p_.microbatches && room ? lag : 0))
      return weight(d, time);
    double const ready = !room ? never_again : forward_next ? forward_arrival(d) : input_arrival(d);
    if (ready > time)
      return ready;
    return forward_next ? forward(d, time) : input(d, time);
  }

  //! The next thing that a device does at a time when it is free; returns when it is free again,
  //! or has something new to decide.
  constexpr double decide(zero_bubble_policy const& policy, int d, double time) {
    if (policy.in_turn)
      return decide_in_turn(policy, d, time);
    device const& own = at_[d];
    bool const pending = own.weights < own.inputs;
    bool const room = has_room_for_forward(d);
    bool const may_forward =
      own.forwards < p_.microbatches && own.forwards - own.inputs < own.reach && (room || pending);
    double const forward_ready = may_forward ? forward_arrival(d) : never_again;
    double const input_ready = input_arrival(d);
    bool const forward_now = forward_ready <= time;
    if (forward_now && (policy.forward_first || input_ready > time))
      return room ? forward(d, time) : weight(d, time);
    if (input_ready <= time)
      return has_room_for_input(d) ? input(d, time) : weight(d, time);
    double const next = std::min(forward_ready, input_ready);
    if (!pending)
      return next;
    double const wait = next - time;
    double const next_weight = p_.weight(d, own.weights);
    bool const worth_one = wait >= next_weight || wait > policy.least_wait * next_weight ||
                           (policy.spare_worst && own.waited + wait > longest_wait_ * (1 + 1e-12));
    return worth_one ? weight(d, time) : next;
  }

  [[nodiscard]] constexpr double forward_arrival(int d) const noexcept {
    int const microbatch = at_[d].forwards;
    if (d == 0)
      return 0;
    return microbatch < at_[d - 1].forwards ? forward_ends_[index(d - 1, microbatch)] + p_.latency
                                            : never_again;
  }
  [[nodiscard]] constexpr double input_arrival(int d) const noexcept {
    int const microbatch = at_[d].inputs;
    if (microbatch == at_[d].forwards)
      return never_again;
    double const forward_end = forward_ends_[index(d, microbatch)];
    if (d + 1 == p_.devices)
      return forward_end;
    if (microbatch >= at_[d + 1].inputs)
      return never_again;
    // A recomputation runs while the gradient is on its way.
    double const arrival = input_ends_[index(d + 1, microbatch)] + p_.latency;
    return std::max(forward_end, arrival - std::max(p_.recompute(d, microbatch), 0.0));
  }

  constexpr double forward(int d, double time) {
    int const microbatch = at_[d].forwards++;
    double const end = spend(d, time, p_.forward(d, microbatch), pass_kind::forward, microbatch);
    at_[d].held += p_.recompute(d, microbatch) < 0 ? 1 : 0;
    forward_ends_[index(d, microbatch)] = end;
    if (d + 1 < p_.devices)
      wake(d + 1, end + p_.latency);
    return end;
  }
  constexpr double input(int d, double time) {
    int const microbatch = at_[d].inputs++;
    double const again = std::max(p_.recompute(d, microbatch), 0.0);
    double const end =
      spend(d, time, again + p_.input(d, microbatch), pass_kind::backward_input, microbatch);
    at_[d].held += p_.shares[d] - (p_.recompute(d, microbatch) < 0 ? 1 : 0);
    input_ends_[index(d, microbatch)] = end;
    if (d > 0)
      wake(d - 1, p_.again == nullptr ? end + p_.latency : input_arrival(d - 1));
    return end;
  }
  constexpr double weight(int d, double time) {
    int const microbatch = at_[d].weights++;
    at_[d].held -= p_.shares[d];
    return spend(d, time, p_.weight(d, microbatch), pass_kind::backward_weight, microbatch);
  }
  constexpr double spend(int d, double time, double duration, pass_kind kind, int microbatch) {
    if (rows_ != nullptr)
      rows_[d].push(row_writer::make(kind, d, microbatch));
    device& own = at_[d];
    if (time > own.now && own.forwards + own.inputs > 1) {
      own.waited += time - own.now;
      longest_wait_ = std::max(longest_wait_, own.waited);
      hopeless_ = hopeless_ || own.busy + own.waited > longest_;
    }
    own.now = time + duration;
    return own.now;
  }

  constexpr void wake(int d, double time) {
    double const earliest = std::max(time, at_[d].now);
    if (earliest < wake_[d])
      sleep_until(d, earliest);
  }
  constexpr void sleep_until(int d, double time) {
    wake_[d] = time;
    waking_.set(d, time < never_again ? earliest_tree::key_of(time) : earliest_tree::absent);
  }

  zero_bubble_problem p_;
  double longest_wait_ = 0;
  double longest_ = 0;
  bool hopeless_ = false;
  row_writer* rows_ = nullptr;
  owned<double> forward_ends_; //!< [P, M]
  owned<double> input_ends_;   //!< [P, M]
  owned<device> at_;           //!< [P]
  owned<double> wake_;         //!< [P], when a device next decides
  earliest_tree waking_;       //!< of those that do
};

//! The times of the stages: [3][P][M].
constexpr void
read_times(owned<double> const& times, int devices, int microbatches, cost_model auto const& cost) {
  constexpr pass_kind kinds[] = {
    pass_kind::forward, pass_kind::backward_input, pass_kind::backward_weight};
  for (int i = 0; i < 3 * devices; ++i)
    for (int microbatch = 0; microbatch < microbatches; ++microbatch)
      times[i * microbatches + microbatch] = checked_duration(
        cost, kinds_of_training, row_writer::make(kinds[i / devices], i % devices, microbatch));
}

//! The best list schedule.
class zero_bubble_choice {
public:
  constexpr explicit zero_bubble_choice(zero_bubble_problem const& problem)
      : problem_(problem), bound_(zero_bubble_bound(problem)), best_{problem} {
    look();
  }
  //! Writes its order.
  constexpr void write(row_writer* rows) const {
    zero_bubble_run(best_.problem)(best_.policy, rows);
  }

private:
  struct found {
    zero_bubble_problem problem; //!< with the memory that it uses
    zero_bubble_policy policy = plain_zero_bubble[0];
    zero_bubble_figures figures{};
  };

  constexpr void look() {
    for (zero_bubble_policy const& policy : zero_bubble_policies)
      consider(policy);
    if (proven())
      return;
    // None is worse than a plain schedule, whose span may be longer and makespan shorter, nor than
    // with less memory.
    found plain{problem_};
    bool const more = problem_.has_more_than_devices();
    for (zero_bubble_policy const& policy : plain_zero_bubble)
      if (more || policy.reach == 2)
        if (zero_bubble_figures const here = zero_bubble_run(problem_)(policy);
            here.makespan < plain.figures.makespan)
          plain = {problem_, policy, here};
    if (more) {
      zero_bubble_problem fewer = problem_;
      fewer.most = problem_.devices;
      zero_bubble_choice const with_fewer(fewer);
      if (with_fewer.best_.figures.makespan < plain.figures.makespan)
        plain = with_fewer.best_;
    }
    most_ = plain.figures.makespan * (1 + 1e-12);
    if (best_.figures.makespan <= most_)
      return;
    best_ = plain;
    for (zero_bubble_policy const& policy : zero_bubble_policies)
      consider(policy);
  }
  [[nodiscard]] constexpr bool proven() const noexcept {
    return best_.figures.span <= bound_.span * (1 + 1e-12) &&
           best_.figures.makespan <= bound_.makespan * (1 + 1e-12);
  }
  //! Tries a policy, unless what is there already is proven to be the best.
  constexpr void consider(zero_bubble_policy const& policy) {
    if (proven())
      return;
    zero_bubble_figures const here = zero_bubble_run(problem_)(policy, nullptr, best_.figures.span);
    if (here.makespan <= most_ && here.better_than(best_.figures))
      best_ = {problem_, policy, here};
  }

  zero_bubble_problem problem_;
  zero_bubble_figures bound_;
  found best_;
  double most_ = std::numeric_limits<double>::infinity();
};

//! Writes the best order.
//! @param problem of which limits and shares count; the rest is filled in
//! @param recomputed `recomputed(forward)`
template <cost_model Cost, class Recomputed>
constexpr void write_zero_bubble(zero_bubble_problem problem,
                                 Cost const& cost,
                                 Recomputed const& recomputed,
                                 row_writer* rows) {
  int const devices = problem.devices;
  int const microbatches = problem.microbatches;
  owned<double> const times(3 * devices * microbatches);
  problem.latency = checked_latency(cost);
  problem.times = times;
  read_times(times, devices, microbatches, cost);
  double total = 2.0 * devices * problem.latency;
  for (int i = 0; i < 3 * devices * microbatches; ++i)
    total += times[i];
  require(total < 1e300, "cost model: the times of all passes together are too large");
  owned<double> const again(devices * microbatches);
  for (int i = 0; i < devices * microbatches; ++i) {
    pass what = row_writer::make(pass_kind::forward, i / microbatches, i % microbatches);
    again[i] = -1;
    if (what.stage + 1 == devices || !recomputed(what))
      continue;
    what.kind = pass_kind::recompute;
    again[i] = checked_duration(cost, kinds_of_training, what);
    problem.again = again;
  }
  zero_bubble_choice(problem).write(rows);
}

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
//! Microbatches may take unlike times. The makespan is never longer than that of ZB-H1 or, above
//! limit P, than at limit P or that of ZB-H2, whose forward passes run ahead as far as the limit
//! allows. With equal stages, limit P and no latency, the bubble is that of ZB-H1, (P - 1)(F + I -
//! W), for M >= P. With limit L <= M it is at least (P - 1)(F + I + 2c) - (L - 1) W on the span.
//!
//! @tparam TimesDevices the limit in multiples of P, or `dynamic` for `memory_limit`.
//! @complexity O(log P) per pass.
//! @source own derivation, see docs/explanation/zero_bubble_auto.md; the problem is that of Qi et
//! al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (arXiv:2401.10241), section 3.
template <int TimesDevices = dynamic>
struct ZeroBubbleAuto {
  static_assert(TimesDevices == dynamic || TimesDevices >= 1,
                "ZeroBubbleAuto: the memory limit is at least one times the number of devices");

  //! Microbatches whose activations a device may hold; stored for `dynamic` only.
  detail::parameter<TimesDevices, 0> memory_limit{};
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

  //! Writes the order of every device. @param rows [P]
  constexpr void
  generate(shape const& extents, cost_model auto const& cost, row_writer* rows) const {
    generate_recomputed(
      extents, cost, [](pass const&) { return false; }, rows);
  }
  //! @brief The same where some activations are recomputed right before backward_input, and held
  //! only from there on; `with_recompute` adds the recomputations.
  //! @param recomputed `recomputed(forward)`; on the last device none is, whose backward_input
  //! follows at once
  template <cost_model Cost, class Recomputed>
  constexpr void generate_recomputed(shape const& extents,
                                     Cost const& cost,
                                     Recomputed const& recomputed,
                                     row_writer* rows) const {
    double const limit = 1.0 * memory_limit * (TimesDevices == dynamic ? 1 : extents.devices);
    detail::owned<double> const limits(extents.devices, limit);
    detail::owned<double> const shares(extents.devices, kept_for_weight);
    detail::write_zero_bubble(
      {extents.devices, extents.microbatches, limits, shares, 0, nullptr}, cost, recomputed, rows);
  }
};

} // namespace pipelining::inline v0_3
