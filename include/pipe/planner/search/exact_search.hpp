// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The search for a shortest order, and the proofs that it finds on its way. Header for
//! pipelining::detail::exact_search.
//!
//! Time runs from event to event. At each, every idle device begins a step or waits. The copies
//! that may run meanwhile are kept in all its ways. A state that has been seen is not searched
//! again: its proof about the rest is kept.

#include <pipe/planner/search/exact_bound.hpp>
#include <pipe/planner/search/exact_state.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! How many steps of each kind have begun on every stage.
using exact_counts = std::array<std::uint32_t, most_exact_stages>;

[[nodiscard]] inline exact_counts counts_of(exact_state const& at) noexcept {
  exact_counts counts{};
  for (std::size_t s = 0; s < counts.size(); ++s)
    for (std::int8_t const count : {at.stage[s].forward,
                                    at.stage[s].light,
                                    at.stage[s].again,
                                    at.stage[s].input,
                                    at.stage[s].weight})
      counts[s] = counts[s] << 4 | static_cast<std::uint32_t>(count);
  return counts;
}

struct exact_hash {
  [[nodiscard]] std::size_t operator()(exact_counts const& counts) const noexcept {
    std::uint64_t hash = 0x9e3779b97f4a7c15;
    for (std::uint32_t const count : counts) {
      hash = (hash ^ count) * 0xff51afd7ed558ccd;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

//! A lower bound on the rest of a state. The steps that have begun are known apart from it.
class exact_proof {
public:
  exact_proof(exact_world const& world, exact_state const& at, int least) : least_(least) {
    for (int device = 0; device < world.devices; ++device) {
      exact_engine const& engine = at.compute[device];
      lefts_.push_back(engine.left);
      if (engine.kind != exact_kind::none)
        runs_[device] = static_cast<std::uint16_t>(slot_of(
          1 + static_cast<int>(engine.kind) * most_exact_stages + engine.stage, engine.label));
      ways_.insert(ways_.end(), at.ways[device].begin(), at.ways[device].end());
      ways_end_[device] = static_cast<int>(ways_.size());
    }
    for (int stage = 0; stage < world.stages; ++stage) {
      exact_stage const& here = at.stage[stage];
      exact_engine const& engine = at.compute[world.holder[stage]];
      bare_[stage] = here.bare;
      if (engine.runs(exact_kind::recompute, stage) != 0)
        bare_[stage] &= static_cast<std::uint8_t>(~(1u << engine.label));
      for (exact_arrivals const* list : {&here.to_next, &here.to_before})
        for (int i = 0; i < world.microbatches; ++i) // the last first; 0 where it has come
          lefts_.push_back(i < list->count ? list->left[list->count - 1 - i] : std::int16_t{0});
    }
  }

  [[nodiscard]] int least() const noexcept { return least_; }

  //! True when the proof holds for another state in which the same steps have begun. Nothing ends
  //! sooner there, and nothing else can follow.
  [[nodiscard]] bool holds_for(exact_proof const& other) const noexcept {
    if (!std::equal(std::begin(bare_), std::end(bare_), other.bare_))
      return false;
    for (int d = 0; d < most_exact_devices; ++d)
      if (runs_[d] != 0 && runs_[d] != other.runs_[d])
        return false;
    for (std::size_t i = 0; i < lefts_.size(); ++i)
      if (lefts_[i] > other.lefts_[i])
        return false;
    int way = 0;
    int first = 0;
    for (int d = 0; d < most_exact_devices; first = ways_end_[d++])
      for (; way < other.ways_end_[d]; ++way)
        if (!std::any_of(
              ways_.begin() + first, ways_.begin() + ways_end_[d], [&](exact_way const& a) {
                return serves(a, other.ways_[static_cast<std::size_t>(way)]);
              }))
          return false;
    return true;
  }

private:
  int least_ = 0;
  std::uint16_t runs_[most_exact_devices]{}; //!< kind, stage, label; 0: nothing
  std::uint8_t bare_[most_exact_stages]{};   //!< whose recomputation has not begun
  std::vector<std::int16_t> lefts_;          //!< until passes end and messages arrive
  std::vector<exact_way> ways_;              //!< by device
  int ways_end_[most_exact_devices]{};
};

//! The proofs so far.
class exact_proofs {
public:
  //! The least time that is known of a state, if it is above `budget`; else 0.
  [[nodiscard]] int above(exact_counts const& begun, exact_proof const& state, int budget) const {
    auto const found = known_.find(begun);
    if (found != known_.end())
      for (exact_proof const& proof : found->second)
        if (proof.least() > budget && proof.holds_for(state))
          return proof.least();
    return 0;
  }

  void add(exact_counts const& begun, exact_proof proof) {
    std::vector<exact_proof>& all = known_[begun];
    std::erase_if(all, [&](exact_proof const& other) {
      return other.least() <= proof.least() && proof.holds_for(other);
    });
    all.push_back(std::move(proof));
    ++count_;
  }

  [[nodiscard]] std::size_t count() const noexcept { return count_; }

private:
  std::unordered_map<exact_counts, std::vector<exact_proof>, exact_hash> known_;
  std::size_t count_ = 0; //!< that were added
};

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
        for (int copy = at.ways[device].front().past; copy >= 0;
             copy = history_[static_cast<std::size_t>(copy)].past)
          path_.push_back(history_[static_cast<std::size_t>(copy)].choice);
      return end_of(at);
    }
    int const bound = exact_outlook(world_, at).least_rest();
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

  [[nodiscard]] bool done(exact_state const& at) const noexcept {
    for (int stage = 0; stage < world_.stages; ++stage)
      if (at.stage[stage].weight < world_.microbatches)
        return false;
    return true;
  }
  [[nodiscard]] int end_of(exact_state const& at) const noexcept {
    int end = 0;
    for (int device = 0; device < world_.devices; ++device)
      end = std::max(end, static_cast<int>(at.compute[device].left));
    return end;
  }

  //! Goes through the steps that the devices begin. True when the rest fits the budget; `least` is
  //! then the rest, else the least rest that was proven.
  bool decide(exact_state const& at, int time, int budget, int device, int& least) {
    if (device == world_.devices)
      return go_on(at, time, budget, least);
    std::size_t const copies = history_.size();
    auto const decide_rest = [&](exact_state& next) {
      if (world_.copy >= 0)
        world_.begin_copies(next, device, time, history_);
      bool const found = decide(next, time, budget, device + 1, least);
      if (!found)
        history_.resize(copies);
      return found;
    };
    std::vector<exact_choice> found;
    if (at.compute[device].kind == exact_kind::none)
      found = choices(at, time, device);
    for (exact_choice const& choice : found) {
      exact_state next = at;
      std::erase_if(next.ways[device], [&](exact_way const& way) {
        return (way.declined & kind_bit(choice)) != 0 || !world_.allows(at, way, choice);
      });
      if (next.ways[device].empty())
        continue;
      begin(next, choice);
      if (!decide_rest(next))
        continue;
      path_.push_back(choice);
      return true;
    }
    exact_state next = at; // it waits, or it is busy
    world_.decline(at, device, found, next.ways[device]);
    return decide_rest(next);
  }

  //! The steps that a device could begin, as far as the other devices are concerned.
  [[nodiscard]] std::vector<exact_choice>
  choices(exact_state const& at, int time, int device) const {
    std::vector<exact_choice> found;
    auto const here_runs = [&](int stage) { return world_.holder[stage] == device; };
    for (int stage = world_.stages - 1; stage >= 0; --stage) {
      exact_stage const& here = at.stage[stage];
      int const label = here.input;
      if (here_runs(stage) && label < world_.forward_ended(at, stage) &&
          (here.bare >> label & 1) == 0 && label < world_.gradients_come(at, stage))
        found.push_back({exact_kind::backward_input, device, stage, label, time});
    }
    for (int stage = 0; stage < world_.stages; ++stage) {
      if (!here_runs(stage))
        continue;
      exact_stage const& here = at.stage[stage];
      if (here.bare != 0) // since the device is idle, nothing runs that changes it
        found.push_back({exact_kind::recompute, device, stage, std::countr_zero(here.bare), time});
      if (here.forward < world_.microbatches && here.forward < world_.inputs_come(at, stage)) {
        found.push_back({exact_kind::forward, device, stage, here.forward, time});
        if (world_.recomputes)
          found.push_back({exact_kind::light_forward, device, stage, here.forward, time});
      }
    }
    for (int stage = 0; stage < world_.stages; ++stage) {
      exact_stage const& here = at.stage[stage];
      if (here_runs(stage) && here.weight < here.input)
        found.push_back({exact_kind::backward_weight, device, stage, here.weight, time});
    }
    return found;
  }

  static void expect(exact_arrivals& list, int left) noexcept {
    list.left[list.count++] = static_cast<std::int16_t>(left);
  }

  void begin(exact_state& at, exact_choice const& choice) const noexcept {
    exact_stage& here = at.stage[choice.stage];
    int const length = world_.duration(choice.kind, choice.stage);
    at.compute[choice.device] = {choice.kind,
                                 static_cast<std::int8_t>(choice.stage),
                                 static_cast<std::int8_t>(choice.label),
                                 static_cast<std::int16_t>(length)};
    for (exact_way& way : at.ways[choice.device]) {
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
        expect(here.to_next, length + world_.down[choice.stage]);
      break;
    case exact_kind::recompute: ++here.again; break;
    case exact_kind::backward_input:
      ++here.input;
      if (choice.stage > 0)
        expect(here.to_before, length + world_.up[choice.stage]);
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
      if (at.compute[device].kind != exact_kind::none)
        step = std::min(step, static_cast<int>(at.compute[device].left));
      for (exact_way const& way : at.ways[device])
        if (way.kind != exact_kind::none)
          step = std::min(step, static_cast<int>(way.left));
    }
    for (int stage = 0; stage < world_.stages; ++stage)
      for (exact_arrivals const* list : {&at.stage[stage].to_next, &at.stage[stage].to_before})
        if (list->count > 0)
          step = std::min(step, static_cast<int>(list->left[0]));
    return step;
  }

  //! Ends what ends when `time` passes. False when a device had to begin something by then.
  [[nodiscard]] bool pass_time(exact_state& at, int time) const {
    for (int device = 0; device < world_.devices; ++device) {
      advance_ways(at.ways[device], time);
      if (at.ways[device].empty())
        return false;
      exact_engine& engine = at.compute[device];
      if (engine.kind == exact_kind::none)
        continue;
      engine.left = static_cast<std::int16_t>(engine.left - time);
      if (engine.left > 0)
        continue;
      if (engine.kind == exact_kind::recompute)
        at.stage[engine.stage].bare &= static_cast<std::uint8_t>(~(1u << engine.label));
      engine = {};
    }
    for (int stage = 0; stage < world_.stages; ++stage) {
      pass_time(at.stage[stage].to_next, time);
      pass_time(at.stage[stage].to_before, time);
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
