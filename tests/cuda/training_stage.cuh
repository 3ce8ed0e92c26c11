// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The small model of tests/support/training.hpp with a kernel for every pass and hook, and
//! a data-parallel reduction where there are replicas.

#include <pipe/cuda/error.cuh>
#include <pipe/run/context.hpp>

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <tests/support/early_training.hpp>
#include <tests/support/training.hpp>

namespace training_stage_detail {

using support::trained;
using support::training_row;

//! Which pass of which stage.
struct place {
  int microbatch;
  bool first;
  bool last;
};

static __global__ void
forward_kernel(trained* s, float const* in, float* out, float* activation, place at) {
  float const y = support::forward_of(
    *s, in == nullptr ? 0.0F : *in, at.microbatch, at.first, at.last, *activation);
  if (out != nullptr)
    *out = y;
}

__device__ inline float
input_half(trained const& s, float const* in, float* out, float activation, place at) {
  float const dy = support::incoming_of(s, in == nullptr ? 0.0F : *in, at.last, activation);
  if (out != nullptr)
    *out = support::input_gradient_of(s, dy);
  return dy;
}

static __global__ void
backward_kernel(trained* s, float const* in, float* out, float const* activation, place at) {
  float const dy = input_half(*s, in, out, *activation, at);
  support::add_weight_gradients(*s, dy, at.microbatch, at.first, at.last, *activation);
}

static __global__ void backward_input_kernel(
  trained const* s, float const* in, float* out, float const* activation, float* kept, place at) {
  *kept = input_half(*s, in, out, *activation, at);
}

static __global__ void
backward_weight_kernel(trained* s, float const* activation, float const* kept, place at) {
  support::add_weight_gradients(*s, *kept, at.microbatch, at.first, at.last, *activation);
}

static __global__ void copied_kernel(trained const* s, support::copied_row* out) {
  *out = support::copied_row_of(*s);
}
static __global__ void
add_copies_kernel(trained* s, void const* rows, std::int64_t stride, int count) {
  support::add_copied_rows(*s, rows, stride, count);
}
static __global__ void tied_kernel(trained const* s, float* out) {
  *out = s->shared_gradient;
}
static __global__ void add_tied_kernel(trained* s, float const* first, float const* last) {
  support::add_tied(*s, *first, *last);
}
static __global__ void row_kernel(trained const* s, training_row* row, bool first) {
  *row = support::row_of(*s, first);
}

static __global__ void plant_kernel(trained* s, int stage, int stages, int step) {
  support::plant(*s, stage, stages, step);
}
static __global__ void step_kernel(trained* s, support::training_rows rows) {
  support::step_of(*s, rows);
}
static __global__ void copy_gradients_kernel(trained* s, trained const* from) {
  s->gradient = from->gradient;
  s->shared_gradient = from->shared_gradient;
  s->loss = from->loss;
}
static __global__ void zero_kernel(trained* s) {
  support::zero(*s);
}

} // namespace training_stage_detail

//! @brief What the stages of one rank need to add up gradients with their replica: a communicator
//! and a stream next to those of the pipeline.
struct replica_line {
  ncclComm_t with = nullptr;
  cudaStream_t on = nullptr;
  cudaEvent_t ready = nullptr;   //!< what is to be added up is complete
  cudaEvent_t reduced = nullptr; //!< all that was asked for is added up
  int reductions = 0;            //!< started in this step
  int passes_after = 0;          //!< enqueued after a reduction of the step had started

  //! Starts adding up one number, after what is on the compute stream now.
  void reduce(float* number, cudaStream_t compute) {
    namespace cuda = pipelining::cuda;
    cuda::check(cudaEventRecord(ready, compute), "cudaEventRecord");
    cuda::check(cudaStreamWaitEvent(on, ready, 0), "cudaStreamWaitEvent");
    if (ncclAllReduce(number, number, 1, ncclFloat, ncclSum, with, on) != ncclSuccess)
      throw std::runtime_error("the reduction was refused");
    cuda::check(cudaEventRecord(reduced, on), "cudaEventRecord");
    ++reductions;
  }
  //! What follows on the compute stream waits for all reductions.
  void finish(cudaStream_t compute) const {
    pipelining::cuda::check(cudaStreamWaitEvent(compute, reduced, 0), "cudaStreamWaitEvent");
  }
};

