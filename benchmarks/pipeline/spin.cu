// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/streams.cuh>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>

#include <cuda_runtime.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <tests/gpu/machine.hpp>
#include <vector>

#include "spin.hpp"

namespace pp = pipelining;

namespace {

__device__ std::uint64_t global_time() {
  unsigned long long now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// A sleep may take twice what it was asked for, so it asks for a quarter of what is left; the last
// microsecond is spent looking at the clock.
__global__ void spin_kernel(stamp* at, unsigned nanoseconds) {
  std::uint64_t now = global_time();
  at->start = now;
  std::uint64_t const end = now + nanoseconds;
  while (now < end) {
    if (end - now > 1000)
      __nanosleep(static_cast<unsigned>(end - now) / 4);
    now = global_time();
  }
  at->end = now;
}

__global__ void empty_kernel() {}

// The least time between two different looks at the clock.
__global__ void tick_kernel(stamp* at) {
  std::uint64_t least = ~std::uint64_t{0};
  std::uint64_t before = global_time();
  for (int i = 0; i < 200; ++i) {
    std::uint64_t now = global_time();
    while (now == before)
      now = global_time();
    least = now - before < least ? now - before : least;
    before = now;
  }
  at->start = 0;
  at->end = least;
}

//! A stage of which every pass takes the time of the cost model.
struct spinning_stage {
  static constexpr bool takes_chunks = true;
  pp::shape extents{};
  pp::uniform_cost cost{};
  stamp* stamps = nullptr; // [pass_indices]

  void forward(pp::context const& at, pp::input, pp::output) { spin(pp::pass_kind::forward, at); }
  void backward(pp::context const& at, pp::input, pp::output) { spin(pp::pass_kind::backward, at); }
  void backward_input(pp::context const& at, pp::input, pp::output) {
    spin(pp::pass_kind::backward_input, at);
  }
  void backward_weight(pp::context const& at) { spin(pp::pass_kind::backward_weight, at); }

private:
  void spin(pp::pass_kind kind, pp::context const& at) const {
    pp::pass const what{kind,
                        false,
                        static_cast<std::uint16_t>(at.stage),
                        static_cast<std::uint16_t>(at.microbatch),
                        static_cast<std::uint16_t>(at.chunk)};
    spin_kernel<<<1, 1, 0, static_cast<cudaStream_t>(at.stream)>>>(
      stamps + pp::detail::pass_index({extents}, what),
      static_cast<unsigned>(1000 * cost.duration(what)));
    pp::cuda::check(cudaGetLastError(), "a launch");
  }
};

double microseconds_since(machine::clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(machine::clock::now() - begin).count();
}

constexpr int warm_up = 2;

//! A runner, what it needs, and its steps that are not counted.
struct spinning_pipeline {
  pp::cuda::device_memory memory;
  std::vector<spinning_stage> model;
  pp::cuda::stream_runner<std::vector<spinning_stage>, machine::clock> runner;

  spinning_pipeline(spin_case const& what, pp::uniform_cost const& cost, int run_ahead)
      : memory(what.work.over.view().pass_indices() * static_cast<std::int64_t>(sizeof(stamp))),
        model(
          static_cast<std::size_t>(what.work.over.extents.stages()),
          spinning_stage{what.work.over.extents, cost, reinterpret_cast<stamp*>(memory.data())}),
        runner(
          what.work, model, {.graph = what.graph, .warm_up = warm_up, .run_ahead = run_ahead}) {
    for (int i = 0; i < warm_up + 2; ++i)
      runner.step();
  }
};

} // namespace

spin_times run_spinning(spin_case const& what) {
  spin_times times;
  {
    spinning_pipeline spinning(what, what.cost, pp::cuda::stream_options{}.run_ahead);
    std::vector<stamp> read(static_cast<std::size_t>(what.work.over.view().pass_indices()));
    for (int repeat = 0; repeat < what.repeats; ++repeat) {
      spinning.runner.step();
      pp::cuda::check(
        cudaMemcpy(
          read.data(), spinning.memory.data(), read.size() * sizeof(stamp), cudaMemcpyDeviceToHost),
        "cudaMemcpy");
      times.passes.push_back(read);
    }
  }
  // The host alone: it waits for nothing, since kernels that end at once never fill the queue of
  // launches.
  spinning_pipeline empty(what, {.forward = 0, .backward_input = 0, .backward_weight = 0}, 0);
  for (int repeat = 0; repeat < what.repeats; ++repeat) {
    auto const begin = machine::clock::now();
    empty.runner.launch();
    times.host.push_back(microseconds_since(begin));
    pp::cuda::check(cudaStreamSynchronize(empty.runner.origin()), "cudaStreamSynchronize");
  }
  return times;
}

std::vector<double> time_floor(int repeats) {
  constexpr int launches = 100;
  pp::cuda::stream one;
  pp::cuda::stream other;
  std::vector<pp::cuda::detail::event> events(launches);
  std::vector<double> times;
  for (int repeat = -warm_up; repeat < repeats; ++repeat) {
    auto const begin = machine::clock::now();
    for (pp::cuda::detail::event& each : events) {
      empty_kernel<<<1, 1, 0, one.get()>>>();
      each.record(one.get());
      each.block(other.get());
    }
    double const time = microseconds_since(begin) / launches;
    pp::cuda::check(cudaStreamSynchronize(other.get()), "cudaStreamSynchronize");
    if (repeat >= 0)
      times.push_back(time);
  }
  return times;
}

gpu_facts read_gpu_facts() {
  gpu_facts facts;
  cudaDeviceProp device{};
  pp::cuda::check(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  facts.name = device.name;
  facts.processors = device.multiProcessorCount;
  pp::cuda::device_memory const memory(sizeof(stamp));
  tick_kernel<<<1, 1>>>(reinterpret_cast<stamp*>(memory.data()));
  stamp read;
  pp::cuda::check(cudaMemcpy(&read, memory.data(), sizeof read, cudaMemcpyDeviceToHost),
                  "cudaMemcpy");
  facts.tick = static_cast<double>(read.end);
  pp::cuda::check(cudaDriverGetVersion(&facts.driver), "cudaDriverGetVersion");
  pp::cuda::check(cudaRuntimeGetVersion(&facts.runtime), "cudaRuntimeGetVersion");
  return facts;
}
