// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
//! @file
//! @brief The state of a running launch: decoded instructions, warps, blocks.

#include <array>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "launch.hpp"
#include "parse.hpp"
#include "races.hpp"
#include "tensor_map.hpp"
#include "values.hpp"

namespace ptx {

//! @brief Generic addresses of shared and local memory lie in windows no process uses.
inline constexpr u64 shared_window = 0x7000'0000'0000'0000;
inline constexpr u64 local_window = 0x7100'0000'0000'0000;
//! @brief Shared memory starts here, as on hardware that keeps the first KiB for itself.
inline constexpr u32 shared_base = 1024;
inline constexpr u32 copy_agents = 64; //!< actors that stand for bulk copies, used in turn

struct warp;
struct block;
struct run_state;
struct instruction;
using handler = void (*)(warp&, instruction const&, u32 mask);

enum class space : u8 { generic, global, shared, local, parameter, constant };

//! @brief What the run loop must know of an instruction.
enum class flow : u8 {
  ordinary,
  branch,
  exit,
  aligned, //!< all live lanes of the warp must execute it together
  masked   //!< all lanes named by its member mask must
};

//! @brief A decoded instruction. Operands are byte offsets into the warp's register file.
struct instruction {
  handler run = nullptr;
  s32 const* op = nullptr;
  s64 immediate = 0;           //!< a literal; meaning belongs to the handler
  std::array<s64, 3> offset{}; //!< of the address operands
  s32 guard = -1;
  s32 target = -1;   //!< of a branch
  s32 members = -1;  //!< register with the member mask, flow::masked
  u32 statement = 0; //!< index into the function's body
  flow kind = flow::ordinary;
  bool guard_negated = false;
  space where = space::generic;
  type t = type::none;
  type t2 = type::none;
  u8 count = 1;   //!< vector length, matrices, groups
  u8 mode = 0;    //!< meaning belongs to the handler
  u8 flags = 0;   //!< meaning belongs to the handler
  u8 wide = 0;    //!< bit k: address operand k is 64 bits wide
  u8 address = 0; //!< position of the first address operand in op; others follow it
  u16 operand_count = 0;
};

//! @brief Values that differ by thread, block or launch, kept in register slots.
struct special_slot {
  s32 offset = 0;
  u16 which = 0;
  u64 addend = 0;
  bool wide = false;
};

//! @brief A kernel ready to run.
struct kernel {
  function_text const* text = nullptr;
  kernel_facts facts;
  std::vector<instruction> code;
  std::vector<s32> operands;
  std::size_t register_bytes = 0;
  std::vector<std::pair<s32, u64>> constants; //!< offset (bit 30: wide), value
  std::vector<special_slot> specials;
  std::size_t shared_bytes = 0;
  bool uses_async_proxy = false;
};

//! @brief A loaded module; see ptx::module.
struct program {
  module_text text;
  ptx::memory* where = nullptr;
  std::map<std::string, function_text const*, std::less<>> functions;
  std::map<std::string, kernel_facts, std::less<>> facts;
  std::map<std::string, std::unique_ptr<kernel>, std::less<>> decoded;
  std::map<std::string, variable, std::less<>> variables;
  std::vector<std::unique_ptr<std::byte[]>> storage;
  kernel const& ready(std::string_view name);
};

//! @brief Ends a launch; becomes a report.
struct stop {
  fault kind;
  std::string text;
};

//! @brief Bytes with their state and, if races are checked, their history.
struct region {
  std::byte* data = nullptr;
  u8* state = nullptr;
  shadow* history = nullptr;
  u64 offset = 0; //!< of the access within the history
  space where = space::global;
};

//! @brief One cp.async waiting to happen.
struct small_copy {
  u32 to = 0;
  u32 bytes = 0;
  u32 source_bytes = 0;
  u64 from = 0;
  instruction const* by = nullptr;
};

//! @brief A bulk or tensor copy in flight.
struct bulk_copy {
  instruction const* by = nullptr;
  int lane = 0;
  u32 shared = 0;
  u32 barrier = 0; //!< mbarrier to complete on; loads only
  u32 bytes = 0;
  u64 global = 0;
  tensor_map map; //!< of tensor copies
  std::array<s32, 5> coordinates{};
  u32 agent = 0;
  u32 clock = 0;
  clock_pointer known;
  bool tensor = false;
  bool load = false;
};

//! @brief A wgmma in flight.
struct matrix_job {
  instruction const* by = nullptr;
  u32 clock = 0;
  u64 a_descriptor = 0;
  u64 b_descriptor = 0;
  bool accumulate = false;
};

//! @brief What the race checker keeps per thread.
struct thread_clock {
  clock_pointer known;
  u32 fenced = 0;         //!< own last fence.proxy.async
  clock_pointer released; //!< snapshot of the last memory fence
  u32 released_at = 0;
  clock_pointer gathered; //!< seen by relaxed reads, known after the next memory fence
};

//! @brief The last look of a warp at memory that others may change, and how often it found the
//! same.
struct lookout {
  instruction const* by = nullptr;
  u32 lanes = 0;
  u64 addresses = 0; //!< a sum over the lanes
  u64 progress = 0;  //!< of the launch
  u32 times = 0;
};

struct warp {
  block* home = nullptr;
  kernel const* code = nullptr;
  u32 index = 0;
  u32 alive = 0;
  u32 resting = 0; //!< lanes whose last wait failed; they let the others go first
  u32 parked = 0;  //!< lanes at a collective that other lanes have not reached
  u32 pc = 0;
  std::array<u32, 32> pcs{};
  bool diverged = false;
  bool blocked = false; //!< waits at a barrier
  bool yields = false;  //!< gives up its turn
  u32 barrier = 0;
  instruction const* now = nullptr;
  lookout looked;
  std::vector<u64> registers;
  std::array<thread_clock, 32> clocks;
  std::array<std::vector<small_copy>, 32> open_copies;
  // Groups in flight, the oldest first: few, and none in most warps, which then allocate nothing.
  std::array<std::vector<std::vector<small_copy>>, 32> copy_groups;
  std::array<std::vector<bulk_copy>, 32> open_bulk;
  std::array<std::vector<std::vector<bulk_copy>>, 32> bulk_groups;
  std::vector<matrix_job> open_jobs;
  std::vector<std::vector<matrix_job>> job_groups;
  std::map<s32, u32> busy; //!< registers of wgmma in flight: offset -> jobs
  bool matrix_fenced = false;

