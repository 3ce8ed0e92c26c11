// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What the exact search knows of a pipeline at one moment. Header for pipelining::detail::
//! exact_world and exact_state.
//!
//! Microbatches are alike, so what is computed is described by counts: how many forward passes each
//! stage has begun, how many of each other kind, what runs and how much longer.

#include <pipe/flow/shape.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! The kinds of steps that the exact search orders: passes, and what adapters add to them.
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
  int cap = 1;   //!< units that a device may hold
  int whole = 1; //!< units of an activation
  int kept = 0;  //!< units of what a light forward pass keeps

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

//! The place of an activation in a mask.
[[nodiscard]] constexpr int slot_of(int stage, int label) noexcept {
  return stage * most_exact_microbatches + label;
}
[[nodiscard]] constexpr std::uint64_t bit_of(int slot) noexcept {
  return std::uint64_t{1} << slot;
}

//! A way in which the copies of a device may have gone, by activation: what is where, what the lane
//! carries. Also what the device may not do next, since another order is then at least as short.
struct exact_way {
  std::uint64_t copied = 0; //!< the copy out has begun, backward has not
  std::uint64_t hosted = 0; //!< the copy out has ended, the copy in has not begun
  //! By kind and stage: the device has waited although it could have begun this.
  std::uint64_t declined = 0;
  //! A device that waits has to begin something sooner than this; 0 when it need not.
  std::int16_t must = 0;
  std::int16_t left = 0;              //!< of the copy
  exact_kind kind = exact_kind::none; //!< of the copy
  std::int8_t slot = 0;               //!< of the copy
  int past = -1;                      //!< the copies before, in the search's history

  //! What no backward pass may take.
  [[nodiscard]] std::uint64_t away() const noexcept {
    return hosted | (kind == exact_kind::none ? 0 : bit_of(slot));
  }
};

//! Arrivals that are still to come, soonest first.
struct exact_arrivals {
  std::array<std::int16_t, most_exact_microbatches> left{};
  std::int8_t count = 0;
};

//! What the compute engine of a device does now.
struct exact_engine {
  exact_kind kind = exact_kind::none;
  std::int8_t stage = 0;
  std::int8_t label = 0;
  std::int16_t left = 0;
};

//! Counts of steps that have begun on one stage.
struct exact_stage {
  std::int8_t forward = 0;
  std::int8_t light = 0; //!< of the forward passes
  std::int8_t again = 0;
  std::int8_t input = 0;
  std::int8_t weight = 0;
  std::uint8_t bare = 0;    //!< by label, where there is recomputation: it has not ended
  exact_arrivals to_next;   //!< of activations at the stage behind
  exact_arrivals to_before; //!< of gradients at the stage before
};

//! What runs, and all ways in which the copies of each device may have gone beside it. Copies have
//! no part in what the other devices do, so the ways of one are independent of those of another.
struct exact_state {
  std::array<exact_stage, most_exact_stages> stage{};
  std::array<exact_engine, most_exact_devices> compute{};
  std::array<std::vector<exact_way>, most_exact_devices> ways{};
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

//! Units that a device holds now, and those that are on the host.
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
    units += world.whole * (here.forward - here.light - ended) + world.kept * here.light +
             (world.whole - world.kept) * here.again;
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

} // namespace pipelining::inline v0_3::detail
