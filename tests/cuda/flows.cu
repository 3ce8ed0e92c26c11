// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/cuda/error.cuh>
#include <pipe/cuda/nccl.cuh>
#include <pipe/cuda/streams.cuh>
#include <pipe/flow/shape.hpp>
#include <pipe/run/context.hpp>

#include <cuda_runtime.h>

#include <chrono>
#include <cstddef>
#include <exception>
#include <list>
#include <mutex>
#include <simulators/cuda/standin.hpp>
#include <tests/cuda/flows.hpp>
#include <tests/cuda/memory_store.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

//! A pass that its stream has not come to yet, with all that it was handed.
struct enqueued_pass {
  pp::pipeline_view over;
  pp::pass what;
  pp::context where;
  std::vector<pp::input> inputs;
  std::vector<pp::output> outputs;
  support::digests* read;
  std::mutex* guard;
};

void CUDART_CB compute_now(void* data) {
  auto& its = *static_cast<enqueued_pass*>(data);
  its.where.inputs = its.inputs;
  its.where.outputs = its.outputs;
  auto const digest = support::compute_in_slots(its.over, its.what, its.where);
  std::lock_guard const lock(*its.guard);
  (*its.read)[support::key_of(its.what)] = digest;
}

struct enqueuing_stage {
  pp::pipeline_view over{};
  support::digests* read = nullptr;
  std::mutex* guard = nullptr;
  std::list<enqueued_pass>* passes = nullptr; // as long as a graph may launch them

  void perform(pp::pass_kind kind, pp::context const& where, pp::input, pp::output) {
    enqueued_pass* its = nullptr;
    {
      std::lock_guard const lock(*guard);
      passes->push_back({over,
                         support::pass_of(kind, where),
                         where,
                         {where.inputs.begin(), where.inputs.end()},
                         {where.outputs.begin(), where.outputs.end()},
                         read,
                         guard});
      its = &passes->back();
    }
    pp::cuda::check(cudaLaunchHostFunc(static_cast<cudaStream_t>(where.stream), compute_now, its),
                    "cudaLaunchHostFunc");
  }
};

constexpr int steps = 3;

} // namespace

flow_result run_flow(flow_case const& what) {
  pp::plan const& work = what.work;
  flow_result result;
  std::mutex guard;
  std::list<enqueued_pass> passes;
  std::vector<enqueuing_stage> model(static_cast<std::size_t>(work.over.extents.stages()),
                                     {work.over, &result.read, &guard, &passes});
  if (!what.ranks) {
    std::vector<int> gpus;
    for (int device = 0; device < work.over.extents.devices; ++device)
      gpus.push_back(device);
    pp::cuda::stream_runner<std::vector<enqueuing_stage>, standin::clock> runner(
      what.work, model, {.gpus = gpus, .graph = what.graph, .warm_up = 1});
    try {
      for (int step = 0; step < steps; ++step) {
        result.read.clear();
        runner.step();
      }
    } catch (std::exception const& failure) {
      result.failure = failure.what();
    }
    result.findings = standin::summary();
    return result;
  }
  memory_board board;
  auto const outcomes = standin::run_ranks(work.over.extents.devices, [&](int rank) {
    try {
      pp::cuda::current_device const scope(rank);
      memory_store line{board, rank, ""};
      std::vector<enqueuing_stage> mine = model;
      pp::cuda::nccl_runner<std::vector<enqueuing_stage>, memory_store, standin::clock> runner(
        what.work,
        mine,
        line,
        rank,
        {.gpu = rank,
         .graph = what.graph,
         .warm_up = 1,
         .deadline = std::chrono::seconds(1),
         .abort_deadline = std::chrono::milliseconds(300)});
      for (int step = 0; step < steps; ++step)
        runner.step();
      line.barrier("ended", work.over.extents.devices, std::chrono::seconds(1));
      result.findings = standin::summary();
      line.barrier("seen", work.over.extents.devices, std::chrono::seconds(1));
    } catch (std::exception const& failure) {
      std::lock_guard const lock(guard);
      result.failure = failure.what();
      throw;
    }
  });
  static_cast<void>(outcomes);
  return result;
}
