// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief An L2 that keeps whole objects and drops the one that was used longest ago.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace whole_gpu {

//! @brief Whether an object is read, written, or both.
enum class usage : std::uint8_t { read, write, add };

class cache {
public:
  //! @param bytes   that it keeps
  //! @param objects their number, from 0 on
  cache(std::int64_t bytes, std::size_t objects) : room_(bytes), entries_(objects + 1) {
    entries_[objects].newer = entries_[objects].older = objects;
  }

  //! @brief Uses an object. @return bytes between memory and L2 for it, those that are dropped with
  //! changes among them
  std::int64_t touch(std::size_t object, std::int64_t bytes, usage how) {
    auto& of = entries_[object];
    std::int64_t moved = 0;
    if (of.bytes != 0) {
      take_out(object);
    } else {
      moved = how == usage::write ? 0 : bytes;
      room_ -= of.bytes = bytes;
    }
    of.is_changed = of.is_changed || how != usage::read;
    put_in(object);
    while (room_ < 0) {
      moved += drop(entries_.back().newer);
    }
    return moved;
  }

private:
  struct entry {
    std::size_t newer = 0;
    std::size_t older = 0;
    std::int64_t bytes = 0; // 0: not there
    bool is_changed = false;
  };

  void take_out(std::size_t object) {
    auto const& of = entries_[object];
    entries_[of.newer].older = of.older;
    entries_[of.older].newer = of.newer;
  }
  // The last entry closes the ring: older than it is the latest, newer the oldest.
  void put_in(std::size_t object) {
    auto const end = entries_.size() - 1;
    auto const latest = entries_[end].older;
    entries_[object].newer = end;
    entries_[object].older = latest;
    entries_[latest].newer = object;
    entries_[end].older = object;
  }
  std::int64_t drop(std::size_t object) {
    auto& of = entries_[object];
    take_out(object);
    auto const written = of.is_changed ? of.bytes : 0;
    room_ += of.bytes;
    of = {};
    return written;
  }

  std::int64_t room_;
  std::vector<entry> entries_;
};

} // namespace whole_gpu
