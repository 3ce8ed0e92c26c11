// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What the tests of the stream runner on a GPU ask of the object that nvcc makes.

#include <pipe/plan/plan.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

//! @brief What goes wrong in the forward pass of microbatch 1 on one stage.
enum class mishap { none, throws, traps, hangs };

struct stream_case {
  pipelining::plan work{};
  bool graph = false;
  int steps = 3;
  unsigned longest_wait = 0; //!< nanoseconds that kernels wait before a pass; chosen by a seed
  mishap trouble = mishap::none;
  int troubled_stage = 0;
  int troubled_step = 0;
  std::chrono::nanoseconds deadline = std::chrono::seconds(60);
};

struct stream_result {
  std::vector<std::uint64_t> gradients{}; //!< [stages], where the device still answers
  std::uint64_t losses = 0;
  std::vector<std::string> failures{}; //!< one per step; "" for one that went well
};

//! @brief Runs a plan on streams of one GPU with the kernels of kernel_stage.
stream_result run_on_gpu(stream_case const& what);
