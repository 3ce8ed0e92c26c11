// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief Times of the attention kernels on the GPU at hand: one causal launch and its chunks.
//!
//! usage: attention [tokens ...]       default: 2048 4096 8192 16384 32768
//! Prints one CSV line per case: the tax of chunking is the time of all chunks over that of one
//! launch. Operations are counted as 4 (forward) and 10 (backward) per head dim and visible pair.

#include <pipe/attention/backward.cuh>
#include <pipe/attention/forward.cuh>
#include <pipe/cuda/error.cuh>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <vector>

namespace {

namespace at = pipelining::attention;
namespace cuda = pipelining::cuda;
using element = __nv_bfloat16;

//! Device memory.
template <class T>
class buffer {
public:
  explicit buffer(std::int64_t count) : count_(count) {
    cuda::check(cudaMalloc(&data_, static_cast<std::size_t>(count) * sizeof(T)), "cudaMalloc");
  }
  buffer(buffer const&) = delete;
  buffer& operator=(buffer const&) = delete;
  ~buffer() { (void)cudaFree(data_); }
  T* data() const { return static_cast<T*>(data_); }
  void zero() {
    cuda::check(cudaMemset(data_, 0, static_cast<std::size_t>(count_) * sizeof(T)), "cudaMemset");
  }
  //! Normally distributed numbers: zeros would make the device faster than it is.
  void fill(unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<T> numbers(static_cast<std::size_t>(count_));
    for (auto& x : numbers) {
      x = static_cast<T>(normal(random));
    }
    cuda::check(
      cudaMemcpy(data_, numbers.data(), numbers.size() * sizeof(T), cudaMemcpyHostToDevice),
      "cudaMemcpy");
  }

private:
  std::int64_t count_;
  void* data_ = nullptr;
};

//! Median time of a few runs, in milliseconds, after one that is not counted.
template <class Run>
float milliseconds(Run const& run) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  cuda::check(cudaEventCreate(&begin), "cudaEventCreate");
  cuda::check(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<float> times;
  for (int i = 0; i < 8; ++i) {
    cuda::check(cudaEventRecord(begin), "cudaEventRecord");
    run();
    cuda::check(cudaEventRecord(end), "cudaEventRecord");
    cuda::check(cudaEventSynchronize(end), "cudaEventSynchronize");
    float time = 0;
    cuda::check(cudaEventElapsedTime(&time, begin, end), "cudaEventElapsedTime");
    if (i > 0) {
      times.push_back(time);
    }
  }
  cuda::check(cudaEventDestroy(begin), "cudaEventDestroy");
  cuda::check(cudaEventDestroy(end), "cudaEventDestroy");
  std::nth_element(times.begin(), times.begin() + 3, times.end());
  return times[3];
}

template <int Dim>
void measure(std::int64_t tokens, std::int64_t heads, std::int64_t key_heads) {
  auto const queries = tokens * heads * Dim;
  auto const keys = tokens * key_heads * Dim;
  buffer<element> q(queries), k(keys), v(keys), o(queries), dO(queries), dQ(queries);
  buffer<float> lse(tokens * heads), mean(tokens * heads), dK(keys), dV(keys);
  q.fill(1);
  k.fill(2);
  v.fill(3);
  dO.fill(4);
  dK.zero();
  dV.zero();
  // Queries [begin, end) of the one sequence against all keys before `end`.
  auto const of = [&](auto const& memory, std::int64_t begin, std::int64_t end, std::int64_t h) {
    return at::dense_tensor(memory.data() + begin * h * Dim, 1, end - begin, h, Dim);
  };
  auto const rows = [&](buffer<float> const& memory, std::int64_t begin, std::int64_t end) {
    return at::row_view<float>{
      memory.data() + begin, 1, heads, end - begin, heads * tokens, tokens};
  };
  auto const parameters = [&](std::int64_t begin, std::int64_t end) {
    at::parameters p;
    p.query_length = end - begin;
    p.query_offset = begin;
    p.key_length = end;
    p.heads = heads;
    p.key_heads = key_heads;
    p.head_dim = Dim;
    return p;
  };
  auto const forward = [&](std::int64_t begin, std::int64_t end) {
    at::forward_tensors<element> const t{of(q, begin, end, heads),
                                         of(k, 0, end, key_heads),
                                         of(v, 0, end, key_heads),
                                         of(o, begin, end, heads),
                                         rows(lse, begin, end)};
    at::forward_on_device<Dim>(parameters(begin, end), t, at::causal{}, at::plain{}, nullptr);
  };
  auto const backward = [&](std::int64_t begin, std::int64_t end) {
    at::backward_tensors<element> const t{of(q, begin, end, heads),
                                          of(k, 0, end, key_heads),
                                          of(v, 0, end, key_heads),
                                          of(o, begin, end, heads),
                                          rows(lse, begin, end),
                                          of(dO, begin, end, heads),
                                          of(dQ, begin, end, heads),
                                          of(dK, 0, end, key_heads),
                                          of(dV, 0, end, key_heads)};
    at::backward_on_device<Dim>(
      parameters(begin, end), t, rows(mean, begin, end), at::causal{}, at::plain{}, nullptr);
  };
  auto const pairs = static_cast<double>(tokens) * static_cast<double>(tokens + 1) / 2;
  auto const work = pairs * static_cast<double>(heads * Dim);
  float whole[2] = {};
  for (std::int64_t const chunks : {1, 4, 8}) {
    auto const edge = [&](std::int64_t c) { return tokens * c / chunks; };
    float const times[2] = {milliseconds([&] {
                              for (std::int64_t c = 0; c < chunks; ++c) {
                                forward(edge(c), edge(c + 1));
                              }
                            }),
                            milliseconds([&] {
                              for (std::int64_t c = chunks - 1; c >= 0; --c) {
                                backward(edge(c), edge(c + 1));
                              }
                            })};
    for (int direction = 0; direction < 2; ++direction) {
      whole[direction] = chunks == 1 ? times[direction] : whole[direction];
      auto const rate = (direction == 0 ? 4 : 10) * work / (times[direction] * 1e9);
      std::printf("%s,portable,%d,%lld,%lld,%lld,%lld,%.3f,%.1f,%.3f\n",
                  direction == 0 ? "forward" : "backward",
                  Dim,
                  static_cast<long long>(tokens),
                  static_cast<long long>(heads),
                  static_cast<long long>(key_heads),
                  static_cast<long long>(chunks),
                  static_cast<double>(times[direction]),
                  rate,
                  static_cast<double>(times[direction] / whole[direction]));
    }
  }
}

} // namespace

int main(int count, char** words) {
  try {
    std::vector<std::int64_t> lengths;
    for (int i = 1; i < count; ++i) {
      lengths.push_back(std::strtoll(words[i], nullptr, 10));
    }
    if (lengths.empty()) {
      lengths = {2048, 4096, 8192, 16384, 32768};
    }
    cudaDeviceProp device{};
    cuda::check(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
    std::printf("# %s, causal, bf16\n", device.name);
    std::printf("direction,kernel,dim,tokens,heads,key_heads,chunks,milliseconds,tflops,tax\n");
    for (auto const tokens : lengths) {
      for (std::int64_t const key_heads : {16, 8, 1}) {
        measure<64>(tokens, 16, key_heads);
        measure<128>(tokens, 16, key_heads);
      }
    }
  } catch (std::exception const& e) {
    std::fprintf(stderr, "attention: %s\n", e.what());
    return 1;
  }
  return 0;
}
