// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What the attention benchmark says: a table for people, JSON lines for programs.

#include <pipe/cuda/error.cuh>

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention_check.hpp"

namespace benchmark {

//! One line of the report.
struct measurement {
  sizes of;
  char const* direction = "";
  char const* kernel = "";
  std::int64_t chunks = 1;
  double milliseconds = 0;
  double tax = 1;
  double error = 0; //!< relative, of the sampled rows

  [[nodiscard]] bool is_backward() const { return direction[0] == 'b'; }
  [[nodiscard]] double tflops() const {
    auto const work = of.visible_pairs() * static_cast<double>(of.heads * of.dim);
    return (is_backward() ? 10 : 4) * work / (milliseconds * 1e9);
  }
  //! Weights, outputs and gradients of the products are rounded to bf16, by 2^-9 at most and 2^-10
  //! on average; a few such errors add up to less than 1 %.
  [[nodiscard]] bool is_right() const { return error < 0.01; }
};

//! Says lines to people and, where a file was asked for, to programs.
class report {
public:
  explicit report(std::string const& file) {
    if (!file.empty()) {
      json_.open(file);
      if (!json_) {
        throw std::runtime_error("cannot write " + file);
      }
    }
  }

  void machine(cudaDeviceProp const& device, std::vector<std::string> const& choices) {
    int driver = 0;
    int runtime = 0;
    pipelining::cuda::check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    pipelining::cuda::check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
    std::printf("%s, compute capability %d.%d, %d multiprocessors, driver %d, runtime %d; bf16\n",
                device.name,
                device.major,
                device.minor,
                device.multiProcessorCount,
                driver,
                runtime);
    std::string listed;
    for (auto const& choice : choices) {
      std::printf("%s\n", choice.c_str());
      listed += (listed.empty() ? "\"" : ", \"") + choice + "\"";
    }
    json_ << R"({"kind": "machine", "device": ")" << device.name << R"(", "capability": ")"
          << device.major << '.' << device.minor << R"(", "multiprocessors": )"
          << device.multiProcessorCount << R"(, "driver": )" << driver << R"(, "runtime": )"
          << runtime << R"(, "choices": [)" << listed << "]}\n";
  }

  void gemm(double milliseconds, double rate) {
    std::printf("GEMM 8192^3: %.3f ms, %.0f TFLOP/s\n", milliseconds, rate);
    json_ << R"({"kind": "gemm", "size": 8192, "milliseconds": )" << milliseconds
          << R"(, "tflops": )" << rate << "}\n";
  }

  void head() const {
    std::printf("%-8s %-8s %4s %-6s %6s %5s %9s %6s %12s %8s %6s %8s\n",
                "",
                "kernel",
                "dim",
                "mask",
                "tokens",
                "heads",
                "key heads",
                "chunks",
                "milliseconds",
                "TFLOP/s",
                "tax",
                "error");
  }

  void line(measurement const& m) {
    auto const& s = m.of;
    std::printf("%-8s %-8s %4d %-6s %6lld %5lld %9lld %6lld %12.3f %8.1f %6.3f %8.1e%s\n",
                m.direction,
                m.kernel,
                s.dim,
                s.is_causal ? "causal" : "full",
                static_cast<long long>(s.tokens),
                static_cast<long long>(s.heads),
                static_cast<long long>(s.key_heads),
                static_cast<long long>(m.chunks),
                m.milliseconds,
                m.tflops(),
                m.tax,
                m.error,
                m.is_right() ? "" : " WRONG");
    std::fflush(stdout);
    json_ << R"({"kind": "attention", "direction": ")" << m.direction << R"(", "kernel": ")"
          << m.kernel << R"(", "dim": )" << s.dim << R"(, "mask": ")"
          << (s.is_causal ? "causal" : "full") << R"(", "tokens": )" << s.tokens << R"(, "heads": )"
          << s.heads << R"(, "key_heads": )" << s.key_heads << R"(, "chunks": )" << m.chunks
          << R"(, "milliseconds": )" << m.milliseconds << R"(, "tflops": )" << m.tflops()
          << R"(, "tax": )" << m.tax << R"(, "error": )" << (m.error < 1e30 ? m.error : 1e30)
          << R"(, "right": )" << (m.is_right() ? "true" : "false") << "}\n"
          << std::flush;
    wrong_ += m.is_right() ? 0 : 1;
  }

  [[nodiscard]] int wrong() const { return wrong_; }

private:
  std::ofstream json_;
  int wrong_ = 0;
};

} // namespace benchmark
