// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What the exact search knows of a pipeline at one moment. Header for pipelining::detail::
//! exact_world and exact_state.
//!
//! Microbatches are alike, so a moment is described by counts: how many forward passes each stage
//! has begun, how many of each other kind, what runs and how much longer.

#include <pipe/core/shape.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pipelining::inline v0_2 {

//! @brief The kinds of steps that the exact search orders: passes, and what adapters add to them.
enum class exact_kind : std::uint8_t {
  none,
  forward,
  light_forward, //!< a forward pass that keeps its input alone
  recompute,     //!< brings back what a light forward pass did not keep
  backward_input,
  backward_weight,
  copy_out, //!< moves an activation to the host; begins any time after its forward pass
  copy_in   //!< moves it back, before its backward pass
};

namespace detail {

inline constexpr int most_exact_stages = 8;
inline constexpr int most_exact_devices = 4;
inline constexpr int most_exact_microbatches = 8;
inline constexpr int exact_never = 1 << 20;

//! What does not change during a search. Times in whole ticks.
struct exact_world {
  int devices = 1;
  int stages = 1;
  int microbatches = 1;
  std::array<int, most_exact_stages> device{}; //!< of every stage
  std::array<int, most_exact_stages> forward{};
  std::array<int, most_exact_stages> input{};
  std::array<int, most_exact_stages> weight{};
  std::array<int, most_exact_stages> again{};    //!< of a recomputation
  std::array<int, most_exact_stages> down{};     //!< of a message to the next stage
  std::array<int, most_exact_stages> up{};       //!< of a message to the stage before
  std::array<int, most_exact_stages> lifetime{}; //!< least, of an activation
  int copy = -1;                                 //!< negative: no copies
  bool recomputes = false;
  int cap = 1;           //!< units that a device may hold
  int whole = 1;         //!< units of an activation
  int kept = 0;          //!< units of what a light forward pass keeps
  bool labelled = false; //!< there are copies or recomputation, so that it matters which is where

