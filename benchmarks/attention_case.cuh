// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One problem of the attention benchmark: its memory, its launches, its checks and times.

#include <pipe/attention/on_gpu.cuh>
#include <pipe/cuda/error.cuh>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "attention_check.hpp"
#include "attention_report.hpp"

namespace benchmark {

namespace at = pipelining::attention;
namespace cuda = pipelining::cuda;
using element = __nv_bfloat16;

//! How often a case is timed.
struct effort {
  int least_runs = 5;
  int most_runs = 21;
  float milliseconds = 60; //!< enough, once there are least_runs
  float warm_up = 500;     //!< milliseconds before the first time, so that clocks settle
};

//! Sums of four bytes of a hash: nearly normal numbers of variance 1. Zeros would make a GPU faster
//! than it is.
__global__ void fill_kernel(element* data, std::int64_t count, std::uint32_t seed) {
  auto const step = std::int64_t{gridDim.x} * blockDim.x;
  for (auto n = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; n < count; n += step) {
    auto x = static_cast<std::uint32_t>(n) * 2654435761u + seed * 40503u;
    x = (x ^ x >> 16) * 2246822519u;
    x = (x ^ x >> 13) * 3266489917u;
    x ^= x >> 16;
    auto const sum =
      static_cast<int>((x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24)) - 510;
    data[n] = __float2bfloat16(static_cast<float>(sum) * (1 / 147.8f));
  }
}

//! Device memory.
template <class T>
class buffer {
public:
  explicit buffer(std::int64_t count) : count_(count) {
    if (count > 0) {
      cuda::check(cudaMalloc(&data_, static_cast<std::size_t>(count) * sizeof(T)), "cudaMalloc");
    }
  }
  buffer(buffer const&) = delete;
  buffer& operator=(buffer const&) = delete;
  ~buffer() { (void)cudaFree(data_); }

  [[nodiscard]] T* data() const { return static_cast<T*>(data_); }
  [[nodiscard]] std::int64_t count() const { return count_; }
  void zero() {
    cuda::check(cudaMemset(data_, 0, static_cast<std::size_t>(count_) * sizeof(T)), "cudaMemset");
  }
  void fill(std::uint32_t seed) {
    auto const blocks = std::min<std::int64_t>((count_ + 255) / 256, 1024);
    fill_kernel<<<static_cast<unsigned>(blocks), 256>>>(data(), count_, seed);
    cuda::check(cudaGetLastError(), "fill_kernel");
  }
  //! Numbers [first, first + count) on the host, once the GPU is done.
  [[nodiscard]] std::vector<T> fetch(std::int64_t first, std::int64_t count) const {
    std::vector<T> numbers(static_cast<std::size_t>(count));
    cuda::check(
      cudaMemcpy(
        numbers.data(), data() + first, numbers.size() * sizeof(T), cudaMemcpyDeviceToHost),
      "cudaMemcpy");
    return numbers;
  }
  [[nodiscard]] std::vector<T> fetch() const { return fetch(0, count_); }

private:
  std::int64_t count_;
  void* data_ = nullptr;
};

//! Time of one run in milliseconds, of `count` that follow each other.
template <class Run>
float milliseconds_of(Run const& run, cudaEvent_t begin, cudaEvent_t end, int count = 1) {
  cuda::check(cudaEventRecord(begin), "cudaEventRecord");
  for (int n = 0; n < count; ++n) {
    run();
  }
  cuda::check(cudaEventRecord(end), "cudaEventRecord");
  cuda::check(cudaEventSynchronize(end), "cudaEventSynchronize");
  float time = 0;
  cuda::check(cudaEventElapsedTime(&time, begin, end), "cudaEventElapsedTime");
  return time / static_cast<float>(count);
}

//! Median time in milliseconds, after one run that is not counted. Short runs are timed some at a
//! time, a millisecond together: else the host's time for the first launch counts.
template <class Run>
double median_milliseconds(Run const& run, effort const& spend) {
  static bool is_warm = false;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  cuda::check(cudaEventCreate(&begin), "cudaEventCreate");
  cuda::check(cudaEventCreate(&end), "cudaEventCreate");
  float passed = milliseconds_of(run, begin, end);
  while (!is_warm && passed < spend.warm_up) {
    passed += milliseconds_of(run, begin, end);
  }
  is_warm = true;
  auto const once = milliseconds_of(run, begin, end);
  auto const count = spend.milliseconds > 0 ? std::clamp(static_cast<int>(1 / once), 1, 32) : 1;
  std::vector<float> times;
  passed = 0;
  while (static_cast<int>(times.size()) < spend.least_runs ||
         (static_cast<int>(times.size()) < spend.most_runs && passed < spend.milliseconds)) {
    times.push_back(milliseconds_of(run, begin, end, count));
    passed += times.back() * static_cast<float>(count);
  }
  cuda::check(cudaEventDestroy(begin), "cudaEventDestroy");
  cuda::check(cudaEventDestroy(end), "cudaEventDestroy");
  std::sort(times.begin(), times.end());
  auto const middle = times.size() / 2;
  return static_cast<double>(times.size() % 2 == 1 ? times[middle]
                                                   : (times[middle - 1] + times[middle]) / 2);
}

//! The tensors of one sequence in device memory. Chunk [begin, end) attends to all keys before end.
template <int Dim>
class problem {
public:
  explicit problem(sizes const& s)
      : s_(s), query_(queries()), key_(keys()), value_(keys()), output_(queries()),
        output_gradient_(queries()), query_gradient_(queries()), log_sum_exp_(s.tokens * s.heads),
        key_gradient_(keys()), value_gradient_(keys()), scratch_(scratch_floats()) {
    query_.fill(1);
    key_.fill(2);
    value_.fill(3);
    output_gradient_.fill(4);
  }