//! @brief A stage of the model on a device.
struct training_kernel_stage {
  static constexpr bool takes_chunks = true;
  support::trained* numbers = nullptr;         //!< on the stage's device
  support::trained* copy_of_numbers = nullptr; //!< on the device of its other copy, if any
  int device_of_copy = -1;                     //!< its numbers before its last step are next to it
  float* announced_by_copy = nullptr;          //!< as `announced`
  bool is_second_copy = false;                 //!< of a rank, where another has the first
  int last_stage = 0;
  int first_microbatch = 0;
  replica_line* replicas = nullptr;
  float* announced = nullptr; //!< on the device: its gradient when it was told that it is complete
  int announcements = 0;
  bool plants = false;                //!< spoils its gradients now and then
  support::trained* before = nullptr; //!< on the device: its numbers before its last step
  //! On the device, where the program zeroes gradients: its numbers when it told of them.
  support::trained* told = nullptr;
  int rolled_back = 0; //!< steps that were undone
  int made_up = 0;     //!< steps that came late, where there was nothing to undo
  bool has_run = false;
  int moves = 0; //!< of its memory, after its first pass
  int pairs = 0; //!< composite passes that it was the first stage of

  void memory_moved(pipelining::context const&) { moves += has_run ? 1 : 0; }
  void forward(pipelining::context const& where, pipelining::input in, pipelining::output out) {
    has_run = true;
    note_pass();
    training_stage_detail::forward_kernel<<<1, 1, 0, stream(where)>>>(
      own(where), floats(in), floats(out), floats(where.activation), place(where));
    check_launch();
  }
  void backward(pipelining::context const& where, pipelining::input in, pipelining::output out) {
    note_pass();
    training_stage_detail::backward_kernel<<<1, 1, 0, stream(where)>>>(
      own(where), floats(in), floats(out), floats(where.activation), place(where));
    check_launch();
  }
  void
  backward_input(pipelining::context const& where, pipelining::input in, pipelining::output out) {
    note_pass();
    training_stage_detail::backward_input_kernel<<<1, 1, 0, stream(where)>>>(
      own(where),
      floats(in),
      floats(out),
      floats(where.activation),
      floats(where.weight_input),
      place(where));
    check_launch();
  }
  void backward_weight(pipelining::context const& where) {
    note_pass();
    training_stage_detail::backward_weight_kernel<<<1, 1, 0, stream(where)>>>(
      own(where), floats(where.activation), floats(where.weight_input), place(where));
    check_launch();
  }

  //! Both halves of a composite pass, each on its own stream.
  void forward_backward(pipelining::composite_half const& forth,
                        pipelining::composite_half const& back,
                        training_kernel_stage& other) {
    ++pairs;
    forward(forth.where, forth.in, forth.out);
    other.backward(back.where, back.in, back.out);
  }
  void braid(pipelining::pass_kind kind,
             pipelining::composite_half const& half,
             pipelining::pass_kind other_kind,
             pipelining::composite_half const& other_half,
             training_kernel_stage& other) {
    ++pairs;
    run(kind, half);
    other.run(other_kind, other_half);
  }

