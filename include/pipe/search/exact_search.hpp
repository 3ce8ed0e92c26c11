// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Branch and bound over what every device does next. Header for
//! pipelining::detail::exact_search.
//!
//! Time runs from event to event. At each, every idle engine begins a step or waits. A state that
//! has been seen is not searched again: what it proved about the rest is kept.

#include <pipe/search/exact_bound.hpp>
#include <pipe/search/exact_copies.hpp>
#include <pipe/search/exact_state.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace pipelining::inline v0_2 {
namespace detail {

struct exact_hash {
  [[nodiscard]] std::size_t operator()(exact_key const& key) const noexcept {
    std::uint64_t hash = 0x9e3779b97f4a7c15;
    for (std::uint64_t const word : key.words) {
      hash = (hash ^ word) * 0xff51afd7ed558ccd;
      hash ^= hash >> 32;
    }
    return static_cast<std::size_t>(hash);
  }
};

//! A step that a search has decided on.
struct exact_choice {
  exact_kind kind = exact_kind::none;
  int device = 0;
  int stage = 0;
  int label = 0;
  int start = 0;
};

//! What a search has shown of a state: the rest is at least as long, under the limits it had.
struct exact_proof {
  exact_limits limits;
  int least = 0;
};

class exact_search {
public:
  exact_search(exact_world const& world, std::size_t most_states)
      : world_(world), most_states_(most_states) {
    for (int stage = 0; stage < world.stages; ++stage) {
      auto const s = static_cast<std::size_t>(stage);
      if (std::min({world.forward[s], world.input[s], world.weight[s], world.copy}) == 0)
        least_step_ = 0;
    }
  }

  //! The least rest of a state, or a lower bound on it that is above `budget`; a rest within the
  //! budget leaves its steps in `path`, last first.
  int rest(exact_state const& at, int time, int budget) {
    if (done(at))
      return end_of(at);
    int const bound = bound_of(at, budget);
    if (bound > budget || stopped_)
      return bound;
    bit_writer const key = key_of(world_, at);
    if (!key.fits)
      overflow_ = true;
    exact_limits const limits = limits_of(world_, at);
    std::vector<exact_proof>& proofs = proven_[key.key];
    for (exact_proof const& known : proofs)
      if (known.least > budget && known.limits.allow(limits))
        return known.least;
    if (states_ >= most_states_ || overflow_) {
      stopped_ = true;
      return bound;
    }
    int least = exact_never;
    if (decide(at, time, budget, 0, least))
      return least;
    least = std::max(least, bound);
    if (!stopped_) {
      std::erase_if(proofs, [&](exact_proof const& known) {
        return known.least <= least && limits.allow(known.limits);
      });
      proofs.push_back({limits, least});
      ++states_;
    }
    return least;
  }

  [[nodiscard]] std::vector<exact_choice> const& path() const noexcept { return path_; }
  [[nodiscard]] std::size_t states() const noexcept { return states_; }
  [[nodiscard]] bool stopped() const noexcept { return stopped_; }

private:
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

  //! Goes through the engines: compute of every device, then the copy lanes. True when the rest
  //! fits the budget; `least` is then that rest, else the least of what was proven.
  bool decide(exact_state const& at, int time, int budget, int engine, int& least) {
    int const lanes = world_.copy >= 0 ? world_.devices : 0;
    if (engine == world_.devices + lanes)
      return go_on(at, time, budget, least);
    // What the devices compute may be too much already, whatever is copied beside it.
    if (lanes > 0 && engine == world_.devices)
      if (int const bound = bound_of(at, budget); bound > budget) {
        least = std::min(least, bound);
        return false;
      }
    bool const lane = engine >= world_.devices;
    int const device = lane ? engine - world_.devices : engine;
    auto const d = static_cast<std::size_t>(device);
    if ((lane ? at.lane[d] : at.compute[d]).kind != exact_kind::none)
      return decide(at, time, budget, engine + 1, least);
    return lane ? decide_lane(at, time, budget, engine, device, least)
                : decide_compute(at, time, budget, engine, device, least);
  }

