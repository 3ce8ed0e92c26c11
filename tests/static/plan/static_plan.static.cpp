// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Lowering and proof of a real size within the default limits of compilers; nvcc compiles this too.
#include <pipe/plan/static_plan.hpp>
#include <pipe/schedule/one_f_one_b.hpp>

namespace pp = pipelining;

constexpr auto lowered = pp::lower_static(pp::timetable<pp::OneFOneB, 16, 64>);
static_assert(pp::prove(lowered));
static_assert(lowered.slots(0, pp::slot_class::activation) == 16);
static_assert(lowered.slots(15, pp::slot_class::activation) == 1);
static_assert(lowered.slots(0, pp::slot_class::received_input) == 0);