  //! The gradient that is not tied goes to the replica while other stages still run.
  void gradients_ready(pipelining::context const& where) {
    if (plants) {
      training_stage_detail::plant_kernel<<<1, 1, 0, stream(where)>>>(
        own(where), where.stage, last_stage + 1, announcements);
      check_launch();
    }
    ++announcements;
    pipelining::cuda::check(
      cudaMemcpyAsync(where.device == device_of_copy ? announced_by_copy : announced,
                      &own(where)->gradient,
                      sizeof(float),
                      cudaMemcpyDeviceToDevice,
                      stream(where)),
      "cudaMemcpyAsync");
    if (replicas != nullptr)
      replicas->reduce(&own(where)->gradient, stream(where));
  }
  void copied_gradient(pipelining::context const& where, pipelining::output out) {
    training_stage_detail::copied_kernel<<<1, 1, 0, stream(where)>>>(
      own(where), reinterpret_cast<support::copied_row*>(out.data));
    check_launch();
  }
  void add_copies(pipelining::context const& where, pipelining::totals const& all) {
    training_stage_detail::add_copies_kernel<<<1, 1, 0, stream(where)>>>(
      own(where), all.data, all.stride, all.rows);
    check_launch();
  }
  void tied_gradient(pipelining::context const& where, pipelining::output out) {
    training_stage_detail::tied_kernel<<<1, 1, 0, stream(where)>>>(own(where), floats(out));
    check_launch();
  }
  void add_tied(pipelining::context const& where, pipelining::input first, pipelining::input last) {
    training_stage_detail::add_tied_kernel<<<1, 1, 0, stream(where)>>>(
      own(where), floats(first), floats(last));
    check_launch();
    if (replicas != nullptr)
      replicas->reduce(&own(where)->shared_gradient, stream(where));
  }
  void contribute(pipelining::context const& where, pipelining::output row) {
    if (replicas != nullptr)
      replicas->finish(stream(where));
    training_stage_detail::row_kernel<<<1, 1, 0, stream(where)>>>(
      own(where), reinterpret_cast<support::training_row*>(row.data), where.stage == 0);
    check_launch();
    if (told != nullptr)
      copy(told, own(where), stream(where));
  }
  void optimizer_step(pipelining::context const& where, pipelining::totals const& all) {
    if (replicas != nullptr)
      replicas->reductions = 0;
    copy(where.device == device_of_copy ? copy_of_numbers + 1 : before, own(where), stream(where));
    training_stage_detail::step_kernel<<<1, 1, 0, stream(where)>>>(
      own(where), support::training_rows{all.data, all.stride, all.rows});
    check_launch();
    if (told != nullptr)
      copy_gradients(before, stream(where));
  }

  [[nodiscard]] bool accepts(pipelining::context const&, pipelining::totals const& all) const {
    return support::accepts_rows(all);
  }
  void roll_back(pipelining::context const& where, bool stepped) {
    ++(stepped ? rolled_back : made_up);
    if (stepped)
      copy(numbers, before, stream(where));
    if (told != nullptr)
      copy_gradients(told, stream(where));
  }
  void begin_iteration(pipelining::context const& where) {
    if (told == nullptr)
      return; // the step has zeroed all
    training_stage_detail::zero_kernel<<<1, 1, 0, stream(where)>>>(numbers);
    check_launch();
  }

private:
  [[nodiscard]] support::trained* own(pipelining::context const& where) const {
    return where.device == device_of_copy ? copy_of_numbers : numbers;
  }
  void copy_gradients(support::trained const* from, cudaStream_t on) {
    training_stage_detail::copy_gradients_kernel<<<1, 1, 0, on>>>(numbers, from);
    check_launch();
  }
  static void copy(support::trained* to, support::trained const* from, cudaStream_t on) {
    pipelining::cuda::check(cudaMemcpyAsync(to, from, sizeof *to, cudaMemcpyDeviceToDevice, on),
                            "cudaMemcpyAsync");
  }
  void run(pipelining::pass_kind kind, pipelining::composite_half const& half) {
    switch (kind) {
    case pipelining::pass_kind::forward: return forward(half.where, half.in, half.out);
    case pipelining::pass_kind::backward: return backward(half.where, half.in, half.out);
    case pipelining::pass_kind::backward_input:
      return backward_input(half.where, half.in, half.out);
    default: return backward_weight(half.where);
    }
  }
  void note_pass() const {
    if (replicas != nullptr && replicas->reductions > 0)
      ++replicas->passes_after;
  }
  [[nodiscard]] training_stage_detail::place place(pipelining::context const& where) const {
    return {first_microbatch + where.microbatch, where.stage == 0, where.stage == last_stage};
  }
  static cudaStream_t stream(pipelining::context const& where) {
    return static_cast<cudaStream_t>(where.stream);
  }
  static float const* floats(pipelining::input const& memory) {
    return reinterpret_cast<float const*>(memory.data);
  }
  static float* floats(pipelining::buffer const& memory) {
    return reinterpret_cast<float*>(memory.data);
  }
  static void check_launch() { pipelining::cuda::check(cudaGetLastError(), "a kernel"); }
};
