// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "model.hpp"

#include <cstring>

#include "call.hpp"
#include "kernels.hpp"

namespace standin::detail {

// Fat binaries register before main, so the one model is made on first use and never destroyed.
model& model::instance() {
  static model* const only = new model;
  return *only;
}

model::model()
    : memory([this](finding kind, std::string text) { report_finding(kind, std::move(text)); },
             [this](std::uintptr_t address) { return memory_name(address); }) {
  configure(configuration{});
  connect_nvtx();
}

void model::configure(configuration chosen) {
  ++epoch;
  config = std::move(chosen);
  deadlocked = frozen = pruned = false;
  in_callback = nullptr;
  live.clear();
  ready.clear();
  messages.clear();
  sent.clear();
  kept.clear();
  resident.clear();
  resident_blocks.clear();
  finishable.clear();
  jobs.clear();
  queues_.clear();
  broken_devices.clear();
  // Graphs count their uses of communicators, so they go first.
  graph_execs.clear();
  graphs.clear();
  events.clear();
  retired_events.clear();
  streams.clear();
  retired_streams.clear();
  legacy_streams.clear();
  thread_streams.clear();
  captures.clear();
  communicators.clear();
  cliques.clear();
  shared_limits.clear();
  names.clear();
  peers.clear();
  contexts.clear();
  for (auto const& [begin, a] : allocations)
    if (!a.freed)
      kernels::remove_memory(reinterpret_cast<void*>(begin));
  allocations.clear();
  memory.clear();
  reports.clear();
  calls.clear();
  counts = {};
  total_calls = progress = choices_hash = state_hash_ = 0;
  fault_seen.assign(config.faults.size(), 0);
  next_agent = next_stream = next_event = 0;
  next_operation = next_unique_id = next_capture = next_graph = next_allocation = 0;
  taken.clear();
  width.clear();
  visited = nullptr;
  hosts.clear();
  turn = nullptr;
  coin_ = mix(config.seed, 0x5EED) | 1;
}

// Memory comes from the host with a margin around it; freed memory is kept until the next
// configure(), so that a use after free reads garbage and not the next allocation.
// The table of technical specifications in the CUDA programming guide.
int model::shared_opt_in() const {
  int const capability = 10 * config.compute_major + config.compute_minor;
  switch (capability) {
  case 75: return 64 << 10;
  case 80:
  case 87: return 163 << 10;
  case 86:
  case 89:
  case 120:
  case 121: return 99 << 10;
  default: return (capability < 80 ? 96 : 227) << 10;
  }
}

void* model::allocate(std::size_t bytes, int device, memory_kind kind) {
  constexpr std::size_t alignment = 512;
  auto storage = std::make_unique<char[]>(bytes + 3 * alignment);
  auto const raw = reinterpret_cast<std::uintptr_t>(storage.get());
  std::uintptr_t const begin = (raw + 2 * alignment - 1) / alignment * alignment;
  bool const defined = kind != memory_kind::device;
  std::memset(reinterpret_cast<void*>(begin), defined ? 0 : 0xFF, bytes);
  memory.start(begin, bytes, defined);
  kernels::add_memory(reinterpret_cast<void*>(begin), bytes, defined);
  allocation fresh;
  fresh.begin = begin;
  fresh.bytes = bytes;
  fresh.device = device;
  fresh.kind = kind;
  fresh.id = next_allocation++;
  fresh.storage = std::move(storage);
  allocations.emplace(begin, std::move(fresh));
  return reinterpret_cast<void*>(begin);
}

void model::adopt_host_memory(void* begin, std::size_t bytes) {
  kernels::add_memory(begin, bytes, true);
  allocation known;
  known.begin = reinterpret_cast<std::uintptr_t>(begin);
  known.bytes = bytes;
  known.kind = memory_kind::pinned;
  known.id = next_allocation++;
  allocations.emplace(known.begin, std::move(known));
}

allocation* model::find_allocation(void const* address) {
  auto const at = reinterpret_cast<std::uintptr_t>(address);
  auto next = allocations.upper_bound(at);
  if (next == allocations.begin())
    return nullptr;
  allocation& a = std::prev(next)->second;
  return at < a.begin + std::max<std::size_t>(a.bytes, 1) ? &a : nullptr;
}

} // namespace standin::detail
