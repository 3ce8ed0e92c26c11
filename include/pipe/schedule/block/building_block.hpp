// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One unit's passes on all devices, in slots, to be repeated. Header for
//! pipelining::building_block, its blocks pipelining::strides and pipelining::offsets, and their
//! memory.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/shape.hpp>

#include <cstdint>
#include <stdexcept>

namespace pipelining::inline v0_3 {

//! @brief The structure of a building block: how far apart one microbatch's passes lie, in slots.
//!
//! A microbatch runs down the devices and up again with its forward passes, and the same way with
//! its backward passes. Neighbouring devices of a leg lie `stride` slots apart. Between two legs
//! lies a gap, counted from pass to pass; 0 asks for the smallest gap at which no two passes of a
//! device share a slot modulo the interval.
struct offsets {
  int forward_down = 1;  //!< stride of the forward passes from device 0 to P - 1
  int forward_up = 1;    //!< stride of the forward passes from device P - 1 to 0
  int backward_down = 1; //!< stride of the backward passes from device 0 to P - 1
  int backward_up = 1;   //!< stride of the backward passes from device P - 1 to 0
  int forward_turn = 0;  //!< on device P - 1, from the first to the second forward pass
  int loss_turn = 0;     //!< on device 0, from the second forward to the first backward pass
  int backward_turn = 0; //!< on device P - 1, from the first to the second backward pass
  int interval = 6;      //!< slots from one microbatch to the next

  friend constexpr bool operator==(offsets const&, offsets const&) = default;
};

//! @brief The slots of unit 0 on every stage, on storage of the caller.
//!
//! A *line* is a kind of pass on a stage: the forward passes of the S stages, then their backward
//! passes (`backward_input`, or `backward` where it is in one piece), then their gradients of
//! weights. Every interval the next unit does the same.
struct building_block {
  shape extents;        //!< of the pipeline
  bool fused = false;   //!< the backward pass is in one piece: two slots, no line of its own for W
  int interval = 6;     //!< slots from one unit to the next
  int freeing = 1;      //!< slots of the pass at whose end an activation is free again
  int* slots = nullptr; //!< [3][S], by line
  //! [S], the device that holds each stage, where the extents have a table; null: as they say.
  int const* holders = nullptr;

  static constexpr int unset = -1; //!< a slot that nobody has

  //! The device that holds a stage.
  [[nodiscard]] constexpr int device(int stage) const noexcept {
    return holders == nullptr ? device_of(extents, stage) : holders[stage];
  }

