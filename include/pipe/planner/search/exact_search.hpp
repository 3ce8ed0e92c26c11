// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Branch and bound over what every device does next. Header for
//! pipelining::detail::exact_search.
//!
//! Time runs from event to event. At each, every idle device begins a step or waits; what its
//! copies may do meanwhile is kept in all its ways. A state that has been seen is not searched
//! again: what it proved about the rest is kept.

#include <pipe/planner/search/exact_bound.hpp>
#include <pipe/planner/search/exact_copies.hpp>
#include <pipe/planner/search/exact_proofs.hpp>
#include <pipe/planner/search/exact_state.hpp>
#include <pipe/planner/search/exact_ways.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pipelining::inline v0_3::detail {

class exact_search {
public:
  exact_search(exact_world const& world, std::size_t most_states)
      : world_(world), most_states_(most_states) {}

  //! The least rest of a pipeline in which nothing has begun; see below.
  int rest(int budget) {
    exact_state start;
    for (std::vector<exact_way>& ways : start.ways)
      ways.resize(1);
    return rest(start, 0, budget);
  }
  [[nodiscard]] std::vector<exact_choice> const& path() const noexcept { return path_; }
  [[nodiscard]] std::size_t states() const noexcept { return proofs_.count(); }
  [[nodiscard]] bool stopped() const noexcept { return stopped_; }

private:
  //! The least rest of a state, or a lower bound on it that is above `budget`; a rest within the
  //! budget leaves its steps in `path`, last first.
  int rest(exact_state const& at, int time, int budget) {
    if (done(at)) {
      for (int device = 0; device < world_.devices; ++device)
        for (int copy = at.ways[static_cast<std::size_t>(device)].front().past; copy >= 0;
             copy = history_[static_cast<std::size_t>(copy)].past)
          path_.push_back(history_[static_cast<std::size_t>(copy)].choice);
      return end_of(at);
    }
    int const bound = bound_of(at, budget);
    if (bound > budget || stopped_)
      return bound;
    exact_counts const begun = counts_of(at);
    if (int const known = proofs_.above(begun, exact_proof(world_, at, 0), budget); known > 0)
      return known;
    if (states() >= most_states_) {
      stopped_ = true;
      return bound;
    }
    int least = exact_never;
    if (decide(at, time, budget, 0, least))
      return least;
    least = std::max(least, bound);
    if (!stopped_)
      proofs_.add(begun, exact_proof(world_, at, least));
    return least;
  }

  //! A lower bound on the rest, as good as it takes to be above the budget.
  [[nodiscard]] int bound_of(exact_state const& at, int budget) const noexcept {
    int const bound = least_rest(world_, at);
    if (bound > budget || world_.copy < 0)
      return bound;
    return std::max(bound, exact_each(world_, at).least_rest());
  }
  [[nodiscard]] bool done(exact_state const& at) const noexcept {
    for (int stage = 0; stage < world_.stages; ++stage)
      if (at.stage[static_cast<std::size_t>(stage)].weight < world_.microbatches)
        return false;
    return true;
  }
  [[nodiscard]] int end_of(exact_state const& at) const noexcept {
    int end = 0;
    for (int device = 0; device < world_.devices; ++device)
      end = std::max(end, static_cast<int>(at.compute[static_cast<std::size_t>(device)].left));
    return end;
  }

  //! Goes through what the devices begin. True when the rest fits the budget; `least` is then that
  //! rest, else the least of what was proven.
  bool decide(exact_state const& at, int time, int budget, int device, int& least) {
    if (device == world_.devices)
      return go_on(at, time, budget, least);
    auto const d = static_cast<std::size_t>(device);
    std::size_t const copies = history_.size();
    auto const decide_rest = [&](exact_state& next) {
      if (world_.copy >= 0)
        begin_copies(world_, next, device, time, history_);
      bool const found = decide(next, time, budget, device + 1, least);
      if (!found)
        history_.resize(copies);
      return found;
    };
    std::vector<exact_choice> found;
    if (at.compute[d].kind == exact_kind::none)
      found = choices(at, time, device);
    for (exact_choice const& choice : found) {
      exact_state next = at;
      std::erase_if(next.ways[d], [&](exact_way const& way) {
        return (way.declined & kind_bit(choice)) != 0 || !allows(world_, at, way, choice);
      });
      if (next.ways[d].empty())
        continue;
      begin(next, choice);
      if (!decide_rest(next))
        continue;
      path_.push_back(choice);
      return true;
    }
    exact_state next = at; // it waits, or it is busy
    decline(world_, at, device, found, next.ways[d]);
    return decide_rest(next);
  }

