// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Reading a file, but for those whose reader could wait for ever.

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

namespace example {

//! Why a name is not opened; empty: it is. Pipes that a shell has opened, such as /dev/stdin and
//! the /dev/fd/63 of `<(command)`, have their other end.
[[nodiscard]] inline std::string why_not_opened(std::string const& path) {
  struct stat found {};
  if (path.starts_with("/dev/") || path.starts_with("/proc/") ||
      ::stat(path.c_str(), &found) != 0 || !S_ISFIFO(found.st_mode))
    return {};
  return "it is a FIFO, whose other end may be nobody's";
}

//! All bytes of a file.
//! @param most that it may have. @param too_many what is said of one with more
//! @param refuse throws with the reason why it cannot be read: refuse(reason)
template <class Refuse>
[[nodiscard]] std::string
bytes_of_file(std::string const& path, std::size_t most, char const* too_many, Refuse refuse) {
  if (auto const why = why_not_opened(path); !why.empty())
    refuse(why);
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> const file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  if (!file)
    refuse(std::strerror(errno));
  if (::isatty(::fileno(file.get())) != 0)
    refuse("it is a terminal, which would be waited for");
  std::string bytes;
  char part[1 << 16];
  while (std::size_t const count = std::fread(part, 1, sizeof part, file.get())) {
    bytes.append(part, count);
    if (bytes.size() > most)
      refuse(too_many);
  }
  if (std::ferror(file.get()) != 0)
    refuse(std::strerror(errno));
  return bytes;
}

} // namespace example
