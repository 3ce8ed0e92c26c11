// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Which rank this process is, as its launcher says. Header for
//! pipelining::launch_environment.

#include <charconv>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace pipelining::inline v0_1 {

//! @brief The place of this process among those of one run.
struct launch_environment {
  int rank = 0;
  int size = 1;
  int local_rank = 0;    //!< the number of this process on its machine: its GPU
  std::string address{}; //!< the host of rank 0, empty where the launcher does not say
  int port = 0;          //!< a free port of that host, 0 where the launcher does not say
  char const* launcher = "none";
};

namespace detail {

//! The value of an environment variable as a number that is not negative.
[[nodiscard]] inline std::optional<int> environment_number(char const* name) {
  char const* const text = std::getenv(name);
  if (text == nullptr || *text == '\0')
    return std::nullopt;
  std::string_view const view(text);
  int value = 0;
  auto const [end, code] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (code != std::errc{} || end != view.data() + view.size() || value < 0)
    throw std::invalid_argument(std::string("launch: the environment variable ") + name +
                                " must be a number, but is '" + text + "'");
  return value;
}

[[nodiscard]] inline std::string environment_text(char const* name) {
  char const* const text = std::getenv(name);
  return text == nullptr ? std::string() : std::string(text);
}

//! The first host of a Slurm node list: "node[07-09,11],other" gives "node07".
[[nodiscard]] inline std::string first_host(std::string_view list) {
  std::size_t const bracket = list.find('[');
  std::size_t const comma = list.find(',');
  if (bracket == std::string_view::npos || comma < bracket)
    return std::string(list.substr(0, comma));
  std::string_view const numbers = list.substr(bracket + 1);
  return std::string(list.substr(0, bracket)) +
         std::string(numbers.substr(0, numbers.find_first_of("-,]")));
}

} // namespace detail

//! @brief Reads what torchrun, Slurm or Open MPI put into the environment; without any of them, one
//! process alone.
//!
//! `MASTER_ADDR` and `MASTER_PORT` are used under every launcher. Under Slurm the host defaults to
//! the first of the node list and the port to one that follows from the job's number, the same on
//! all ranks.
//!
//! @throws std::invalid_argument naming the variable that makes no sense.
//! @source docs of torchrun (torch.distributed.run), srun(1) "OUTPUT ENVIRONMENT VARIABLES", and
//! mpirun(1) of Open MPI 4.
[[nodiscard]] inline launch_environment read_launch_environment() {
  struct names {
    char const* launcher;
    char const* rank;
    char const* size;
    char const* local_rank;
  };
  constexpr names known[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
  };
  launch_environment found;
  for (names const& variables : known) {
    auto const rank = detail::environment_number(variables.rank);
    auto const size = detail::environment_number(variables.size);
    if (!rank || !size)
      continue;
    if (*rank >= *size)
      throw std::invalid_argument(std::string("launch: ") + variables.rank + " is " +
                                  std::to_string(*rank) + ", but must be below " + variables.size +
                                  ", which is " + std::to_string(*size));
    found.launcher = variables.launcher;
    found.rank = *rank;
    found.size = *size;
    found.local_rank = detail::environment_number(variables.local_rank).value_or(0);
    break;
  }
  found.address = detail::environment_text("MASTER_ADDR");
  found.port = detail::environment_number("MASTER_PORT").value_or(0);
  if (std::string_view(found.launcher) != "Slurm")
    return found;
  if (found.address.empty()) {
    std::string const step_nodes = detail::environment_text("SLURM_STEP_NODELIST");
    found.address = detail::first_host(
      step_nodes.empty() ? detail::environment_text("SLURM_NODELIST") : step_nodes);
  }
  // Ports from 20000 on are below the range that Linux hands out to outgoing connections.
  if (found.port == 0)
    found.port = 20000 + detail::environment_number("SLURM_JOB_ID").value_or(0) % 10000;
  return found;
}

} // namespace pipelining::inline v0_1
