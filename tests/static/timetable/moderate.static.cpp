// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Orders that the compiler makes, times and verifies under its default limits, with their peaks and
// spans.
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

namespace pp = pipelining;

static_assert(pp::verify<16>(pp::timetable<pp::OneFOneB, 16, 64>));
static_assert(pp::verify<15>(pp::timetable<pp::OneFOneB, 16, 64>).broken ==
              pp::report::rule::over_memory);
static_assert(pp::makespan(pp::timetable<pp::OneFOneB, 16, 64>) == 3 * (64 + 15));
static_assert(pp::verify<11>(pp::timetable<pp::Seq1F1B<4>, 8, 16>));
static_assert(!pp::verify<10>(pp::timetable<pp::Seq1F1B<4>, 8, 16>));
static_assert(pp::verify(pp::timetable<pp::Interleaved<2>, 8, 32>));
static_assert(pp::verify(pp::timetable<pp::ZeroBubbleH1, 8, 32>));
#ifdef __NVCC__
constexpr int v_microbatches = 16; // as many as its limit carries
#else
constexpr int v_microbatches = 32;
#endif
static_assert(pp::verify(pp::timetable<pp::VHalf, 8, v_microbatches>));
