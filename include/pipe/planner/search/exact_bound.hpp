// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The least time that a moment of the exact search still needs. Header for
//! pipelining::detail::least_rest.

#include <pipe/planner/search/exact_state.hpp>
#include <pipe/planner/search/exact_ways.hpp>

#include <algorithm>
#include <array>
#include <cstddef>

namespace pipelining::inline v0_3::detail {

//! Earliest starts of the next pass of each kind on each stage, and earliest ends of the last.
struct exact_outlook {
  std::array<int, most_exact_stages> forward{};
  std::array<int, most_exact_stages> input{};
  std::array<int, most_exact_stages> last_forward{}; //!< end
  std::array<int, most_exact_stages> last_input{};   //!< end
};

//! When the next input of a stage comes, of which `begun` have been taken and `come` have come.
[[nodiscard]] inline int
next_arrival(exact_arrivals const& list, int begun, int come, int otherwise) noexcept {
  if (begun < come)
    return 0;
  return list.count > 0 ? list.left[0] : otherwise;
}

//! When a device has room for so many units more, if not now.
[[nodiscard]] inline int room_comes(exact_world const& world,
                                    exact_state const& at,
                                    int device,
                                    int units,
                                    int soonest_input) noexcept {
  auto const d = static_cast<std::size_t>(device);
  exact_engine const& engine = at.compute[d];
  int const over = held(world, at, device) + units - world.cap;
  int soonest = exact_never;
  for (exact_way const& way : at.ways[d]) {
    if (over <= hosted(world, way))
      return 0;
    if (way.kind == exact_kind::copy_out)
      soonest = std::min(soonest, static_cast<int>(way.left));
    else if (world.copy >= 0)
      soonest = std::min(soonest, way.left + world.copy);
  }
  for (int stage = 0; stage < world.stages; ++stage) {
    auto const s = static_cast<std::size_t>(stage);
    if (world.device[s] != device)
      continue;
    exact_stage const& here = at.stage[s];
    if (engine_runs(engine, exact_kind::backward_weight, stage) > 0)
      soonest = std::min(soonest, static_cast<int>(engine.left));
    else if (here.weight < here.input)
      soonest = std::min(soonest, engine.left + world.weight[s]);
    soonest = std::min(soonest, soonest_input + world.input[s] + world.weight[s]);
  }
  return soonest;
}

//! When an activation that is away or bare can be whole and there again.
[[nodiscard]] inline int
stands_again(exact_world const& world, exact_state const& at, int stage, int label) noexcept {
  auto const s = static_cast<std::size_t>(stage);
  auto const d = static_cast<std::size_t>(world.device[s]);
  if ((at.stage[s].bare >> label & 1) != 0) {
    exact_engine const& engine = at.compute[d];
    bool const now = engine_runs(engine, exact_kind::recompute, stage) > 0 && engine.label == label;
    return engine.left + (now ? 0 : world.again[s]);
  }
  int soonest = exact_never;
  int const slot = slot_of(stage, label);
  for (exact_way const& way : at.ways[d]) {
    if ((way.away() & bit_of(slot)) == 0)
      return 0;
    bool const now = way.kind == exact_kind::copy_in && way.slot == slot;
    soonest = std::min(soonest, way.left + (now ? 0 : world.copy));
  }
  return soonest;
}

//! The time that all activations of a stage have yet to be in its memory, for one copy out and in
//! at most each, if copies have gone this way.
[[nodiscard]] inline int presence(exact_world const& world,
                                  exact_state const& at,
                                  exact_outlook const& out,
                                  int stage,
                                  exact_way const& way) noexcept {
  auto const s = static_cast<std::size_t>(stage);
  exact_stage const& here = at.stage[s];
  exact_engine const& compute = at.compute[static_cast<std::size_t>(world.device[s])];
  int const behind = world.input[s] + world.weight[s];
  int sum = 0;
  for (int k = 0; k < world.microbatches; ++k) {
    if (k >= here.forward) {
      sum += std::min(world.lifetime[s], world.forward[s] + 2 * world.copy + behind);
    } else if (k < here.weight) {
      sum += k + 1 == here.weight && engine_runs(compute, exact_kind::backward_weight, stage) > 0
               ? compute.left
               : 0;
    } else if (k < here.input) {
      sum += world.weight[s] +
             (k + 1 == here.input && engine_runs(compute, exact_kind::backward_input, stage) > 0
                ? compute.left
                : 0);
    } else {
      int const stays = out.input[s] + (k - here.input) * world.input[s];
      int const slot = slot_of(stage, k);
      bool const now = way.kind != exact_kind::none && way.slot == slot;
      if ((way.copied & bit_of(slot)) == 0)
        sum += std::min(stays, 2 * world.copy) + behind;
      else if ((way.away() & bit_of(slot)) == 0)
        sum += stays + behind;
      else if (now && way.kind == exact_kind::copy_out)
        sum += way.left + world.copy + behind;
      else if (now)
        sum += std::max(stays, static_cast<int>(way.left)) + behind;
      else
        sum += world.copy + behind;
    }
  }
  return sum;
}

//! When each stage can begin its next forward pass, and end its last one.
inline void
look_out_forward(exact_world const& world, exact_state const& at, exact_outlook& out) noexcept {
  int const all = world.microbatches;
  bool const fixed = world.copy < 0;
  int const room =
    std::max(1, world.cap / std::max(1, world.recomputes ? world.kept : world.whole));
  for (int stage = 0; stage < world.stages; ++stage) {
    auto const s = static_cast<std::size_t>(stage);
    exact_stage const& here = at.stage[s];
    int const free = at.compute[static_cast<std::size_t>(world.device[s])].left;
    int ready = 0;
    if (stage > 0)
      ready = next_arrival(at.stage[s - 1].to_next,
                           here.forward,
                           inputs_come(world, at, stage),
                           out.forward[s - 1] + world.forward[s - 1] + world.down[s - 1]);
    out.forward[s] = std::max(free, ready);
    int const left = all - here.forward;
    if (left == 0) {
      out.last_forward[s] = -exact_never; // its last message is on its way or has come
      continue;
    }
    int const units = world.recomputes ? world.kept : world.whole;
    out.forward[s] = std::max(out.forward[s], room_comes(world, at, world.device[s], units, free));
    // What has to be freed before the last forward pass has room.
    int const freed_first = fixed ? std::max(0, all - room) : 0;
    int const forced = std::max(0, freed_first - here.input) * world.input[s] +
                       std::max(0, freed_first - here.weight) * world.weight[s];
    out.last_forward[s] =
      std::max(out.forward[s] + left * world.forward[s], free + left * world.forward[s] + forced);
    if (stage > 0)
      out.last_forward[s] = std::max(
        out.last_forward[s], out.last_forward[s - 1] + world.down[s - 1] + world.forward[s]);
  }
}

//! The same of backward passes for the input, after those of forward passes are known.
inline void
look_out_input(exact_world const& world, exact_state const& at, exact_outlook& out) noexcept {
  int const all = world.microbatches;
  for (int stage = world.stages - 1; stage >= 0; --stage) {
    auto const s = static_cast<std::size_t>(stage);
    exact_stage const& here = at.stage[s];
    auto const d = static_cast<std::size_t>(world.device[s]);
    int const free = at.compute[d].left;
    int ready = 0;
    bool const last = stage + 1 == world.stages;
    if (last) {
      bool const kept = here.input < forward_ended(world, at, stage);
      int const runs_one = engine_runs(at.compute[d], exact_kind::forward, stage) +
                           engine_runs(at.compute[d], exact_kind::light_forward, stage);
      ready = kept || runs_one > 0 ? 0 : out.forward[s] + world.forward[s];
    } else {
      ready = next_arrival(at.stage[s + 1].to_before,
                           here.input,
                           gradients_come(world, at, stage),
                           out.input[s + 1] + world.input[s + 1] + world.up[s + 1]);
    }
    int const left = all - here.input;
    if (left == 0) {
      out.last_input[s] = -exact_never;
      continue;
    }
    if (world.copy >= 0 || world.recomputes)
      ready = std::max(ready, stands_again(world, at, stage, here.input));
    out.input[s] = std::max(free, ready);
    int ends = out.input[s] + left * world.input[s];
    ends = std::max(ends, free + left * world.input[s] + (all - here.forward) * world.forward[s]);
    if (last)
      ends = std::max(ends, out.last_forward[s] + world.input[s]);
    else
      ends = std::max(ends, out.last_input[s + 1] + world.up[s + 1] + world.input[s]);
    out.last_input[s] = ends;
  }
}

[[nodiscard]] inline exact_outlook look_out(exact_world const& world,
                                            exact_state const& at) noexcept {
  exact_outlook out;
  look_out_forward(world, at, out);
  look_out_input(world, at, out);
  return out;
}

//! The chain of forward passes through the room that a stage has: each needs the end of another.
//! For pipelines without copies and recomputation, where an activation stays for its lifetime.
[[nodiscard]] inline int least_rest_of_room(exact_world const& world,
                                            exact_state const& at,
                                            exact_outlook const& out,
                                            int stage) noexcept {
  auto const s = static_cast<std::size_t>(stage);
  exact_stage const& here = at.stage[s];
  exact_engine const& engine = at.compute[static_cast<std::size_t>(world.device[s])];
  std::array<int, most_exact_microbatches> frees{};
  int const room = world.cap / world.whole;
  int start = 0;
  int end = 0;
  int ended = here.weight - engine_runs(engine, exact_kind::backward_weight, stage);
  for (int k = ended; k < world.microbatches; ++k) {
    if (k >= here.forward) {
      start = std::max(k == here.forward ? out.forward[s] : start + world.forward[s],
                       k >= room ? frees[static_cast<std::size_t>(k - room)] : 0);
      end = std::max(end + world.weight[s], start + world.lifetime[s]);
    } else if (k < here.weight) {
      end = engine.left; // it runs
    } else if (k < here.input) {
      end = std::max(end, static_cast<int>(engine.left)) + world.weight[s];
    } else {
      int const input = out.input[s] + (k - here.input + 1) * world.input[s];
      end = std::max(end, input) + world.weight[s];
    }
    frees[static_cast<std::size_t>(k)] = end;
  }
  return end;
}

//! A lower bound on the time from a state to the end of everything.
[[nodiscard]] inline int least_rest(exact_world const& world, exact_state const& at) noexcept {
  exact_outlook const out = look_out(world, at);
  int const all = world.microbatches;
  int bound = 0;
  std::array<int, most_exact_devices> work{};
  std::array<int, most_exact_devices> first{};
  first.fill(exact_never);
  for (int stage = 0; stage < world.stages; ++stage) {
    auto const s = static_cast<std::size_t>(stage);
    auto const d = static_cast<std::size_t>(world.device[s]);
    exact_stage const& here = at.stage[s];
    int const weights = all - here.weight;
    int const backward = (all - here.input) * world.input[s] + weights * world.weight[s] +
                         (here.light - here.again) * world.again[s];
    work[d] += (all - here.forward) * world.forward[s] + backward;
    int const free = at.compute[d].left;
    if (here.forward < all)
      first[d] = std::min(first[d], out.forward[s]);
    if (here.input < all) {
      first[d] = std::min(first[d], out.input[s]);
      bound = std::max(bound, out.last_input[s] + world.weight[s]);
      bound =
        std::max(bound, out.input[s] + (all - here.input) * (world.input[s] + world.weight[s]));
    }
    if (here.weight < here.input || here.again < here.light)
      first[d] = std::min(first[d], free);
    bound = std::max(bound, free);
    if (world.copy < 0 && !world.recomputes && here.weight < all)
      bound = std::max(bound, least_rest_of_room(world, at, out, stage));
  }
  for (int device = 0; device < world.devices; ++device) {
    auto const d = static_cast<std::size_t>(device);
    if (work[d] > 0)
      bound = std::max(bound, first[d] + work[d]);
    if (world.copy < 0 || world.recomputes)
      continue;
    int sum = exact_never;
    bool fresh = true; // nothing has begun
    for (exact_way const& way : at.ways[d]) {
      int present = 0;
      for (int stage = 0; stage < world.stages; ++stage)
        if (world.device[static_cast<std::size_t>(stage)] == device)
          present += presence(world, at, out, stage, way);
      sum = std::min(sum, present);
    }
    for (int stage = 0; stage < world.stages; ++stage)
      fresh = fresh && (world.device[static_cast<std::size_t>(stage)] != device ||
                        at.stage[static_cast<std::size_t>(stage)].forward == 0);
    int const room = world.cap / world.whole;
    bound = std::max(bound, (fresh ? first[d] : 0) + (sum + room - 1) / room);
  }
  return bound;
}

} // namespace pipelining::inline v0_3::detail
