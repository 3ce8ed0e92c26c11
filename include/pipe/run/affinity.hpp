// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The cores that threads run on. Header for pipelining::pin_in_turn. Linux only.

#include <pipe/flow/array_of.hpp>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <sched.h>
#include <stdexcept>
#include <string>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! The cores that the calling thread may run on, ascending.
//! @throws std::runtime_error where the system does not say.
[[nodiscard]] inline std::vector<int> usable_cores() {
  cpu_set_t set{};
  if (::sched_getaffinity(0, sizeof set, &set) != 0)
    throw std::runtime_error("run: the system does not say which cores this process may use");
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(static_cast<std::size_t>(core), &set))
      cores.push_back(core);
  return cores;
}

//! Keeps the calling thread, and threads that it starts later, on some cores.
//! @throws std::runtime_error where it may run on none of them.
inline void pin_to_cores(std::vector<int> const& cores) {
  cpu_set_t set{};
  for (int const core : cores)
    if (core >= 0 && core < CPU_SETSIZE)
      CPU_SET(static_cast<std::size_t>(core), &set);
  if (::sched_setaffinity(0, sizeof set, &set) == 0)
    return;
  std::string names = cores.size() == 1 ? "core" : cores.empty() ? "no core" : "cores";
  for (int const core : cores)
    names += (core == cores.front() ? " " : ", ") + std::to_string(core);
  throw std::runtime_error("run: cannot keep a thread on " + names +
                           "; usable_cores() lists those that this process may use");
}

//! Reads a list of numbers as Linux writes it, such as `0-3,8`. Ends at what is no list.
[[nodiscard]] inline std::vector<int> read_core_list(std::string const& text) {
  std::vector<int> numbers;
  for (char const* at = text.c_str(); *at >= '0' && *at <= '9'; at += *at == ',') {
    char* end = nullptr;
    long const first = std::strtol(at, &end, 10);
    long const last = *end == '-' ? std::strtol(end + 1, &end, 10) : first;
    for (long n = first; n <= last && n < CPU_SETSIZE; ++n)
      numbers.push_back(static_cast<int>(n));
    at = end;
  }
  return numbers;
}

//! The cores that the calling thread may run on, by node of memory (NUMA), ascending in
//! each. One node where Linux names none.
//! @param folder where Linux describes its nodes
//! @throws std::runtime_error where the system does not say which cores may be used.
[[nodiscard]] inline std::vector<std::vector<int>>
usable_cores_by_node(std::string const& folder = "/sys/devices/system/node") {
  auto const read = [](std::string const& name) {
    std::string text(1 << 14, '\0');
    std::FILE* const file = std::fopen(name.c_str(), "r");
    text.resize(file == nullptr ? 0 : std::fread(text.data(), 1, text.size(), file));
    if (file != nullptr)
      std::fclose(file);
    return read_core_list(text);
  };
  std::vector<int> const online = read(folder + "/online");
  std::vector<int> rest = usable_cores();
  std::vector<std::vector<int>> nodes(online.size() + 1);
  auto own = nodes.begin();
  for (int const node : online) {
    for (int const core : read(folder + "/node" + std::to_string(node) + "/cpulist"))
      for (int& usable : rest)
        if (usable == core) {
          own->push_back(core);
          usable = -1; // taken
        }
    if (!own->empty()) // else memory without cores, or none that this process may use
      ++own;
  }
  for (int const core : rest)
    if (core >= 0)
      own->push_back(core);
  while (!nodes.empty() && nodes.back().empty())
    nodes.pop_back();
  return nodes;
}

//! Divides cores among devices: neighbours in the pipeline get neighbouring cores.
//!
//! Nodes get devices so that the smallest share is as large as it can be, and a node's devices
//! share its cores evenly. Fewer devices than nodes get whole nodes. More devices than cores get a
//! core each, in turn.
//! @param nodes the cores of each node; none is empty
//! @param devices at least 1
//! @returns the cores of each device; all empty where there are no cores
//! O(devices nodes + cores).
[[nodiscard]] inline std::vector<std::vector<int>>
divide_cores(std::vector<std::vector<int>> const& nodes, int devices) {
  std::size_t const all = static_cast<std::size_t>(devices);
  std::size_t const count = nodes.size();
  std::vector<std::vector<int>> shares(all);
  std::vector<int> cores;
  for (auto const& node : nodes)
    for (int const core : node)
      cores.push_back(core);
  if (cores.empty())
    return shares;
  if (all > cores.size()) {
    for (std::size_t d = 0; d < all; ++d)
      shares[d] = {cores[d % cores.size()]};
  } else if (all < count) {
    for (std::size_t d = 0; d < all; ++d)
      for (std::size_t n = d * count / all; n < (d + 1) * count / all; ++n)
        for (int const core : nodes[n])
          shares[d].push_back(core);
  } else {
    owned<std::size_t> const of_node(count, 0);
    for (std::size_t d = 0; d < all; ++d) {
      std::size_t best = 0; // with the most cores for one device more
      for (std::size_t n = 1; n < count; ++n)
        if (nodes[n].size() * (of_node[best] + 1) > nodes[best].size() * (of_node[n] + 1))
          best = n;
      ++of_node[best];
    }
    auto share = shares.begin();
    for (std::size_t n = 0; n < count; ++n)
      for (std::size_t i = 0; i < of_node[n]; ++i, ++share)
        for (std::size_t c = i * nodes[n].size() / of_node[n];
             c < (i + 1) * nodes[n].size() / of_node[n];
             ++c)
          share->push_back(nodes[n][c]);
  }
  return shares;
}

} // namespace detail

//! @brief A choice for `thread_options::on_start`: each device runs on its share of the cores, and
//! so do threads that its passes start (OpenMP, oneDNN, libtorch). Without it the system may put
//! two devices on one core for a while, whenever the caller has worked between two steps.
struct pin_in_turn {
  std::vector<std::vector<int>> nodes = detail::usable_cores_by_node(); //!< the cores to divide

  //! @brief Keeps the calling thread, which is that of a device, on its cores.
  //! @throws std::runtime_error where it may not run there.
  void operator()(int device, int devices) const {
    detail::pin_to_cores(detail::divide_cores(nodes, devices)[static_cast<std::size_t>(device)]);
  }
};

} // namespace pipelining::inline v0_3
