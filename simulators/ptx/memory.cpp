// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "memory.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace ptx {

namespace {

std::uintptr_t address_of(void const* p) {
  return reinterpret_cast<std::uintptr_t>(p);
}

//! Eight bytes that are alike.
constexpr std::uint64_t bytes_of(std::uint8_t each) {
  return 0x0101010101010101u * each;
}

} // namespace

void memory::add(
  void const* begin, std::size_t bytes, bool initialised, std::string name, bool writable) {
  auto const first = address_of(begin);
  auto const next = allocations_.lower_bound(first);
  bool const hits_next = next != allocations_.end() && next->first < first + bytes;
  bool const hits_previous = next != allocations_.begin() &&
                             std::prev(next)->second.begin + std::prev(next)->second.bytes > first;
  if (hits_next || hits_previous || allocations_.contains(first)) {
    throw std::invalid_argument(
      "ptx::memory::add: the range overlaps an allocation; remove it first");
  }
  std::uint8_t const start = initialised ? state_initialised : 0;
  allocations_[first] =
    allocation{first, bytes, std::move(name), writable, std::vector<std::uint8_t>(bytes, start)};
}

void memory::remove(void const* begin) {
  if (allocations_.erase(address_of(begin)) == 0) {
    throw std::invalid_argument("ptx::memory::remove: no allocation starts at this address");
  }
}

allocation* memory::find(std::uintptr_t address) {
  auto const next = allocations_.upper_bound(address);
  if (next == allocations_.begin()) {
    return nullptr;
  }
  allocation& candidate = std::prev(next)->second;
  return address - candidate.begin < candidate.bytes ? &candidate : nullptr;
}

allocation const* memory::nearest(std::uintptr_t address) const {
  auto const next = allocations_.upper_bound(address);
  return next == allocations_.begin() ? nullptr : &std::prev(next)->second;
}

void memory::mark(void const* begin, std::size_t bytes, bool initialised) {
  auto const first = address_of(begin);
  auto const past = allocations_.upper_bound(first);
  auto at = past == allocations_.begin() ? past : std::prev(past);
  std::uint8_t const kept = static_cast<std::uint8_t>(~state_initialised);
  std::uint8_t const added = initialised ? state_initialised : 0;
  for (; at != allocations_.end() && at->first < first + bytes; ++at) {
    auto& [start, a] = *at;
    auto const low = std::max(first, start);
    auto const high = std::min(first + bytes, start + a.bytes);
    for (auto k = low; k < high;) {
      std::uint8_t* const state = a.state.data() + (k - start);
      if (std::uint64_t eight = 0; high - k >= sizeof eight) { // most marks are long
        std::memcpy(&eight, state, sizeof eight);
        eight = (eight & bytes_of(kept)) | bytes_of(added);
        std::memcpy(state, &eight, sizeof eight);
        k += sizeof eight;
      } else {
        *state = static_cast<std::uint8_t>((*state & kept) | added);
        ++k;
      }
    }
  }
}

bool memory::initialised(void const* begin, std::size_t bytes) {
  allocation const* a = find(address_of(begin));
  if (a == nullptr || address_of(begin) - a->begin + bytes > a->bytes) {
    return false;
  }
  auto const first = a->state.begin() + static_cast<std::ptrdiff_t>(address_of(begin) - a->begin);
  return std::all_of(first, first + static_cast<std::ptrdiff_t>(bytes), [](std::uint8_t s) {
    return (s & state_initialised) != 0;
  });
}

namespace {

// What kernels reach is mostly untouched: eight bytes at a time.
std::size_t first_touched(allocation const& a, std::size_t from, state which) {
  std::uint64_t const pattern = bytes_of(which);
  std::size_t i = from;
  while (i < a.reached_end) {
    std::uint64_t eight = 0;
    if (i + sizeof eight <= a.reached_end) {
      std::memcpy(&eight, &a.state[i], sizeof eight);
      if ((eight & pattern) == 0) {
        i += sizeof eight;
        continue;
      }
    }
    if ((a.state[i] & which) != 0) {
      return i;
    }
    ++i;
  }
  return a.reached_end;
}

void collect(std::vector<range>& out, allocation& a, state which) {
  std::uint8_t* const state = a.state.data();
  for (std::size_t i = first_touched(a, a.reached_begin, which); i < a.reached_end;) {
    auto const begin = i;
    for (; i < a.reached_end && (state[i] & which) != 0; ++i) {
      state[i] = static_cast<std::uint8_t>(state[i] & ~which);
    }
    out.push_back({a.begin + begin, a.begin + i});
    i = first_touched(a, i, which);
  }
}

} // namespace

touched_ranges memory::take_touched() {
  touched_ranges out;
  for (auto& [start, a] : allocations_) {
    collect(out.reads, a, state_read);
    collect(out.writes, a, state_written);
    a.reached_begin = std::numeric_limits<std::size_t>::max();
    a.reached_end = 0;
  }
  return out;
}

} // namespace ptx
