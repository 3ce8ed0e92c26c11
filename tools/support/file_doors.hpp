// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Names that a program does not open, since it could wait for ever.

#include <cstdio>
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

//! Why an open file is not read; empty: it is.
[[nodiscard]] inline std::string why_not_read(std::FILE* file) {
  return ::isatty(::fileno(file)) != 0 ? "it is a terminal, which would be waited for" : "";
}

} // namespace example
