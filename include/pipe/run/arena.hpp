// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The memory of one device. Header for pipelining::arena.

#include <pipe/plan/item.hpp>
#include <pipe/plan/memory.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/context.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

namespace pipelining::inline v0_1 {

//! @brief The bytes of a device's slots in host memory, allocated and touched once.
class arena {
public:
  //! @throws std::bad_alloc
  explicit arena(std::int64_t bytes) {
    if (bytes == 0)
      return;
    auto const size = static_cast<std::size_t>(bytes);
    memory_ = static_cast<std::byte*>(::operator new(size, alignment));
    std::memset(memory_, 0, size);
  }
  arena(arena&& other) noexcept : memory_(other.memory_) { other.memory_ = nullptr; }
  arena(arena const&) = delete;
  arena& operator=(arena const&) = delete;
  arena& operator=(arena&&) = delete;
  ~arena() { ::operator delete(memory_, alignment); }

  //! @brief The buffer of a slot that holds `bytes` bytes; without memory where the slot has none.
  [[nodiscard]] buffer
  at(plan_view const& work, int device, slot where, std::int64_t bytes) const noexcept {
    if (where.index == nothing)
      return {};
    slot_layout const& layout = work.layout(device, where.of);
    if (layout.bytes == 0)
      return {where.index, nullptr, 0};
    return {where.index, memory_ + layout.offset + where.index * layout.bytes, bytes};
  }

  //! @brief The whole slot, at the size of its class.
  [[nodiscard]] buffer whole(plan_view const& work, int device, slot where) const noexcept {
    return at(work, device, where, work.layout(device, where.of).bytes);
  }

  //! @brief What a stage functor is told of a step.
  [[nodiscard]] context
  context_of(plan_view const& work, int device, item const& step) const noexcept {
    return {device,
            step.work.stage,
            step.work.microbatch,
            step.work.chunk,
            whole(work, device, {slot_class::activation, step.activation}),
            whole(work, device, {slot_class::weight_input, step.weight_input}),
            whole(work, device, {slot_class::sequence, step.state}),
            whole(work, device, {slot_class::sequence_gradient, step.state_gradient}),
            nullptr};
  }

private:
  static constexpr std::align_val_t alignment{static_cast<std::size_t>(slot_alignment)};
  std::byte* memory_ = nullptr;
};

} // namespace pipelining::inline v0_1
