// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! @file
//! @brief Chooses where the stages of the GPT run: on GPT_BACKEND, unless told. GPT_HAS_MPI,
//! GPT_HAS_CUDA and GPT_HAS_NCCL say what is linked.
//!
//! The model, its stages and the reports lie in this folder; host/, mpi/ and cuda/ have a backend
//! each, whose door is on_*.cpp; papers/ has stages that only one paper needs.

#include <pipe/flow/quote.hpp>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "backend.hpp"
#include "tools/support/split_words.hpp"
#include "tools/support/termination.hpp"

namespace {

using words_given = std::vector<std::string_view>;

std::string_view take_backend(words_given& words) {
  auto const option = std::find(words.begin(), words.end(), "--backend");
  if (option == words.end())
    return GPT_BACKEND;
  if (option + 1 == words.end())
    throw std::invalid_argument("--backend wants threads, mpi, cuda or nccl");
  auto const value = *(option + 1);
  words.erase(option, option + 2);
  return value;
}

[[noreturn]] void refuse(std::string_view where, char const* remedy) {
  throw std::invalid_argument("this gpt was built without the backend " + std::string(where) +
                              "; " + remedy);
}

int run_on(std::string_view where, words_given const& words) {
  if (where == "threads" || where == "cuda")
    example::report_output_without_reader();
  if (where == "threads")
    return gpt::run_on_threads(words);
  if (where == "mpi") {
    if constexpr (GPT_HAS_MPI)
      return gpt::run_on_mpi(words);
    refuse(where, "it has it where CMake finds MPI and no sanitizer is chosen");
  }
  if (where == "cuda") {
    if constexpr (GPT_HAS_CUDA)
      return gpt::run_on_cuda(words);
    refuse(where, "build it with -DPIPELINING_GPT_ON_GPUS=ON where nvcc and cuBLAS are");
  }
  if (where == "nccl") {
    if constexpr (GPT_HAS_NCCL)
      return gpt::run_on_nccl(words);
    refuse(where, "build it with -DPIPELINING_GPT_ON_GPUS=ON where nvcc, cuBLAS and NCCL are");
  }
  throw std::invalid_argument("--backend wants threads, mpi, cuda or nccl, not " +
                              pipelining::detail::quote(where));
}

} // namespace

int main(int count, char** words) {
  example::report_files_beyond_limits();
  try {
    auto given = examples::split_words(count, words);
    auto const where = take_backend(given);
    return run_on(where, given);
  } catch (std::invalid_argument const& error) {
    std::fprintf(stderr, "gpt: %s\n", error.what());
    return 2;
  } catch (std::bad_alloc const&) {
    std::fprintf(stderr, "gpt: not enough memory; choose a smaller model or fewer microbatches\n");
    return 1;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "gpt: %s\n", error.what());
    return 1;
  }
}
