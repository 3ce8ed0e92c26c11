// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The stages of one rank on the GPU of its process, joined with the others by NCCL.

#include <pipe/cluster/store.hpp>
#include <pipe/cuda/nccl.cuh>
#include <pipe/timetable/timetable.hpp>

#include <cstdint>
#include <optional>
#include <vector>

#include "gpu_model.hpp"

namespace gpt {

//! The stages of a timetable that are of device `rank`. Collective, as all that it does is.
//! @tparam Called of gpu_model: with its optimizer where `how` has clipping
//! @param line of this rank to the store of its run
//! @param over how NCCL runs the plan; its GPU must be current
//! @throws std::invalid_argument as make_gpu_stages does; run_error as nccl_runner does
template <class Called, class Clock>
[[nodiscard]] gpu_model<Called,
                        pp::cuda::nccl_runner<std::vector<Called>, pp::basic_store<Clock>, Clock>>
on_rank(model_size const& size,
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
  return {size, table, cut, seed, how, std::optional<int>(rank), line, rank, over};
}

} // namespace gpt
