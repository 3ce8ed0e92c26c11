// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/nccl.cuh>
#include <pipe/flow/shape.hpp>
#include <pipe/run/error.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <tests/cuda/kernel_stage.cuh>
#include <tests/cuda/memory_store.hpp>
#include <tests/cuda/nccl.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

using model_type = std::vector<kernel_stage>;
using runner_type = pp::cuda::nccl_runner<model_type, memory_store, standin::clock>;

struct rank_memory {
  std::vector<pp::cuda::device_memory> sums{};
  model_type model{};
  pp::cuda::device_memory spare{16};

  rank_memory(pp::plan const& work, int rank) {
    pp::shape const& extents = work.over.extents;
    for (int s = 0; s < extents.stages(); ++s) {
      bool own = false;
      for (int m = 0; m < extents.microbatches; ++m)
        own = own || pp::device_of(work, s, m) == rank;
      if (own)
        sums.emplace_back(16);
      model.push_back(
        {.weight = static_cast<std::uint64_t>(s) + 3,
         .chunks = extents.chunks,
         .sums = own ? reinterpret_cast<std::uint64_t*>(sums.back().data()) : nullptr});
    }
  }
  void read_into(nccl_result& result) const {
    for (std::size_t s = 0; s < model.size(); ++s) {
      if (model[s].sums == nullptr)
        continue;
      std::uint64_t read[2]{};
      pp::cuda::check(cudaMemcpy(read, model[s].sums, 16, cudaMemcpyDeviceToHost), "cudaMemcpy");
      result.gradients[s] += read[0];
      result.losses += read[1];
    }
    // Zero where no stage of this rank has left anything.
    std::uint64_t seen = 0;
    pp::cuda::check(cudaMemcpy(&seen, spare.data(), sizeof seen, cudaMemcpyDeviceToHost),
                    "cudaMemcpy");
    result.seen |= seen;
  }
};

//! A communicator of the program's own. Its calls block, as a program's may.
ncclComm_t
all_ranks(memory_store const& line, char const* name, int rank, int ranks, int max_blocks) {
  ncclUniqueId id{};
  if (rank == 0) {
    pp::cuda::check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    line.set(name, std::string(id.internal, sizeof id.internal));
  }
  std::string const text = line.get(name, std::chrono::seconds(1));
  std::copy(text.begin(), text.end(), id.internal);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.maxCTAs = max_blocks;
  ncclComm_t made = nullptr;
  pp::cuda::check(ncclCommInitRankConfig(&made, ranks, id, rank, &config),
                  "ncclCommInitRankConfig");
  return made;
}

//! Makes a step as a program does that hands it to another of its threads.
void step_elsewhere(runner_type& runner) {
  std::exception_ptr failure;
  auto other = standin::clock::start([&] {
    try {
      runner.step();
    } catch (...) {
      failure = std::current_exception();
    }
  });
  other.join();
  if (failure)
    std::rethrow_exception(failure);
}

class kept_after_failure {
public:
  explicit kept_after_failure(std::unique_ptr<rank_memory>& what) : what_(what) {}
  kept_after_failure(kept_after_failure const&) = delete;
  kept_after_failure& operator=(kept_after_failure const&) = delete;
  ~kept_after_failure() {
    if (std::uncaught_exceptions() > 0)
      (void)what_.release();
  }

private:
  std::unique_ptr<rank_memory>& what_;
};

