// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Everything that needs a host compiler only. Includes nothing but the other headers.

// IWYU pragma: begin_exports
#include <pipe/core/pass.hpp>
#include <pipe/core/ratio.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/io/append.hpp>
#include <pipe/io/csv.hpp>
#include <pipe/io/details.hpp>
#include <pipe/io/json.hpp>
#include <pipe/io/shades.hpp>
#include <pipe/io/svg.hpp>
#include <pipe/io/text.hpp>
#include <pipe/io/trace.hpp>
#include <pipe/plan/describe.hpp>
#include <pipe/plan/global_order.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/memory.hpp>
#include <pipe/plan/message.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/plan/program.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/plan/prove_slots.hpp>
#include <pipe/plan/sizes.hpp>
#include <pipe/plan/slots.hpp>
#include <pipe/plan/waits.hpp>
#include <pipe/run/arena.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/error.hpp>
#include <pipe/run/execute.hpp>
#include <pipe/run/rendezvous.hpp>
#include <pipe/run/stage.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/breadth_first.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/grouped.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/seq1f1b_interleaved.hpp>
#include <pipe/schedule/unit_walk.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/schedule/zero_bubble_interleaved.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/dependencies.hpp>
#include <pipe/timetable/describe.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/static_timetable.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/timetable/verify.hpp>
// IWYU pragma: end_exports