  std::byte* file() { return reinterpret_cast<std::byte*>(registers.data()); }
  //! @brief The 32 lanes of a register whose values are of type T.
  template <class T>
  slot_of<T>* lanes(s32 offset) {
    return reinterpret_cast<slot_of<T>*>(file() + offset);
  }
  u32& predicate(s32 offset) { return *reinterpret_cast<u32*>(file() + offset); }
  //! @brief Lanes that wait let others go first: other lanes, or other warps where all wait.
  void rest(u32 lanes) {
    yields = lanes == alive;
    resting |= yields ? 0 : lanes;
  }
};

struct mbarrier {
  u32 expected = 0;
  u32 pending = 0;
  s64 bytes = 0;
  u32 phase = 0;
  clock_pointer arriving;
  clock_pointer completed;
};

struct named_barrier {
  u32 arrived = 0;
  u32 expected = 0;
  bool counted = false; //!< waits for an explicit number of threads
  u32 vote_all = ~0U;
  u32 vote_any = 0;
  u32 vote_count = 0;
  clock_pointer clock;
  std::vector<std::pair<warp*, u32>> waiting; //!< with their lanes
};

struct block {
  run_state* launch = nullptr;
  extent index;
  u32 serial = 0;
  u32 threads = 0;
  std::vector<warp> warps;
  std::vector<u64> shared_storage;
  std::byte* shared = nullptr;
  u64 shared_bytes = 0;
  std::vector<u8> shared_state;
  std::unique_ptr<shadow> shared_history;
  std::vector<std::byte> local;
  std::vector<u8> local_state;
  std::array<named_barrier, 16> barriers;
  std::map<u32, mbarrier> mbarriers;
  std::vector<bulk_copy> engine;
  u32 next_agent = 0;
  u32 live_warps = 0;

  actor_id actor(u32 i) const { return serial << actor_bits | i; }
  u32 actors() const {
    return (threads + 31) / 32 * 32 + copy_agents + static_cast<u32>(warps.size());
  }
  u32 agent(u32 k) const { return (threads + 31) / 32 * 32 + k; }
  u32 matrix_actor(warp const& w) const { return agent(copy_agents) + w.index; }
};

//! @brief What a strong write to a place in memory publishes.
struct publication {
  //! serial -> (own actors, all that is known)
  std::map<u32, std::pair<seen_actors, clock_pointer>> by_block;
};

struct run_state {
  program* code = nullptr;
  kernel const* entry = nullptr;
  options how;
  extent grid;
  extent block_size;
  u64 dynamic_shared = 0;
  std::vector<u64> parameter_storage;
  std::byte* parameters = nullptr; //!< 64-byte aligned, as tensor maps must be
  u32 clock = 1;                   //!< ticks at every release
  u64 progress = 0;
  result out;
  std::set<std::pair<fault, u32>> seen_reports;
  allocation* last = nullptr;
  std::map<u64, std::unique_ptr<shadow>> global_history; //!< by begin of allocation
  shadow* last_history = nullptr;
  std::map<u64, publication> published;
  std::mt19937_64 random;
};

//! @brief "kernel k, block (x,y,z), thread (x,y,z), PTX line n `text`: " for messages.
std::string place_of(warp const& w, instruction const& i, int lane);
//! @brief Adds a report unless this instruction already gave one of this kind.
void report_fault(warp& w, instruction const& i, int lane, fault kind, std::string const& what);
[[noreturn]] void
fail(warp const& w, instruction const& i, int lane, fault kind, std::string const& what);

} // namespace ptx
