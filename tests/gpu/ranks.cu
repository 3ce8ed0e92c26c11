// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/nccl.cuh>
#include <pipe/flow/shape.hpp>
#include <pipe/run/error.hpp>

#include <cuda_runtime.h>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <tests/cuda/kernel_stage.cuh>
#include <tests/gpu/ranks.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

struct mortal_stage : kernel_stage {
  bool dies = false;

  void backward(pp::context const& where, pp::input in, pp::output out) {
    if (dies && where.microbatch == 1)
      (void)std::raise(SIGKILL);
    kernel_stage::backward(where, in, out);
  }
};

void run_steps(rank_case const& what,
               pp::store& line,
               std::vector<mortal_stage>& model,
               rank_result& result) {
  pp::cuda::nccl_runner<std::vector<mortal_stage>> runner(what.work,
                                                          model,
                                                          line,
                                                          what.rank,
                                                          {.graph = what.graph,
                                                           .warm_up = 1,
                                                           .deadline = what.deadline,
                                                           .max_blocks = 2,
                                                           .name = what.name});
  result.connected = true;
  for (int step = 0; step < what.steps; ++step) {
    for (mortal_stage& stage : model)
      stage.dies = step == what.dies_at;
    runner.step();
  }
}

} // namespace

rank_result run_rank(rank_case const& what) {
  pp::shape const extents = what.work.over.extents;
  auto const count = static_cast<std::size_t>(extents.stages());
  rank_result result;
  result.gradients.resize(count);
  try {
    pp::store line(what.where, what.rank, what.deadline);
    std::vector<pp::cuda::device_memory> sums;
    std::vector<mortal_stage> model(count);
    for (std::size_t s = 0; s < count; ++s) {
      sums.emplace_back(16);
      model[s].weight = s + 3;
      model[s].chunks = extents.chunks;
      model[s].sums = reinterpret_cast<std::uint64_t*>(sums.back().data());
    }
    run_steps(what, line, model, result);
    for (std::size_t s = 0; s < count; ++s) {
      std::uint64_t read[2]{};
      pp::cuda::check(cudaMemcpy(read, model[s].sums, 16, cudaMemcpyDeviceToHost), "cudaMemcpy");
      result.gradients[s] = read[0];
      result.losses += read[1];
    }
  } catch (std::exception const& failure) {
    result.failure = failure.what();
  }
  return result;
}
