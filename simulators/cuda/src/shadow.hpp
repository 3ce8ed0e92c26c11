// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Vector clocks, and the last accesses to every byte of memory.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../standin.hpp"

namespace standin::detail {

//! @brief What an agent (a stream, a host thread, a chain of graph nodes) knows of the progress of
//! all agents.
class vector_clock {
public:
  [[nodiscard]] std::uint32_t at(int agent) const {
    auto const index = static_cast<std::size_t>(agent);
    return index < ticks_.size() ? ticks_[index] : 0;
  }
  void join(vector_clock const& other) {
    if (ticks_.size() < other.ticks_.size())
      ticks_.resize(other.ticks_.size());
    for (std::size_t i = 0; i < other.ticks_.size(); ++i)
      ticks_[i] = std::max(ticks_[i], other.ticks_[i]);
  }
  void advance(int agent) {
    auto const index = static_cast<std::size_t>(agent);
    if (index >= ticks_.size())
      ticks_.resize(index + 1);
    ++ticks_[index];
  }

private:
  std::vector<std::uint32_t> ticks_{};
};

//! @brief A half-open range of addresses that is read or written.
struct memory_access {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool write = false;
};

inline memory_access reading(void const* begin, std::size_t bytes) {
  auto const address = reinterpret_cast<std::uintptr_t>(begin);
  return {address, address + bytes, false};
}
inline memory_access writing(void const* begin, std::size_t bytes) {
  auto const address = reinterpret_cast<std::uintptr_t>(begin);
  return {address, address + bytes, true};
}

//! @brief Who accesses, and what happened before.
struct accessor {
  int agent = 0;
  vector_clock const* clock = nullptr;
  std::shared_ptr<std::string const> who{};
  std::uint64_t operation =
    std::numeric_limits<std::uint64_t>::max(); //!< its number; of a host none
  int rank = -1;
};

//! @brief State of an allocation as accesses see it.
enum class life { alive, freed };

//! @brief For each byte: is it defined, is it freed, who wrote it last, who has read it since.
class shadow {
public:
  using reporter = std::function<void(finding, std::string)>;
  using namer = std::function<std::string(std::uintptr_t)>;

  shadow(reporter report, namer name) : report_(std::move(report)), name_(std::move(name)) {}

  void clear() { segments_.clear(); }
  //! @brief Starts the life of a range: nobody has touched it.
  void start(std::uintptr_t begin, std::size_t bytes, bool initialised);
  //! @brief Ends the life of a range: every access from now on is reported.
  void stop(std::uintptr_t begin, std::size_t bytes, accessor const& by);
  //! @brief Removes what is known about a range.
  void forget(std::uintptr_t begin, std::size_t bytes);
  //! @brief Declares the content of a range garbage.
  void undefine(std::uintptr_t begin, std::size_t bytes);
  //! @brief Allows operations before this one to read the garbage in a range: an aborted message
  //! has left it to them.
  void leave(std::uintptr_t begin, std::size_t bytes, std::uint64_t operation);
  //! @brief Checks one access and remembers it.
  void touch(memory_access const& range, accessor const& by, bool check_initialised);

private:
  struct epoch {
    int agent = -1;
    int rank = -1;
    std::uint32_t tick = 0;
    std::shared_ptr<std::string const> who{};
    friend bool operator==(epoch const&, epoch const&) = default;
  };
  struct segment {
    std::uintptr_t end = 0;
    bool initialised = true;
    bool freed = false;
    bool pageable = false;     //!< no call has allocated it: each rank, a process, has memory there
    std::uint64_t left_to = 0; //!< operations before this one may read it all the same
    epoch writer{};
    std::vector<epoch> readers{};
    [[nodiscard]] bool same_as(segment const& other) const {
      return initialised == other.initialised && freed == other.freed &&
             pageable == other.pageable && left_to == other.left_to && writer == other.writer &&
             readers == other.readers;
    }
  };
  using segment_map = std::map<std::uintptr_t, segment>;

  static bool happened_before(segment const& seg, epoch const& earlier, accessor const& by);
  void split(std::uintptr_t at);
  void cover(std::uintptr_t begin, std::uintptr_t end);
  void merge(std::uintptr_t begin, std::uintptr_t end);
  void check(segment_map::iterator at,
             memory_access const& range,
             accessor const& by,
             bool check_initialised);
  static void remember(segment& seg, bool write, accessor const& by);

  segment_map segments_{};
  reporter report_;
  namer name_;
};

} // namespace standin::detail
