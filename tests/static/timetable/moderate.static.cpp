// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Closed forms that the compiler orders, times and verifies, with their peaks and spans.
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

namespace pp = pipelining;

static_assert(pp::verify<16>(pp::timetable<pp::OneFOneB, 16, 64>));
static_assert(pp::verify<15>(pp::timetable<pp::OneFOneB, 16, 64>).broken == pp::rule::over_memory);
static_assert(pp::makespan(pp::timetable<pp::OneFOneB, 16, 64>) == 3 * (64 + 15));
static_assert(pp::verify<11>(pp::timetable<pp::Seq1F1B<4>, 8, 16>));
static_assert(!pp::verify<10>(pp::timetable<pp::Seq1F1B<4>, 8, 16>));
static_assert(pp::verify(pp::timetable<pp::Interleaved<2>, 8, 32>));
static_assert(pp::verify(pp::timetable<pp::ZeroBubbleH1, 8, 32>));
