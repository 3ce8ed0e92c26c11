// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/cuda/error.cuh>
#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/nccl.cuh>
#include <pipe/cuda/streams.cuh>
#include <pipe/flow/shape.hpp>
#include <pipe/run/context.hpp>

#include <cuda_runtime.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <numeric>
#include <simulators/cuda/standin.hpp>
#include <tests/cuda/memory_store.hpp>
#include <tests/cuda/round_pipe.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

using word = std::uint64_t;

__device__ word received(word const* in, int microbatch) {
  return in == nullptr ? static_cast<word>(microbatch) + 7 : *in;
}

__global__ void forward_kernel(
  word const* in, int microbatch, word const* weights, int count, word* inputs, word* out) {
  word x = received(in, microbatch);
  for (int layer = 0; layer < count; ++layer) {
    inputs[layer] = x;
    x *= weights[layer];
  }
  *out = x;
}

//! @param input of the first layer; null for the stage that turns, which receives it.
__global__ void backward_kernel(word const* in,
                                int microbatch,
                                word const* input,
                                word const* weights,
                                int count,
                                word* kept,
                                word* gradients,
                                word* out) {
  word const got = received(in, microbatch);
  word x = input == nullptr ? got : *input;
  for (int layer = 0; layer < count; ++layer) {
    kept[layer] = x;
    x *= weights[layer];
  }
  word back = input == nullptr ? x : got;
  for (int layer = count; layer-- > 0;) {
    gradients[layer] += back * kept[layer];
    back *= weights[layer];
  }
  if (out != nullptr)
    *out = back;
}

void copy(void* to, void const* from, int words, cudaMemcpyKind how, void* on) {
  pp::cuda::check(
    cudaMemcpyAsync(
      to, from, static_cast<std::size_t>(words) * sizeof(word), how, static_cast<cudaStream_t>(on)),
    "cudaMemcpyAsync");
}

//! What lies on the host: weights and gradients of all layers, and inputs that are kept.
struct round_host {
  int layers;
  pp::cuda::pinned_memory memory;

  round_host(int all, int microbatches)
      : layers(all), memory(std::int64_t{8} * all * (2 + microbatches)) {
    for (int layer = 0; layer < all; ++layer)
      weights()[layer] = static_cast<word>(layer) * 2 + 3;
  }
  [[nodiscard]] word* weights() const { return reinterpret_cast<word*>(memory.data()); }
  [[nodiscard]] word* gradients() const { return weights() + layers; }
  [[nodiscard]] word* inputs(int microbatch) const {
    return weights() + std::ptrdiff_t{layers} * (2 + microbatch);
  }
};

struct round_stage {
  round_host* host = nullptr;
  int first = 0;
  int count = 0;        // layers
  bool turns = false;   // the first backward stage
  word* room = nullptr; // [count] on the device
  word const* weights = nullptr;
  word* collected = nullptr;

  void forward(pp::context const& where, pp::input in, pp::output out) const {
    forward_kernel<<<1, 1, 0, stream(where)>>>(
      words(in), where.microbatch, weights, count, room, words(out));
    pp::cuda::check(cudaGetLastError(), "a kernel");
    copy(host->inputs(where.microbatch) + first, room, count, cudaMemcpyDeviceToHost, where.stream);
  }
  void backward(pp::context const& where, pp::input in, pp::output out) const {
    if (!turns)
      copy(room, host->inputs(where.microbatch) + first, 1, cudaMemcpyHostToDevice, where.stream);
    backward_kernel<<<1, 1, 0, stream(where)>>>(words(in),
                                                where.microbatch,
                                                turns ? nullptr : room,
                                                weights,
                                                count,
                                                words(where.activation),
                                                collected,
                                                words(out));
    pp::cuda::check(cudaGetLastError(), "a kernel");
  }
  void gather_weights(pp::context const& where, pp::output out) const {
    copy(out.data, host->weights() + first, count, cudaMemcpyHostToDevice, where.stream);
  }
  void use_weights(pp::context const&, pp::input in) { weights = words(in); }
  void collect_gradients(pp::context const& where, pp::output out) {
    collected = words(out);
    pp::cuda::check(
      cudaMemsetAsync(out.data, 0, static_cast<std::size_t>(out.bytes), stream(where)),
      "cudaMemsetAsync");
  }
  void scatter_gradients(pp::context const& where, pp::input in) const {
    copy(host->gradients() + first, in.data, count, cudaMemcpyDeviceToHost, where.stream);
  }

private:
  static cudaStream_t stream(pp::context const& where) {
    return static_cast<cudaStream_t>(where.stream);
  }
  static word const* words(pp::input const& memory) {
    return reinterpret_cast<word const*>(memory.data);
  }
  static word* words(pp::buffer const& memory) { return reinterpret_cast<word*>(memory.data); }
};

