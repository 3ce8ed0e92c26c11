// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The places where stages can run. Each is an object of its own, which a build may lack.

#include <string_view>
#include <vector>

namespace gpt {

// Each reads the command line but for --backend, trains, checks and reports, and returns the exit
// status of the program.
// @throws std::invalid_argument with one line for the user

//! Devices are threads of this process.
int run_on_threads(std::vector<std::string_view> const& words);
//! Devices are processes with MPI between them.
int run_on_mpi(std::vector<std::string_view> const& words);
//! Devices are streams of one GPU.
int run_on_cuda(std::vector<std::string_view> const& words);
//! Devices are GPUs, each with a process, and NCCL between them.
int run_on_nccl(std::vector<std::string_view> const& words);

} // namespace gpt
