// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Door to whatever executes device code: the PTX interpreter, or nothing.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shadow.hpp"

namespace standin::detail::kernels {

struct shape {
  unsigned grid[3]{1, 1, 1};
  unsigned block[3]{1, 1, 1};
  std::size_t shared_bytes = 0;
};

struct facts {
  std::vector<std::size_t> parameter_bytes{};
  std::size_t static_shared_bytes = 0;
  std::size_t local_bytes = 0;
  unsigned max_threads = 1024;
  int target = 0; //!< 80: its PTX is for compute capability 8.0
};

struct outcome {
  std::vector<memory_access> touched{};
  std::vector<std::string> problems{};
  std::uint64_t nanoseconds = 0; //!< that passed on %globaltimer
  bool trapped = false;
};

//! @brief Takes the PTX of one fat binary; called before main.
void load(std::string ptx);
//! @brief What is known of a kernel; nothing if no loaded module has it.
std::optional<facts> find(std::string const& mangled);
//! @brief Why some loaded PTX cannot be run; "" if all can.
std::string load_problems();
//! @brief Runs a kernel to its end. The arguments are copies, one per parameter.
//! @param global_time nanoseconds that %globaltimer shows at its start.
outcome run(std::string const& mangled,
            shape const& how,
            std::vector<std::vector<char>> const& arguments,
            std::uint64_t global_time);
//! @brief Address of a device variable, or nullptr.
void* variable(std::string const& mangled);

void add_memory(void const* begin, std::size_t bytes, bool initialised);
void remove_memory(void const* begin);
void mark(void const* begin, std::size_t bytes, bool initialised);

//! @brief cuTensorMapEncodeTiled, or nullptr.
void* tensor_map_encoder();

} // namespace standin::detail::kernels
