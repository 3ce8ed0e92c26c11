// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The least time that is left after a state. Header for pipelining::detail::exact_outlook.

#include <pipe/planner/search/exact_state.hpp>

#include <algorithm>
#include <iterator>

namespace pipelining::inline v0_3::detail {

//! When the next input of a stage comes, of which `begun` have been taken and `come` have come.
[[nodiscard]] inline int
next_arrival(exact_arrivals const& list, int begun, int come, int otherwise) noexcept {
  if (begun < come)
    return 0;
  return list.count > 0 ? list.left[0] : otherwise;
}

//! Earliest starts of the next pass of each kind on each stage, and earliest ends of the last, from
//! a state on.
class exact_outlook {
public:
  exact_outlook(exact_world const& world, exact_state const& at) noexcept : world_(world), at_(at) {
    look_forward();
    look_back();
  }

  //! A lower bound on the time from a state to the end of everything.
  [[nodiscard]] int least_rest() const noexcept {
    int const all = world_.microbatches;
    int bound = 0;
    int work[most_exact_devices]{};
    int first[most_exact_devices]{};
    std::fill(std::begin(first), std::end(first), exact_never);
    for (int stage = 0; stage < world_.stages; ++stage) {
      int const d = world_.holder[stage];
      exact_stage const& here = at_.stage[stage];
      int const weights = all - here.weight;
      int const backward = (all - here.input) * world_.input[stage] +
                           weights * world_.weight[stage] +
                           (here.light - here.again) * world_.again[stage];
      work[d] += (all - here.forward) * world_.forward[stage] + backward;
      int const free = at_.compute[d].left;
      if (here.forward < all)
        first[d] = std::min(first[d], forward_[stage]);
      if (here.input < all) {
        first[d] = std::min(first[d], input_[stage]);
        bound = std::max(bound, last_input_[stage] + world_.weight[stage]);
        bound = std::max(
          bound, input_[stage] + (all - here.input) * (world_.input[stage] + world_.weight[stage]));
      }
      if (here.weight < here.input || here.again < here.light)
        first[d] = std::min(first[d], free);
      bound = std::max(bound, free);
      if (world_.copy < 0 && !world_.recomputes && here.weight < all)
        bound = std::max(bound, least_rest_of_room(stage));
    }
    for (int device = 0; device < world_.devices; ++device) {
      if (work[device] > 0)
        bound = std::max(bound, first[device] + work[device]);
      if (world_.copy < 0 || world_.recomputes)
        continue;
      int sum = exact_never;
      bool fresh = true; // nothing has begun
      for (exact_way const& way : at_.ways[device]) {
        int present = 0;
        for (int stage = 0; stage < world_.stages; ++stage)
          if (world_.holder[stage] == device)
            present += presence(stage, way);
        sum = std::min(sum, present);
      }
      for (int stage = 0; stage < world_.stages; ++stage)
        fresh = fresh && (world_.holder[stage] != device || at_.stage[stage].forward == 0);
      int const room = world_.cap / world_.whole;
      bound = std::max(bound, (fresh ? first[device] : 0) + (sum + room - 1) / room);
    }
    return bound;
  }

private:
  //! When a device has room for so many units more, if not now.
  [[nodiscard]] int room_comes(int device, int units, int soonest_input) const noexcept {
    exact_engine const& engine = at_.compute[device];
    int const over = world_.held(at_, device) + units - world_.cap;
    int soonest = exact_never;
    for (exact_way const& way : at_.ways[device]) {
      if (over <= world_.hosted(way))
        return 0;
      if (way.kind == exact_kind::copy_out)
        soonest = std::min(soonest, static_cast<int>(way.left));
      else if (world_.copy >= 0)
        soonest = std::min(soonest, way.left + world_.copy);
    }
    for (int stage = 0; stage < world_.stages; ++stage) {
      if (world_.holder[stage] != device)
        continue;
      exact_stage const& here = at_.stage[stage];
      if (engine.runs(exact_kind::backward_weight, stage) > 0)
        soonest = std::min(soonest, static_cast<int>(engine.left));
      else if (here.weight < here.input)
        soonest = std::min(soonest, engine.left + world_.weight[stage]);
      soonest = std::min(soonest, soonest_input + world_.input[stage] + world_.weight[stage]);
    }
    return soonest;
  }

  //! The time that all activations of a stage have yet to be in its memory, for one copy out and in
  //! at most each, if copies have gone this way.
  [[nodiscard]] int presence(int stage, exact_way const& way) const noexcept {
    exact_stage const& here = at_.stage[stage];
    exact_engine const& compute = at_.compute[world_.holder[stage]];
    int const behind = world_.input[stage] + world_.weight[stage];
    int sum = 0;
    for (int k = 0; k < world_.microbatches; ++k) {
      if (k >= here.forward) {
        sum += std::min(world_.lifetime[stage], world_.forward[stage] + 2 * world_.copy + behind);
      } else if (k < here.weight) {
        sum += k + 1 == here.weight && compute.runs(exact_kind::backward_weight, stage) > 0
                 ? compute.left
                 : 0;
      } else if (k < here.input) {
        sum +=
          world_.weight[stage] +
          (k + 1 == here.input && compute.runs(exact_kind::backward_input, stage) > 0 ? compute.left
                                                                                      : 0);
      } else {
        int const stays = input_[stage] + (k - here.input) * world_.input[stage];
        int const slot = slot_of(stage, k);
        bool const now = way.kind != exact_kind::none && way.slot == slot;
        if ((way.copied & bit_of(slot)) == 0)
          sum += std::min(stays, 2 * world_.copy) + behind;
        else if ((way.away() & bit_of(slot)) == 0)
          sum += stays + behind;
        else if (now && way.kind == exact_kind::copy_out)
          sum += way.left + world_.copy + behind;
        else if (now)
          sum += std::max(stays, static_cast<int>(way.left)) + behind;
        else
          sum += world_.copy + behind;
      }
    }
    return sum;
  }

