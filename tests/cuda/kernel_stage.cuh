// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The arithmetic stage of the executor tests, with a kernel for every pass.

#include <pipe/run/context.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace kernel_stage_detail {

using word = std::uint64_t;

__device__ inline word mix(word a, word b) {
  a ^= b + 0x9e3779b97f4a7c15U + (a << 6U) + (a >> 2U);
  return a * 0xbf58476d1ce4e5b9U;
}

//! What a kernel gets of a pass. Pointers are null where the pass has no such buffer.
struct pass_memory {
  word const* in;
  int in_words;
  word* out;
  int out_words;
  word* activation;
  word* weight_input;
  word* state;
  word* state_gradient;
  word* gradient;
  word* losses;
  word own_weight;
  word const* gathered; //!< null: the stage's own weight
  word unit;
  int chunk;
  int chunks;
  word const* further_in[7]; //!< of the second stage that it reads on, as large as the first
  int further;               //!< how many there are
  word* further_out[7];      //!< for the second stage that reads it on, likewise
  int further_outs;          //!< how many there are
};

__device__ inline void fill(word* to, int words, word value) {
  for (int i = 0; i < words; ++i)
    to[i] = value;
}

//! Every word of a message counts: they are equal, and their number is odd.
__device__ inline word read(word const* from, int words) {
  word value = 0;
  for (int i = 0; i < words; ++i)
    value ^= from[i];
  return value;
}
__device__ inline word read(pass_memory const& m) {
  word value = read(m.in, m.in_words);
  for (int i = 0; i < m.further; ++i)
    value = mix(value, read(m.further_in[i], m.in_words));
  return value;
}
//! What is made for each reader: all read something else.
__device__ inline void write(pass_memory const& m, word value) {
  fill(m.out, m.out_words, value);
  for (int i = 0; i < m.further_outs; ++i)
    fill(m.further_out[i], m.out_words, mix(value, static_cast<word>(i + 1)));
}
__device__ inline word weight(pass_memory const& m) {
  return m.gathered == nullptr ? m.own_weight : *m.gathered;
}
//! What a stage that keeps nothing can make again.
__device__ inline word kept(pass_memory const& m) {
  return m.activation == nullptr ? m.unit : *m.activation;
}

static __global__ void forward_kernel(pass_memory m) {
  word const x = m.in == nullptr ? m.unit : read(m);
  if (m.activation != nullptr)
    *m.activation = x;
  word y = mix(x, weight(m));
  if (m.state != nullptr) {
    if (m.chunk == 0)
      *m.state = m.unit;
    y = mix(y, *m.state);
    *m.state = mix(*m.state, x);
  }
  if (m.out != nullptr)
    write(m, y);
  else
    *m.losses += y;
}

__device__ inline word incoming(pass_memory const& m) {
  return m.in == nullptr ? mix(kept(m), 7) : read(m);
}

__device__ inline void pass_on(pass_memory const& m, word dy) {
  word dx = mix(dy, weight(m) ^ kept(m));
  if (m.state_gradient != nullptr) {
    word& carry = *m.state_gradient;
    if (m.chunk == m.chunks - 1)
      carry = 0x1234;
    dx = mix(dx, carry);
    carry = mix(carry, dy);
  }
  if (m.out != nullptr)
    write(m, dx);
}

static __global__ void backward_kernel(pass_memory m) {
  word const dy = incoming(m);
  pass_on(m, dy);
  *m.gradient += mix(dy, kept(m));
}

static __global__ void backward_input_kernel(pass_memory m) {
  word const dy = incoming(m);
  *m.weight_input = dy;
  pass_on(m, dy);
}

static __global__ void backward_weight_kernel(pass_memory m) {
  *m.gradient += mix(m.in == nullptr ? *m.weight_input : read(m), kept(m));
}

static __global__ void gather_kernel(word* whole, int words, word weight) {
  fill(whole, words, weight);
}

static __global__ void scatter_kernel(word* gradient, word const* whole) {
  *gradient += *whole;
}

} // namespace kernel_stage_detail

//! @brief The numbers of support::arithmetic_stage, made on the device.
struct kernel_stage {
  static constexpr bool takes_chunks = true;
  using word = std::uint64_t;

  word weight = 0;
  int chunks = 1;
  int fails_at = -1;    //!< the forward pass of this microbatch throws
  int overruns_at = -1; //!< the forward pass of this microbatch writes beyond its activation
  word* sums = nullptr; //!< [2] on the stage's device: gradient, losses
  int stride = 0;       //!< from the sums of one device to those of the next, where several share
  int overrun_by = 4;   //!< bytes from its end; negative: from its start
  bool overruns_output = false;   //!< not its activation
  int leaves_at = -1;             //!< the forward pass of this microbatch writes its output alone,
  int leaves_bytes = 0;           //!< but for so many bytes at its end,
  word const* gathered = nullptr; //!< where sharded weights lie, said by use_weights
  word* collected = nullptr;      //!< and where their gradients do
  word* seen = nullptr; //!< and its backward pass leaves the activation that it finds here

