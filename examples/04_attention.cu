// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief Attention of a sequence in chunks on a GPU: forward first chunk first, backward last
//! chunk first, with a mask of one's own; held against the host.
//!
//! Build and run: nvcc -std=c++20 -O3 -gencode arch=compute_80,code=[sm_80,compute_80]
//!   -gencode arch=compute_90a,code=sm_90a -I include examples/04_attention.cu -o attention
//! Expected: the kernels that were chosen, and small errors. Exit status 77 without a GPU.

#include <pipe/attention/backward.hpp>
#include <pipe/attention/forward.hpp>
#include <pipe/attention/on_gpu.cuh>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <utility>
#include <vector>

namespace at = pipelining::attention;
using pipelining::cuda::check;

// [snippet mask]
// Causal, but the first `prompt` positions are seen by all: a mask of your own. keep is enough;
// cover lets kernels skip tiles, and ask no pair of a tile that is kept whole.
struct prompted {
  std::int32_t prompt = 0;

  __host__ __device__ bool keep(at::pair_position p) const {
    return p.key <= p.query || p.key < prompt;
  }
  __host__ __device__ at::tile_cover cover(at::tile_position t) const {
    if (t.key_end <= prompt || t.key_end - 1 <= t.query_begin)
      return at::tile_cover::full;
    bool const none = t.key_begin >= prompt && t.key_begin > t.query_end - 1;
    return none ? at::tile_cover::skip : at::tile_cover::partial;
  }
};
// [snippet mask]

namespace {

constexpr int dim = 64; // of a head
constexpr std::int64_t heads = 2;
constexpr std::int64_t key_heads = 1; // two query heads share one key head
constexpr std::int64_t tokens = 150;
constexpr std::int64_t cuts[] = {0, 70, 120, tokens}; // three chunks, no lengths in particular

template <class T>
T* on_device(std::int64_t count) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, static_cast<std::size_t>(count) * sizeof(T)), "cudaMalloc");
  check(cudaMemset(memory, 0, static_cast<std::size_t>(count) * sizeof(T)), "cudaMemset");
  return static_cast<T*>(memory);
}

// [snippet layer]
// What an attention layer keeps of one sequence, from the forward of its first chunk to the
// backward of the same. Everything is [tokens, heads, dim]; chunks are slices of it.
template <class T>
struct sequence_state {
  T *query, *key, *value, *output, *output_gradient, *query_gradient;
  float *key_gradient, *value_gradient; // running sums over chunks, in float
  float* log_sum_exp;                   // [heads, tokens]
};

at::parameters chunk(std::int64_t begin, std::int64_t end) {
  at::parameters p;
  p.query_length = end - begin;
  p.query_offset = begin; // masks and scores see positions in the sequence
  p.key_length = end;     // all keys so far, this chunk's among them
  p.heads = heads;
  p.key_heads = key_heads;
  p.head_dim = dim;
  return p;
}

template <class T>
at::tensor_view<T> queries(T* of, std::int64_t begin, std::int64_t end) {
  return at::dense_tensor(of + begin * heads * dim, 1, end - begin, heads, dim);
}
template <class T>
at::tensor_view<T> keys(T* of, std::int64_t end) {
  return at::dense_tensor(of, 1, end, key_heads, dim);
}
template <class T>
at::forward_tensors<T>
forward_of(sequence_state<T> const& s, std::int64_t begin, std::int64_t end) {
  return {queries(s.query, begin, end),
          keys(s.key, end),
          keys(s.value, end),
          queries(s.output, begin, end),
          {s.log_sum_exp + begin, 1, heads, end - begin, heads * tokens, tokens}};
}
template <class T>
at::backward_tensors<T>
backward_of(sequence_state<T> const& s, std::int64_t begin, std::int64_t end) {
  auto const [query, key, value, output, log_sum_exp] = forward_of(s, begin, end);
  return {query,
          key,
          value,
          output,
          log_sum_exp,
          queries(s.output_gradient, begin, end),
          queries(s.query_gradient, begin, end),
          keys(s.key_gradient, end),
          keys(s.value_gradient, end)};
}
// [snippet layer]