  //! When each stage can begin its next forward pass, and end its last one.
  void look_forward() noexcept {
    int const all = world_.microbatches;
    bool const fixed = world_.copy < 0;
    int const room =
      std::max(1, world_.cap / std::max(1, world_.recomputes ? world_.kept : world_.whole));
    for (int stage = 0; stage < world_.stages; ++stage) {
      exact_stage const& here = at_.stage[stage];
      int const free = at_.compute[world_.holder[stage]].left;
      int ready = 0;
      if (stage > 0)
        ready =
          next_arrival(at_.stage[stage - 1].to_next,
                       here.forward,
                       world_.inputs_come(at_, stage),
                       forward_[stage - 1] + world_.forward[stage - 1] + world_.down[stage - 1]);
      forward_[stage] = std::max(free, ready);
      int const left = all - here.forward;
      if (left == 0) {
        last_forward_[stage] = -exact_never; // its last message is on its way or has come
        continue;
      }
      int const units = world_.recomputes ? world_.kept : world_.whole;
      forward_[stage] = std::max(forward_[stage], room_comes(world_.holder[stage], units, free));
      // What has to be freed before the last forward pass has room.
      int const freed_first = fixed ? std::max(0, all - room) : 0;
      int const forced = std::max(0, freed_first - here.input) * world_.input[stage] +
                         std::max(0, freed_first - here.weight) * world_.weight[stage];
      last_forward_[stage] = std::max(forward_[stage] + left * world_.forward[stage],
                                      free + left * world_.forward[stage] + forced);
      if (stage > 0)
        last_forward_[stage] =
          std::max(last_forward_[stage],
                   last_forward_[stage - 1] + world_.down[stage - 1] + world_.forward[stage]);
    }
  }

  //! The same of backward passes for the input, after the figures of forward passes are known.
  void look_back() noexcept {
    int const all = world_.microbatches;
    for (int stage = world_.stages - 1; stage >= 0; --stage) {
      exact_stage const& here = at_.stage[stage];
      int const free = at_.compute[world_.holder[stage]].left;
      int ready = 0;
      bool const last = stage + 1 == world_.stages;
      if (!last)
        ready = next_arrival(at_.stage[stage + 1].to_before,
                             here.input,
                             world_.gradients_come(at_, stage),
                             input_[stage + 1] + world_.input[stage + 1] + world_.up[stage + 1]);
      else if (here.input == here.forward)
        ready = forward_[stage] + world_.forward[stage];
      int const left = all - here.input;
      if (left == 0) {
        last_input_[stage] = -exact_never;
        continue;
      }
      input_[stage] = std::max(free, ready);
      int ends = input_[stage] + left * world_.input[stage];
      ends = std::max(
        ends, free + left * world_.input[stage] + (all - here.forward) * world_.forward[stage]);
      if (last)
        ends = std::max(ends, last_forward_[stage] + world_.input[stage]);
      else
        ends = std::max(ends, last_input_[stage + 1] + world_.up[stage + 1] + world_.input[stage]);
      last_input_[stage] = ends;
    }
  }

  //! The chain of forward passes through the room that a stage has: each needs the end of another.
  //! For pipelines without copies and recomputation, where an activation stays for its lifetime.
  [[nodiscard]] int least_rest_of_room(int stage) const noexcept {
    exact_stage const& here = at_.stage[stage];
    exact_engine const& engine = at_.compute[world_.holder[stage]];
    int frees[most_exact_microbatches]{};
    int const room = world_.cap / world_.whole;
    int start = 0;
    int end = 0;
    int ended = here.weight - engine.runs(exact_kind::backward_weight, stage);
    for (int k = ended; k < world_.microbatches; ++k) {
      if (k >= here.forward) {
        start = std::max(k == here.forward ? forward_[stage] : start + world_.forward[stage],
                         k >= room ? frees[k - room] : 0);
        end = std::max(end + world_.weight[stage], start + world_.lifetime[stage]);
      } else if (k < here.weight) {
        end = engine.left; // it runs
      } else if (k < here.input) {
        end = std::max(end, static_cast<int>(engine.left)) + world_.weight[stage];
      } else {
        int const input = input_[stage] + (k - here.input + 1) * world_.input[stage];
        end = std::max(end, input) + world_.weight[stage];
      }
      frees[k] = end;
    }
    return end;
  }

  exact_world const& world_;
  exact_state const& at_;
  int forward_[most_exact_stages]{};
  int input_[most_exact_stages]{};
  int last_forward_[most_exact_stages]{}; // end
  int last_input_[most_exact_stages]{};   // end
};

} // namespace pipelining::inline v0_3::detail
