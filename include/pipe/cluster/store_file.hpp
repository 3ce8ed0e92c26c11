// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Where the store of a run is, through a file that all ranks see. Header for
//! pipelining::write_store_file and pipelining::read_store_file.

#include <pipe/cluster/store.hpp>
#include <pipe/run/clock.hpp>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <stdexcept>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

namespace pipelining::inline v0_3 {

//! @brief Rank 0 says where its store is, and its secret. The file appears whole or not at all, and
//! can be read by its owner alone.
//! @param address its job must be one that no earlier run had, such as the batch system's job
//! number: a file that was left behind is known by it. Names and secret are one line each.
//! @throws std::runtime_error when the file cannot be written.
inline void write_store_file(std::string const& path, store_address const& address) {
  std::string const draft = path + ".draft";
  std::string const text = std::string(detail::store_magic) + '\n' + address.job + '\n' +
                           address.host + '\n' + std::to_string(address.port) + '\n' +
                           std::to_string(address.ranks) + '\n' + address.secret + "\n";
  (void)::unlink(draft.c_str()); // one that was left behind may have other rights
  detail::descriptor const file(
    ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (file.get() < 0 ||
      ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    throw std::runtime_error("store: cannot write " + draft + ": " + std::strerror(errno));
  if (std::rename(draft.c_str(), path.c_str()) != 0)
    throw std::runtime_error("store: cannot rename " + draft + " to " + path);
}

//! @brief The other ranks wait until the file of this job is there.
//! @throws std::runtime_error past the deadline.
template <class Clock = polling_clock>
[[nodiscard]] store_address read_store_file(std::string const& path,
                                            std::string const& job,
                                            std::chrono::nanoseconds deadline) {
  for (countdown<Clock> left(deadline);;) {
    std::ifstream file(path);
    std::string magic;
    std::string port;
    std::string ranks;
    store_address found;
    for (std::string* line : {&magic, &found.job, &found.host, &port, &ranks, &found.secret})
      std::getline(file, *line);
    auto const port_number = detail::read_number(port);
    auto const rank_count = detail::read_number(ranks);
    if (file && magic == detail::store_magic && found.job == job && port_number && rank_count) {
      found.port = *port_number;
      found.ranks = *rank_count;
      return found;
    }
    if (left.is_over())
      throw std::runtime_error("store: rank 0 of job '" + job + "' has not written " + path +
                               " before the deadline; do all ranks see that folder?");
    Clock::sleep_for(std::chrono::milliseconds(20));
  }
}

} // namespace pipelining::inline v0_3
