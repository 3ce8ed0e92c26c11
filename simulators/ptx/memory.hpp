// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
//! @file
//! @brief The allocations a kernel may touch, each with one state byte per byte of memory.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace ptx {

//! @brief Bits of the state byte that shadows every byte of a region.
enum state : std::uint8_t { state_initialised = 1, state_read = 2, state_written = 4 };

//! @brief A half-open range of host addresses.
struct range {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  friend bool operator==(range const&, range const&) = default;
};

//! @brief One registered allocation.
struct allocation {
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;
  std::string name;
  bool writable = true;
  std::vector<std::uint8_t> state; //!< one per byte, bits of ptx::state
  // Where kernels may have been since memory::take_touched, so that it need not look elsewhere.
  std::size_t reached_begin = std::numeric_limits<std::size_t>::max();
  std::size_t reached_end = 0;

  //! @brief A kernel is about to access these bytes.
  void reach(std::size_t offset, std::size_t count) {
    reached_begin = std::min(reached_begin, offset);
    reached_end = std::max(reached_end, offset + count);
  }
};

//! @brief What kernels have read that they had not written, and what they have written.
struct touched_ranges {
  std::vector<range> reads{};
  std::vector<range> writes{};
};

//! @brief Map from process addresses to the allocations that kernels may touch.
//!
//! Global memory of a kernel is the memory of the process: a pointer that a kernel dereferences
//! must lie in an allocation registered here. Not thread safe: one launch or change at a time.
class memory {
public:
  //! @brief Registers `bytes` bytes at `begin`.
  //! @param initialised false: kernels may not read a byte before somebody wrote it
  //! @throws std::invalid_argument if the range overlaps an allocation
  void add(void const* begin,
           std::size_t bytes,
           bool initialised = false,
           std::string name = {},
           bool writable = true);
  //! @brief Forgets the allocation that starts at `begin`.
  //! @throws std::invalid_argument if none starts there
  void remove(void const* begin);
  //! @brief The allocation that contains `address`, or nullptr.
  allocation* find(std::uintptr_t address);
  //! @brief The last allocation that starts at or before `address`, or nullptr (for messages).
  allocation const* nearest(std::uintptr_t address) const;
  //! @brief Marks bytes as written (host copies, memset, communication) or as never written.
  //! Parts outside all allocations are ignored.
  void mark(void const* begin, std::size_t bytes, bool initialised);
  //! @brief True if every byte lies in one allocation and has been written.
  bool initialised(void const* begin, std::size_t bytes);
  //! @brief Collects and clears what kernels have read and written since the last call.
  touched_ranges take_touched();

private:
  std::map<std::uintptr_t, allocation> allocations_;
};

} // namespace ptx
