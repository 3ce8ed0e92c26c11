// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A residual network cut into one stage per GPU and trained in a pipeline over NCCL: all of
//! the program but main().

#include <pipe/cuda/nccl.cuh>
#include <pipe/pipe.hpp>

#include <cuda_runtime.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <examples/support/termination.hpp>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace example {

namespace pp = pipelining;

constexpr int rows = 8;      // samples of a microbatch
constexpr int features = 16; // of a sample
constexpr int numbers = rows * features;

// One block per row, one thread per feature. A stage is y = x + s(x W) with s(z) = z / (1 + |z|).
__global__ void forward_kernel(float const* in, float const* w, float* kept, float* out, int m) {
  __shared__ float x[features];
  int const r = static_cast<int>(blockIdx.x);
  int const c = static_cast<int>(threadIdx.x);
  int const at = r * features + c;
  // The first stage makes its samples from their number.
  x[c] = in != nullptr ? in[at] : static_cast<float>((37 * m + 11 * r + 7 * c) % 17) / 8.0F - 1.0F;
  __syncthreads();
  float z = 0;
  for (int k = 0; k < features; ++k)
    z += x[k] * w[k * features + c];
  float const bend = 1.0F / (1.0F + fabsf(z));
  kept[at] = x[c];
  kept[numbers + at] = bend;
  float const y = x[c] + z * bend;
  if (out != nullptr)
    out[at] = y;
  else
    kept[2 * numbers + at] = y;
}

// The network is to turn each sample by one feature.
__global__ void loss_kernel(float* kept, float* losses, int m) {
  int const r = static_cast<int>(blockIdx.x);
  int const c = static_cast<int>(threadIdx.x);
  int const at = r * features + c;
  float const wanted = static_cast<float>((37 * m + 11 * r + 7 * (c + 1)) % 17) / 8.0F - 1.0F;
  float const error = kept[2 * numbers + at] - wanted;
  kept[2 * numbers + at] = error;
  losses[at] += error * error;
}

__global__ void backward_kernel(float const* dy, float const* w, float* kept, float* dx) {
  __shared__ float dz[features];
  int const r = static_cast<int>(blockIdx.x);
  int const c = static_cast<int>(threadIdx.x);
  int const at = r * features + c;
  float const incoming = dy != nullptr ? dy[at] : 2.0F * kept[2 * numbers + at];
  float const bend = kept[numbers + at];
  dz[c] = incoming * bend * bend;
  kept[2 * numbers + at] = dz[c];
  __syncthreads();
  if (dx == nullptr)
    return;
  float sum = incoming;
  for (int k = 0; k < features; ++k)
    sum += dz[k] * w[c * features + k];
  dx[at] = sum;
}

__global__ void weight_kernel(float const* kept, float* dw) {
  int const k = static_cast<int>(blockIdx.x);
  int const c = static_cast<int>(threadIdx.x);
  float sum = 0;
  for (int r = 0; r < rows; ++r)
    sum += kept[r * features + k] * kept[2 * numbers + r * features + c];
  dw[k * features + c] += sum;
}

__global__ void update_kernel(float* w, float* dw, float rate) {
  int const at = static_cast<int>(blockIdx.x) * features + static_cast<int>(threadIdx.x);
  w[at] -= rate * dw[at];
  dw[at] = 0;
}

//! One stage: any type with these two functions is one. They enqueue on the stream of the context.
struct layer {
  float* w = nullptr; // [features][features]; null for the stages of other ranks
  float* dw = nullptr;
  float* losses = nullptr; // [rows][features]
  bool fails = false;

  void forward(pp::context const& at, pp::input x, pp::output y) {
    if (fails && at.microbatch == 1)
      throw std::runtime_error("loss is not a number");
    auto* const on = static_cast<cudaStream_t>(at.stream);
    float* const kept = at.activation.as<float>().data();
    forward_kernel<<<rows, features, 0, on>>>(
      x.as<float>().data(), w, kept, y.as<float>().data(), at.microbatch);
    if (y.data == nullptr)
      loss_kernel<<<rows, features, 0, on>>>(kept, losses, at.microbatch);
    pp::cuda::check(cudaGetLastError(), "forward");
  }
  void backward(pp::context const& at, pp::input dy, pp::output dx) {
    auto* const on = static_cast<cudaStream_t>(at.stream);
    float* const kept = at.activation.as<float>().data();
    backward_kernel<<<rows, features, 0, on>>>(
      dy.as<float>().data(), w, kept, dx.as<float>().data());
    weight_kernel<<<features, features, 0, on>>>(kept, dw);
    pp::cuda::check(cudaGetLastError(), "backward");
  }
};