//! The stages; those of other devices than `only` have no room, unless that is `nothing`.
struct round_model {
  std::vector<pp::cuda::device_memory> memories{};
  std::vector<round_stage> stages{};

  round_model(round_case const& what, round_host& host, int only) {
    int at = 0;
    for (int const run : what.forward) {
      add(what, only, {&host, at, run});
      at += run;
    }
    at = host.layers;
    for (int const run : what.backward) {
      at -= run;
      add(what, only, {&host, at, run, at + run == host.layers});
    }
  }

private:
  void add(round_case const& what, int only, round_stage stage) {
    int const device = pp::device_of(what.work, static_cast<int>(stages.size()));
    if (only == pp::nothing || device == only) {
      pp::cuda::current_device const scope(only != pp::nothing || what.several_gpus ? device : 0);
      memories.emplace_back(8 * stage.count);
      stage.room = reinterpret_cast<word*>(memories.back().data());
    }
    stages.push_back(stage);
  }
};

using round_stages = std::vector<round_stage>;

void run_on_streams(round_case const& what, round_host& host, round_result& result) {
  round_model model(what, host, pp::nothing);
  std::vector<int> gpus(static_cast<std::size_t>(what.work.over.extents.devices));
  if (what.several_gpus)
    std::iota(gpus.begin(), gpus.end(), 0);
  pp::cuda::stream_runner<round_stages, standin::clock> runner(
    what.work, model.stages, {.gpus = gpus, .graph = what.graph, .warm_up = 1});
  for (int step = 0; step < what.steps; ++step)
    runner.step();
  result.findings = standin::summary();
}

//! One step: nothing orders what a rank puts on the host after what others have read there in the
//! step before; a program has a barrier of its processes for that.
void run_rank(
  round_case const& what, int rank, round_host& host, memory_board& board, round_result& result) {
  pp::cuda::current_device const scope(rank);
  int const ranks = what.work.over.extents.devices;
  memory_store store{board, rank};
  round_model model(what, host, rank);
  pp::cuda::nccl_runner<round_stages, memory_store, standin::clock> runner(
    what.work,
    model.stages,
    store,
    rank,
    {.gpu = rank, .graph = what.graph, .warm_up = 0, .deadline = std::chrono::seconds(1)});
  runner.step();
  result.findings = standin::summary();
  store.barrier("seen", ranks, std::chrono::seconds(1));
}

} // namespace

round_result run_round(round_case const& what) {
  int const layers = std::accumulate(what.backward.begin(), what.backward.end(), 0);
  round_host host(layers, what.work.over.extents.microbatches);
  round_result result;
  auto const guarded = [&result](auto run) {
    try {
      run();
    } catch (std::exception const& failure) {
      if (result.failure.empty())
        result.failure = failure.what();
    }
  };
  memory_board board;
  if (what.ranks)
    for (standin::outcome const& each :
         standin::run_ranks(what.work.over.extents.devices, [&](int rank) {
           guarded([&] { run_rank(what, rank, host, board, result); });
         }))
      if (each.threw && result.failure.empty())
        result.failure = each.what;
  if (!what.ranks)
    guarded([&] { run_on_streams(what, host, result); });
  result.gradients.assign(host.gradients(), host.gradients() + layers);
  return result;
}