  bool take(exact_state const& at,
            int time,
            int budget,
            int engine,
            exact_choice const& choice,
            int& least) {
    exact_state next = at;
    begin(next, choice);
    if (!decide(next, time, budget, engine + 1, least))
      return false;
    path_.push_back(choice);
    return true;
  }

  bool
  decide_compute(exact_state const& at, int time, int budget, int engine, int device, int& least) {
    auto const d = static_cast<std::size_t>(device);
    int const units = held(world_, at, device);
    int soonest = exact_never; // least duration of what could be moved into a gap without harm
    std::array<exact_choice, 5 * most_exact_stages> found;
    std::size_t count = 0;
    auto const offer = [&](exact_kind kind, int stage, int label, bool harmless) {
      found[count++] = {kind, device, stage, label, time};
      if (harmless)
        soonest = std::min(soonest, world_.duration(kind, stage));
    };
    bool const roomy = still_wanted(at, device) <= world_.cap - units;
    for (int stage = world_.stages - 1; stage >= 0; --stage) {
      if (world_.device[static_cast<std::size_t>(stage)] != device)
        continue;
      exact_stage const& here = at.stage[static_cast<std::size_t>(stage)];
      int const label = here.input;
      bool const stands = world_.labelled ? label < forward_ended(world_, at, stage) &&
                                              ((here.away | here.bare) >> label & 1) == 0
                                          : whole(world_, at, stage) > 0;
      if (stands && here.input < gradients_come(world_, at, stage))
        offer(exact_kind::backward_input,
              stage,
              label,
              roomy || world_.copy < 0 || (here.copied >> label & 1) != 0);
    }
    for (int stage = 0; stage < world_.stages; ++stage) {
      if (world_.device[static_cast<std::size_t>(stage)] != device)
        continue;
      exact_stage const& here = at.stage[static_cast<std::size_t>(stage)];
      if (bare(world_, at, stage) > 0 && units + world_.whole - world_.kept <= world_.cap) {
        int label = 0;
        while (world_.labelled && (here.bare >> label & 1) == 0)
          ++label;
        offer(exact_kind::recompute, stage, label, false);
      }
      if (here.forward < world_.microbatches && here.forward < inputs_come(world_, at, stage)) {
        if (units + world_.whole <= world_.cap)
          offer(exact_kind::forward, stage, here.forward, roomy);
        if (world_.recomputes && units + world_.kept <= world_.cap)
          offer(exact_kind::light_forward, stage, here.forward, false);
      }
    }
    for (int stage = 0; stage < world_.stages; ++stage) {
      exact_stage const& here = at.stage[static_cast<std::size_t>(stage)];
      if (world_.device[static_cast<std::size_t>(stage)] == device && here.weight < here.input)
        offer(exact_kind::backward_weight, stage, here.weight, true);
    }
    for (std::size_t i = 0; i < count; ++i)
      if (take(at, time, budget, engine, found[i], least))
        return true;
    // It waits. A step that fits into the gap could be moved there, so the gap has to be shorter.
    exact_state next = at;
    exact_engine& idle = next.compute[d];
    if (soonest < exact_never && (idle.must == 0 || soonest < idle.must))
      idle.must = static_cast<std::int16_t>(soonest);
    idle.left = static_cast<std::int16_t>(least_step_); // until then nothing can change
    return decide(next, time, budget, engine + 1, least);
  }