  void start_gradients() {
    key_gradient_.zero();
    value_gradient_.zero();
  }

  template <class Mask>
  void forward(at::kernel_family family, std::int64_t begin, std::int64_t end) const {
    auto const p = chunk<Mask>(begin, end);
    auto const n = p.key_length;
    at::forward_tensors<element> const t{part(query_, begin, end, s_.heads),
                                         part(key_, 0, n, s_.key_heads),
                                         part(value_, 0, n, s_.key_heads),
                                         part(output_, begin, end, s_.heads),
                                         rows(begin, end)};
    at::forward_on_gpu<Dim>(p, t, scratch(family), Mask{}, at::plain{}, nullptr);
  }

  template <class Mask>
  void backward(at::kernel_family family, std::int64_t begin, std::int64_t end) const {
    auto const p = chunk<Mask>(begin, end);
    auto const n = p.key_length;
    at::backward_tensors<element> const t{part(query_, begin, end, s_.heads),
                                          part(key_, 0, n, s_.key_heads),
                                          part(value_, 0, n, s_.key_heads),
                                          part(output_, begin, end, s_.heads),
                                          rows(begin, end),
                                          part(output_gradient_, begin, end, s_.heads),
                                          part(query_gradient_, begin, end, s_.heads),
                                          part(key_gradient_, 0, n, s_.key_heads),
                                          part(value_gradient_, 0, n, s_.key_heads)};
    at::backward_on_gpu<Dim>(p, t, scratch(family), Mask{}, at::plain{}, nullptr);
  }

  //! Inputs, and what forward wrote last.
  [[nodiscard]] host_tensors fetch() const {
    return {query_.fetch(),
            key_.fetch(),
            value_.fetch(),
            output_gradient_.fetch(),
            output_.fetch(),
            log_sum_exp_.fetch()};
  }

  //! Error of O, against answers to queries.
  [[nodiscard]] double output_error(std::vector<row_answer> const& answers) const {
    relative_error error;
    for (auto const& a : answers) {
      error.add(row_of(output_, a, s_.heads), a.first);
    }
    return error.value();
  }
  //! The largest of the errors of dQ, dK and dV.
  [[nodiscard]] double gradient_error(std::vector<row_answer> const& queries,
                                      std::vector<row_answer> const& keys) const {
    relative_error of_query;
    relative_error of_key;
    relative_error of_value;
    for (auto const& a : queries) {
      of_query.add(row_of(query_gradient_, a, s_.heads), a.second);
    }
    for (auto const& a : keys) {
      of_key.add(row_of(key_gradient_, a, s_.key_heads), a.first);
      of_value.add(row_of(value_gradient_, a, s_.key_heads), a.second);
    }
    return std::max({of_query.value(), of_key.value(), of_value.value()});
  }

private:
  [[nodiscard]] std::int64_t queries() const { return s_.tokens * s_.heads * Dim; }
  [[nodiscard]] std::int64_t keys() const { return s_.tokens * s_.key_heads * Dim; }
  [[nodiscard]] at::gpu_scratch scratch(at::kernel_family family) const {
    return {.data = scratch_.data(),
            .count = scratch_.count(),
            .portable = family == at::kernel_family::portable};
  }

  //! Enough for every chunk: short ones want parts of the keys.
  [[nodiscard]] std::int64_t scratch_floats() const {
    std::int64_t most = s_.tokens * s_.heads;
    for (std::int64_t chunks = 1; chunks <= 8; ++chunks) {
      auto const p = chunk<at::causal>(s_.tokens - s_.tokens / chunks, s_.tokens);
      for (bool const portable : {false, true}) {
        most = std::max(most, at::forward_scratch<Dim, element>(p, 0, portable));
      }
      most = std::max(most, at::backward_scratch(p));
    }
    return most;
  }

