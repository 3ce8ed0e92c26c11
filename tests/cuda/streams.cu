// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/streams.cuh>
#include <pipe/flow/shape.hpp>
#include <pipe/run/error.hpp>

#include <cuda_runtime.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <simulators/cuda/standin.hpp>
#include <string>
#include <tests/cuda/kernel_stage.cuh>
#include <tests/cuda/streams.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

void note(streams_result& result, pp::run_error const& failure) {
  result.last_failure = failure.what();
  if (!result.failure.empty())
    return;
  result.failure = failure.what();
  try {
    std::rethrow_if_nested(failure);
  } catch (std::exception const& cause) {
    result.nested = cause.what();
  }
}

} // namespace

streams_result run_on_streams(streams_case const& what) {
  pp::shape const extents = what.work.over.extents;
  auto const count = static_cast<std::size_t>(extents.stages());
  std::vector<kernel_stage> model(count);
  // On one GPU, devices that share a stage add to sums of their own.
  auto const copies = what.gpus.empty() ? static_cast<std::size_t>(extents.devices) : 1;
  std::size_t const sum_bytes = 16 * copies;
  auto own = std::make_unique<std::vector<pp::cuda::device_memory>>();
  std::vector<pp::cuda::device_memory>& sums = *own;
  for (std::size_t s = 0; s < count; ++s) {
    int const device = pp::device_of(what.work, static_cast<int>(s));
    pp::cuda::current_device const scope(
      what.gpus.empty() ? 0 : what.gpus[static_cast<std::size_t>(device)]);
    sums.emplace_back(static_cast<std::int64_t>(sum_bytes));
    model[s] = {.weight = s + 3,
                .chunks = extents.chunks,
                .sums = reinterpret_cast<std::uint64_t*>(sums.back().data()),
                .stride = what.gpus.empty() ? 2 : 0,
                .overrun_by = what.overrun_by,
                .overruns_output = what.overruns_output,
                .leaves_bytes = what.leaves_bytes};
  }
  if (what.leaving_stage >= 0) {
    pp::cuda::current_device const scope(what.gpus.empty() ? 0 : what.gpus.front());
    sums.emplace_back(8);
    model[static_cast<std::size_t>(what.leaving_stage)].seen =
      reinterpret_cast<std::uint64_t*>(sums.back().data());
  }
  pp::cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  pp::cuda::stream_runner<std::vector<kernel_stage>, standin::clock> runner(
    what.work,
    model,
    {.gpus = what.gpus,
     .graph = what.graph,
     .warm_up = 1,
     .guarded = what.guarded,
     .timed = what.timed,
     .run_ahead = what.run_ahead,
     .deadline = std::chrono::nanoseconds(what.deadline_ns)});
  streams_result result;
  for (auto const& [one, other] : runner.through_host())
    result.through_host += std::to_string(one) + '-' + std::to_string(other);
  for (int step = 0; step < what.steps; ++step) {
    if (step == what.freeze_after)
      standin::freeze();
    for (std::size_t s = 0; s < count; ++s)
      model[s].fails_at =
        step == what.failing_step && static_cast<int>(s) == what.failing_stage ? 1 : -1;
    bool const last = step + 1 == what.steps; // of the graph, if there is one
    if (what.overrunning_stage >= 0 && last)
      model[static_cast<std::size_t>(what.overrunning_stage)].overruns_at = 1;
    if (what.leaving_stage >= 0 && last)
      model[static_cast<std::size_t>(what.leaving_stage)].leaves_at = 1;
    // What an earlier half step has added does not count.
    try {
      runner.step();
      if (what.timed)
        result.traces.push_back(runner.trace());
    } catch (pp::run_error const& failure) {
      note(result, failure);
      if (what.failing_stage >= 0)
        for (kernel_stage const& stage : model)
          pp::cuda::check(cudaMemset(stage.sums, 0, sum_bytes), "cudaMemset");
      if (what.failing_stage >= 0)
        pp::cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }
  }
  result.findings = standin::summary();
  result.calls = standin::total_calls();
  if (!result.failure.empty() && what.failing_stage < 0) {
    (void)own.release();
    return result;
  }
  if (what.leaving_stage >= 0)
    pp::cuda::check(cudaMemcpy(&result.seen, sums.back().data(), 8, cudaMemcpyDeviceToHost),
                    "cudaMemcpy");
  for (std::size_t s = 0; s < count; ++s) {
    std::vector<std::uint64_t> read(2 * copies);
    pp::cuda::check(cudaMemcpy(read.data(), model[s].sums, sum_bytes, cudaMemcpyDeviceToHost),
                    "cudaMemcpy");
    result.gradients.push_back(0);
    for (std::size_t copy = 0; copy < copies; ++copy) {
      result.gradients.back() += read[2 * copy];
      result.losses += read[2 * copy + 1];
    }
  }
  return result;
}
