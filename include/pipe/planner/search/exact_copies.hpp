// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The least time that a moment with copies still needs, microbatch by microbatch. Header
//! for pipelining::detail::least_rest_of_each.

#include <pipe/planner/search/exact_state.hpp>
#include <pipe/planner/search/exact_ways.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pipelining::inline v0_3::detail {

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
        if (k >= first_weight(stage)) {
          find_weight(stage, k);
          bound = std::max(bound, weight_end_[s][static_cast<std::size_t>(k)]);
        }
      }
    }
    return bound;
  }

private:
  [[nodiscard]] exact_engine const& compute(int stage) const noexcept {
    return at_.compute[static_cast<std::size_t>(world_.device[static_cast<std::size_t>(stage)])];
  }
  //! The ways in which copies beside a stage may have gone.
  [[nodiscard]] std::vector<exact_way> const& ways(int stage) const noexcept {
    return at_.ways[static_cast<std::size_t>(world_.device[static_cast<std::size_t>(stage)])];
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

  //! When the activation of microbatch k has room.
  [[nodiscard]] int room(int stage, int k, int before) const noexcept {
    if (world_.recomputes || world_.stages > world_.devices)
      return 0;
    int soonest = exact_never;
    for (exact_way const& way : ways(stage))
      soonest = std::min(soonest, room(stage, k, before, way));
    return soonest;
  }
  //! As many activations have to leave as are then too many, over the copy lane or for good.
  [[nodiscard]] int room(int stage, int k, int before, exact_way const& way) const noexcept {
    auto const s = static_cast<std::size_t>(stage);
    exact_stage const& here = at_.stage[s];
    int const there = (held(world_, at_, world_.device[s]) - hosted(world_, way)) / world_.whole;
    int const wanted = there + k - here.forward + 1 - world_.cap / world_.whole;
    if (wanted <= 0)
      return 0;
    int const out_now = way.kind == exact_kind::copy_out ? 1 : 0;
    int const free = compute(stage).left;
    int soonest = way.left + (wanted - out_now) * world_.copy;
    int leave = 0;
    for (int label = first_weight(stage); label < k && leave < wanted; ++label) {
      // What is away leaves nothing behind that was there: it has to come back first.
      if ((way.away() & bit_of(slot_of(stage, label))) != 0)
        continue;
      ++leave;
      int const inputs = std::max(0, label + 1 - here.input);
      int const weights = std::max(0, label + 1 - here.weight);
      int const copied = wanted - leave;
      int const time =
        std::max({copied == 0 ? 0 : way.left + (copied - out_now) * world_.copy,
                  weight_end_[s][static_cast<std::size_t>(label)],
                  free + before + inputs * world_.input[s] + weights * world_.weight[s]});
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
    int soonest = exact_never;
    int const first = at_.stage[static_cast<std::size_t>(stage)].input;
    std::uint64_t const wanted = (bit_of(k - first + 1) - 1)
                                 << slot_of(stage, first); // of microbatches first to k
    for (exact_way const& way : ways(stage)) {
      std::uint64_t const away = way.away() & wanted;
      int const now = way.kind == exact_kind::copy_in && (away & bit_of(way.slot)) != 0 ? 1 : 0;
      soonest =
        std::min(soonest, away == 0 ? 0 : way.left + (std::popcount(away) - now) * world_.copy);
    }
    return soonest;
  }

  [[nodiscard]] int first_weight(int stage) const noexcept {
    return at_.stage[static_cast<std::size_t>(stage)].weight -
           runs(stage, exact_kind::backward_weight);
  }

  void find_weight(int stage, int k) noexcept {
    auto const s = static_cast<std::size_t>(stage);
    exact_stage const& here = at_.stage[s];
    int end = k == first_weight(stage) ? compute(stage).left
                                       : weight_end_[s][static_cast<std::size_t>(k - 1)];
    if (k >= here.weight) {
      if (k >= here.input)
        end = std::max(end, input_[s] + world_.input[s]);
      end += world_.weight[s];
    }
    weight_end_[s][static_cast<std::size_t>(k)] = end;
  }

  exact_world const& world_;
  exact_state const& at_;
  // Of the microbatch that is looked at, or the one before.
  std::array<int, most_exact_stages> forward_{};
  std::array<int, most_exact_stages> input_{};
  //! Of every microbatch up to that.
  std::array<std::array<int, most_exact_microbatches>, most_exact_stages> weight_end_{};
};

} // namespace pipelining::inline v0_3::detail