  void forward(pipelining::context const& where, pipelining::input in, pipelining::output out) {
    if (where.microbatch == fails_at)
      throw std::domain_error("loss is not a number");
    if (where.microbatch == leaves_at) {
      if (out.bytes > leaves_bytes)
        (void)cudaMemsetAsync(
          out.data, 1, static_cast<std::size_t>(out.bytes - leaves_bytes), stream(where));
      return;
    }
    kernel_stage_detail::forward_kernel<<<1, 1, 0, stream(where)>>>(memory(where, in, out));
    check_launch();
    if (where.microbatch == overruns_at)
      overrun(overruns_output ? out : where.activation, stream(where));
  }
  void backward(pipelining::context const& where, pipelining::input in, pipelining::output out) {
    look(where);
    kernel_stage_detail::backward_kernel<<<1, 1, 0, stream(where)>>>(memory(where, in, out));
    check_launch();
  }
  void
  backward_input(pipelining::context const& where, pipelining::input in, pipelining::output out) {
    look(where);
    kernel_stage_detail::backward_input_kernel<<<1, 1, 0, stream(where)>>>(memory(where, in, out));
    check_launch();
  }
  void backward_weight(pipelining::context const& where) {
    // A shard of a vocabulary reads the statistics of all shards.
    pipelining::input const in = where.inputs.empty() ? pipelining::input{} : where.inputs[0];
    kernel_stage_detail::backward_weight_kernel<<<1, 1, 0, stream(where)>>>(memory(where, in, {}));
    check_launch();
  }

  void gather_weights(pipelining::context const& where, pipelining::output out) {
    kernel_stage_detail::gather_kernel<<<1, 1, 0, stream(where)>>>(
      words(out), static_cast<int>(out.bytes / 8), weight);
    check_launch();
  }
  void use_weights(pipelining::context const&, pipelining::input in) {
    gathered = reinterpret_cast<word const*>(in.data);
  }
  void collect_gradients(pipelining::context const& where, pipelining::output out) {
    collected = words(out);
    (void)cudaMemsetAsync(out.data, 0, static_cast<std::size_t>(out.bytes), stream(where));
  }
  void scatter_gradients(pipelining::context const& where, pipelining::input in) {
    kernel_stage_detail::scatter_kernel<<<1, 1, 0, stream(where)>>>(
      sums + stride * where.device, reinterpret_cast<word const*>(in.data));
    check_launch();
  }

private:
  static cudaStream_t stream(pipelining::context const& where) {
    return static_cast<cudaStream_t>(where.stream);
  }
  void look(pipelining::context const& where) const {
    if (where.microbatch == leaves_at)
      (void)cudaMemcpyAsync(
        seen, where.activation.data, sizeof *seen, cudaMemcpyDeviceToDevice, stream(where));
  }
  void overrun(pipelining::buffer const& slot, cudaStream_t on) const {
    std::int64_t const at = overrun_by < 0 ? overrun_by : slot.bytes + overrun_by;
    (void)cudaMemsetAsync(slot.data + at, 1, 4, on);
  }
  static void check_launch() {
    cudaError_t const code = cudaGetLastError();
    if (code != cudaSuccess)
      throw std::runtime_error(std::string("launch: ") + cudaGetErrorName(code));
  }
  static word* words(pipelining::buffer const& memory) {
    return reinterpret_cast<word*>(memory.data);
  }
  static word host_mix(word a, word b) {
    a ^= b + 0x9e3779b97f4a7c15U + (a << 6U) + (a >> 2U);
    return a * 0xbf58476d1ce4e5b9U;
  }
  [[nodiscard]] kernel_stage_detail::pass_memory
  memory(pipelining::context const& where, pipelining::input in, pipelining::output out) const {
    kernel_stage_detail::pass_memory result{
      reinterpret_cast<word const*>(in.data),
      static_cast<int>(in.bytes / 8),
      words(out),
      static_cast<int>(out.bytes / 8),
      words(where.activation),
      words(where.weight_input),
      words(where.state),
      words(where.state_gradient),
      collected == nullptr ? sums + stride * where.device : collected,
      sums + stride * where.device + 1,
      weight,
      gathered,
      host_mix(static_cast<word>(where.microbatch) + 1, static_cast<word>(where.chunk) + 1),
      where.chunk,
      chunks,
      {},
      0,
      {},
      0};
    for (std::size_t i = 1; i < where.inputs.size(); ++i)
      result.further_in[result.further++] = reinterpret_cast<word const*>(where.inputs[i].data);
    for (std::size_t i = 1; i < where.outputs.size(); ++i)
      result.further_out[result.further_outs++] = words(where.outputs[i]);
    return result;
  }
};
