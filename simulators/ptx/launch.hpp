// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
//! @file
//! @brief Runs CUDA kernels on the host: loads the PTX that nvcc emits and launches its kernels.
//!
//! This is test support: kernels run with every access checked for bounds, alignment,
//! initialisation and races, on machines that have no GPU. See README.md in this folder.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "memory.hpp"

namespace ptx {

//! @brief Sizes of a grid or a block.
struct extent {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
  friend bool operator==(extent const&, extent const&) = default;
};

//! @brief In which order the warps of a block get their turns.
enum class order { forward, reverse, shuffled };

//! @brief How a launch runs and what it checks. Bounds and alignment are always checked.
struct options {
  bool races = true;          //!< vector clocks on shared and global memory, proxy fences
  bool initialisation = true; //!< reads of bytes that nobody has written
  order warps = order::forward;
  std::uint64_t seed = 0;          //!< of order::shuffled; the same seed gives the same run
  std::size_t report_limit = 16;   //!< further reports are counted, not kept
  bool stops = false;              //!< the first report ends the launch
  unsigned resident_blocks = 1024; //!< blocks that may run at a time when they wait for each other
  bool together = false; //!< as many blocks as may start at once, not one when others cannot go on
  std::uint64_t global_time = 0; //!< what %globaltimer shows at the start, in nanoseconds
};

//! @brief What a report is about.
enum class fault {
  bounds,
  alignment,
  uninitialised,
  race,
  proxy,
  divergence,
  deadlock,
  barrier,
  in_flight,
  invalid,
  trap
};

//! @brief One finding; the text is one sentence with kernel, block, thread, PTX line and address.
struct report {
  fault kind = fault::invalid;
  std::string text;
};

//! @brief Counts of a launch.
struct statistics {
  std::uint64_t warp_instructions = 0;
  std::uint64_t matrix_flops = 0;
  std::uint64_t bank_conflicts = 0; //!< extra ldmatrix and stmatrix phases
  std::uint64_t copied_bytes = 0;   //!< by cp.async, bulk and tensor copies
  //! What passed on %globaltimer: 32 ns with every look at it, and what nanosleep asks for. The
  //! time of a kernel of one warp; of several it is their sum.
  std::uint64_t nanoseconds = 0;
};

//! @brief Outcome of a launch.
struct result {
  std::vector<report> reports;
  std::size_t dropped_reports = 0;
  statistics counts;
  std::vector<range> reads;  //!< global memory it read before it wrote it, merged, ascending
  std::vector<range> writes; //!< global memory the kernel wrote, merged, ascending
  bool clean() const { return reports.empty(); }
  //! @brief All report sentences, one per line.
  std::string text() const;
};

//! @brief PTX that cannot be loaded or run: syntax, unknown instruction, unknown kernel.
struct unsupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

//! @brief What the host needs to know of a kernel.
struct kernel_facts {
  std::vector<std::size_t> parameter_bytes;
  std::vector<std::size_t> parameter_offsets;
  std::size_t static_shared_bytes = 0;
  std::size_t local_bytes = 0;
  unsigned max_threads = 1024; //!< of .maxntid or .reqntid
  extent cluster{};            //!< of .reqnctapercluster
};

//! @brief A `.global` or `.const` variable of a module.
struct variable {
  void* address = nullptr;
  std::size_t bytes = 0;
};

struct program;

//! @brief A loaded PTX module. Its variables are registered in the memory it was loaded into.
class module {
public:
  //! @param text PTX as nvcc emits it
  //! @param where must outlive the module
  //! @throws unsupported if the text is no PTX that the parser knows
  module(std::string_view text, memory& where);
  ~module();
  module(module&&) noexcept;
  module& operator=(module&&) noexcept;

  std::vector<std::string> kernels() const;
  bool has_kernel(std::string_view mangled) const;
  //! @throws unsupported if there is no such kernel
  kernel_facts const& facts(std::string_view mangled) const;
  //! @return address nullptr if there is no such variable
  variable find_variable(std::string_view mangled) const;
  program& loaded() { return *program_; }

private:
  std::unique_ptr<program> program_;
};

//! @brief Runs one kernel to its end.
//! @param arguments one pointer per parameter, as cudaLaunchKernel gets them
//! @return findings; a bounds, alignment, divergence or deadlock fault ends the launch early
//! @throws unsupported if there is no such kernel or an instruction of it is not known
result launch(module& code,
              std::string_view kernel,
              extent grid,
              extent block,
              std::size_t dynamic_shared_bytes,
              void* const* arguments,
              options const& how = {});

//! @brief The same with the arguments by value; each must have the exact type of the parameter.
template <class... Arguments>
result launch_with(module& code,
                   std::string_view kernel,
                   extent grid,
                   extent block,
                   std::size_t dynamic_shared_bytes,
                   options const& how,
                   Arguments... arguments) {
  std::array<void*, sizeof...(Arguments) + 1> pointers{&arguments..., nullptr};
  return launch(code, kernel, grid, block, dynamic_shared_bytes, pointers.data(), how);
}

} // namespace ptx
