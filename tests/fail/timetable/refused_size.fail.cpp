// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A schedule that refuses a size is refused in two errors, not in hundreds of lines.
// clang-format off
// case 1: expected-error {{timetable: the schedule does not take this number of devices and microbatches}}
// case 1: expected-error {{(?s)\A((?!error:).)*(error:((?!error:).)*){1,3}\Z}}
// case 2: expected-error {{timetable: the schedule does not take this number of devices and microbatches}}
// case 2: expected-error {{(?s)\A((?!error:).)*(error:((?!error:).)*){1,3}\Z}}
// case 3: expected-error {{timetable: the schedule does not take this number of devices and microbatches}}
// case 3: expected-error {{(?s)\A((?!error:).)*(error:((?!error:).)*){1,3}\Z}}
// case 4: expected-error {{timetable: the schedule does not take this number of devices and microbatches}}
// case 4: expected-error {{(?s)\A((?!error:).)*(error:((?!error:).)*){1,3}\Z}}
// clang-format on
#include <pipe/schedule/chimera.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/timetable/make_timetable.hpp>

namespace pp = pipelining;

#if FAIL_CASE == 1
constexpr auto table = pp::timetable<pp::Seq1F1B<>, 4, 8>; // how many chunks?
#elif FAIL_CASE == 2
constexpr auto table = pp::timetable<pp::OneFOneB, 0, 8>;
#elif FAIL_CASE == 3
constexpr auto table = pp::timetable<pp::DualPipe<>, 3, 8>; // an even number of devices
#elif FAIL_CASE == 4
constexpr auto table = pp::timetable<pp::Chimera, 3, 8>; // an even number of devices
#else
constexpr auto table = pp::timetable<pp::Seq1F1B<2>, 4, 8>;
#endif

int main() {
  return pp::verify(table) ? 0 : 1;
}
