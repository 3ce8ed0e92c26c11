// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What spin.cu, which nvcc compiles, measures for the benchmark of the stream runner.

#include <pipe/plan/plan.hpp>
#include <pipe/timetable/cost.hpp>

#include <cstdint>
#include <string>
#include <vector>

//! @brief When a pass ran, by the clock of the device, in nanoseconds.
struct stamp {
  std::uint64_t start = 0;
  std::uint64_t end = 0;
};

struct spin_case {
  pipelining::plan const& work;
  bool graph = false;
  pipelining::uniform_cost cost{}; //!< in microseconds
  int repeats = 1;
};

struct spin_times {
  std::vector<std::vector<stamp>> passes{}; //!< [repeats][pass_indices]
  //! [repeats]: what the host takes to enqueue an iteration whose kernels end at once,
  //! microseconds
  std::vector<double> host{};
};

//! @brief Runs a plan with all its devices on one GPU. A pass is one thread that waits for the time
//! of the cost model; it occupies one SM at most.
spin_times run_spinning(spin_case const& what);

//! @brief Host time of a launch, a record and a wait of another stream, microseconds; one number
//! per repeat.
std::vector<double> time_floor(int repeats);

//! @brief What to write next to figures.
struct gpu_facts {
  std::string name{};
  int driver = 0;  //!< the CUDA version of the driver, as 13000
  int runtime = 0; //!< of the program
  int processors = 0;
  double tick = 0; //!< of the clock of the device, nanoseconds
};
gpu_facts read_gpu_facts();