  template <class Mask>
  [[nodiscard]] at::parameters chunk(std::int64_t begin, std::int64_t end) const {
    at::parameters p;
    p.query_length = end - begin;
    p.query_offset = begin;
    p.key_length = std::is_same_v<Mask, at::causal> ? end : s_.tokens;
    p.heads = s_.heads;
    p.key_heads = s_.key_heads;
    p.head_dim = Dim;
    return p;
  }

  template <class T>
  [[nodiscard]] static at::tensor_view<T>
  part(buffer<T> const& memory, std::int64_t begin, std::int64_t end, std::int64_t heads) {
    return at::dense_tensor(memory.data() + begin * heads * Dim, 1, end - begin, heads, Dim);
  }
  [[nodiscard]] at::row_view<float> rows(std::int64_t begin, std::int64_t end) const {
    return {log_sum_exp_.data() + begin, 1, s_.heads, end - begin, s_.heads * s_.tokens, s_.tokens};
  }
  template <class T>
  [[nodiscard]] static std::vector<double>
  row_of(buffer<T> const& memory, row_answer const& a, std::int64_t heads) {
    std::vector<double> numbers;
    for (auto const x : memory.fetch((a.position * heads + a.head) * Dim, Dim)) {
      numbers.push_back(static_cast<double>(static_cast<float>(x)));
    }
    return numbers;
  }

  sizes s_;
  buffer<element> query_, key_, value_, output_, output_gradient_, query_gradient_;
  buffer<float> log_sum_exp_, key_gradient_, value_gradient_, scratch_;
};

//! Answers in double to some queries and some keys.
struct answers {
  std::vector<row_answer> queries;
  std::vector<row_answer> keys;

  answers(sizes const& s, host_tensors const& t) {
    std::int64_t turn = 0;
    for (auto const position : some_positions(s.tokens)) {
      queries.push_back(answer_of_query(s, t, position, (turn * 5 + s.heads - 1) % s.heads));
      keys.push_back(answer_of_key(s, t, position, (turn * 5 + s.key_heads - 1) % s.key_heads));
      ++turn;
    }
  }
};

//! All cases of a problem with one mask.
template <class Mask, int Dim, class Say>
void measure_mask(problem<Dim>& of,
                  sizes const& s,
                  std::vector<std::int64_t> const& chunk_counts,
                  effort const& spend,
                  Say const& say) {
  std::optional<answers> expected;
  std::vector<at::kernel_family> families{at::kernel_family::portable};
  if (at::chosen_forward<Dim, element, Mask>().family == at::kernel_family::hopper) {
    families.push_back(at::kernel_family::hopper);
  }
  bool const is_hopper_backward =
    at::chosen_backward<Dim, element, Mask>().family == at::kernel_family::hopper;
  for (auto const family : families) {
    std::array<double, 2> whole{};
    for (auto const chunks : chunk_counts) {
      auto const edge = [&](std::int64_t c) { return s.tokens * c / chunks; };
      auto const forward = [&] {
        for (std::int64_t c = 0; c < chunks; ++c) {
          of.template forward<Mask>(family, edge(c), edge(c + 1));
        }
      };
      auto const backward = [&] {
        for (auto c = chunks - 1; c >= 0; --c) {
          of.template backward<Mask>(family, edge(c), edge(c + 1));
        }
      };
      measurement m{s, "forward", at::name_of(family), chunks};
      forward();
      if (!expected) {
        expected.emplace(s, of.fetch());
      }
      m.error = of.output_error(expected->queries);
      m.milliseconds = median_milliseconds(forward, spend);
      whole[0] = chunks == chunk_counts.front() ? m.milliseconds : whole[0];
      m.tax = m.milliseconds / whole[0];
      say(m);
      if (family == at::kernel_family::hopper && !is_hopper_backward) {
        continue;
      }
      m.direction = "backward";
      of.start_gradients();
      backward();
      m.error = of.gradient_error(expected->queries, expected->keys);
      m.milliseconds = median_milliseconds(backward, spend);
      whole[1] = chunks == chunk_counts.front() ? m.milliseconds : whole[1];
      m.tax = m.milliseconds / whole[1];
      say(m);
    }
  }
}

//! All cases of a problem: causal, whole and in chunks; full, whole.
template <int Dim, class Say>
void measure(sizes const& s,
             std::vector<std::int64_t> const& chunk_counts,
             effort const& spend,
             Say const& say) {
  problem<Dim> of(s);
  measure_mask<at::causal>(of, s, chunk_counts, spend, say);
  auto full = s;
  full.is_causal = false;
  measure_mask<at::full>(of, full, {1}, spend, say);
}

} // namespace benchmark