  //! The slot of a stage's forward pass.
  [[nodiscard]] constexpr int& forward(int stage) const noexcept { return slots[stage]; }
  //! The slot of a stage's backward pass, or of its half for the input.
  [[nodiscard]] constexpr int& backward(int stage) const noexcept {
    return slots[extents.stages() + stage];
  }
  //! The slot of a stage's gradient of weights.
  [[nodiscard]] constexpr int& weight(int stage) const noexcept {
    return slots[2 * extents.stages() + stage];
  }
  //! @brief When the activation of unit 0 on a stage is free again.
  [[nodiscard]] constexpr int freed(int stage) const noexcept {
    return (fused ? backward(stage) : weight(stage)) + freeing;
  }
};

namespace detail {

[[nodiscard]] constexpr int floor_divide(int value, int by) noexcept {
  return value >= 0 ? value / by : -((by - 1 - value) / by);
}

//! Calls `use` with every stage of a device, in forward order.
constexpr void for_each_stage(building_block const& block, int device, auto const& use) {
  shape const& extents = block.extents;
  if (block.holders == nullptr) {
    for (int local = 0; local < extents.stages_per_device; ++local)
      use(extents.stage_of(device, local));
    return;
  }
  for (int stage = 0; stage < extents.stages(); ++stage)
    if (block.holders[stage] == device)
      use(stage);
}

//! Activations that a device holds in the steady state, at the most, in units.
[[nodiscard]] constexpr int held_by(building_block const& block, int device) {
  int most = 0;
  for_each_stage(block, device, [&](int at) {
    int const now = block.forward(at);
    int held = 0;
    for_each_stage(block, device, [&](int stage) {
      held += floor_divide(now - block.forward(stage), block.interval) -
              floor_divide(now - block.freed(stage), block.interval);
    });
    most = held > most ? held : most;
  });
  return most;
}

//! True when `length` slots from `slot` on are apart from all that the device has, modulo the
//! interval.
[[nodiscard]] constexpr bool
is_free(building_block const& block, int device, int slot, int length) {
  int const all = block.extents.stages();
  bool good = true;
  for_each_stage(block, device, [&](int stage) {
    for (int line = stage; good && line < 3 * all; line += all) {
      int const taken = block.slots[line];
      if (taken == building_block::unset)
        continue;
      int const rest = (slot - taken) % block.interval;
      int const ahead = rest < 0 ? rest + block.interval : rest;
      int const theirs = block.fused && line >= all ? 2 : 1;
      good = ahead >= theirs && block.interval - ahead >= length;
    }
  });
  return good;
}

//! The first free place at or after `from`, or `unset`.
[[nodiscard]] constexpr int
first_free(building_block const& block, int device, int from, int length) {
  for (int slot = from; slot < from + block.interval; ++slot)
    if (is_free(block, device, slot, length))
      return slot;
  return building_block::unset;
}

//! Gives every gradient of weights the first slot that its device has free, which holds as little
//! memory as any other way to share the free slots.
[[nodiscard]] constexpr bool place_weights(building_block& block) {
  if (block.fused)
    return true;
  for (int stage = block.extents.stages() - 1; stage >= 0; --stage) {
    int const device = block.device(stage);
    block.weight(stage) = first_free(block, device, block.backward(stage) + 1, 1);
    if (block.weight(stage) == building_block::unset)
      return false;
  }
  return true;
}

//! Forgets the slots of all lines from `line` on.
constexpr void clear(building_block& block, int line) noexcept {
  for (int all = 3 * block.extents.stages(); line < all; ++line)
    block.slots[line] = building_block::unset;
}

//! Lays one leg out: P neighbouring stages, forwards or, from leg V on, backwards. `next(position,
//! before)` gives the slot of each pass from that of the pass before it. Returns false when a pass
//! meets another one of its device.
[[nodiscard]] constexpr bool lay_leg(building_block& block, int leg, int before, auto const& next) {
  shape const& extents = block.extents;
  int const all = extents.stages();
  int const first = leg * extents.devices;
  for (int position = 0; position < extents.devices; ++position) {
    int const stage = first < all ? first + position : 2 * all - 1 - first - position;
    int const line = first < all ? stage : all + stage;
    int const length = first >= all && block.fused ? 2 : 1;
    int const device = block.device(stage);
    before = next(position, before, device, length);
    if (before == building_block::unset || !is_free(block, device, before, length))
      return false;
    block.slots[line] = before;
  }
  return true;
}

//! The slot of the last pass of a leg.
[[nodiscard]] constexpr int end_of_leg(building_block const& block, int leg) noexcept {
  int const all = block.extents.stages();
  int const last = (leg + 1) * block.extents.devices - 1;
  return last < all ? block.forward(last) : block.backward(2 * all - 1 - last);
}

//! Delays the backward passes until a whole sequence has gone forward, since its chunks come back
//! last to first.
constexpr void wait_for_sequence(building_block& block) noexcept {
  int const all = block.extents.stages();
  for (int line = all; line < 3 * all; ++line)
    block.slots[line] += block.interval * (block.extents.chunks - 1);
}

//! The legs that one layout of a block may lay out while it looks for gaps: enough for all
//! values of three gaps at intervals up to 40. The best gaps until then stand.
inline constexpr int layout_effort = 1 << 16;

//! The activations that the device with the most holds in the steady state of a block, in
//! units.
//! @complexity O(S V^2)
[[nodiscard]] constexpr int peak_of(building_block const& block) {
  int most = 0;
  for (int device = 0; device < block.extents.devices; ++device) {
    int const held = held_by(block, device);
    most = held > most ? held : most;
  }
  return most;
}

} // namespace detail

//! @brief A gap that takes the first value that fits, without a search over all.
inline constexpr int first_fit = -1;

//! @brief A block by its legs: a unit runs through V legs of P stages forwards and the same way
//! back.
//!
//! Neighbours of a leg lie `stride` slots apart, and `gap` slots lie from the last pass of a leg to
//! the first of the next. A value, so that offsets may come at run time; `fixed_block` makes a type
//! of it.
//!
//! @tparam Legs V, stages per device.
template <int Legs>
struct strides {
  static constexpr int stages_per_device = Legs;

  bool fused = false;      //!< backward passes in one piece, of two slots
  int interval = 3 * Legs; //!< slots from one unit to the next
  detail::array_of<int, 2 * Legs> stride =
    {}; //!< forward legs, then backward legs; 0: each pass as soon as it fits
  detail::array_of<int, 2 * Legs> gap =
    {}; //!< before each leg but the first; 0: the gap that holds the least

