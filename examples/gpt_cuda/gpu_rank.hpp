// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The stages of one rank on the GPU of its process, joined with the others by NCCL.

#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/nccl.cuh>
#include <pipe/plan/lower.hpp>
#include <pipe/run/clock.hpp>
#include <pipe/run/store.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstdint>

#include "gpu_model.hpp"

namespace gpt {

template <class Clock>
using rank_runner = pp::cuda::nccl_runner<called_stages, pp::basic_store<Clock>, Clock>;

//! The stages of a timetable that are of device `rank`. Collective, as all that it does is.
//! @param line of this rank to the store of its run
//! @param over how NCCL runs the plan; its GPU must be current
//! @throws std::invalid_argument as make_gpu_stages does; run_error as nccl_runner does
template <class Clock = pp::polling_clock>
[[nodiscard]] gpu_model<rank_runner<Clock>> on_rank(model_size const& size,
                                                    pp::timetable_view table,
                                                    step_cut const& cut,
                                                    std::uint64_t seed,
                                                    gpu_run const& how,
                                                    pp::basic_store<Clock>& line,
                                                    int rank,
                                                    pp::cuda::nccl_ranks over) {
  over.graph = how.graph;
  over.warm_up = 1;
  over.guarded = how.guarded;
  over.timed = how.timed;
  over.elements = how.numbers == operands::bf16 ? "f32, products of bf16" : "f32";
  return {
    table.extents,
    make_gpu_stages(size, table, cut, seed, how, rank),
    cut.tokens(),
    how.copies,
    [&](called_stages& stages) {
      return rank_runner<Clock>(
        pp::lower<pp::communicator_per_pair>(table, gpu_sizes(size, table, cut, how)),
        stages,
        line,
        rank,
        over);
    }};
}

} // namespace gpt
