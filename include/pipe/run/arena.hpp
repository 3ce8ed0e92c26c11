// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The memory of one device. Header for pipelining::arena and
//! pipelining::detail::host_memory.

#include <pipe/flow/array_of.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/arena.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/context.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace pipelining::inline v0_3::detail {

//! A buffer, to be read.
[[nodiscard]] constexpr input to_read(buffer const& of) noexcept {
  return {of.slot, of.data, of.bytes};
}

//! Finds the slots of a device in its memory, wherever that is. Does not own the memory.
struct arena {
  plan const& work;            //!< the plan that laid the memory out, which outlives this
  int device = 0;              //!< whose memory it is
  std::byte* memory = nullptr; //!< `bytes()` bytes, aligned to slot_alignment
  std::byte* host = nullptr;   //!< `work.host_bytes[device]` bytes on the host, likewise
  //! Bytes in front of the first slot of `memory` and after each of its slots, a multiple of
  //! slot_alignment; the rows of the totals count as one slot. 0: slots touch each other.
  std::int64_t guard = 0;
  //! A copy of the rows of all stages for the host, where `memory` is no memory of its own.
  std::byte const* host_rows = nullptr;
  pipeline_view over = work.over; //!< of the plan, at hand for every pass

  //! Bytes that the memory must have.
  [[nodiscard]] std::int64_t bytes() const noexcept {
    std::int64_t const slots = work.arena_bytes_of(device);
    return slots == 0 || guard == 0 ? slots : slots + guard * (1 + guards_before(slot_classes));
  }

  //! The layout of the slots of a class.
  [[nodiscard]] slot_layout const& layout_of(slot_class of) const noexcept {
    return work.layout(device, of);
  }

  //! True for a class whose slots have guards around them.
  [[nodiscard]] bool guards(slot_class of) const noexcept {
    return guard != 0 && layout_of(of).bytes != 0 &&
           !lies_on_host(*over.declared, static_cast<int>(of));
  }

  //! The bytes of a slot that a pass is handed: all of one that it keeps.
  [[nodiscard]] std::int64_t bytes_of(use const& where) const noexcept {
    return is_kept(where.at) ? layout_of(where.of).asked : where.bytes;
  }

  //! Where a slot starts, counted from that of its memory.
  [[nodiscard]] std::int64_t place(use const& where) const noexcept {
    slot_layout const& layout = layout_of(where.of);
    std::int64_t const place = layout.offset + where.index * layout.bytes;
    if (!guards(where.of))
      return place;
    int const own = where.of == slot_class::totals ? 0 : where.index;
    return place + guard * (1 + guards_before(static_cast<int>(where.of)) + own);
  }

  //! The first byte of a slot. By itself, so that what stages are handed as a rule is inlined.
  [[nodiscard, gnu::noinline]] std::byte* start_of(use const& where) const noexcept {
    bool const on_host =
      host != nullptr && lies_on_host(*over.declared, static_cast<int>(where.of));
    return (on_host ? host : memory) + place(where);
  }

  //! The buffer of what goes through a slot; without memory where the slot has none.
  [[nodiscard]] buffer at(use const& where) const noexcept {
    if (where.index == nothing)
      return {};
    return lies(where, layout_of(where.of), where.bytes);
  }

  //! The slot at the size that its class was asked for. Padding follows it.
  [[nodiscard]] buffer whole(use const& where) const noexcept {
    slot_layout const& layout = layout_of(where.of);
    return lies(where, layout, layout.asked);
  }

  //! The buffer that a message is sent from or received into.
  [[nodiscard]] buffer message(item const& step) const noexcept {
    return at(work.uses_of(step)[0]);
  }

  //! The first buffer that a step reads.
  [[nodiscard]] input input_of(item const& step) const noexcept {
    return to_read(at(work.use_at(slot_place::inputs, step)));
  }

  //! The first buffer that a step fills.
  [[nodiscard]] output output_of(item const& step) const noexcept {
    return at(work.use_at(slot_place::outputs, step));
  }

  //! The gradient of one of the two stages that share a tied weight.
  //! @param which 0 for the first stage, 1 for the last one.
  [[nodiscard]] input tied_gradient(int which) const noexcept {
    return to_read(at({.of = slot_class::tied_gradient, .index = which, .bytes = work.tied_bytes}));
  }

  //! The gradients of all copies of a stage, for the step that adds them.
  [[nodiscard]] totals copies_of(item const& step) const noexcept {
    use const& all = work.uses_of(step)[0];
    return rows(all.of, all.bytes, all.count);
  }

  //! The rows of all stages; none where the plan has no totals.
  [[nodiscard]] totals all_totals() const noexcept {
    if (work.totals_bytes == 0)
      return {};
    return rows(slot_class::totals, work.totals_bytes, layout_of(slot_class::totals).count);
  }

  //! The same where the host can read them.
  [[nodiscard]] totals readable_totals() const noexcept {
    totals all = all_totals();
    if (host_rows != nullptr)
      all.data = host_rows;
    return all;
  }

private:
  //! Slots of a class from its first on, as rows.
  [[nodiscard]] totals rows(slot_class of, std::int64_t bytes, int count) const noexcept {
    std::byte* const first = start_of({.of = of, .index = 0});
    return {first, bytes, start_of({.of = of, .index = 1}) - first, count};
  }
  //! A slot that there is.
  [[nodiscard]] buffer
  lies(use const& where, slot_layout const& layout, std::int64_t bytes) const noexcept {
    if (layout.bytes == 0)
      return {where.index, nullptr, 0};
    if (guard == 0 && host == nullptr) // as a rule
      return {where.index, memory + layout.offset + where.index * layout.bytes, bytes};
    return {where.index, start_of(where), bytes};
  }
  //! Guards after the slots of the classes before one.
  [[nodiscard]] int guards_before(int end) const noexcept {
    int count = 0;
    for (int of = 0; of < end; ++of) {
      auto const kind = static_cast<slot_class>(of);
      if (guards(kind))
        count += kind == slot_class::totals ? 1 : layout_of(kind).count;
    }
    return count;
  }
};

//! Host memory for the slots of one device.
class host_memory {
public:
  //! The first byte, or null.
  [[nodiscard]] std::byte* data() const noexcept {
    return bytes_ > 0 ? blocks_.data->bytes : nullptr;
  }

  //! Makes room for that many bytes; what was there is lost if it moves.
  //! @return whether memory that was there has moved.
  //! @throws std::bad_alloc, and then nothing has changed.
  bool reserve(std::int64_t bytes) {
    if (bytes <= bytes_)
      return false;
    block const* const before = blocks_.data;
    blocks_.get((bytes - 1) / slot_alignment + 1);
    bytes_ = bytes;
    return before != nullptr && before != blocks_.data;
  }
  //! Writes all of it. The system puts pages next to the core that touches them first.
  void touch() noexcept {
    if (bytes_ > 0)
      std::memset(data(), 0, static_cast<std::size_t>(bytes_));
  }

private:
  struct alignas(slot_alignment) block {
    std::byte bytes[slot_alignment];
  };
  owned<block> blocks_;
  std::int64_t bytes_ = 0;
};

} // namespace pipelining::inline v0_3::detail
