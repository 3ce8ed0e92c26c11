// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The least time that a moment with copies still needs, microbatch by microbatch. Header
//! for pipelining::detail::least_rest_of_each.

#include <pipe/search/exact_state.hpp>

#include <algorithm>
#include <array>
#include <cstddef>

namespace pipelining::inline v0_2 {
namespace detail {

//! Earliest starts of the passes of all microbatches, as far as order, messages, copies and room
//! ask for them: no device does two things at once only where that is counted.
class exact_each {
public:
  exact_each(exact_world const& world, exact_state const& at) noexcept : world_(world), at_(at) {}

  //! A lower bound on the time from the state to the end of everything.
  [[nodiscard]] int least_rest() noexcept {
    int bound = 0;
    int const all = world_.microbatches;
    for (int k = 0; k < all; ++k) {
      for (int stage = 0; stage < world_.stages; ++stage) {
        auto const s = static_cast<std::size_t>(stage);
        if (k < at_.stage[s].forward)
          continue;
        find_forward(stage, k);
        bound = std::max(bound,
                         forward_[s] +
                           (all - k) * (world_.forward[s] + world_.input[s] + world_.weight[s]));
      }
      for (int stage = world_.stages - 1; stage >= 0; --stage) {
        auto const s = static_cast<std::size_t>(stage);
        if (k >= at_.stage[s].input) {
          find_input(stage, k);
          bound = std::max(bound, input_[s] + (all - k) * (world_.input[s] + world_.weight[s]));
        }
        if (k >= at_.stage[s].weight - runs(stage, exact_kind::backward_weight)) {
          find_weight(stage, k);
          bound = std::max(bound, weight_end_[s]);
        }
      }
    }
    return bound;
  }

private:
  [[nodiscard]] exact_engine const& compute(int stage) const noexcept {
    return at_.compute[static_cast<std::size_t>(world_.device[static_cast<std::size_t>(stage)])];
  }
  [[nodiscard]] exact_engine const& lane(int stage) const noexcept {
    return at_.lane[static_cast<std::size_t>(world_.device[static_cast<std::size_t>(stage)])];
  }
  [[nodiscard]] int runs(int stage, exact_kind kind) const noexcept {
    return engine_runs(compute(stage), kind, stage);
  }
  //! When what stage `from` has sent for microbatch k arrives, of which it has begun `begun`.
  [[nodiscard]] static int
  arrival(exact_arrivals const& list, int begun, int k, int otherwise) noexcept {
    if (k >= begun)
      return otherwise;
    int const place = k - (begun - list.count);
    return place < 0 ? 0 : list.left[static_cast<std::size_t>(place)];
  }

  void find_forward(int stage, int k) noexcept {
    auto const s = static_cast<std::size_t>(stage);
    exact_stage const& here = at_.stage[s];
    int const before = (k - here.forward) * world_.forward[s];
    int start = compute(stage).left + before;
    if (k > here.forward)
      start = std::max(start, forward_[s] + world_.forward[s]);
    if (stage > 0)
      start = std::max(start,
                       arrival(at_.stage[s - 1].to_next,
                               at_.stage[s - 1].forward,
                               k,
                               forward_[s - 1] + world_.forward[s - 1] + world_.down[s - 1]));
    forward_[s] = std::max(start, room(stage, k, before));
  }

  //! When the activation of microbatch k has room: as many have to leave as are then too many, over
  //! the copy lane or for good.
  [[nodiscard]] int room(int stage, int k, int before) const noexcept {
    auto const s = static_cast<std::size_t>(stage);
    int const device = world_.device[s];
    if (world_.recomputes || world_.stages > world_.devices)
      return 0;
    exact_stage const& here = at_.stage[s];
    int const wanted =
      held(world_, at_, device) / world_.whole + k - here.forward + 1 - world_.cap / world_.whole;
    if (wanted <= 0)
      return 0;
    int const out_now = lane(stage).kind == exact_kind::copy_out ? 1 : 0;
    int const free = compute(stage).left;
    int soonest = exact_never;
    for (int leave = 0; leave <= std::min(wanted, leaving_[s]); ++leave) {
      int const copied = wanted - leave;
      int time = copied == 0 ? 0 : lane(stage).left + (copied - out_now) * world_.copy;
      if (leave > 0) {
        int const label = label_[s][static_cast<std::size_t>(leave - 1)];
        int const inputs = std::max(0, label + 1 - here.input);
        int const weights = std::max(0, label + 1 - here.weight);
        time = std::max({time,
                         leaves_[s][static_cast<std::size_t>(leave - 1)],
                         free + before + inputs * world_.input[s] + weights * world_.weight[s]});
      }
      soonest = std::min(soonest, time);
    }
    return soonest;
  }

  void find_input(int stage, int k) noexcept {
    auto const s = static_cast<std::size_t>(stage);
    exact_stage const& here = at_.stage[s];
    // Behind all forward passes up to its own, and all backward passes before it.
    int start = compute(stage).left + std::max(0, k + 1 - here.forward) * world_.forward[s] +
                (k - here.input) * world_.input[s];
    if (k > here.input)
      start = std::max(start, input_[s] + world_.input[s]);
    if (k >= here.forward)
      start = std::max(start, forward_[s] + world_.forward[s]);
    if (stage + 1 < world_.stages)
      start = std::max(start,
                       arrival(at_.stage[s + 1].to_before,
                               at_.stage[s + 1].input,
                               k,
                               input_[s + 1] + world_.input[s + 1] + world_.up[s + 1]));
    input_[s] = std::max(start, comes_back(stage, k));
  }

  //! When all activations that are away up to microbatch k can be back: one copy after the other.
  [[nodiscard]] int comes_back(int stage, int k) const noexcept {
    auto const s = static_cast<std::size_t>(stage);
    exact_engine const& copies = lane(stage);
    int count = 0;
    bool any = false;
    for (int label = at_.stage[s].input; label <= k; ++label) {
      if ((at_.stage[s].away >> label & 1) == 0)
        continue;
      any = true;
      count += engine_runs(copies, exact_kind::copy_in, stage) > 0 && copies.label == label ? 0 : 1;
    }
    return any ? copies.left + count * world_.copy : 0;
  }

  void find_weight(int stage, int k) noexcept {
    auto const s = static_cast<std::size_t>(stage);
    exact_stage const& here = at_.stage[s];
    int const first = here.weight - runs(stage, exact_kind::backward_weight);
    int end = k == first ? compute(stage).left : weight_end_[s];
    if (k >= here.weight) {
      if (k >= here.input)
        end = std::max(end, input_[s] + world_.input[s]);
      end += world_.weight[s];
    }
    weight_end_[s] = end;
    // What is away leaves nothing behind that was there: it has to come back first.
    if ((here.away >> k & 1) != 0)
      return;
    auto const next = static_cast<std::size_t>(leaving_[s]++);
    leaves_[s][next] = end;
    label_[s][next] = k;
  }

  exact_world const& world_;
  exact_state const& at_;
  // Of the microbatch that is looked at, or the one before.
  std::array<int, most_exact_stages> forward_{};
  std::array<int, most_exact_stages> input_{};
  std::array<int, most_exact_stages> weight_end_{};
  // Activations that are there and leave for good, in order: when, and of which microbatch.
  std::array<int, most_exact_stages> leaving_{};
  std::array<std::array<int, most_exact_microbatches>, most_exact_stages> leaves_{};
  std::array<std::array<int, most_exact_microbatches>, most_exact_stages> label_{};
};

} // namespace detail
} // namespace pipelining::inline v0_2
