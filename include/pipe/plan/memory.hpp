// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Sizes of slots and the arena of a device. Header for pipelining::lay_out.

#include <pipe/core/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/program.hpp>
#include <pipe/plan/sizes.hpp>

#include <cstdint>

namespace pipelining::inline v0_1 {

//! @brief Slots start at multiples of this many bytes, which suits every copy engine and vector
//! load.
inline constexpr std::int64_t slot_alignment = 256;

namespace detail {

constexpr void grow(slot_layout& layout, std::int64_t bytes) noexcept {
  std::int64_t const rounded = (bytes + slot_alignment - 1) / slot_alignment * slot_alignment;
  if (rounded > layout.bytes)
    layout.bytes = rounded;
}

//! The pass that made what `step` reads: on the neighbouring stage, or of the same unit.
[[nodiscard]] constexpr pass maker_of_input(item const& step) noexcept {
  pass maker = step.work;
  if (step.what != operation::run)
    return maker;
  if (maker.kind == pass_kind::forward)
    --maker.stage;
  else
    ++maker.stage;
  return maker;
}

//! The bytes of a step that is not about a pass: a row of the totals stands at the start of its
//! slot, and several rows are several whole slots.
constexpr void
size_other(item& step, std::int64_t tied, std::int64_t row, slot_layout* layouts) noexcept {
  slot_class const of = step.in.index != nothing ? step.in.of : step.out.of;
  bool const totals = of == slot_class::totals;
  slot_layout& layout = layouts[static_cast<int>(of)];
  grow(layout, totals ? row : tied);
  std::int64_t bytes = totals ? step.rows * layout.bytes : tied;
  if (step.about == subject::contribution)
    bytes = row;
  (step.in.index != nothing ? step.in_bytes : step.out_bytes) = bytes;
}

} // namespace detail

//! @brief Fills in the bytes of every message of a program, the size of the slots of every class,
//! their offsets in the
//!        device's arena, and returns the bytes of the arena.
//!
//! @param layouts [slot_classes], with `count` set.
//! @complexity O(n) for n items.
template <buffer_sizes Sizes>
constexpr std::int64_t lay_out(program& work, Sizes const& sizes, slot_layout* layouts) {
  auto layout = [layouts](slot_class of) -> slot_layout& { return layouts[static_cast<int>(of)]; };
  for (int i = 0; i < work.count; ++i) {
    item& step = work.items[i];
    if (step.about != subject::pass) {
      detail::size_other(step, tied_bytes(sizes), totals_bytes(sizes), layouts);
      continue;
    }
    if (step.in.index != nothing) {
      pass const maker = detail::maker_of_input(step);
      slot_class const made =
        maker.kind == pass_kind::forward ? slot_class::output : slot_class::input_gradient;
      step.in_bytes = sizes.bytes(made, maker);
      detail::grow(layout(step.in.of), step.in_bytes);
    }
    if (step.out.index != nothing) {
      slot_class const made =
        step.work.kind == pass_kind::forward ? slot_class::output : slot_class::input_gradient;
      step.out_bytes = sizes.bytes(made, step.work);
      detail::grow(layout(step.out.of), step.out_bytes);
    }
    if (step.what != operation::run)
      continue;
    for (auto const [of, index] : {slot{slot_class::activation, step.activation},
                                   slot{slot_class::weight_input, step.weight_input},
                                   slot{slot_class::sequence, step.state},
                                   slot{slot_class::sequence_gradient, step.state_gradient}})
      if (index != nothing)
        detail::grow(layout(of), sizes.bytes(of, step.work));
  }
  std::int64_t offset = 0;
  for (int of = 0; of < slot_classes; ++of) {
    layouts[of].offset = offset;
    offset += layouts[of].bytes * layouts[of].count;
  }
  return offset;
}

} // namespace pipelining::inline v0_1
