// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Virtual devices on one GPU, in the time of the machine. The same object runs on the stand-in.
#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/streams.cuh>
#include <pipe/flow/shape.hpp>
#include <pipe/run/error.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <tests/cuda/kernel_stage.cuh>
#include <tests/gpu/machine.hpp>
#include <tests/gpu/streams.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

__global__ void wait_kernel(unsigned nanoseconds) {
  unsigned long long now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  unsigned long long const end = now + nanoseconds;
  while (now < end) {
    __nanosleep(static_cast<unsigned>(end - now) / 2);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  }
}

__global__ void trap_kernel() {
  __trap();
}

// Half a minute at most, so that a test that goes wrong ends too.
__global__ void hang_kernel(unsigned const volatile* released) {
  for (int i = 0; i < 30'000 && *released == 0; ++i)
    __nanosleep(1'000'000);
}

struct troubled_stage {
  static constexpr bool takes_chunks = true;
  kernel_stage inner{};
  unsigned longest_wait = 0;
  std::uint64_t coin = 1;
  mishap trouble = mishap::none;
  unsigned* released = nullptr;

  void forward(pp::context const& where, pp::input in, pp::output out) {
    auto const on = static_cast<cudaStream_t>(where.stream);
    if (trouble != mishap::none && where.microbatch == 1) {
      if (trouble == mishap::throws)
        throw std::domain_error("loss is not a number");
      if (trouble == mishap::traps)
        trap_kernel<<<1, 1, 0, on>>>();
      else
        hang_kernel<<<1, 1, 0, on>>>(released);
    }
    wait(where);
    inner.forward(where, in, out);
  }
  void backward(pp::context const& where, pp::input in, pp::output out) {
    wait(where);
    inner.backward(where, in, out);
  }
  void backward_input(pp::context const& where, pp::input in, pp::output out) {
    wait(where);
    inner.backward_input(where, in, out);
  }
  void backward_weight(pp::context const& where) {
    wait(where);
    inner.backward_weight(where);
  }
  void gather_weights(pp::context const& where, pp::output out) {
    wait(where);
    inner.gather_weights(where, out);
  }
  void use_weights(pp::context const& where, pp::input in) { inner.use_weights(where, in); }
  void collect_gradients(pp::context const& where, pp::output out) {
    inner.collect_gradients(where, out);
  }
  void scatter_gradients(pp::context const& where, pp::input in) {
    wait(where);
    inner.scatter_gradients(where, in);
  }

private:
  void wait(pp::context const& where) {
    if (longest_wait == 0)
      return;
    coin = coin * 6364136223846793005U + 1442695040888963407U;
    auto const time = static_cast<unsigned>((coin >> 33U) % longest_wait);
    wait_kernel<<<1, 1, 0, static_cast<cudaStream_t>(where.stream)>>>(time);
  }
};

//! What the host writes and a kernel reads while it runs.
struct shared_flag {
  shared_flag() {
    void* memory = nullptr;
    pp::cuda::check(cudaHostAlloc(&memory, sizeof(unsigned), cudaHostAllocMapped), "cudaHostAlloc");
    data = static_cast<unsigned*>(memory);
    *data = 0;
  }
  shared_flag(shared_flag const&) = delete;
  shared_flag& operator=(shared_flag const&) = delete;
  ~shared_flag() { (void)cudaFreeHost(data); }
  unsigned* data = nullptr;
};

} // namespace

stream_result run_on_gpu(stream_case const& what) {
  pp::shape const extents = what.work.over.extents;
  auto const count = static_cast<std::size_t>(extents.stages());
  shared_flag released;
  std::vector<troubled_stage> model(count);
  std::vector<pp::cuda::device_memory> sums;
  for (std::size_t s = 0; s < count; ++s) {
    sums.emplace_back(16);
    model[s] = {.inner = {.weight = s + 3,
                          .chunks = extents.chunks,
                          .sums = reinterpret_cast<std::uint64_t*>(sums.back().data())},
                .longest_wait = what.longest_wait,
                .coin = 77 * s + 1,
                .released = released.data};
  }
  stream_result result;
  {
    pp::cuda::stream_runner<std::vector<troubled_stage>, machine::clock> runner(
      what.work, model, {.graph = what.graph, .warm_up = 1, .deadline = what.deadline});
    for (int step = 0; step < what.steps; ++step) {
      for (std::size_t s = 0; s < count; ++s)
        model[s].trouble = step == what.troubled_step && static_cast<int>(s) == what.troubled_stage
                             ? what.trouble
                             : mishap::none;
      result.failures.emplace_back();
      try {
        runner.step();
      } catch (pp::run_error const& failure) {
        result.failures.back() = failure.what();
        if (what.trouble == mishap::throws) { // what half a step has added does not count
          for (troubled_stage const& stage : model)
            pp::cuda::check(cudaMemset(stage.inner.sums, 0, 16), "cudaMemset");
          pp::cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        }
      }
    }
  }
  *static_cast<unsigned volatile*>(released.data) = 1;
  if (cudaDeviceSynchronize() != cudaSuccess)
    return result;
  for (troubled_stage const& stage : model) {
    std::uint64_t read[2]{};
    pp::cuda::check(cudaMemcpy(read, stage.inner.sums, 16, cudaMemcpyDeviceToHost), "cudaMemcpy");
    result.gradients.push_back(read[0]);
    result.losses += read[1];
  }
  return result;
}
