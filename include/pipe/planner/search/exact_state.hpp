// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The states of a search for a shortest order: passes, messages, and the ways in which
//! copies can have gone. Header for pipelining::detail::exact_state and exact_way.
//!
//! Microbatches are alike, so passes are described by counts: how many forward passes each stage
//! has begun, how many of each other kind, which step runs and how much longer.
//!
//! A search that decided on copies would go through the product of the choices of the lanes of all
//! devices. A lane meets the rest only where a pass asks whether there is room or whether an
//! activation is back. So all ways of a lane are kept side by side, and a pass leaves the ways that
//! allow it.

#include <pipe/flow/shape.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! The kinds of steps that the exact search orders: passes, and what adapters add to them.
enum class exact_kind : std::uint8_t {
  none,
  forward,
  light_forward, //!< a forward pass that keeps its input only
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

//! The place of an activation in a mask.
[[nodiscard]] constexpr int slot_of(int stage, int label) noexcept {
  return stage * most_exact_microbatches + label;
}
[[nodiscard]] constexpr std::uint64_t bit_of(int slot) noexcept {
  return std::uint64_t{1} << slot;
}

//! A way in which the copies of a device may have gone: the place of each activation, and the load
//! of the lane. Also the steps that the device may not do next, since another order is then at
//! least as short.
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

  //! The activations that no backward pass may take.
  [[nodiscard]] std::uint64_t away() const noexcept {
    return hosted | (kind == exact_kind::none ? 0 : bit_of(slot));
  }
};

//! Arrivals that are still to come, soonest first.
struct exact_arrivals {
  std::int16_t left[most_exact_microbatches]{};
  std::int8_t count = 0;
};

//! The step that the compute engine of a device runs now.
struct exact_engine {
  exact_kind kind = exact_kind::none;
  std::int8_t stage = 0;
  std::int8_t label = 0;
  std::int16_t left = 0;

  //! 1 when it runs this kind on this stage.
  [[nodiscard]] int runs(exact_kind of, int on) const noexcept {
    return kind == of && stage == on ? 1 : 0;
  }
};

//! Counts of steps that have begun on one stage.
struct exact_stage {
  std::int8_t forward = 0;
  std::int8_t light = 0; //!< of the forward passes
  std::int8_t again = 0;
  std::int8_t input = 0;
  std::int8_t weight = 0;
  std::uint8_t bare = 0;    //!< by label, where there is recomputation: it has not ended
  exact_arrivals to_next;   //!< of activations at the next stage
  exact_arrivals to_before; //!< of gradients at the stage before
};

//! The steps that run, and all ways in which the copies of each device may have gone meanwhile.
//! Copies change nothing for other devices, so the ways of two devices are independent.
struct exact_state {
  exact_stage stage[most_exact_stages]{};
  exact_engine compute[most_exact_devices]{};
  std::vector<exact_way> ways[most_exact_devices]{};
};

//! A step that a search has decided on.
struct exact_choice {
  exact_kind kind = exact_kind::none;
  int device = 0;
  int stage = 0;
  int label = 0;
  int start = 0;
};

//! A copy, and the one before it on the same lane.
struct exact_copy {
  exact_choice choice;
  int past = -1;
};

//! True when every continuation of `b` could follow `a` as well, at the same times.
[[nodiscard]] inline bool serves(exact_way const& a, exact_way const& b) noexcept {
  if ((a.declined & ~b.declined) != 0 || (a.copied & ~b.copied) != 0)
    return false;
  if (a.must != 0 && (b.must == 0 || b.must > a.must))
    return false;
  if (a.kind != exact_kind::none)
    return a.kind == b.kind && a.slot == b.slot && a.hosted == b.hosted && a.left <= b.left;
  // A copy that has ended is where the other one will be.
  return a.hosted == (b.kind == exact_kind::copy_out ? b.hosted | bit_of(b.slot) : b.hosted);
}

[[nodiscard]] inline bool serves(std::vector<exact_way> const& ways, exact_way const& b) noexcept {
  return std::any_of(ways.begin(), ways.end(), [&](exact_way const& a) { return serves(a, b); });
}

//! Adds a way unless another one serves, and removes those that it serves for.
inline void add_way(std::vector<exact_way>& ways, exact_way const& way) {
  if (serves(ways, way))
    return;
  std::erase_if(ways, [&](exact_way const& other) { return serves(way, other); });
  ways.push_back(way);
}

