// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What every delivery route of the package must build without a warning and run.
#include <pipe/version.hpp>

#include <cstdio>
#include <memory>
#include <unistd.h>

int main() {
  // POSIX pipe() and the library live in one program.
  int ends[2];
  if (pipe(ends) != 0) {
    return 1;
  }
  close(ends[0]);
  close(ends[1]);
  auto const version = std::make_unique<int>(PIPELINING_VERSION_MINOR);
  std::printf(
    "pipelining %d.%d.%d\n", PIPELINING_VERSION_MAJOR, *version, PIPELINING_VERSION_PATCH);
  return *version == 1 ? 0 : 1;
}