  bool
  decide_lane(exact_state const& at, int time, int budget, int engine, int device, int& least) {
    int const units = held(world_, at, device);
    bool const roomy = still_wanted(at, device) <= world_.cap - units;
    bool comes = false;
    for (int stage = world_.stages - 1; stage >= 0; --stage) {
      if (world_.device[static_cast<std::size_t>(stage)] != device)
        continue;
      exact_stage const& here = at.stage[static_cast<std::size_t>(stage)];
      if (hosted(world_, at, stage) == 0 || units + world_.whole > world_.cap)
        continue;
      int label = 0;
      while ((here.hosted >> label & 1) == 0)
        ++label;
      if ((here.missed >> label & 1) == 0)
        continue; // its copy out was in vain: the search without it is no longer
      comes = true;
      if (take(at, time, budget, engine, {exact_kind::copy_in, device, stage, label, time}, least))
        return true;
    }
    if (comes && roomy)
      return false; // nothing else wants the room, so the next copy may as well begin now
    exact_state waiting = at;
    std::array<exact_choice, most_exact_stages * most_exact_microbatches> found;
    std::size_t count = 0;
    if (!roomy)
      for (int stage = 0; stage < world_.stages; ++stage) {
        if (world_.device[static_cast<std::size_t>(stage)] != device)
          continue;
        exact_stage const& here = at.stage[static_cast<std::size_t>(stage)];
        // Of the activations that are there, the one that is needed last goes first: where another
        // one goes and this one stays or goes later, they can change names. What could have begun
        // before is never begun next.
        int label = forward_ended(world_, at, stage) - 1;
        while (label >= here.input && ((here.copied | here.bare) >> label & 1) != 0)
          --label;
        if (label < here.input)
          continue;
        auto const bit = static_cast<std::uint8_t>(1u << label);
        if ((here.declined & bit) == 0)
          found[count++] = {exact_kind::copy_out, device, stage, label, time};
        waiting.stage[static_cast<std::size_t>(stage)].declined |= bit;
      }
    if (decide(waiting, time, budget, engine + 1, least))
      return true;
    for (std::size_t i = 0; i < count; ++i)
      if (take(at, time, budget, engine, found[i], least))
        return true;
    return false;
  }

  //! Units that forward passes and copies in have yet to take on a device.
  [[nodiscard]] int still_wanted(exact_state const& at, int device) const noexcept {
    int units = 0;
    for (int stage = 0; stage < world_.stages; ++stage) {
      if (world_.device[static_cast<std::size_t>(stage)] != device)
        continue;
      exact_stage const& here = at.stage[static_cast<std::size_t>(stage)];
      units += world_.whole * (world_.microbatches - here.forward + here.out - here.in) +
               (world_.whole - world_.kept) * (here.light - here.again);
    }
    return units;
  }

  //! Notes for which activations on the host a step would have had no room beside them.
  void use_room(exact_state& at, exact_choice const& choice) const noexcept {
    int units = world_.whole;
    if (choice.kind == exact_kind::light_forward)
      units = world_.kept;
    else if (choice.kind == exact_kind::recompute)
      units = world_.whole - world_.kept;
    else if (choice.kind != exact_kind::forward && choice.kind != exact_kind::copy_in)
      return;
    // begin() has already put the step on its engine, but has not yet counted it.
    if (held(world_, at, choice.device) + units + world_.whole <= world_.cap)
      return;
    for (int stage = 0; stage < world_.stages; ++stage) {
      exact_stage& here = at.stage[static_cast<std::size_t>(stage)];
      if (world_.device[static_cast<std::size_t>(stage)] == choice.device)
        here.missed |= here.hosted;
    }
  }

  void clear_declined(exact_state& at, int device) const noexcept {
    for (int stage = 0; stage < world_.stages; ++stage)
      if (world_.device[static_cast<std::size_t>(stage)] == device)
        at.stage[static_cast<std::size_t>(stage)].declined = 0;
  }

  static void expect(exact_arrivals& list, int left) noexcept {
    list.left[static_cast<std::size_t>(list.count++)] = static_cast<std::int16_t>(left);
  }

