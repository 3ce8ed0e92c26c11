// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The least time that is left after a state. Header for pipelining::detail::least_rest.

#include <pipe/planner/search/exact_state.hpp>

#include <algorithm>
#include <iterator>

namespace pipelining::inline v0_3::detail {

//! Earliest starts of the next pass of each kind on each stage, and earliest ends of the last.
struct exact_outlook {
  int forward[most_exact_stages]{};
  int input[most_exact_stages]{};
  int last_forward[most_exact_stages]{}; //!< end
  int last_input[most_exact_stages]{};   //!< end
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
  exact_engine const& engine = at.compute[device];
  int const over = held(world, at, device) + units - world.cap;
  int soonest = exact_never;
  for (exact_way const& way : at.ways[device]) {
    if (over <= hosted(world, way))
      return 0;
    if (way.kind == exact_kind::copy_out)
      soonest = std::min(soonest, static_cast<int>(way.left));
    else if (world.copy >= 0)
      soonest = std::min(soonest, way.left + world.copy);
  }
  for (int stage = 0; stage < world.stages; ++stage) {
    if (world.device[stage] != device)
      continue;
    exact_stage const& here = at.stage[stage];
    if (engine_runs(engine, exact_kind::backward_weight, stage) > 0)
      soonest = std::min(soonest, static_cast<int>(engine.left));
    else if (here.weight < here.input)
      soonest = std::min(soonest, engine.left + world.weight[stage]);
    soonest = std::min(soonest, soonest_input + world.input[stage] + world.weight[stage]);
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
  exact_stage const& here = at.stage[stage];
  exact_engine const& compute = at.compute[world.device[stage]];
  int const behind = world.input[stage] + world.weight[stage];
  int sum = 0;
  for (int k = 0; k < world.microbatches; ++k) {
    if (k >= here.forward) {
      sum += std::min(world.lifetime[stage], world.forward[stage] + 2 * world.copy + behind);
    } else if (k < here.weight) {
      sum += k + 1 == here.weight && engine_runs(compute, exact_kind::backward_weight, stage) > 0
               ? compute.left
               : 0;
    } else if (k < here.input) {
      sum += world.weight[stage] +
             (k + 1 == here.input && engine_runs(compute, exact_kind::backward_input, stage) > 0
                ? compute.left
                : 0);
    } else {
      int const stays = out.input[stage] + (k - here.input) * world.input[stage];
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
    exact_stage const& here = at.stage[stage];
    int const free = at.compute[world.device[stage]].left;
    int ready = 0;
    if (stage > 0)
      ready =
        next_arrival(at.stage[stage - 1].to_next,
                     here.forward,
                     inputs_come(world, at, stage),
                     out.forward[stage - 1] + world.forward[stage - 1] + world.down[stage - 1]);
    out.forward[stage] = std::max(free, ready);
    int const left = all - here.forward;
    if (left == 0) {
      out.last_forward[stage] = -exact_never; // its last message is on its way or has come
      continue;
    }
    int const units = world.recomputes ? world.kept : world.whole;
    out.forward[stage] =
      std::max(out.forward[stage], room_comes(world, at, world.device[stage], units, free));
    // What has to be freed before the last forward pass has room.
    int const freed_first = fixed ? std::max(0, all - room) : 0;
    int const forced = std::max(0, freed_first - here.input) * world.input[stage] +
                       std::max(0, freed_first - here.weight) * world.weight[stage];
    out.last_forward[stage] = std::max(out.forward[stage] + left * world.forward[stage],
                                       free + left * world.forward[stage] + forced);
    if (stage > 0)
      out.last_forward[stage] =
        std::max(out.last_forward[stage],
                 out.last_forward[stage - 1] + world.down[stage - 1] + world.forward[stage]);
  }
}

//! The same of backward passes for the input, after the figures of forward passes are known.
inline void
look_out_input(exact_world const& world, exact_state const& at, exact_outlook& out) noexcept {
  int const all = world.microbatches;
  for (int stage = world.stages - 1; stage >= 0; --stage) {
    exact_stage const& here = at.stage[stage];
    int const d = world.device[stage];
    int const free = at.compute[d].left;
    int ready = 0;
    bool const last = stage + 1 == world.stages;
    if (last) {
      bool const kept = here.input < forward_ended(world, at, stage);
      int const runs_one = engine_runs(at.compute[d], exact_kind::forward, stage) +
                           engine_runs(at.compute[d], exact_kind::light_forward, stage);
      ready = kept || runs_one > 0 ? 0 : out.forward[stage] + world.forward[stage];
    } else {
      ready = next_arrival(at.stage[stage + 1].to_before,
                           here.input,
                           gradients_come(world, at, stage),
                           out.input[stage + 1] + world.input[stage + 1] + world.up[stage + 1]);
    }
    int const left = all - here.input;
    if (left == 0) {
      out.last_input[stage] = -exact_never;
      continue;
    }
    out.input[stage] = std::max(free, ready);
    int ends = out.input[stage] + left * world.input[stage];
    ends = std::max(ends,
                    free + left * world.input[stage] + (all - here.forward) * world.forward[stage]);
    if (last)
      ends = std::max(ends, out.last_forward[stage] + world.input[stage]);
    else
      ends = std::max(ends, out.last_input[stage + 1] + world.up[stage + 1] + world.input[stage]);
    out.last_input[stage] = ends;
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
  exact_stage const& here = at.stage[stage];
  exact_engine const& engine = at.compute[world.device[stage]];
  int frees[most_exact_microbatches]{};
  int const room = world.cap / world.whole;
  int start = 0;
  int end = 0;
  int ended = here.weight - engine_runs(engine, exact_kind::backward_weight, stage);
  for (int k = ended; k < world.microbatches; ++k) {
    if (k >= here.forward) {
      start = std::max(k == here.forward ? out.forward[stage] : start + world.forward[stage],
                       k >= room ? frees[k - room] : 0);
      end = std::max(end + world.weight[stage], start + world.lifetime[stage]);
    } else if (k < here.weight) {
      end = engine.left; // it runs
    } else if (k < here.input) {
      end = std::max(end, static_cast<int>(engine.left)) + world.weight[stage];
    } else {
      int const input = out.input[stage] + (k - here.input + 1) * world.input[stage];
      end = std::max(end, input) + world.weight[stage];
    }
    frees[k] = end;
  }
  return end;
}

//! A lower bound on the time from a state to the end of everything.
[[nodiscard]] inline int least_rest(exact_world const& world, exact_state const& at) noexcept {
  exact_outlook const out = look_out(world, at);
  int const all = world.microbatches;
  int bound = 0;
  int work[most_exact_devices]{};
  int first[most_exact_devices]{};
  std::fill(std::begin(first), std::end(first), exact_never);
  for (int stage = 0; stage < world.stages; ++stage) {
    int const d = world.device[stage];
    exact_stage const& here = at.stage[stage];
    int const weights = all - here.weight;
    int const backward = (all - here.input) * world.input[stage] + weights * world.weight[stage] +
                         (here.light - here.again) * world.again[stage];
    work[d] += (all - here.forward) * world.forward[stage] + backward;
    int const free = at.compute[d].left;
    if (here.forward < all)
      first[d] = std::min(first[d], out.forward[stage]);
    if (here.input < all) {
      first[d] = std::min(first[d], out.input[stage]);
      bound = std::max(bound, out.last_input[stage] + world.weight[stage]);
      bound = std::max(
        bound, out.input[stage] + (all - here.input) * (world.input[stage] + world.weight[stage]));
    }
    if (here.weight < here.input || here.again < here.light)
      first[d] = std::min(first[d], free);
    bound = std::max(bound, free);
    if (world.copy < 0 && !world.recomputes && here.weight < all)
      bound = std::max(bound, least_rest_of_room(world, at, out, stage));
  }
  for (int device = 0; device < world.devices; ++device) {
    if (work[device] > 0)
      bound = std::max(bound, first[device] + work[device]);
    if (world.copy < 0 || world.recomputes)
      continue;
    int sum = exact_never;
    bool fresh = true; // nothing has begun
    for (exact_way const& way : at.ways[device]) {
      int present = 0;
      for (int stage = 0; stage < world.stages; ++stage)
        if (world.device[stage] == device)
          present += presence(world, at, out, stage, way);
      sum = std::min(sum, present);
    }
    for (int stage = 0; stage < world.stages; ++stage)
      fresh = fresh && (world.device[stage] != device || at.stage[stage].forward == 0);
    int const room = world.cap / world.whole;
    bound = std::max(bound, (fresh ? first[device] : 0) + (sum + room - 1) / room);
  }
  return bound;
}

} // namespace pipelining::inline v0_3::detail