//! The place of a step in `declined`.
[[nodiscard]] inline std::uint64_t kind_bit(exact_choice const& choice) noexcept {
  return bit_of(static_cast<int>(choice.kind) * most_exact_stages + choice.stage);
}
//! The kinds that take room: a declined step may have had none since a copy in began.
[[nodiscard]] constexpr std::uint64_t takes_room() noexcept {
  std::uint64_t bits = 0;
  for (exact_kind const kind :
       {exact_kind::forward, exact_kind::light_forward, exact_kind::recompute})
    bits |= std::uint64_t{0xff} << (static_cast<int>(kind) * most_exact_stages);
  return bits;
}

//! Lets time pass on every way of a device; those that had to begin something by then are lost.
inline void advance_ways(std::vector<exact_way>& ways, int time) {
  std::vector<exact_way> const before = std::move(ways);
  ways.clear();
  for (exact_way way : before) {
    if (way.must != 0) {
      if (way.must <= time)
        continue;
      way.must = static_cast<std::int16_t>(way.must - time);
    }
    if (way.kind != exact_kind::none) {
      way.left = static_cast<std::int16_t>(way.left - time);
      if (way.left <= 0) {
        if (way.kind == exact_kind::copy_out)
          way.hosted |= bit_of(way.slot);
        way.kind = exact_kind::none;
        way.left = 0;
      }
    }
    add_way(ways, way);
  }
}

//! The facts that do not change during a search. Times in whole ticks.
struct exact_world {
  int devices = 1;
  int stages = 1;
  int microbatches = 1;
  int holder[most_exact_stages]{}; //!< the device of every stage
  int forward[most_exact_stages]{};
  int input[most_exact_stages]{};
  int weight[most_exact_stages]{};
  int again[most_exact_stages]{};    //!< of a recomputation
  int down[most_exact_stages]{};     //!< of a message to the next stage
  int up[most_exact_stages]{};       //!< of a message to the stage before
  int lifetime[most_exact_stages]{}; //!< least, of an activation
  int copy = -1;                     //!< negative: no copies
  bool recomputes = false;
  int cap = 1;   //!< units that a device may hold
  int whole = 1; //!< units of an activation
  int kept = 0;  //!< units of what a light forward pass keeps

  //! @pre `kind` is a step, not none
  [[nodiscard]] int duration(exact_kind kind, int stage) const noexcept {
    if (kind >= exact_kind::copy_out)
      return copy;
    int const* const times[] = {nullptr, forward, forward, again, input, weight};
    return times[static_cast<int>(kind)][stage];
  }

  [[nodiscard]] int forward_ended(exact_state const& at, int stage) const noexcept {
    exact_engine const& engine = at.compute[holder[stage]];
    return at.stage[stage].forward - engine.runs(exact_kind::forward, stage) -
           engine.runs(exact_kind::light_forward, stage);
  }

  //! Units that a device holds now, and those that are on the host.
  [[nodiscard]] int held(exact_state const& at, int device) const noexcept {
    int units = 0;
    for (int stage = 0; stage < stages; ++stage) {
      if (holder[stage] != device)
        continue;
      exact_stage const& here = at.stage[stage];
      int const ended = here.weight - at.compute[device].runs(exact_kind::backward_weight, stage);
      units += whole * (here.forward - here.light - ended) + kept * here.light +
               (whole - kept) * here.again;
    }
    return units;
  }

  //! Forward passes whose input has come.
  [[nodiscard]] int inputs_come(exact_state const& at, int stage) const noexcept {
    if (stage == 0)
      return microbatches;
    exact_stage const& before = at.stage[stage - 1];
    return before.forward - before.to_next.count;
  }

  //! Backward passes whose gradient has come; on the last stage, whose forward pass has ended.
  [[nodiscard]] int gradients_come(exact_state const& at, int stage) const noexcept {
    if (stage + 1 == stages)
      return forward_ended(at, stage);
    exact_stage const& behind = at.stage[stage + 1];
    return behind.input - behind.to_before.count;
  }

  //! Units on the host.
  [[nodiscard]] int hosted(exact_way const& way) const noexcept {
    return whole * std::popcount(way.hosted);
  }

