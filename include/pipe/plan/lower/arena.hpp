// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Sizes of slots and the arena of a device.

#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/data_uses.hpp>
#include <pipe/plan/lower/device_program.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/sizes.hpp>

#include <algorithm>
#include <cstdint>

namespace pipelining::inline v0_3::detail {

//! Slots start at multiples of this many bytes, which suits every copy engine and vector
//! load.
inline constexpr std::int64_t slot_alignment = 256;

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
  if (bytes > layout.asked)
    layout.asked = bytes;
}

//! The bytes of what there is for readers on other stages: by the pass that makes it and, of what
//! each gets for itself, by the reader where the size functions look at it.
//! @param reader says which that is
template <buffer_sizes Sizes>
[[nodiscard]] constexpr std::int64_t
bytes_for(Sizes const& sizes, datum const& of, pass const& maker, auto const& reader) {
  auto const made_in = static_cast<slot_class>(of.pool);
  if constexpr (requires { sizes.bytes(made_in, maker, reader()); })
    if (of.instance == datum::per::reader)
      return sizes.bytes(made_in, maker, reader());
  return sizes.bytes(made_in, maker);
}

//! The bytes of a copy: as large as its end on the device; one that has none is sized by the host's
//! slots.
template <buffer_sizes Sizes>
[[nodiscard]] constexpr std::int64_t
bytes_of_copy(data_uses const& uses, pass const& work, Sizes const& sizes) {
  flow const& declared = *uses.over.declared;
  slot_class sized{};
  bool found = false; // on the device
  for (data_use const& use : uses[work])
    if (bool const on_device = declared.data[use.of].lives == residence::device;
        on_device || !(found || use.orders)) {
      sized = static_cast<slot_class>(use.pool);
      found = on_device;
    }
  return sizes.bytes(sized, work);
}

//! The bytes of one of the data that a pass reads, makes and keeps.
//! @param number of several instances
template <buffer_sizes Sizes>
[[nodiscard]] constexpr std::int64_t bytes_of_pass(
  data_uses const& uses, pass const& work, data_use const& use, int number, Sizes const& sizes) {
  pass maker = work;
  if (use.stage != 0) {
    stage_neighbour const owner = uses.owner(use, work, number);
    maker.kind = use.maker;
    maker.overlapped = false;
    maker.stage = static_cast<std::uint16_t>(owner.stage);
    maker.chunk = static_cast<std::uint16_t>(owner.chunk);
  }
  return bytes_for(sizes, uses.over.declared->data[use.of], maker, [&]() -> int {
    return use.stage != 0    ? work.stage
           : use.reader == 0 ? nothing
                             : neighbour(uses.over, work, use.reader, number).stage;
  });
}

//! True for a pool whose slots lie on the host.
[[nodiscard]] constexpr bool lies_on_host(flow const& declared, int pool) noexcept {
  return std::any_of(declared.data, declared.data + declared.data_count, [pool](datum const& of) {
    return of.pool == pool && of.lives == residence::host;
  });
}

//! @brief The bytes of the two arenas of a device.
struct arena_sizes {
  std::int64_t device = 0; //!< on the device
  std::int64_t host = 0;   //!< on the host
};

//! Fills in the bytes of the uses of an item.
//! @param carried of a message, the instance that it carries
template <buffer_sizes Sizes>
constexpr void size_uses(data_uses const& uses,
                         program const& work,
                         item const& step,
                         int const& carried,
                         Sizes const& sizes,
                         slot_layout* layouts) {
  use* next = work.uses + step.first_use;
  auto const enter = [&](std::int64_t bytes) {
    next->bytes = bytes;
    grow(layouts[static_cast<int>(next->of)], bytes);
    ++next;
  };
  if (step.about != subject::pass) {
    // A row of the totals stands at the start of its slot; several rows are several whole slots.
    use& given = *next;
    enter(given.of == slot_class::totals          ? totals_bytes(sizes)
          : given.of == slot_class::tied_gradient ? tied_bytes(sizes)
                                                  : sizes.bytes(given.of, step.work));
    if (given.of == slot_class::totals && step.about != subject::contribution)
      given.bytes = times(layouts[static_cast<int>(given.of)].bytes, given.count);
  } else if (step.what != operation::run) {
    enter(bytes_for(sizes, uses.over.declared->data[uses.datum_of(carried)], step.work, [&] {
      return reader_of(uses.over, step.work, work.message_of(step).number).stage;
    }));
  } else if (is_copy(*uses.over.declared, step)) {
    std::int64_t const bytes = bytes_of_copy(uses, step.work, sizes);
    for (int i = 0; i < step.use_count; ++i)
      enter(bytes);
  } else {
    for (data_use const& use : uses[step.work]) {
      int const count = uses.slots(use, step.work);
      for (int number = 0; number < count; ++number)
        enter(bytes_of_pass(uses, step.work, use, number, sizes));
    }
  }
}

//! @brief Fills in the bytes of every message of a program, the size of the slots of every class,
//! their offsets in the device's arenas, and returns the bytes of these.
//!
//! Sums that do not fit 62 bits stay at 2^62, which no limit allows. A negative size stays in its
//! layout, for `check_layouts` to name.
//!
//! @param carried [items], of messages the instances that they carry
//! @param layouts [slot_classes], with `count` set.
//! @complexity O(n) for n items.
template <buffer_sizes Sizes>
constexpr arena_sizes lay_out(data_uses const& uses,
                              program const& work,
                              int const* carried,
                              Sizes const& sizes,
                              slot_layout* layouts) {
  pipeline_view const& over = uses.over;
  for (int i = 0; i < work.count; ++i)
    size_uses(uses, work, work.items[i], carried[i], sizes, layouts);
  arena_sizes total;
  for (int of = 0; of < slot_classes; ++of) {
    std::int64_t& end = lies_on_host(*over.declared, of) ? total.host : total.device;
    layouts[of].offset = end;
    end = plus(end, times(layouts[of].bytes, layouts[of].count));
  }
  return total;
}

} // namespace pipelining::inline v0_3::detail