// The most that any chunk asks for. Known before the first step: nothing is allocated in it.
at::gpu_scratch scratch_for_all_chunks() {
  std::int64_t floats = 0;
  for (int c = 0; c < 3; ++c) {
    auto const p = chunk(cuts[c], cuts[c + 1]);
    floats = std::max(
      {floats, at::forward_scratch<dim, __nv_bfloat16, prompted>(p), at::backward_scratch(p)});
  }
  return {on_device<float>(floats), floats, on_device<std::uint32_t>(1)};
}

// Normally distributed numbers, on the device in bf16 and on the host as they were rounded.
__nv_bfloat16* random_numbers(std::vector<float>& host, std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<__nv_bfloat16> rounded;
  for (std::int64_t n = 0; n < count; ++n) {
    rounded.push_back(__float2bfloat16(normal(random)));
    host.push_back(__bfloat162float(rounded.back()));
  }
  auto* const device = on_device<__nv_bfloat16>(count);
  check(cudaMemcpy(device, rounded.data(), 2 * rounded.size(), cudaMemcpyDefault), "cudaMemcpy");
  return device;
}

template <class T>
double largest_difference(T const* device, std::vector<float> const& expected) {
  std::vector<T> got(expected.size());
  check(cudaMemcpy(got.data(), device, got.size() * sizeof(T), cudaMemcpyDefault), "cudaMemcpy");
  double most = 0;
  for (std::size_t n = 0; n < got.size(); ++n)
    most = std::max(most, static_cast<double>(std::abs(static_cast<float>(got[n]) - expected[n])));
  return most;
}

} // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped, there is no GPU here\n");
    return 77;
  }
  std::vector<float> q, k, v, g;
  sequence_state<__nv_bfloat16> s{random_numbers(q, tokens * heads * dim, 1),
                                  random_numbers(k, tokens * key_heads * dim, 2),
                                  random_numbers(v, tokens * key_heads * dim, 3),
                                  on_device<__nv_bfloat16>(tokens * heads * dim),
                                  random_numbers(g, tokens * heads * dim, 4),
                                  on_device<__nv_bfloat16>(tokens * heads * dim),
                                  on_device<float>(tokens * key_heads * dim),
                                  on_device<float>(tokens * key_heads * dim),
                                  on_device<float>(heads * tokens)};
  at::gpu_scratch const scratch = scratch_for_all_chunks(); // one for all layers on a stream
  prompted const mask{16};
  cudaStream_t const stream = nullptr;
  at::kernel_choice chosen[2];
  for (int c = 0; c < 3; ++c) {
    auto const [begin, end] = std::pair(cuts[c], cuts[c + 1]);
    // [snippet forward]
    // Keys and values of the chunk are in place: write them after those of the chunks before.
    chosen[0] = at::forward_on_gpu<dim>(
      chunk(begin, end), forward_of(s, begin, end), scratch, mask, at::plain{}, stream);
    // [snippet forward]
  }
  // Last chunk first. After chunk c the gradients of chunk c's own keys and values are final.
  for (int c = 2; c >= 0; --c) {
    auto const [begin, end] = std::pair(cuts[c], cuts[c + 1]);
    chosen[1] = at::backward_on_gpu<dim>(
      chunk(begin, end), backward_of(s, begin, end), scratch, mask, at::plain{}, stream);
  }
  std::printf(
    "forward %s\nbackward %s\n", describe(chosen[0]).c_str(), describe(chosen[1]).c_str());
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  // The whole sequence at once, on the host, in float.
  std::vector<float> o(q.size()), dq(q.size()), dk(k.size()), dv(k.size()), lse(heads * tokens);
  sequence_state<float> const whole{
    q.data(), k.data(), v.data(), o.data(), g.data(), dq.data(), dk.data(), dv.data(), lse.data()};
  at::forward(chunk(0, tokens), forward_of(whole, 0, tokens), mask);
  at::backward(chunk(0, tokens), backward_of(whole, 0, tokens), mask);
  double const errors[] = {largest_difference(s.output, o),
                           largest_difference(s.query_gradient, dq),
                           largest_difference(s.key_gradient, dk),
                           largest_difference(s.value_gradient, dv)};
  std::printf(
    "errors of O, dQ, dK, dV: %.4f %.4f %.4f %.4f\n", errors[0], errors[1], errors[2], errors[3]);
  return *std::max_element(errors, errors + 4) < 0.1 ? 0 : 1; // numbers are a few, in bf16
}
