// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What an exact search has shown of the moments that it has been through. Header for
//! pipelining::detail::exact_proofs.

#include <pipe/planner/search/exact_state.hpp>
#include <pipe/planner/search/exact_ways.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
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

//! A lower bound on the rest of a state, beside which steps have begun.
class exact_proof {
public:
  exact_proof(exact_world const& world, exact_state const& at, int least) : least_(least) {
    for (int device = 0; device < world.devices; ++device) {
      auto const d = static_cast<std::size_t>(device);
      exact_engine const& engine = at.compute[d];
      lefts_.push_back(engine.left);
      if (engine.kind != exact_kind::none)
        runs_[d] = static_cast<std::uint16_t>(slot_of(
          1 + static_cast<int>(engine.kind) * most_exact_stages + engine.stage, engine.label));
      ways_.insert(ways_.end(), at.ways[d].begin(), at.ways[d].end());
      ways_end_[d] = static_cast<int>(ways_.size());
    }
    for (int stage = 0; stage < world.stages; ++stage) {
      exact_stage const& here = at.stage[static_cast<std::size_t>(stage)];
      exact_engine const& engine =
        at.compute[static_cast<std::size_t>(world.device[static_cast<std::size_t>(stage)])];
      bare_[static_cast<std::size_t>(stage)] = here.bare;
      if (engine_runs(engine, exact_kind::recompute, stage) != 0)
        bare_[static_cast<std::size_t>(stage)] &= static_cast<std::uint8_t>(~(1u << engine.label));
      for (exact_arrivals const* list : {&here.to_next, &here.to_before})
        for (int i = 0; i < world.microbatches; ++i) // the last first; 0 where it has come
          lefts_.push_back(i < list->count
                             ? list->left[static_cast<std::size_t>(list->count - 1 - i)]
                             : std::int16_t{0});
    }
  }

  [[nodiscard]] int least() const noexcept { return least_; }

  //! Whether it holds for another state in which the same steps have begun: there nothing ends
  //! sooner, and nothing else can follow.
  [[nodiscard]] bool holds_for(exact_proof const& other) const noexcept {
    if (bare_ != other.bare_)
      return false;
    for (std::size_t d = 0; d < runs_.size(); ++d)
      if (runs_[d] != 0 && runs_[d] != other.runs_[d])
        return false;
    for (std::size_t i = 0; i < lefts_.size(); ++i)
      if (lefts_[i] > other.lefts_[i])
        return false;
    int way = 0;
    int first = 0;
    for (std::size_t d = 0; d < runs_.size(); first = ways_end_[d++])
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
  std::array<std::uint16_t, most_exact_devices> runs_{}; //!< kind, stage, label; 0: nothing
  std::array<std::uint8_t, most_exact_stages> bare_{};   //!< whose recomputation has not begun
  std::vector<std::int16_t> lefts_;                      //!< until passes end and messages arrive
  std::vector<exact_way> ways_;                          //!< by device
  std::array<int, most_exact_devices> ways_end_{};
};

//! All that has been shown.
class exact_proofs {
public:
  //! What is known of a state, if it is above `budget`; else nothing, 0.
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

} // namespace pipelining::inline v0_3::detail