  //! @brief Fills the slots; open gaps hold the fewest activations, then have the smallest sum.
  //! @throws std::invalid_argument for numbers that cannot work, or when no gaps fit.
  //! @complexity O(P V) per leg tried, at most `layout_effort` of them.
  constexpr void lay_out(building_block& block) const {
    check();
    block.fused = fused;
    block.interval = interval;
    block.freeing = fused ? 2 : 1;
    detail::clear(block, 0);
    search looking;
    looking.now[0] = 1;
    place(block, 0, -1, looking);
    if (looking.least < 0)
      throw std::invalid_argument(
        "block: with these offsets two passes of a device always share a slot modulo the "
        "interval; change a stride, a gap or the interval");
    detail::clear(block, 0);
    int before = -1;
    for (int leg = 0; leg < 2 * Legs; ++leg) {
      static_cast<void>(lay(block, leg, before, looking.best[leg]));
      before = detail::end_of_leg(block, leg);
    }
    static_cast<void>(detail::place_weights(block));
  }

private:
  struct search {
    detail::array_of<int, 2 * Legs> now = {};
    detail::array_of<int, 2 * Legs> best = {};
    std::int64_t least = -1;
    int effort = detail::layout_effort;
  };

  constexpr void check() const {
    std::int64_t longest = 0; // so long would a unit take that waits an interval at every turn
    bool good = interval >= 3 * Legs;
    for (int leg = 0; leg < 2 * Legs; ++leg) {
      int const length = fused && leg >= Legs ? 2 : 1;
      int const after = fused && leg > Legs ? 2 : 1;
      good = good && (stride[leg] == 0 || stride[leg] >= length);
      good = good && (leg == 0 || gap[leg] == 0 || gap[leg] == first_fit || gap[leg] >= after);
      good = good && stride[leg] <= longest_offset && gap[leg] <= longest_offset;
      longest += stride[leg];
    }
    if (!good || interval > longest_offset)
      throw std::invalid_argument(
        "block: the offsets need strides of at least 1, gaps that are not negative, an interval of "
        "at least 3 slots for the passes of each stage of a device, and none above 4096");
  }
  static constexpr int longest_offset = 4096; // so that slots fit an int at any number of devices

  [[nodiscard]] constexpr bool lay(building_block& block, int leg, int before, int apart) const {
    return detail::lay_leg(block, leg, before, [&](int position, int now, int device, int length) {
      int const from = now + (position == 0 ? apart : stride[leg] > 0 ? stride[leg] : length);
      return stride[leg] > 0 ? from : detail::first_free(block, device, from, length);
    });
  }

  //! Tries the gaps before a leg and all that follow.
  constexpr void place(building_block& block, int leg, int before, search& looking) const {
    if (leg >= 2 * Legs) {
      weigh(block, looking);
      return;
    }
    int const after = fused && leg > Legs ? 2 : 1;
    bool const open = leg > 0 && gap[leg] <= 0;
    int const first = leg == 0 ? 1 : open ? after : gap[leg];
    int const last = open ? first + interval - 1 : first;
    for (int apart = first; apart <= last && looking.effort > 0; ++apart) {
      --looking.effort;
      looking.now[leg] = apart;
      bool const fits = lay(block, leg, before, apart);
      if (fits)
        place(block, leg + 1, detail::end_of_leg(block, leg), looking);
      forget(block, leg);
      if (fits && gap[leg] == first_fit && looking.least >= 0)
        return;
    }
  }
  constexpr void forget(building_block& block, int leg) const {
    int const devices = block.extents.devices;
    for (int i = leg * devices; i < (leg + 1) * devices; ++i)
      block.slots[leg < Legs ? i : 3 * Legs * devices - 1 - i] = building_block::unset;
  }
  //! Keeps the gaps if nothing better was found.
  constexpr void weigh(building_block& block, search& looking) const {
    if (detail::place_weights(block)) {
      std::int64_t weight = std::int64_t{detail::peak_of(block)} * 4 * Legs * interval;
      for (int const apart : looking.now)
        weight += apart;
      if (looking.least < 0 || weight < looking.least) {
        looking.least = weight;
        for (int leg = 0; leg < 2 * Legs; ++leg)
          looking.best[leg] = looking.now[leg];
      }
    }
    detail::clear(block, 2 * block.extents.stages());
  }
};

//! @brief A block whose numbers are in its type.
template <auto Block>
struct fixed_block {
  static constexpr int stages_per_device = Block.stages_per_device;
  static constexpr bool fused = Block.fused;
  //! Writes the slots of unit 0.
  static constexpr void lay_out(building_block& block) { Block.lay_out(block); }
};

namespace detail {

//! The legs of a V with these offsets, which `strides::lay_out` checks.
[[nodiscard]] constexpr strides<2> v_strides(offsets const& plan) noexcept {
  auto const stride = [](int given) { return given < 1 ? -1 : given; };
  auto const gap = [](int given) { return given < 0 ? -2 : given; };
  return {.interval = plan.interval,
          .stride = {stride(plan.forward_down),
                     stride(plan.forward_up),
                     stride(plan.backward_down),
                     stride(plan.backward_up)},
          .gap = {0, gap(plan.forward_turn), gap(plan.loss_turn), gap(plan.backward_turn)}};
}

} // namespace detail

} // namespace pipelining::inline v0_3
