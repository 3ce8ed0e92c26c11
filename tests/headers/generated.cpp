// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Generated schedules, whose orders the compiler makes.
#include <pipe/pipe.hpp>

namespace pp = pipelining;

// M (F + I + W) + (P - 1)(F + I - W), the span of ZB-H1 with equal times.
static_assert(pp::span_of(pp::timetable<pp::ZeroBubbleAuto<1>, 4, 8>) == 8 * 3 + 3);
static_assert(pp::verify(pp::timetable<pp::ZeroBubbleAuto<1>, 4, 8>));
static_assert(pp::verify(pp::timetable<pp::VHalf, 4, 8>));
