// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// 65,536 passes ordered, timed and verified by the compiler within its default limits.
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/static_timetable.hpp>

namespace pp = pipelining;

static_assert(pp::verify(pp::timetable<pp::OneFOneB, 64, 512>));