struct options {
  int microbatches = 8;
  int steps = 40;
  bool graph = false;
  std::chrono::seconds deadline{60};
  int failing_step = -1; //!< the last rank's stage throws there
  bool serves = true;    //!< rank 0 makes the store; else somebody else has
};

//! The part of the model that this rank has.
class own_layer {
public:
  explicit own_layer(int rank) : memory_(4 * (2 * features * features + numbers)) {
    std::vector<float> start(features * features);
    for (std::size_t i = 0; i < start.size(); ++i)
      start[i] =
        static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 3) % 11) / 100 - 0.05F;
    pp::cuda::check(
      cudaMemcpy(memory_.data(), start.data(), 4 * start.size(), cudaMemcpyHostToDevice),
      "cudaMemcpy");
  }
  [[nodiscard]] layer stage() const {
    auto* const w = reinterpret_cast<float*>(memory_.data());
    return {w, w + features * features, w + 2 * features * features};
  }
  //! Reads what has been added up, and clears it.
  [[nodiscard]] float loss(cudaStream_t on) const {
    std::vector<float> sums(numbers);
    std::size_t const bytes = 4 * sums.size();
    float* const losses = stage().losses;
    pp::cuda::check(cudaMemcpyAsync(sums.data(), losses, bytes, cudaMemcpyDeviceToHost, on),
                    "cudaMemcpyAsync");
    pp::cuda::check(cudaMemsetAsync(losses, 0, bytes, on), "cudaMemsetAsync");
    pp::cuda::check(cudaStreamSynchronize(on), "cudaStreamSynchronize");
    float sum = 0;
    for (float const each : sums)
      sum += each;
    return sum;
  }

private:
  pp::cuda::device_memory memory_;
};

//! Trains on this rank together with the others.
//! @return the losses of all steps, on the last rank; else nothing.
template <class Clock>
std::vector<float> train(pp::launch_environment const& here, options const& chosen) {
  // Ranks find each other through a small server in rank 0. It tells all of them what has failed.
  pp::store_address const address = pp::store_address_of(here);
  std::optional<pp::store_server> server;
  if (here.rank == 0 && chosen.serves)
    server.emplace(address);
  pp::basic_store<Clock> line(address, here.rank, chosen.deadline);

  // The plan is the same on all ranks: one stage per rank, 1F1B, 2-rank communicators.
  auto const table = pp::make_timetable<pp::OneFOneB>({here.size, chosen.microbatches});
  pp::plan const plan = pp::lower<pp::communicator_per_pair>(
    table, pp::uniform_sizes{.message = 4 * numbers, .activation = 3 * 4 * numbers});

  // Some launchers show each process its own GPU only, which then has the number 0.
  int visible = 0;
  pp::cuda::check(cudaGetDeviceCount(&visible), "cudaGetDeviceCount");
  int const gpu = here.local_rank % visible;
  pp::cuda::current_device const current(gpu);
  own_layer const mine(here.rank);
  std::vector<layer> stages(static_cast<std::size_t>(here.size));
  layer& stage = stages[static_cast<std::size_t>(here.rank)] = mine.stage();

  // Makes the communicators and connects all ranks. Nothing is set up later but the graph.
  pp::cuda::nccl_runner<std::vector<layer>, pp::basic_store<Clock>, Clock> runner(
    plan,
    stages,
    line,
    here.rank,
    {.gpu = gpu, .graph = chosen.graph, .deadline = chosen.deadline, .elements = "f32"});
  std::vector<float> losses;
  bool const last = here.rank == here.size - 1;
  for (int step = 0; step < chosen.steps; ++step) {
    stage.fails = last && step == chosen.failing_step;
    if (asked_to_end(line)) {
      std::string const who = "rank " + std::to_string(here.rank);
      pp::tell_standing(
        line, "run", here.rank, {"was between two steps", {}, pp::failure_cause::own});
      line.abort(who + " was told to end (SIGTERM)");
      throw std::runtime_error(who + " was told to end (SIGTERM)");
    }
    runner.step();
    float const rate = 0.05F / static_cast<float>(chosen.microbatches * rows);
    update_kernel<<<features, features, 0, runner.origin()>>>(stage.w, stage.dw, rate);
    if (last)
      losses.push_back(mine.loss(runner.origin()));
  }
  pp::cuda::check(cudaStreamSynchronize(runner.origin()), "cudaStreamSynchronize");
  runner.close();
  return losses;
}

} // namespace example
