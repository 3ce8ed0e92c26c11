// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Which cores threads run on. Header for pipelining::pin_in_turn. Linux only.

#include <cstddef>
#include <cstdint>
#include <sched.h>
#include <stdexcept>
#include <string>
#include <vector>

namespace pipelining::inline v0_2 {

//! @brief The cores that the calling thread may run on, ascending.
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

//! @brief Keeps the calling thread on one core.
//! @throws std::runtime_error where it may not run there.
inline void pin_to_core(int core) {
  cpu_set_t set{};
  if (core >= 0 && core < CPU_SETSIZE)
    CPU_SET(static_cast<std::size_t>(core), &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0)
    throw std::runtime_error("run: cannot keep a thread on core " + std::to_string(core) +
                             "; usable_cores() lists those that this process may use");
}

//! @brief A choice for `threads::on_start`: device d runs on the core at place d of a list, round and
//! round. Without it the system may put two devices on one core for a while, whenever the caller has
//! worked between two steps.
struct pin_in_turn {
  std::vector<int> cores = usable_cores(); //!< one after the other

  //! @brief Keeps the calling thread, which is that of a device, on its core.
  //! @throws std::runtime_error where it may not run there.
  void operator()(int device) const {
    pin_to_core(cores.empty() ? -1 : cores[static_cast<std::size_t>(device) % cores.size()]);
  }
};

} // namespace pipelining::inline v0_2
