// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Everything that needs a host compiler only. Includes nothing but the other headers.

// IWYU pragma: begin_exports
#include <pipe/core/pass.hpp>
#include <pipe/core/ratio.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/schedule/seq1f1b.hpp>
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
