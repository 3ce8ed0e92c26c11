// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The ways in which the copies of a device may go beside what it computes. Header for
//! pipelining::detail::exact_way's rules.
//!
//! A search that decided on copies would go through the product of what the lanes of all devices
//! may do. A lane meets the rest only where a pass asks whether there is room or whether an
//! activation is back; so all its ways are kept side by side, and a pass leaves those that allow
//! it.

#include <pipe/planner/search/exact_state.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pipelining::inline v0_3::detail {

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

//! Units on the host.
[[nodiscard]] inline int hosted(exact_world const& world, exact_way const& way) noexcept {
  return world.whole * std::popcount(way.hosted);
}

//! Whether whatever follows `b` could follow `a` as well, at the same times.
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

//! Whether all that a device has yet to take has room: then nothing is gained by what makes room.
[[nodiscard]] inline bool is_roomy(exact_world const& world,
                                   exact_state const& at,
                                   int device,
                                   exact_way const& way) noexcept {
  int units = held(world, at, device) + (way.kind == exact_kind::copy_out ? world.whole : 0);
  for (int stage = 0; stage < world.stages; ++stage) {
    exact_stage const& here = at.stage[static_cast<std::size_t>(stage)];
    if (world.device[static_cast<std::size_t>(stage)] == device)
      units += world.whole * (world.microbatches - here.forward) +
               (world.whole - world.kept) * (here.light - here.again);
  }
  return units <= world.cap;
}

//! Whether a step may begin, as far as room and copies are concerned.
[[nodiscard]] inline bool allows(exact_world const& world,
                                 exact_state const& at,
                                 exact_way const& way,
                                 exact_choice const& choice) noexcept {
  int units = 0;
  switch (choice.kind) {
  case exact_kind::backward_input:
    return (way.away() & bit_of(slot_of(choice.stage, choice.label))) == 0;
  case exact_kind::forward: units = world.whole; break;
  case exact_kind::light_forward: units = world.kept; break;
  case exact_kind::recompute: units = world.whole - world.kept; break;
  default: return true;
  }
  return held(world, at, choice.device) - hosted(world, way) + units <= world.cap;
}

//! The place of a step in `declined`.
[[nodiscard]] inline std::uint64_t kind_bit(exact_choice const& choice) noexcept {
  return bit_of(static_cast<int>(choice.kind) * most_exact_stages + choice.stage);
}
//! The kinds that take room: what has been declined may have had none since a copy in began.
[[nodiscard]] constexpr std::uint64_t takes_room() noexcept {
  std::uint64_t bits = 0;
  for (exact_kind const kind :
       {exact_kind::forward, exact_kind::light_forward, exact_kind::recompute})
    bits |= std::uint64_t{0xff} << (static_cast<int>(kind) * most_exact_stages);
  return bits;
}

//! Notes on every way that the device waits, although it could begin one of `found`.
inline void decline(exact_world const& world,
                    exact_state const& at,
                    int device,
                    std::vector<exact_choice> const& found,
                    std::vector<exact_way>& ways) noexcept {
  for (exact_way& way : ways) {
    bool const roomy = is_roomy(world, at, device, way);
    for (exact_choice const& choice : found) {
      if (!allows(world, at, way, choice))
        continue;
      way.declined |= kind_bit(choice); // what could have begun before is never begun next
      bool harmless = choice.kind == exact_kind::backward_weight;
      if (choice.kind == exact_kind::forward)
        harmless = roomy;
      if (choice.kind == exact_kind::backward_input)
        harmless = roomy || world.copy < 0 ||
                   (way.copied & bit_of(slot_of(choice.stage, choice.label))) != 0;
      // A step that fits into the gap could be moved there, so the gap has to be shorter.
      int const length = world.duration(choice.kind, choice.stage);
      if (harmless && (way.must == 0 || length < way.must))
        way.must = static_cast<std::int16_t>(length);
    }
  }
}

//! Begins every copy that an idle lane may begin now, beside waiting.
inline void begin_copies(exact_world const& world,
                         exact_state& at,
                         int device,
                         int time,
                         std::vector<exact_copy>& history) {
  std::vector<exact_way> const before = std::move(at.ways[static_cast<std::size_t>(device)]);
  std::vector<exact_way> after;
  int const units = held(world, at, device);
  for (exact_way const& way : before) {
    if (way.kind != exact_kind::none) {
      add_way(after, way);
      continue;
    }
    auto const begin = [&](exact_kind kind, int stage, int label) {
      exact_way next = way;
      next.kind = kind;
      next.slot = static_cast<std::int8_t>(slot_of(stage, label));
      next.left = static_cast<std::int16_t>(world.copy);
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
    bool const roomy = is_roomy(world, at, device, way);
    bool waits = true;
    for (int stage = 0; stage < world.stages; ++stage) {
      if (world.device[static_cast<std::size_t>(stage)] != device)
        continue;
      exact_stage const& here = at.stage[static_cast<std::size_t>(stage)];
      // Of those on the host, the one that is needed first comes back first.
      for (int label = here.input; label < world.microbatches; ++label)
        if ((way.hosted & bit_of(slot_of(stage, label))) != 0) {
          if (units - hosted(world, way) + world.whole <= world.cap) {
            begin(exact_kind::copy_in, stage, label);
            waits = waits && !roomy; // nothing else wants the room
          }
          break;
        }
      // Of the activations that are there, the one that is needed last goes first: where another
      // one goes and this one stays or goes later, they can change names.
      for (int label = forward_ended(world, at, stage) - 1; label >= here.input && !roomy; --label)
        if ((way.copied & bit_of(slot_of(stage, label))) == 0 && (here.bare >> label & 1) == 0) {
          begin(exact_kind::copy_out, stage, label);
          break;
        }
    }
    if (waits)
      add_way(after, way);
  }
  at.ways[static_cast<std::size_t>(device)] = std::move(after);
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

} // namespace pipelining::inline v0_3::detail
