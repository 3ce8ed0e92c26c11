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
    if (t.key_end <= prompt || t.key_end - 1 <= t.query_begin) {
      return at::tile_cover::full;
    }
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
struct sequence_state {
  __nv_bfloat16 *query, *key, *value, *output, *output_gradient, *query_gradient;
  float *key_gradient, *value_gradient; // running sums over chunks, in float
  float* log_sum_exp;                   // [heads, tokens]
  at::gpu_scratch scratch;              // one for all layers that use the stream
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

at::tensor_view<__nv_bfloat16> queries(__nv_bfloat16* of, std::int64_t begin, std::int64_t end) {
  return at::dense_tensor(of + begin * heads * dim, 1, end - begin, heads, dim);
}
template <class T>
at::tensor_view<T> keys(T* of, std::int64_t end) {
  return at::dense_tensor(of, 1, end, key_heads, dim);
}
at::row_view<float> rows(float* of, std::int64_t begin, std::int64_t end) {
  return {of + begin, 1, heads, end - begin, heads * tokens, tokens};
}
// [snippet layer]

// [snippet forward]
at::kernel_choice forward(sequence_state const& s,
                          std::int64_t begin,
                          std::int64_t end,
                          prompted const& mask,
                          cudaStream_t stream) {
  // Keys and values of the chunk are in place: write them behind those of the chunks before.
  return at::forward_on_gpu<dim>(
    chunk(begin, end),
    at::forward_tensors<__nv_bfloat16>{queries(s.query, begin, end),
                                       keys(s.key, end),
                                       keys(s.value, end),
                                       queries(s.output, begin, end),
                                       rows(s.log_sum_exp, begin, end)},
    s.scratch,
    mask,
    at::plain{},
    stream);
}
// [snippet forward]

// Last chunk first. After chunk c the gradients of chunk c's own keys and values are final.
at::kernel_choice backward(sequence_state const& s,
                           std::int64_t begin,
                           std::int64_t end,
                           prompted const& mask,
                           cudaStream_t stream) {
  return at::backward_on_gpu<dim>(
    chunk(begin, end),
    at::backward_tensors<__nv_bfloat16>{queries(s.query, begin, end),
                                        keys(s.key, end),
                                        keys(s.value, end),
                                        queries(s.output, begin, end),
                                        rows(s.log_sum_exp, begin, end),
                                        queries(s.output_gradient, begin, end),
                                        queries(s.query_gradient, begin, end),
                                        keys(s.key_gradient, end),
                                        keys(s.value_gradient, end)},
    s.scratch,
    mask,
    at::plain{},
    stream);
}

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
  check(cudaMemcpy(device, rounded.data(), rounded.size() * 2, cudaMemcpyHostToDevice),
        "cudaMemcpy");
  return device;
}

template <class T>
double largest_difference(T const* device, std::vector<float> const& expected) {
  std::vector<T> got(expected.size());
  check(cudaMemcpy(got.data(), device, got.size() * sizeof(T), cudaMemcpyDeviceToHost),
        "cudaMemcpy");
  double most = 0;
  for (std::size_t n = 0; n < got.size(); ++n) {
    most = std::max(most, static_cast<double>(std::abs(static_cast<float>(got[n]) - expected[n])));
  }
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
  sequence_state s{};
  s.query = random_numbers(q, tokens * heads * dim, 1);
  s.key = random_numbers(k, tokens * key_heads * dim, 2);
  s.value = random_numbers(v, tokens * key_heads * dim, 3);
  s.output_gradient = random_numbers(g, tokens * heads * dim, 4);
  s.output = on_device<__nv_bfloat16>(tokens * heads * dim);
  s.query_gradient = on_device<__nv_bfloat16>(tokens * heads * dim);
  s.key_gradient = on_device<float>(tokens * key_heads * dim);
  s.value_gradient = on_device<float>(tokens * key_heads * dim);
  s.log_sum_exp = on_device<float>(heads * tokens);
  s.scratch = scratch_for_all_chunks();
  prompted const mask{16};

  at::kernel_choice chosen[2];
  for (int c = 0; c < 3; ++c) {
    chosen[0] = forward(s, cuts[c], cuts[c + 1], mask, nullptr);
  }
  for (int c = 2; c >= 0; --c) {
    chosen[1] = backward(s, cuts[c], cuts[c + 1], mask, nullptr);
  }
  std::printf(
    "forward %s\nbackward %s\n", describe(chosen[0]).c_str(), describe(chosen[1]).c_str());
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");

  // The whole sequence at once, on the host, in float.
  auto const p = chunk(0, tokens);
  auto const whole = [](std::vector<float>& numbers, std::int64_t of) {
    return at::dense_tensor(numbers.data(), 1, tokens, of, std::int64_t{dim});
  };
  std::vector<float> o(q.size()), dq(q.size()), dk(k.size()), dv(k.size()), lse(heads * tokens);
  auto const sums = at::dense_rows(lse.data(), 1, heads, tokens);
  at::forward(p,
              at::forward_tensors<float>{
                whole(q, heads), whole(k, key_heads), whole(v, key_heads), whole(o, heads), sums},
              mask);
  at::backward(p,
               at::backward_tensors<float>{whole(q, heads),
                                           whole(k, key_heads),
                                           whole(v, key_heads),
                                           whole(o, heads),
                                           sums,
                                           whole(g, heads),
                                           whole(dq, heads),
                                           whole(dk, key_heads),
                                           whole(dv, key_heads)},
               mask);
  double const errors[] = {largest_difference(s.output, o),
                           largest_difference(s.query_gradient, dq),
                           largest_difference(s.key_gradient, dk),
                           largest_difference(s.value_gradient, dv)};
  std::printf(
    "errors of O, dQ, dK, dV: %.4f %.4f %.4f %.4f\n", errors[0], errors[1], errors[2], errors[3]);
  return *std::max_element(errors, errors + 4) < 0.1 ? 0 : 1; // numbers are a few, in bf16
}