  //! What a device could begin, as far as the other devices are concerned.
  [[nodiscard]] std::vector<exact_choice>
  choices(exact_state const& at, int time, int device) const {
    std::vector<exact_choice> found;
    auto const here_runs = [&](int stage) {
      return world_.device[static_cast<std::size_t>(stage)] == device;
    };
    for (int stage = world_.stages - 1; stage >= 0; --stage) {
      exact_stage const& here = at.stage[static_cast<std::size_t>(stage)];
      int const label = here.input;
      if (here_runs(stage) && label < forward_ended(world_, at, stage) &&
          (here.bare >> label & 1) == 0 && label < gradients_come(world_, at, stage))
        found.push_back({exact_kind::backward_input, device, stage, label, time});
    }
    for (int stage = 0; stage < world_.stages; ++stage) {
      if (!here_runs(stage))
        continue;
      exact_stage const& here = at.stage[static_cast<std::size_t>(stage)];
      if (bare(world_, at, stage) > 0)
        found.push_back({exact_kind::recompute, device, stage, std::countr_zero(here.bare), time});
      if (here.forward < world_.microbatches && here.forward < inputs_come(world_, at, stage)) {
        found.push_back({exact_kind::forward, device, stage, here.forward, time});
        if (world_.recomputes)
          found.push_back({exact_kind::light_forward, device, stage, here.forward, time});
      }
    }
    for (int stage = 0; stage < world_.stages; ++stage) {
      exact_stage const& here = at.stage[static_cast<std::size_t>(stage)];
      if (here_runs(stage) && here.weight < here.input)
        found.push_back({exact_kind::backward_weight, device, stage, here.weight, time});
    }
    return found;
  }

  static void expect(exact_arrivals& list, int left) noexcept {
    list.left[static_cast<std::size_t>(list.count++)] = static_cast<std::int16_t>(left);
  }

  void begin(exact_state& at, exact_choice const& choice) const noexcept {
    auto const s = static_cast<std::size_t>(choice.stage);
    auto const d = static_cast<std::size_t>(choice.device);
    exact_stage& here = at.stage[s];
    int const length = world_.duration(choice.kind, choice.stage);
    at.compute[d] = {choice.kind,
                     static_cast<std::int8_t>(choice.stage),
                     static_cast<std::int8_t>(choice.label),
                     static_cast<std::int16_t>(length)};
    for (exact_way& way : at.ways[d]) {
      way.declined = 0;
      way.must = 0;
      if (choice.kind == exact_kind::backward_input)
        way.copied &= ~bit_of(slot_of(choice.stage, choice.label));
    }
    switch (choice.kind) {
    case exact_kind::light_forward:
      ++here.light;
      here.bare |= static_cast<std::uint8_t>(1u << choice.label);
      [[fallthrough]];
    case exact_kind::forward:
      ++here.forward;
      if (choice.stage + 1 < world_.stages)
        expect(here.to_next, length + world_.down[s]);
      break;
    case exact_kind::recompute: ++here.again; break;
    case exact_kind::backward_input:
      ++here.input;
      if (choice.stage > 0)
        expect(here.to_before, length + world_.up[s]);
      break;
    case exact_kind::backward_weight: ++here.weight; break;
    default: break; // nothing else is computed
    }
  }

  static void pass_time(exact_arrivals& list, int time) noexcept {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(list.count); ++i)
      if (list.left[i] > time)
        list.left[kept++] = static_cast<std::int16_t>(list.left[i] - time);
    for (std::size_t i = kept; i < static_cast<std::size_t>(list.count); ++i)
      list.left[i] = 0;
    list.count = static_cast<std::int8_t>(kept);
  }

  //! To the next event, and from there.
  bool go_on(exact_state const& at, int time, int budget, int& least) {
    exact_state next = at;
    int const step = next_event(next);
    if (step == exact_never || !pass_time(next, step))
      return false;
    int const all = step + rest(next, time + step, budget - step);
    least = std::min(least, all);
    return all <= budget && !stopped_;
  }

  //! Time until something ends or arrives.
  [[nodiscard]] int next_event(exact_state const& at) const noexcept {
    int step = exact_never;
    for (int device = 0; device < world_.devices; ++device) {
      auto const d = static_cast<std::size_t>(device);
      if (at.compute[d].kind != exact_kind::none)
        step = std::min(step, static_cast<int>(at.compute[d].left));
      for (exact_way const& way : at.ways[d])
        if (way.kind != exact_kind::none)
          step = std::min(step, static_cast<int>(way.left));
    }
    for (int stage = 0; stage < world_.stages; ++stage)
      for (exact_arrivals const* list : {&at.stage[static_cast<std::size_t>(stage)].to_next,
                                         &at.stage[static_cast<std::size_t>(stage)].to_before})
        if (list->count > 0)
          step = std::min(step, static_cast<int>(list->left[0]));
    return step;
  }

  //! Ends what ends when `time` passes. False when a device had to begin something by then.
  [[nodiscard]] bool pass_time(exact_state& at, int time) const {
    for (int device = 0; device < world_.devices; ++device) {
      auto const d = static_cast<std::size_t>(device);
      advance_ways(at.ways[d], time);
      if (at.ways[d].empty())
        return false;
      exact_engine& engine = at.compute[d];
      if (engine.kind == exact_kind::none)
        continue;
      engine.left = static_cast<std::int16_t>(engine.left - time);
      if (engine.left > 0)
        continue;
      if (engine.kind == exact_kind::recompute)
        at.stage[static_cast<std::size_t>(engine.stage)].bare &=
          static_cast<std::uint8_t>(~(1u << engine.label));
      engine = {};
    }
    for (int stage = 0; stage < world_.stages; ++stage) {
      pass_time(at.stage[static_cast<std::size_t>(stage)].to_next, time);
      pass_time(at.stage[static_cast<std::size_t>(stage)].to_before, time);
    }
    return true;
  }

  exact_world world_;
  std::size_t most_states_;
  exact_proofs proofs_;
  std::vector<exact_choice> path_;
  std::vector<exact_copy> history_; // copies that have begun, in all ways
  bool stopped_ = false;
};

} // namespace pipelining::inline v0_3::detail