  [[nodiscard]] int duration(exact_kind kind, int stage) const noexcept {
    auto const s = static_cast<std::size_t>(stage);
    switch (kind) {
    case exact_kind::none: return 0;
    case exact_kind::forward:
    case exact_kind::light_forward: return forward[s];
    case exact_kind::recompute: return again[s];
    case exact_kind::backward_input: return input[s];
    case exact_kind::backward_weight: return weight[s];
    case exact_kind::copy_out:
    case exact_kind::copy_in: return copy;
    }
    return 0;
  }
};

//! Arrivals that are still to come, soonest first.
struct exact_arrivals {
  std::array<std::int16_t, most_exact_microbatches> left{};
  std::int8_t count = 0;
};

//! What one engine of a device does now.
struct exact_engine {
  exact_kind kind = exact_kind::none;
  std::int8_t stage = 0;
  std::int8_t label = 0;
  std::int16_t left = 0;
  //! An idle compute engine that could have run something has to begin something sooner than this.
  std::int16_t must = 0;
};

//! Counts of steps that have begun on one stage.
struct exact_stage {
  std::int8_t forward = 0;
  std::int8_t light = 0; //!< of the forward passes
  std::int8_t again = 0;
  std::int8_t input = 0;
  std::int8_t weight = 0;
  std::int8_t out = 0;
  std::int8_t in = 0;
  // By label, in labelled searches alone:
  std::uint8_t bare = 0;     //!< its recomputation has not ended
  std::uint8_t copied = 0;   //!< its copy out has begun
  std::uint8_t away = 0;     //!< its copy out has begun and its copy in has not ended
  std::uint8_t hosted = 0;   //!< its copy out has ended and its copy in has not begun
  std::uint8_t missed = 0;   //!< hosted, and something has begun that had no room beside it
  std::uint8_t declined = 0; //!< the copy lane has waited although it could have copied it out
  exact_arrivals to_next;    //!< of activations at the stage behind
  exact_arrivals to_before;  //!< of gradients at the stage before
};

struct exact_state {
  std::array<exact_stage, most_exact_stages> stage{};
  std::array<exact_engine, most_exact_devices> compute{};
  std::array<exact_engine, most_exact_devices> lane{};
};

//! 1 when the engine runs this kind on this stage.
[[nodiscard]] inline int
engine_runs(exact_engine const& engine, exact_kind kind, int stage) noexcept {
  return engine.kind == kind && engine.stage == stage ? 1 : 0;
}

[[nodiscard]] inline int
forward_ended(exact_world const& world, exact_state const& at, int stage) noexcept {
  auto const s = static_cast<std::size_t>(stage);
  exact_engine const& engine = at.compute[static_cast<std::size_t>(world.device[s])];
  return at.stage[s].forward - engine_runs(engine, exact_kind::forward, stage) -
         engine_runs(engine, exact_kind::light_forward, stage);
}

//! Light forward passes that have ended and whose recomputation has not begun.
[[nodiscard]] inline int bare(exact_world const& world, exact_state const& at, int stage) noexcept {
  auto const s = static_cast<std::size_t>(stage);
  exact_engine const& engine = at.compute[static_cast<std::size_t>(world.device[s])];
  return at.stage[s].light - engine_runs(engine, exact_kind::light_forward, stage) -
         at.stage[s].again;
}

//! Activations that are whole, on the device, and wait for their backward pass.
[[nodiscard]] inline int
whole(exact_world const& world, exact_state const& at, int stage) noexcept {
  auto const s = static_cast<std::size_t>(stage);
  auto const d = static_cast<std::size_t>(world.device[s]);
  exact_stage const& here = at.stage[s];
  int const again = engine_runs(at.compute[d], exact_kind::recompute, stage);
  int const in = engine_runs(at.lane[d], exact_kind::copy_in, stage);
  return forward_ended(world, at, stage) - bare(world, at, stage) - again - here.out + here.in -
         in - here.input;
}

//! Copies out that have ended without a copy in.
[[nodiscard]] inline int
hosted(exact_world const& world, exact_state const& at, int stage) noexcept {
  auto const s = static_cast<std::size_t>(stage);
  exact_engine const& lane = at.lane[static_cast<std::size_t>(world.device[s])];
  return at.stage[s].out - engine_runs(lane, exact_kind::copy_out, stage) - at.stage[s].in;
}

//! Units that a device holds now.
[[nodiscard]] inline int
held(exact_world const& world, exact_state const& at, int device) noexcept {
  auto const d = static_cast<std::size_t>(device);
  int units = 0;
  for (int stage = 0; stage < world.stages; ++stage) {
    auto const s = static_cast<std::size_t>(stage);
    if (world.device[s] != device)
      continue;
    exact_stage const& here = at.stage[s];
    int const ended = here.weight - engine_runs(at.compute[d], exact_kind::backward_weight, stage);
    int const out = here.out - engine_runs(at.lane[d], exact_kind::copy_out, stage);
    units += world.whole * (here.forward - here.light - ended - out + here.in) +
             world.kept * here.light + (world.whole - world.kept) * here.again;
  }
  return units;
}

//! Forward passes whose input has come.
[[nodiscard]] inline int
inputs_come(exact_world const& world, exact_state const& at, int stage) noexcept {
  if (stage == 0)
    return world.microbatches;
  exact_stage const& before = at.stage[static_cast<std::size_t>(stage) - 1];
  return before.forward - before.to_next.count;
}

//! Backward passes whose gradient has come; on the last stage, whose forward pass has ended.
[[nodiscard]] inline int
gradients_come(exact_world const& world, exact_state const& at, int stage) noexcept {
  if (stage + 1 == world.stages)
    return forward_ended(world, at, stage);
  exact_stage const& behind = at.stage[static_cast<std::size_t>(stage) + 1];
  return behind.input - behind.to_before.count;
}

//! A state without its limits in a few words, equal exactly where states are.
struct exact_key {
  std::array<std::uint64_t, 12> words{};
  friend bool operator==(exact_key const&, exact_key const&) = default;
};

//! Writes numbers of a few bits one behind the other.
struct bit_writer {
  exact_key key;
  int used = 0;
  bool fits = true;