void run_rank(nccl_case const& what, int rank, memory_board& board, nccl_result& result) {
  pp::cuda::current_device const scope(rank);
  auto own = std::make_unique<rank_memory>(what.work, rank);
  rank_memory& memory = *own;
  memory_store line{board, rank, rank == 1 ? what.unfit_key : ""};
  ncclComm_t sums = nullptr;
  ncclComm_t unused = nullptr;
  std::vector<pp::cuda::registered_communicator> known;
  if (what.all_reduce) {
    sums = all_ranks(line, "sums", rank, what.work.over.extents.devices, 4);
    if (what.registered)
      known.push_back({sums, 4});
    if (what.registered_twice > 0) {
      unused =
        all_ranks(line, "unused", rank, what.work.over.extents.devices, what.registered_twice);
      known.push_back({unused, what.registered_twice});
    }
  }
  // A process that has failed ends: to free memory would wait for a GPU that may be busy for ever.
  kept_after_failure const keep(own);
  {
    runner_type runner(
      what.other_work != nullptr && rank == 1 ? *what.other_work : what.work,
      memory.model,
      line,
      rank,
      {.gpu = rank,
       .graph = what.graph,
       .warm_up = 1,
       .deadline = what.deadline,
       .abort_deadline = what.abort_deadline,
       .max_blocks = what.max_blocks,
       .one_message_stream = what.one_message_stream,
       .watched = what.watched,
       .checked = what.checked && rank != what.unchecked_rank,
       .run_ahead = what.run_ahead,
       .communicators = known,
       .world_ranks = what.world_ranks,
       .guarded = what.guarded,
       .timed = what.timed_ranks > 0,
       .about = rank == what.other_seed_rank ? "layers=8\nseed=7\n" : "layers=8\nseed=1\n"});
    for (kernel_stage& stage : memory.model) {
      stage.overrun_by = what.overrun_by;
      stage.overruns_output = what.overruns_output;
      stage.leaves_bytes = what.leaves_bytes;
      stage.seen = reinterpret_cast<std::uint64_t*>(memory.spare.data());
    }
    for (int step = 0; step < what.steps; ++step) {
      if (step == what.freeze_after) {
        line.barrier("freeze", what.work.over.extents.devices, what.deadline);
        if (rank == 0)
          standin::freeze();
      }
      for (std::size_t s = 0; s < memory.model.size(); ++s)
        memory.model[s].fails_at =
          step == what.failing_step && static_cast<int>(s) == what.failing_stage ? 1 : -1;
      bool const last = step + 1 == what.steps; // of the graph, if there is one
      if (what.overrunning_stage >= 0 && last)
        memory.model[static_cast<std::size_t>(what.overrunning_stage)].overruns_at = 1;
      if (what.leaving_stage >= 0 && last)
        memory.model[static_cast<std::size_t>(what.leaving_stage)].leaves_at = 1;
      if (what.all_reduce)
        pp::cuda::check(ncclAllReduce(memory.spare.data(),
                                      memory.spare.data(),
                                      2,
                                      ncclUint64,
                                      ncclSum,
                                      sums,
                                      runner.origin()),
                        "ncclAllReduce");
      if (rank == what.ending_rank && step == 1)
        runner.fail("has lost its data");
      if (rank == 1 && step == what.moved_step)
        step_elsewhere(runner);
      else
        runner.step();
      if (rank < what.timed_ranks) {
        pp::dynamic_timetable const trace = runner.trace();
        if (rank + 1 == what.work.over.extents.devices)
          result.traces.push_back(trace);
      }
    }
    if (!what.end_together) {
      for (std::size_t s = 0; s < memory.model.size(); ++s)
        if (runner.owns(static_cast<int>(s)) != (memory.model[s].sums != nullptr))
          throw std::logic_error("the runner owns other stages than it runs");
      runner.close();
      if (sums != nullptr)
        pp::cuda::check(ncclCommDestroy(sums), "ncclCommDestroy");
      if (unused != nullptr)
        pp::cuda::check(ncclCommDestroy(unused), "ncclCommDestroy");
      return;
    }
    line.barrier("ended", what.work.over.extents.devices, what.deadline);
    result.findings = standin::summary();
    line.barrier("seen", what.work.over.extents.devices, what.deadline);
  }
  memory.read_into(result);
}

void note(rank_report& report, std::exception const& failure) {
  report.failure = failure.what();
  try {
    std::rethrow_if_nested(failure);
  } catch (std::exception const& cause) {
    report.nested = cause.what();
  }
}

} // namespace

nccl_result run_on_ranks(nccl_case const& what) {
  auto const extents = what.work.over.extents;
  nccl_result result;
  result.gradients.resize(static_cast<std::size_t>(extents.stages()));
  result.ranks.resize(static_cast<std::size_t>(extents.devices));
  memory_board board;
  result.outcomes = standin::run_ranks(extents.devices, [&](int rank) {
    rank_report& report = result.ranks[static_cast<std::size_t>(rank)];
    try {
      run_rank(what, rank, board, result);
    } catch (pp::run_error const& failure) {
      note(report, failure);
      report.failed_device = failure.device();
    } catch (std::exception const& failure) {
      note(report, failure);
    }
    report.end = standin::clock::now();
    report.ended = true;
  });
  return result;
}
