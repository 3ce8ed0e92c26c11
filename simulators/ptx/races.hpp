// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
//! @file
//! @brief Happens-before: vector clocks of threads and the shadow of a piece of memory.
//!
//! Every thread of a block is an actor; so is each of a pool of agents that stand for asynchronous
//! copies and each warp's matrix unit. One launch-wide counter ticks at every release, and an
//! access is the pair (actor, counter). An earlier access is ordered before a later one of thread t
//! if t's clock has seen the earlier actor at least at that count.

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "values.hpp"

namespace ptx {

//! @brief Counts at which actors of a block were seen. Immutable, since many clocks hold it.
using seen_actors = std::shared_ptr<std::vector<u32> const>;

//! @brief What a thread knows of others. Immutable once shared.
struct vector_clock {
  std::vector<u32> seen;                //!< by actor of the own block
  std::vector<u32> fenced;              //!< the same, as far as asynchronous copies may rely on it
  std::map<u32, seen_actors> elsewhere; //!< of other blocks, by serial number
};
using clock_pointer = std::shared_ptr<vector_clock const>;

//! @brief The knowledge of both; either may be null. Returns an argument itself where it can.
clock_pointer joined(clock_pointer const& a, clock_pointer const& b);
//! @brief The knowledge that both have.
clock_pointer common(clock_pointer const& a, clock_pointer const& b);

//! @brief Actor within its block in the low bits, serial number of the block above.
using actor_id = u32;
inline constexpr u32 actor_bits = 12;
constexpr u32 actor_index(actor_id a) {
  return a & ((1U << actor_bits) - 1);
}
constexpr u32 actor_block(actor_id a) {
  return a >> actor_bits;
}

//! @brief One access about to happen.
struct access {
  actor_id who = 0;
  u32 now = 0;
  vector_clock const* known = nullptr;
  u32 own_fenced = 0;  //!< the issuing thread's own last proxy fence
  actor_id issuer = 0; //!< the thread that issued it: who, or the issuer of an asynchronous copy
  bool write = false;
  bool strong = false;       //!< atomic, volatile, relaxed, acquire or release
  bool asynchronous = false; //!< through the async proxy
};

//! @brief An earlier access that the new one is not ordered after.
struct conflict {
  enum kind : u8 { race, in_flight, proxy };
  kind what = race;
  bool earlier_write = false;
  bool earlier_asynchronous = false;
  actor_id earlier = 0;
};

//! @brief Last write and last reads of every byte of a piece of memory.
//!
//! Kept per line of 16 bytes as long as accesses cover lines, and in finer cells where they do not.
class shadow {
public:
  explicit shadow(std::size_t bytes);
  //! @brief Checks an access of 1, 2, 4, 8 or any multiple of 16 bytes, aligned to its size
  //! (to 16 if larger), then records it.
  //! @complexity O(bytes / cell) for ordered accesses
  std::optional<conflict> touch(u64 offset, u32 bytes, access const& a);
  //! @brief Marks bytes as the target of an unfinished cp.async, or as no longer so.
  void pending(u64 offset, u32 bytes, bool on);

private:
  struct cell {
    u32 write_clock = 0;
    actor_id write_actor = 0;
    u32 read_clock = 0;
    actor_id read_group = 0; //!< first actor of a group of 32
    u32 read_lanes = 0;      //!< of the group; or, with many_readers, an index
    bool pending = false;
    bool strong = false;
    bool asynchronous = false;
    bool many_readers = false;
    bool strong_readers = false; //!< all of them
  };
  struct reader {
    u32 clock;
    actor_id group;
    u32 lanes;
  };
  struct line {
    u8 granule = 16;
    u32 fine = 0; //!< index of 16 cells if granule < 16
    cell whole;
  };

  static bool ordered(actor_id who, u32 clock, access const& a);
  std::optional<conflict> check(cell const& c, access const& a) const;
  bool readers_ordered(cell const& c, access const& a, actor_id& who) const;
  void record(cell& c, access const& a);
  void record_read(cell& c, access const& a);
  void drop_readers(cell& c);
  void refine(line& l, u32 granule);
  void coarsen(line& l);
  line& line_of(u64 offset) {
    auto& page = pages_[offset >> 12];
    if (page == nullptr) {
      page = std::make_unique<line[]>(256);
    }
    return page[offset >> 4 & 255];
  }
  template <class Function>
  void for_cells(u64 offset, u32 bytes, Function f);

  std::vector<std::unique_ptr<line[]>> pages_;
  std::vector<cell> fine_; // 16 per split line
  std::vector<u32> free_fine_;
  std::vector<std::vector<reader>> readers_;
  std::vector<u32> free_readers_;
};

} // namespace ptx