  //! True when a device has room for all that it has yet to take. Making room then gains nothing.
  [[nodiscard]] bool
  is_roomy(exact_state const& at, int device, exact_way const& way) const noexcept {
    int units = held(at, device) + (way.kind == exact_kind::copy_out ? whole : 0);
    for (int stage = 0; stage < stages; ++stage) {
      exact_stage const& here = at.stage[stage];
      if (holder[stage] == device)
        units += whole * (microbatches - here.forward) + (whole - kept) * (here.light - here.again);
    }
    return units <= cap;
  }

  //! True when a step may begin, as far as room and copies are concerned.
  [[nodiscard]] bool
  allows(exact_state const& at, exact_way const& way, exact_choice const& choice) const noexcept {
    int units = 0;
    switch (choice.kind) {
    case exact_kind::backward_input:
      return (way.away() & bit_of(slot_of(choice.stage, choice.label))) == 0;
    case exact_kind::forward: units = whole; break;
    case exact_kind::light_forward: units = kept; break;
    case exact_kind::recompute: units = whole - kept; break;
    default: return true;
    }
    return held(at, choice.device) - hosted(way) + units <= cap;
  }

  //! Notes on every way that the device waits, although it could begin one of `found`.
  void decline(exact_state const& at,
               int device,
               std::vector<exact_choice> const& found,
               std::vector<exact_way>& ways) const noexcept {
    for (exact_way& way : ways) {
      bool const roomy = is_roomy(at, device, way);
      for (exact_choice const& choice : found) {
        if (!allows(at, way, choice))
          continue;
        way.declined |= kind_bit(choice); // what could have begun before is never begun next
        bool harmless = choice.kind == exact_kind::backward_weight;
        if (choice.kind == exact_kind::forward)
          harmless = roomy;
        if (choice.kind == exact_kind::backward_input)
          harmless =
            roomy || copy < 0 || (way.copied & bit_of(slot_of(choice.stage, choice.label))) != 0;
        // A step that fits into the gap could be moved there, so the gap has to be shorter.
        int const length = duration(choice.kind, choice.stage);
        if (harmless && (way.must == 0 || length < way.must))
          way.must = static_cast<std::int16_t>(length);
      }
    }
  }

  //! Begins every copy that an idle lane may begin now. Waiting stays one of its ways.
  void begin_copies(exact_state& at, int device, int time, std::vector<exact_copy>& history) const {
    std::vector<exact_way> const before = std::move(at.ways[device]);
    std::vector<exact_way> after;
    int const units = held(at, device);
    for (exact_way const& way : before) {
      if (way.kind != exact_kind::none) {
        add_way(after, way);
        continue;
      }
      auto const begin = [&](exact_kind kind, int stage, int label) {
        exact_way next = way;
        next.kind = kind;
        next.slot = static_cast<std::int8_t>(slot_of(stage, label));
        next.left = static_cast<std::int16_t>(copy);
        std::uint64_t const bit = bit_of(next.slot);
        if (kind == exact_kind::copy_in) {
          next.hosted &= ~bit;
          next.declined &= ~takes_room();
        } else {
          next.copied |= bit;
          next.declined &= ~kind_bit({exact_kind::backward_input, device, stage, label, time});
        }
        next.past = static_cast<int>(history.size());
        history.push_back({{kind, device, stage, label, time}, way.past});
        add_way(after, next);
      };
      bool const roomy = is_roomy(at, device, way);
      bool waits = true;
      for (int stage = 0; stage < stages; ++stage) {
        if (holder[stage] != device)
          continue;
        exact_stage const& here = at.stage[stage];
        // Of those on the host, the one that is needed first comes back first.
        for (int label = here.input; label < microbatches; ++label)
          if ((way.hosted & bit_of(slot_of(stage, label))) != 0) {
            if (units - hosted(way) + whole <= cap) {
              begin(exact_kind::copy_in, stage, label);
              waits = waits && !roomy; // nothing else wants the room
            }
            break;
          }
        // Of the activations that are there, the one that is needed last goes first: where another
        // one goes and this one stays or goes later, they can change names.
        for (int label = forward_ended(at, stage) - 1; label >= here.input && !roomy; --label)
          if ((way.copied & bit_of(slot_of(stage, label))) == 0 && (here.bare >> label & 1) == 0) {
            begin(exact_kind::copy_out, stage, label);
            break;
          }
      }
      if (waits)
        add_way(after, way);
    }
    at.ways[device] = std::move(after);
  }
};

} // namespace pipelining::inline v0_3::detail
