// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Sizes of slots and the arena of a device. Header for pipelining::lay_out.

#include <pipe/core/flow.hpp>
#include <pipe/core/pipeline.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/device_program.hpp>
#include <pipe/plan/lower/given_slots.hpp>
#include <pipe/plan/lower/instance.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/sizes.hpp>

#include <cstdint>

namespace pipelining::inline v0_2 {

//! @brief Slots start at multiples of this many bytes, which suits every copy engine and vector
//! load.
inline constexpr std::int64_t slot_alignment = 256;

namespace detail {

//! Sums and products of bytes stop here: more than any memory, and the sum of two does not
//! overflow.
inline constexpr std::int64_t most_bytes = std::int64_t{1} << 62;

[[nodiscard]] constexpr std::int64_t times(std::int64_t bytes, std::int64_t count) noexcept {
  return count > 0 && bytes > most_bytes / count ? most_bytes : bytes * count;
}
[[nodiscard]] constexpr std::int64_t plus(std::int64_t one, std::int64_t other) noexcept {
  return one > most_bytes - other ? most_bytes : one + other;
}

constexpr void grow(slot_layout& layout, std::int64_t bytes) noexcept {
  if (layout.bytes < 0)
    return; // a size was negative
  std::int64_t const rounded = bytes < 0 || bytes > most_bytes - slot_alignment
                                 ? bytes
                                 : (bytes + slot_alignment - 1) / slot_alignment * slot_alignment;
  if (rounded < 0 || rounded > layout.bytes)
    layout.bytes = rounded;
}

//! The pass that made what `step` reads of another stage.
[[nodiscard]] constexpr pass
maker_of_input(pipeline const& over, item const& step, effect const& read) noexcept {
  pass maker = step.work;
  maker.kind = namer_of(*over.declared, over.declared->row_of[read.of]);
  maker.stage = static_cast<std::uint16_t>(stage_of_effect(read, step.work));
  maker.overlapped = false;
  return maker;
}

//! The bytes of a step that is not about a pass: a row of the totals stands at the start of its
//! slot, and several rows are several whole slots.
constexpr void
size_other(item& step, std::int64_t tied, std::int64_t row, slot_layout* layouts) noexcept {
  bool const totals = step_class(step) == slot_class::totals;
  slot_layout& layout = layouts[static_cast<int>(step_class(step))];
  grow(layout, totals ? row : tied);
  std::int64_t bytes = totals ? times(layout.bytes, step.rows) : tied;
  if (step.about == subject::contribution)
    bytes = row;
  (step.in.index != nothing ? step.in_bytes : step.out_bytes) = bytes;
}

//! The bytes of what a pass reads, makes and keeps, and of the slots that hold them.
template <buffer_sizes Sizes>
constexpr void
size_pass(pipeline const& over, item& step, Sizes const& sizes, slot_layout* layouts) {
  flow const& declared = *over.declared;
  kind_of_pass const& kind = declared[step.work.kind];
  bool const copies = is_copy(step);
  for (int e = 0; e < kind.effect_count; ++e) {
    effect const& one = kind.effects[e];
    datum const& of = declared.data[one.of];
    int const stage = stage_of_effect(one, step.work);
    if (of.lives == residence::nowhere || stage < 0 || stage >= stages(over.extents))
      continue;
    auto const made_in = static_cast<slot_class>(of.pool);
    if (copies) {
      if (of.lives == residence::device)
        step.in_bytes = step.out_bytes = sizes.bytes(made_in, step.work);
      continue;
    }
    if (one.stage != of_stage::own) {
      step.in_bytes = sizes.bytes(made_in, maker_of_input(over, step, one));
      grow(layouts[static_cast<int>(step.in.of)], step.in_bytes);
    } else if (int const* const kept = kept_slot(step, of.pool)) {
      if (*kept != nothing)
        grow(layouts[of.pool], sizes.bytes(made_in, step.work));
    } else if (step.out.index != nothing && one.what == does::makes) {
      step.out_bytes = sizes.bytes(made_in, step.work);
      grow(layouts[of.pool], step.out_bytes);
    }
  }
  if (copies)
    for (slot const& used : {step.in, step.out})
      grow(layouts[static_cast<int>(used.of)], step.in_bytes);
}

//! The bytes of a message.
template <buffer_sizes Sizes>
constexpr void
size_message(pipeline const& over, item& step, Sizes const& sizes, slot_layout* layouts) {
  int const product = links_of(over, step.work).product;
  std::int64_t const bytes =
    sizes.bytes(static_cast<slot_class>(over.declared->data[product].pool), step.work);
  bool const sends = step.what == operation::send;
  (sends ? step.in_bytes : step.out_bytes) = bytes;
  grow(layouts[static_cast<int>((sends ? step.in : step.out).of)], bytes);
}

//! True for a pool whose slots lie on the host.
[[nodiscard]] constexpr bool lies_on_host(flow const& declared, int pool) noexcept {
  for (int of = 0; of < declared.data_count; ++of)
    if (declared.data[of].pool == pool && declared.data[of].lives == residence::host)
      return true;
  return false;
}

} // namespace detail

//! @brief The bytes of the two arenas of a device.
struct arena_sizes {
  std::int64_t device = 0; //!< on the device
  std::int64_t host = 0;   //!< on the host
};

//! @brief Fills in the bytes of every message of a program, the size of the slots of every class,
//! their offsets in the
//!        device's arenas, and returns the bytes of these.
//!
//! Sums that do not fit 62 bits stay at 2^62, which no limit allows. A negative size stays in its
//! layout, for `check_sizes` to name.
//!
//! @param layouts [slot_classes], with `count` set.
//! @complexity O(n) for n items.
template <buffer_sizes Sizes>
constexpr arena_sizes
lay_out(pipeline const& over, program& work, Sizes const& sizes, slot_layout* layouts) {
  for (int i = 0; i < work.count; ++i) {
    item& step = work.items[i];
    if (step.about != subject::pass)
      detail::size_other(step, tied_bytes(sizes), totals_bytes(sizes), layouts);
    else if (step.what == operation::run)
      detail::size_pass(over, step, sizes, layouts);
    else
      detail::size_message(over, step, sizes, layouts);
  }
  arena_sizes total;
  for (int of = 0; of < slot_classes; ++of) {
    std::int64_t& end = detail::lies_on_host(*over.declared, of) ? total.host : total.device;
    layouts[of].offset = end;
    end = detail::plus(end, detail::times(layouts[of].bytes, layouts[of].count));
  }
  return total;
}

} // namespace pipelining::inline v0_2
