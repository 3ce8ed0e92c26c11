// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One microbatch of a V shape, repeated. Header for pipelining::offsets and
//! pipelining::building_block.

#include <cstddef>
#include <stdexcept>

namespace pipelining::inline v0_1 {

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

//! @brief The six passes of a microbatch on a device of a V, in the order of the tables below.
//!
//! Device d holds stage d, whose passes lie on the legs down (forward) and up (backward), and stage
//! 2P - 1 - d, whose passes lie on the other two.
namespace leg {
inline constexpr int forward_down = 0;
inline constexpr int forward_up = 1;
inline constexpr int backward_down = 2;
inline constexpr int backward_up = 3;
inline constexpr int weight_down = 4; //!< weight gradient of the stage of `backward_down`
inline constexpr int weight_up = 5;   //!< weight gradient of the stage of `backward_up`
inline constexpr int count = 6;
} // namespace leg

namespace detail {

//! The slot at or after `from` that equals `residue` modulo the interval.
[[nodiscard]] constexpr int next_slot(int from, int residue, int interval) noexcept {
  int const ahead = (residue - from) % interval;
  return from + (ahead < 0 ? ahead + interval : ahead);
}

[[nodiscard]] constexpr int floor_divide(int value, int by) noexcept {
  return value >= 0 ? value / by : -((by - 1 - value) / by);
}

//! Gives the weight gradients of a device the two free slots that end earliest together.
//! Returns false when two passes share a slot or fewer than two slots are free.
[[nodiscard]] constexpr bool place_weights(int* slots, int interval) {
  int const* const first = slots;
  for (int a = 0; a < leg::weight_down; ++a)
    for (int b = a + 1; b < leg::weight_down; ++b)
      if ((first[a] - first[b]) % interval == 0)
        return false;
  int best = 0;
  for (int one = 1; one <= interval; ++one) {
    int const down = slots[leg::backward_down] + one;
    if ((down - first[0]) % interval == 0 || (down - first[1]) % interval == 0 ||
        (down - first[2]) % interval == 0 || (down - first[3]) % interval == 0)
      continue;
    for (int two = 1; two <= interval && (best == 0 || one + two < best); ++two) {
      int const up = slots[leg::backward_up] + two;
      if ((up - first[0]) % interval == 0 || (up - first[1]) % interval == 0 ||
          (up - first[2]) % interval == 0 || (up - first[3]) % interval == 0 ||
          (up - down) % interval == 0)
        continue;
      best = one + two;
      slots[leg::weight_down] = down;
      slots[leg::weight_up] = up;
      break;
    }
  }
  return best > 0;
}

//! Activations that a device holds in the steady state, at the most, in chunks. A weight gradient
//! takes `length` slots and gives its activation back at its end.
[[nodiscard]] constexpr int held_by(int const* slots, int interval, int length = 1) noexcept {
  int most = 0;
  for (int at = leg::forward_down; at <= leg::forward_up; ++at) {
    int const now = slots[at];
    int const held = floor_divide(now - slots[leg::forward_down], interval) -
                     floor_divide(now - slots[leg::weight_up] - length, interval) +
                     floor_divide(now - slots[leg::forward_up], interval) -
                     floor_divide(now - slots[leg::weight_down] - length, interval);
    most = held > most ? held : most;
  }
  return most;
}

} // namespace detail

//! @brief The slots of microbatch 0 on every device, on storage of the caller.
struct building_block {
  int devices = 1;
  int interval = 6;
  int* slots = nullptr; //!< [devices][leg::count]

