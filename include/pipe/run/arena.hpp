// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The memory of one device. Header for pipelining::arena and pipelining::host_memory.

#include <pipe/plan/item.hpp>
#include <pipe/plan/memory.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/context.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

namespace pipelining::inline v0_1 {

//! @brief Finds the slots of a device in its memory, wherever that is. Does not own the memory.
struct arena {
  plan_view work;
  int device = 0;
  std::byte* memory = nullptr; //!< `work.arena_bytes[device]` bytes, aligned to slot_alignment

  //! @brief The buffer of a slot that holds `bytes` bytes; without memory where the slot has none.
  [[nodiscard]] buffer at(slot where, std::int64_t bytes) const noexcept {
    if (where.index == nothing)
      return {};
    slot_layout const& layout = work.layout(device, where.of);
    if (layout.bytes == 0)
      return {where.index, nullptr, 0};
    return {where.index, memory + layout.offset + where.index * layout.bytes, bytes};
  }

  //! @brief The whole slot, at the size of its class.
  [[nodiscard]] buffer whole(slot where) const noexcept {
    return at(where, work.layout(device, where.of).bytes);
  }

  //! @brief What a message is sent from or received into.
  [[nodiscard]] buffer message(item const& step) const noexcept {
    return step.what == operation::send ? at(step.in, step.in_bytes) : at(step.out, step.out_bytes);
  }

  //! @brief What a pass reads.
  [[nodiscard]] input input_of(item const& step) const noexcept {
    buffer const in = at(step.in, step.in_bytes);
    return {in.slot, in.data, in.bytes};
  }

  //! @brief What a pass writes.
  [[nodiscard]] output output_of(item const& step) const noexcept {
    return at(step.out, step.out_bytes);
  }

  //! @brief The gradient of one of the two stages that share a tied weight.
  //! @param which 0 for the first stage, 1 for the last one.
  [[nodiscard]] input tied_gradient(int which) const noexcept {
    buffer const in = at({slot_class::tied_gradient, which}, work.tied_bytes);
    return {in.slot, in.data, in.bytes};
  }

  //! @brief The rows of all stages.
  [[nodiscard]] totals all_totals() const noexcept {
    slot_layout const& layout = work.layout(device, slot_class::totals);
    return {memory + layout.offset, work.totals_bytes, layout.bytes, layout.count};
  }

  //! @brief What a stage functor is told of a pass.
  [[nodiscard]] context context_of(item const& step, void* stream = nullptr) const noexcept {
    return {device,
            step.work.stage,
            step.work.microbatch,
            step.work.chunk,
            whole({slot_class::activation, step.activation}),
            whole({slot_class::weight_input, step.weight_input}),
            whole({slot_class::sequence, step.state}),
            whole({slot_class::sequence_gradient, step.state_gradient}),
            stream};
  }
};

//! @brief Host memory for the slots of one device, allocated and touched once.
class host_memory {
public:
  //! @throws std::bad_alloc
  explicit host_memory(std::int64_t bytes) {
    if (bytes == 0)
      return;
    auto const size = static_cast<std::size_t>(bytes);
    data_ = static_cast<std::byte*>(::operator new(size, alignment));
    std::memset(data_, 0, size);
  }
  host_memory(host_memory&& other) noexcept : data_(other.data_) { other.data_ = nullptr; }
  host_memory(host_memory const&) = delete;
  host_memory& operator=(host_memory const&) = delete;
  host_memory& operator=(host_memory&&) = delete;
  ~host_memory() { ::operator delete(data_, alignment); }

  [[nodiscard]] std::byte* data() const noexcept { return data_; }

private:
  static constexpr std::align_val_t alignment{static_cast<std::size_t>(slot_alignment)};
  std::byte* data_ = nullptr;
};

} // namespace pipelining::inline v0_1
