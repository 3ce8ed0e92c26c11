// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The least time that is left after a state, for stages and for single microbatches.
//! Header for pipelining::detail::least_rest and exact_each.

#include <pipe/planner/search/exact_state.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>
#include <vector>

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

//! When an activation that is away or bare can be whole and there again.
[[nodiscard]] inline int
stands_again(exact_world const& world, exact_state const& at, int stage, int label) noexcept {
  int const d = world.device[stage];
  if ((at.stage[stage].bare >> label & 1) != 0) {
    exact_engine const& engine = at.compute[d];
    bool const now = engine_runs(engine, exact_kind::recompute, stage) > 0 && engine.label == label;
    return engine.left + (now ? 0 : world.again[stage]);
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
    if (world.copy >= 0 || world.recomputes)
      ready = std::max(ready, stands_again(world, at, stage, here.input));
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
        if (k < at_.stage[stage].forward)
          continue;
        find_forward(stage, k);
        bound =
          std::max(bound,
                   forward_[stage] + (all - k) * (world_.forward[stage] + world_.input[stage] +
                                                  world_.weight[stage]));
      }
      for (int stage = world_.stages - 1; stage >= 0; --stage) {
        if (k >= at_.stage[stage].input) {
          find_input(stage, k);
          bound = std::max(
            bound, input_[stage] + (all - k) * (world_.input[stage] + world_.weight[stage]));
        }
        if (k >= first_weight(stage)) {
          find_weight(stage, k);
          bound = std::max(bound, weight_end_[stage][k]);
        }
      }
    }
    return bound;
  }

private:
  [[nodiscard]] exact_engine const& compute(int stage) const noexcept {
    return at_.compute[world_.device[stage]];
  }
  //! The ways in which copies next to a stage may have gone.
  [[nodiscard]] std::vector<exact_way> const& ways(int stage) const noexcept {
    return at_.ways[world_.device[stage]];
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
    return place < 0 ? 0 : list.left[place];
  }

  void find_forward(int stage, int k) noexcept {
    exact_stage const& here = at_.stage[stage];
    int const before = (k - here.forward) * world_.forward[stage];
    int start = compute(stage).left + before;
    if (k > here.forward)
      start = std::max(start, forward_[stage] + world_.forward[stage]);
    if (stage > 0)
      start =
        std::max(start,
                 arrival(at_.stage[stage - 1].to_next,
                         at_.stage[stage - 1].forward,
                         k,
                         forward_[stage - 1] + world_.forward[stage - 1] + world_.down[stage - 1]));
    forward_[stage] = std::max(start, room(stage, k, before));
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
    exact_stage const& here = at_.stage[stage];
    int const there =
      (held(world_, at_, world_.device[stage]) - hosted(world_, way)) / world_.whole;
    int const wanted = there + k - here.forward + 1 - world_.cap / world_.whole;
    if (wanted <= 0)
      return 0;
    int const out_now = way.kind == exact_kind::copy_out ? 1 : 0;
    int const free = compute(stage).left;
    int soonest = way.left + (wanted - out_now) * world_.copy;
    int leave = 0;
    for (int label = first_weight(stage); label < k && leave < wanted; ++label) {
      // What is away leaves nothing that was there: it has to come back first.
      if ((way.away() & bit_of(slot_of(stage, label))) != 0)
        continue;
      ++leave;
      int const inputs = std::max(0, label + 1 - here.input);
      int const weights = std::max(0, label + 1 - here.weight);
      int const copied = wanted - leave;
      int const time =
        std::max({copied == 0 ? 0 : way.left + (copied - out_now) * world_.copy,
                  weight_end_[stage][label],
                  free + before + inputs * world_.input[stage] + weights * world_.weight[stage]});
      soonest = std::min(soonest, time);
    }
    return soonest;
  }

  void find_input(int stage, int k) noexcept {
    exact_stage const& here = at_.stage[stage];
    // After all forward passes up to its own, and all backward passes before it.
    int start = compute(stage).left + std::max(0, k + 1 - here.forward) * world_.forward[stage] +
                (k - here.input) * world_.input[stage];
    if (k > here.input)
      start = std::max(start, input_[stage] + world_.input[stage]);
    if (k >= here.forward)
      start = std::max(start, forward_[stage] + world_.forward[stage]);
    if (stage + 1 < world_.stages)
      start = std::max(start,
                       arrival(at_.stage[stage + 1].to_before,
                               at_.stage[stage + 1].input,
                               k,
                               input_[stage + 1] + world_.input[stage + 1] + world_.up[stage + 1]));
    input_[stage] = std::max(start, comes_back(stage, k));
  }

  //! When all activations that are away up to microbatch k can be back: one copy after the other.
  [[nodiscard]] int comes_back(int stage, int k) const noexcept {
    int soonest = exact_never;
    int const first = at_.stage[stage].input;
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
    return at_.stage[stage].weight - runs(stage, exact_kind::backward_weight);
  }

  void find_weight(int stage, int k) noexcept {
    exact_stage const& here = at_.stage[stage];
    int end = k == first_weight(stage) ? compute(stage).left : weight_end_[stage][k - 1];
    if (k >= here.weight) {
      if (k >= here.input)
        end = std::max(end, input_[stage] + world_.input[stage]);
      end += world_.weight[stage];
    }
    weight_end_[stage][k] = end;
  }

  exact_world const& world_;
  exact_state const& at_;
  // Of the microbatch that is looked at, or the one before.
  int forward_[most_exact_stages]{};
  int input_[most_exact_stages]{};
  //! Of every microbatch up to that.
  int weight_end_[most_exact_stages][most_exact_microbatches]{};
};

} // namespace pipelining::inline v0_3::detail
