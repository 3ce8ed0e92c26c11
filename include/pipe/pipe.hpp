// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The five rooms, in the order of the data: flow, schedule, timetable, plan, run.
//! Includes nothing but other headers. The wings have doors of their own: <pipe/view.hpp>,
//! <pipe/planner.hpp>, <pipe/cluster.hpp>, <pipe/attention.hpp>, <pipe/mpi.hpp>, <pipe/cuda.cuh>.

#include <pipe/config.hpp>

#if __cplusplus >= 202002L // what comes below would bury the one error of config.hpp
// IWYU pragma: begin_exports
#include <pipe/flow/declare.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/stage_graph.hpp>
#include <pipe/plan/fingerprint.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/other_plans.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/run/affinity.hpp>
#include <pipe/run/between_steps.hpp>
#include <pipe/run/called_runner.hpp>
#include <pipe/run/error.hpp>
#include <pipe/run/fits.hpp>
#include <pipe/run/message_tensors.hpp>
#include <pipe/run/plan_cache.hpp>
#include <pipe/run/post_validated.hpp>
#include <pipe/run/stage.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/block/building_block.hpp>
#include <pipe/schedule/block/repeat.hpp>
#include <pipe/schedule/breadth_first.hpp>
#include <pipe/schedule/chimera.hpp>
#include <pipe/schedule/chronos_pipe.hpp>
#include <pipe/schedule/chunk_flow.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/grouped.hpp>
#include <pipe/schedule/hanayo.hpp>
#include <pipe/schedule/helix_pipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/round_pipe.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/slice_v.hpp>
#include <pipe/schedule/slim_pipe.hpp>
#include <pipe/schedule/stp.hpp>
#include <pipe/schedule/svpp.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/wei_pipe.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/schedule/zero_bubble_auto.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/adapt/with_sharded_weights.hpp>
#include <pipe/timetable/adapt/with_stage_graph.hpp>
#include <pipe/timetable/adapt/with_vocabulary.hpp>
#include <pipe/timetable/attention_cost.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/cost_table.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/verify.hpp>
// IWYU pragma: end_exports
#endif