  [[nodiscard]] constexpr int* of(int device) const noexcept {
    return slots + static_cast<std::ptrdiff_t>(device) * leg::count;
  }
};

//! @brief Lays a block out with the gaps given.
//! @pre every gap of `plan` is at least 1; `block.slots` holds 6 P entries.
//! @return false when two passes of a device share a slot modulo the interval.
//! @complexity O(P)
[[nodiscard]] constexpr bool lay_out(offsets const& plan, building_block& block) {
  int const last = block.devices - 1;
  block.interval = plan.interval;
  int const turn = plan.forward_down * last + plan.forward_turn;
  int const loss = turn + plan.forward_up * last + plan.loss_turn;
  int const back = loss + plan.backward_down * last + plan.backward_turn;
  for (int device = 0; device < block.devices; ++device) {
    int* const slots = block.of(device);
    slots[leg::forward_down] = plan.forward_down * device;
    slots[leg::forward_up] = turn + plan.forward_up * (last - device);
    slots[leg::backward_down] = loss + plan.backward_down * device;
    slots[leg::backward_up] = back + plan.backward_up * (last - device);
    if (!detail::place_weights(slots, plan.interval))
      return false;
  }
  return true;
}

//! @brief The activations that the device with the most holds in the steady state of a block, in
//! chunks.
//! @complexity O(P)
[[nodiscard]] constexpr int peak_of(building_block const& block) noexcept {
  int most = 0;
  for (int device = 0; device < block.devices; ++device) {
    int const held = detail::held_by(block.of(device), block.interval);
    most = held > most ? held : most;
  }
  return most;
}

//! @brief Lays a block out and chooses the gaps that are 0: those that hold the fewest activations,
//! then those with the smallest sum.
//! @throws std::invalid_argument when the strides or the interval are below 1, a gap is negative,
//! or no gaps fit.
//! @complexity O(P) per gap tried, interval tries for each gap that is 0.
constexpr void lay_out_smallest(offsets const& plan, building_block& block) {
  if (plan.forward_down < 1 || plan.forward_up < 1 || plan.backward_down < 1 ||
      plan.backward_up < 1 || plan.interval < leg::count || plan.forward_turn < 0 ||
      plan.loss_turn < 0 || plan.backward_turn < 0)
    throw std::invalid_argument(
      "VShape: the offsets need strides of at least 1, gaps that are not negative, and an "
      "interval of at least 6 slots for the six passes of a device");
  offsets now = plan;
  offsets best = plan;
  int least = -1;
  auto const tries = [&](int given) { return given > 0 ? 1 : plan.interval; };
  for (int turn = 0; turn < tries(plan.forward_turn); ++turn)
    for (int loss = 0; loss < tries(plan.loss_turn); ++loss)
      for (int back = 0; back < tries(plan.backward_turn); ++back) {
        now.forward_turn = plan.forward_turn > 0 ? plan.forward_turn : turn + 1;
        now.loss_turn = plan.loss_turn > 0 ? plan.loss_turn : loss + 1;
        now.backward_turn = plan.backward_turn > 0 ? plan.backward_turn : back + 1;
        if (!lay_out(now, block))
          continue;
        int const weight = peak_of(block) * 8 * plan.interval + turn + loss + back;
        if (least >= 0 && weight >= least)
          continue;
        least = weight;
        best = now;
      }
  if (least < 0)
    throw std::invalid_argument(
      "VShape: with these offsets two passes of a device always share a slot modulo the "
      "interval; change a stride, a gap or the interval");
  static_cast<void>(lay_out(best, block));
}

namespace detail {

//! Blocks of interval 6 in which the passes of device 0 lie at given places and the legs down
//! advance by one stride on the first devices and by another on the rest, while the legs up advance
//! by one slot. Each pass takes the first slot of its place that its input allows.
struct stride_block {
  int places[4]; //!< on device 0, modulo 6, by leg
  int first_stride;
  int stride;
  int first_devices;
};

[[nodiscard]] constexpr bool lay_out(stride_block const& plan, building_block& block) {
  constexpr int interval = leg::count;
  int const last = block.devices - 1;
  block.interval = interval;
  auto const moved = [&](int device) {
    int const first = device < plan.first_devices ? device : plan.first_devices;
    return plan.first_stride * first + plan.stride * (device - first);
  };
  int now = -1;
  for (int device = 0; device <= last; ++device)
    block.of(device)[leg::forward_down] = now = next_slot(now + 1, moved(device), interval);
  for (int device = last; device >= 0; --device)
    block.of(device)[leg::forward_up] = now =
      next_slot(now + 1, plan.places[leg::forward_up] - device, interval);
  for (int device = 0; device <= last; ++device)
    block.of(device)[leg::backward_down] = now =
      next_slot(now + 1, plan.places[leg::backward_down] + moved(device), interval);
  for (int device = last; device >= 0; --device)
    block.of(device)[leg::backward_up] = now =
      next_slot(now + 1, plan.places[leg::backward_up] - device, interval);
  for (int device = 0; device <= last; ++device)
    if (!place_weights(block.of(device), interval))
      return false;
  return true;
}

//! Lays out the stride block with the most activations up to the limit. On device 0 the four passes
//! lie in a row; with odd strides no two passes of a device ever share a slot, so that strides can
//! be chosen freely. Returns false when even strides of 1 hold too much.
[[nodiscard]] constexpr bool lay_out_largest(int limit, building_block& block) {
  int const steps = block.devices > 1 ? block.devices - 1 : 1;
  stride_block best{{0, 1, 2, 3}, 0, 0, 0};
  int most = 0;
  for (int stride = 1; stride <= 5; stride += 2)
    for (int devices = 0; devices < (stride == 5 ? 1 : steps); ++devices) {
      stride_block const plan{{0, 1, 2, 3}, stride + 2, stride, devices};
      if (!lay_out(plan, block))
        continue;
      int const peak = peak_of(block);
      if (peak > limit || peak < most)
        continue;
      most = peak;
      best = plan;
    }
  return most > 0 && lay_out(best, block);
}

//! Delays the backward legs until a whole sequence has gone forward, since its chunks come back
//! last to first.
constexpr void wait_for_sequence(building_block& block, int chunks) noexcept {
  for (int device = 0; device < block.devices; ++device)
    for (int at = leg::backward_down; at < leg::count; ++at)
      block.of(device)[at] += block.interval * (chunks - 1);
}

} // namespace detail
} // namespace pipelining::inline v0_1
