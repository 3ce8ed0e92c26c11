// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What every delivery route of the package must build without a warning and run.
#include <pipe/pipe.hpp>
#include <pipe/version.hpp>

#include <cstdio>
#include <memory>
#include <unistd.h>

namespace pp = pipelining;

// A timetable that the compiler makes, checks and measures.
constexpr auto table = pp::timetable<pp::Seq1F1B<2>, 4, 8>;
static_assert(pp::verify(table));
static_assert(pp::peak_activations(table) == pp::ratio{5, 2});

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
  // The same at run time, and a plan that is proven; a wrong number ends with a failure.
  pp::plan const plan = pp::lower(pp::make_timetable<pp::Seq1F1B<2>>({4, 8}));
  bool const right = pp::span_of(table) == 57 && plan.lanes.size() == 4 && bool{pp::prove(plan)};
  return *version == PIPELINING_VERSION_MINOR && right ? 0 : 1;
}
