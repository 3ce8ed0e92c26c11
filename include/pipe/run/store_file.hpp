// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Where the store of a run is, through a file that all ranks see. Header for
//! pipelining::write_store_file and pipelining::read_store_file.

#include <pipe/run/clock.hpp>
#include <pipe/run/store.hpp>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>

namespace pipelining::inline v0_1 {

//! @brief Rank 0 says where its store is. The file appears whole or not at all.
//! @param address its job must be one that no earlier run had, such as the batch system's job
//! number: a file that was left behind is known by it.
//! @throws std::runtime_error when the file cannot be written.
inline void write_store_file(std::string const& path, store_address const& address) {
  std::string const draft = path + ".draft";
  {
    std::ofstream file(draft);
    file << detail::store_magic << '\n'
         << address.job << '\n'
         << address.host << '\n'
         << address.port << '\n';
    if (!file.flush())
      throw std::runtime_error("store: cannot write " + draft);
  }
  if (std::rename(draft.c_str(), path.c_str()) != 0)
    throw std::runtime_error("store: cannot rename " + draft + " to " + path);
}

//! @brief The other ranks wait until the file of this job is there.
//! @throws std::runtime_error past the deadline.
template <class Clock = polling_clock>
[[nodiscard]] store_address read_store_file(std::string const& path,
                                            std::string const& job,
                                            std::chrono::nanoseconds deadline) {
  auto const end = Clock::now() + deadline;
  for (;;) {
    std::ifstream file(path);
    std::string magic;
    store_address found;
    std::getline(file, magic);
    std::getline(file, found.job);
    std::getline(file, found.host);
    if (file >> found.port && magic == detail::store_magic && found.job == job)
      return found;
    if (Clock::now() >= end)
      throw std::runtime_error("store: rank 0 of job '" + job + "' has not written " + path +
                               " before the deadline; do all ranks see that folder?");
    Clock::sleep_for(std::chrono::milliseconds(20));
  }
}

} // namespace pipelining::inline v0_1