  void begin(exact_state& at, exact_choice const& choice) const noexcept {
    auto const s = static_cast<std::size_t>(choice.stage);
    auto const d = static_cast<std::size_t>(choice.device);
    exact_stage& here = at.stage[s];
    int const length = world_.duration(choice.kind, choice.stage);
    auto const bit = static_cast<std::uint8_t>(1u << choice.label);
    bool const on_lane = choice.kind == exact_kind::copy_out || choice.kind == exact_kind::copy_in;
    (on_lane ? at.lane : at.compute)[d] = {choice.kind,
                                           static_cast<std::int8_t>(choice.stage),
                                           static_cast<std::int8_t>(choice.label),
                                           static_cast<std::int16_t>(length),
                                           0};
    if (world_.copy >= 0)
      use_room(at, choice);
    switch (choice.kind) {
    case exact_kind::none: break;
    case exact_kind::light_forward:
      ++here.light;
      if (world_.labelled)
        here.bare |= bit;
      [[fallthrough]];
    case exact_kind::forward:
      ++here.forward;
      if (choice.stage + 1 < world_.stages)
        expect(here.to_next, length + world_.down[s]);
      break;
    case exact_kind::recompute: ++here.again; break;
    case exact_kind::backward_input:
      here.declined &= static_cast<std::uint8_t>(~bit);
      ++here.input;
      if (choice.stage > 0)
        expect(here.to_before, length + world_.up[s]);
      break;
    case exact_kind::backward_weight: ++here.weight; break;
    case exact_kind::copy_out:
      clear_declined(at, choice.device);
      ++here.out;
      here.copied |= bit;
      here.away |= bit;
      break;
    case exact_kind::copy_in:
      clear_declined(at, choice.device);
      ++here.in;
      here.hosted &= static_cast<std::uint8_t>(~bit);
      here.missed &= static_cast<std::uint8_t>(~bit);
      break;
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

  //! Ends what ends when `time` passes.
  void pass_time(exact_state& at, exact_engine& engine, int time) const noexcept {
    if (engine.kind == exact_kind::none)
      return;
    engine.left = static_cast<std::int16_t>(engine.left - time);
    if (engine.left > 0)
      return;
    exact_stage& here = at.stage[static_cast<std::size_t>(engine.stage)];
    auto const bit = static_cast<std::uint8_t>(1u << engine.label);
    if (engine.kind == exact_kind::copy_out)
      here.hosted |= bit;
    if (engine.kind == exact_kind::copy_in)
      here.away &= static_cast<std::uint8_t>(~bit);
    if (engine.kind == exact_kind::recompute)
      here.bare &= static_cast<std::uint8_t>(~bit);
    engine = {};
  }

  //! To the next event, and from there.
  bool go_on(exact_state const& at, int time, int budget, int& least) {
    int step = exact_never;
    for (int device = 0; device < world_.devices; ++device)
      for (exact_engine const* engine : {&at.compute[static_cast<std::size_t>(device)],
                                         &at.lane[static_cast<std::size_t>(device)]})
        if (engine->kind != exact_kind::none)
          step = std::min(step, static_cast<int>(engine->left));
    for (int stage = 0; stage < world_.stages; ++stage)
      for (exact_arrivals const* list : {&at.stage[static_cast<std::size_t>(stage)].to_next,
                                         &at.stage[static_cast<std::size_t>(stage)].to_before})
        if (list->count > 0)
          step = std::min(step, static_cast<int>(list->left[0]));
    if (step == exact_never)
      return done(at) ? (least = 0, true) : false;
    exact_state next = at;
    for (int device = 0; device < world_.devices; ++device) {
      auto const d = static_cast<std::size_t>(device);
      exact_engine& compute = next.compute[d];
      if (compute.kind == exact_kind::none)
        compute.left = 0;
      if (compute.kind == exact_kind::none && compute.must > 0) {
        if (compute.must <= step)
          return false;
        compute.must = static_cast<std::int16_t>(compute.must - step);
      }
      pass_time(next, compute, step);
      pass_time(next, next.lane[d], step);
    }
    for (int stage = 0; stage < world_.stages; ++stage) {
      pass_time(next.stage[static_cast<std::size_t>(stage)].to_next, step);
      pass_time(next.stage[static_cast<std::size_t>(stage)].to_before, step);
    }
    int const found = step + rest(next, time + step, budget - step);
    if (found <= budget && !stopped_) {
      least = found;
      return true;
    }
    least = std::min(least, found);
    return false;
  }

  exact_world world_;
  std::size_t most_states_;
  std::unordered_map<exact_key, std::vector<exact_proof>, exact_hash> proven_;
  std::size_t states_ = 0; // that were gone through
  std::vector<exact_choice> path_;
  int least_step_ = 1; // ticks until anything can end, at least
  bool stopped_ = false;
  bool overflow_ = false;
};

} // namespace detail
} // namespace pipelining::inline v0_2
