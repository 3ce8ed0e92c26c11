// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief Times of the attention kernels on the GPU at hand: whole causal sequences, their chunks,
//! and full attention, forward and backward, every kernel family that runs here.
//!
//!     bin/attention [--quick] [--json FILE] [tokens ...]
//!
//! Default: 2048 ... 32768 tokens, under 90 s on an H200; --quick: 4096 and 16384, under 30 s;
//! --smoke: a tiny problem, timed once. --json writes one JSON object per line: the machine, its
//! GEMM rate where the program is linked with cuBLAS, then the cases.
//!
//! Each result is held against sums in double on the host, for some queries and keys, before it is
//! timed. Times are medians; those of chunks are of all chunks, one launch after the other. The tax
//! of chunking is their time over that of one launch. Operations are counted as 4 (forward) and 10
//! (backward) per head dim and visible pair. Compare with other libraries: attention_peers.py.
//!
//! Exit status: 0; 1 where a result is wrong or the GPU fails; 77 where there is no GPU.

#include "attention_case.cuh"
#include "attention_report.hpp"
#if defined(BENCHMARK_WITH_CUBLAS)
#include "gemm_rate.cuh"
#endif

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

// A build for a test may leave out head dims, which take long to compile.
#if !defined(BENCHMARK_HEAD_DIMS)
#define BENCHMARK_HEAD_DIMS 64, 128
#endif

namespace {

using namespace benchmark;

struct options {
  effort spend;
  std::string json;
  std::vector<std::int64_t> tokens;
  std::vector<std::int64_t> chunks;
  std::vector<std::int64_t> key_heads;
  std::int64_t heads = 16;
};

options parse(int count, char** words) {
  options o;
  bool quick = false;
  bool smoke = false;
  for (int i = 1; i < count; ++i) {
    std::string const word = words[i];
    if (word == "--quick") {
      quick = true;
    } else if (word == "--smoke") {
      smoke = true;
    } else if (word == "--json" && i + 1 < count) {
      o.json = words[++i];
    } else if (auto const tokens = std::strtoll(word.c_str(), nullptr, 10); tokens > 0) {
      o.tokens.push_back(tokens);
    } else {
      throw std::invalid_argument("'" + word + "' is no number of tokens; usage: attention " +
                                  "[--quick | --smoke] [--json FILE] [tokens ...]");
    }
  }
  if (o.tokens.empty()) {
    o.tokens = smoke   ? std::vector<std::int64_t>{150}
               : quick ? std::vector<std::int64_t>{4096, 16384}
                       : std::vector<std::int64_t>{2048, 4096, 8192, 16384, 32768};
  }
  o.chunks = smoke ? std::vector<std::int64_t>{1, 2} : std::vector<std::int64_t>{1, 4, 8};
  o.key_heads = smoke   ? std::vector<std::int64_t>{1}
                : quick ? std::vector<std::int64_t>{16, 8}
                        : std::vector<std::int64_t>{16, 8, 1};
  o.heads = smoke ? 2 : 16;
  o.spend = smoke   ? effort{.least_runs = 1, .most_runs = 1, .milliseconds = 0, .warm_up = 0}
            : quick ? effort{.least_runs = 5, .most_runs = 11, .milliseconds = 30, .warm_up = 300}
                    : effort{.least_runs = 5, .most_runs = 21, .milliseconds = 60, .warm_up = 500};
  return o;
}

//! Each line of a head dim says which kernels the front door takes for it.
template <int Dim>
void add_choices(std::vector<std::string>& lines) {
  auto const dim = "head dim " + std::to_string(Dim) + ", ";
  lines.push_back(dim + "forward: " + at::describe(at::chosen_forward<Dim, element>()));
  lines.push_back(dim + "backward: " + at::describe(at::chosen_backward<Dim, element>()));
}

template <int... Dims>
int run(options const& o) {
  report to(o.json);
  cudaDeviceProp device{};
  cuda::check(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  std::vector<std::string> choices;
  (add_choices<Dims>(choices), ...);
  to.machine(device, choices);
#if defined(BENCHMARK_WITH_CUBLAS)
  auto const gemm = gemm_milliseconds(8192, o.spend);
  to.gemm(gemm, 2.0 * 8192 * 8192 * 8192 / (gemm * 1e9));
#endif
  to.head();
  auto const say = [&](measurement const& m) { to.line(m); };
  for (auto const tokens : o.tokens) {
    for (auto const key_heads : o.key_heads) {
      (measure<Dims>({Dims, tokens, o.heads, key_heads, true}, o.chunks, o.spend, say), ...);
    }
  }
  if (to.wrong() > 0) {
    std::fprintf(stderr, "attention: %d results are wrong\n", to.wrong());
  }
  return to.wrong() > 0 ? 1 : 0;
}

} // namespace

int main(int count, char** words) {
  try {
    auto const chosen = parse(count, words);
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      std::printf("attention: skipped, there is no GPU here\n");
      return 77;
    }
    return run<BENCHMARK_HEAD_DIMS>(chosen);
  } catch (std::exception const& e) {
    std::fprintf(stderr, "attention: %s\n", e.what());
    return 1;
  }
}