  void put(std::uint64_t value, int bits) noexcept {
    auto const word = static_cast<std::size_t>(used / 64);
    int const offset = used % 64;
    used += bits;
    if (used > static_cast<int>(key.words.size()) * 64 || value >> bits != 0) {
      fits = false;
      return;
    }
    key.words[word] |= value << offset;
    if (offset + bits > 64)
      key.words[word + 1] |= value >> (64 - offset);
  }
};

inline void put_arrivals(bit_writer& out, exact_arrivals const& list) noexcept {
  out.put(static_cast<std::uint64_t>(list.count), 4);
  for (int i = 0; i < list.count; ++i)
    out.put(static_cast<std::uint64_t>(list.left[static_cast<std::size_t>(i)]), 12);
}

//! What a state may not do because another one does it at least as well. Limits alone never make
//! the rest shorter.
struct exact_limits {
  std::uint64_t missed = 0;   //!< by stage and label
  std::uint64_t declined = 0; //!< likewise
  std::array<std::int16_t, most_exact_devices> must{};

  //! Whether a state with these limits may do all that the same state may with `other`.
  [[nodiscard]] bool allow(exact_limits const& other) const noexcept {
    if ((other.missed & ~missed) != 0 || (declined & ~other.declined) != 0)
      return false;
    for (std::size_t d = 0; d < must.size(); ++d)
      if (must[d] != 0 && (other.must[d] == 0 || other.must[d] > must[d]))
        return false;
    return true;
  }
};

[[nodiscard]] inline exact_limits limits_of(exact_world const& world,
                                            exact_state const& at) noexcept {
  exact_limits limits;
  static_assert(most_exact_stages * most_exact_microbatches <= 64);
  for (int stage = 0; stage < world.stages; ++stage) {
    exact_stage const& here = at.stage[static_cast<std::size_t>(stage)];
    int const place = stage * most_exact_microbatches;
    limits.missed |= static_cast<std::uint64_t>(here.missed) << place;
    limits.declined |= static_cast<std::uint64_t>(here.declined) << place;
  }
  for (int device = 0; device < world.devices; ++device) {
    exact_engine const& compute = at.compute[static_cast<std::size_t>(device)];
    if (compute.kind == exact_kind::none)
      limits.must[static_cast<std::size_t>(device)] = compute.must;
  }
  return limits;
}

//! The key of a state; `fits` is false where it is too long for one.
[[nodiscard]] inline bit_writer key_of(exact_world const& world, exact_state const& at) noexcept {
  bit_writer out;
  bool const copies = world.copy >= 0;
  for (int stage = 0; stage < world.stages; ++stage) {
    exact_stage const& here = at.stage[static_cast<std::size_t>(stage)];
    for (int const count : {here.forward, here.input, here.weight})
      out.put(static_cast<std::uint64_t>(count), 4);
    if (copies)
      for (int const count : {here.out, here.in})
        out.put(static_cast<std::uint64_t>(count), 4);
    if (world.recomputes)
      for (int const count : {here.light, here.again})
        out.put(static_cast<std::uint64_t>(count), 4);
    if (world.labelled) {
      for (unsigned const mask : {here.copied, here.away, here.hosted})
        out.put(copies ? mask : 0, copies ? most_exact_microbatches : 1);
      out.put(here.bare, most_exact_microbatches);
    }
    put_arrivals(out, here.to_next);
    put_arrivals(out, here.to_before);
  }
  for (int device = 0; device < world.devices; ++device) {
    exact_engine const& compute = at.compute[static_cast<std::size_t>(device)];
    out.put(static_cast<std::uint64_t>(compute.kind), 3);
    if (compute.kind != exact_kind::none) {
      out.put(static_cast<std::uint64_t>(compute.stage), 3);
      out.put(static_cast<std::uint64_t>(compute.left), 12);
      if (world.labelled && compute.kind == exact_kind::recompute)
        out.put(static_cast<std::uint64_t>(compute.label), 3);
    }
    exact_engine const& lane = at.lane[static_cast<std::size_t>(device)];
    if (!copies)
      continue;
    out.put(static_cast<std::uint64_t>(lane.kind), 3);
    if (lane.kind != exact_kind::none) {
      out.put(static_cast<std::uint64_t>(lane.stage), 3);
      out.put(static_cast<std::uint64_t>(lane.left), 12);
      if (world.labelled)
        out.put(static_cast<std::uint64_t>(lane.label), 3);
    }
  }
  return out;
}

} // namespace detail
} // namespace pipelining::inline v0_2
