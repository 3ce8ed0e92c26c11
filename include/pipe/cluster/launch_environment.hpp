// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The rank of this process, as its launcher says, and the address of the store of its run.
//! Header for pipelining::launch_environment and pipelining::store_address_of.

#include <pipe/cluster/store_protocol.hpp>
#include <pipe/flow/quote.hpp>

#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace pipelining::inline v0_3 {

//! @brief The place of this process in its run.
struct launch_environment {
  int rank = 0;                  //!< the number of this process
  int size = 1;                  //!< how many there are
  int local_rank = 0;            //!< the number of this process on its machine: its GPU
  int local_size = 0;            //!< of the processes on its machine, 0 where nobody says
  std::string address{};         //!< the host of rank 0, empty where the launcher does not say
  int port = 0;                  //!< a free port of that host, 0 where the launcher does not say
  std::string job{};             //!< tells runs and restarts apart; empty where nobody says
  int restarts = 0;              //!< how often the launcher has started this run again
  char const* launcher = "none"; //!< whose variables these were, for messages
};

namespace detail {

//! The value of an environment variable as a number that is not negative.
[[nodiscard]] inline std::optional<int> environment_number(char const* name) {
  char const* const text = std::getenv(name);
  if (text == nullptr || *text == '\0')
    return std::nullopt;
  std::optional<int> const value = read_number(text);
  if (!value)
    throw std::invalid_argument(std::string("launch: the environment variable ") + name +
                                " must be a number, but is " + quote(text));
  return value;
}

//! MASTER_PORT, or 0 where nobody has set it.
//! @throws std::invalid_argument where it is no port.
[[nodiscard]] inline int environment_port() {
  auto const port = environment_number("MASTER_PORT");
  if (port && (*port < 1 || *port > 65535))
    throw std::invalid_argument("launch: MASTER_PORT is " + std::to_string(*port) +
                                ", but ports are 1 to 65535");
  return port.value_or(0);
}

[[nodiscard]] inline std::string environment_text(char const* name) {
  char const* const text = std::getenv(name);
  return text == nullptr ? std::string() : std::string(text);
}

//! The first host of a Slurm node list: "node[07-09,11]-ib,other" gives "node07-ib", and
//! "rack[0-1]node[0-3]" gives "rack0node0".
[[nodiscard]] inline std::string first_host(std::string_view list) {
  auto const take_until = [&](char const* ends) {
    std::string_view const part = list.substr(0, list.find_first_of(ends));
    list.remove_prefix(part.size());
    return part;
  };
  std::string host(take_until("[,"));
  while (!list.empty() && list.front() == '[') {
    list.remove_prefix(1);
    host += take_until("-,]");
    (void)take_until("]");
    list.remove_prefix(list.empty() ? 0 : 1);
    host += take_until("[,");
  }
  return host;
}

//! Words that tell the runs of a launcher apart, the same on all ranks.
[[nodiscard]] inline std::string name_of_job(std::string_view launcher) {
  std::string name;
  auto const add = [&](char const* word, char const* variable) {
    if (std::string const text = environment_text(variable); !text.empty())
      name += (name.empty() ? "" : ", ") + std::string(word) + ' ' + text;
  };
  if (launcher == "torchrun") {
    add("run", "TORCHELASTIC_RUN_ID");
    add("restart", "TORCHELASTIC_RESTART_COUNT");
  } else if (launcher == "Open MPI") {
    add("job", "PMIX_NAMESPACE");
  } else if (launcher == "Flux") {
    add("Flux job", "FLUX_JOB_ID");
  } else if (launcher == "PALS") {
    add("PALS application", "PALS_APID");
  }
  add("Slurm job", "SLURM_JOB_ID");
  if (launcher == "Slurm")
    add("step", "SLURM_STEP_ID");
  // Of a job that was put into the queue again, whoever starts its processes then.
  add("restart", "SLURM_RESTART_COUNT");
  return name;
}

//! How often torchrun has started its processes again, and Slurm the job around them.
[[nodiscard]] inline int count_restarts(std::string_view launcher) {
  int const job = environment_number("SLURM_RESTART_COUNT").value_or(0);
  return launcher == "torchrun" ? job + environment_number("TORCHELASTIC_RESTART_COUNT").value_or(0)
                                : job;
}

//! Of a Slurm job, the script runs as one process with the number 0, whatever the number of tasks.
[[nodiscard]] inline bool is_batch_script() {
  return environment_text("SLURM_STEP_NUM_TASKS").empty() ||
         environment_text("SLURM_STEP_ID") == "4294967291";
}

//! `srun --mpi=pmi2` gives its tasks the PMI_RANK and PMI_SIZE of MPICH, but not their number on
//! the machine, which Hydra gives. Where Hydra was started by srun, SLURM_PROCID is the number of
//! its proxy.
[[nodiscard]] inline bool is_task_of_srun() {
  return environment_text("MPI_LOCALRANKID").empty() &&
         !environment_text("SLURM_LOCALID").empty() &&
         environment_text("PMI_RANK") == environment_text("SLURM_PROCID") && !is_batch_script();
}

//! The variables in which a launcher tells a process who it is.
struct launcher_variables {
  char const* launcher;
  char const* rank;
  char const* size;
  char const* local_rank;
  char const* local_size;
};
//! Launchers in the order of the search. MPICH comes after launchers that set its variables, too;
//! srun comes last, because other launchers start their processes through it.
inline constexpr launcher_variables known_launchers[] = {
  {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
  {"Open MPI",
   "OMPI_COMM_WORLD_RANK",
   "OMPI_COMM_WORLD_SIZE",
   "OMPI_COMM_WORLD_LOCAL_RANK",
   "OMPI_COMM_WORLD_LOCAL_SIZE"},
  {"MVAPICH2",
   "MV2_COMM_WORLD_RANK",
   "MV2_COMM_WORLD_SIZE",
   "MV2_COMM_WORLD_LOCAL_RANK",
   "MV2_COMM_WORLD_LOCAL_SIZE"},
  {"Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", nullptr},
  {"PALS", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"},
  {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
  {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
};

//! The processes on a machine, 0 where nobody says.
[[nodiscard]] inline int size_of_machine(launcher_variables const& of, int size) {
  if (of.local_size != nullptr)
    return environment_number(of.local_size).value_or(0);
  int const machines = environment_number("FLUX_JOB_NNODES").value_or(0); // Flux says these
  return machines > 0 ? (size - 1) / machines + 1 : 0;
}

//! Refuses a process that a launcher has given a number and no more: to be one alone, each of them,
//! is not what was asked for. Slurm numbers its scripts, too.
inline void refuse_half_a_launcher(bool knows_pmix) {
  constexpr launcher_variables pmix{"PMIx", "PMIX_RANK", nullptr, nullptr, nullptr};
  auto const refuse = [](launcher_variables const& variables) {
    if (std::string_view(variables.launcher) == "Slurm")
      return;
    if (auto const rank = environment_number(variables.rank))
      throw std::invalid_argument(std::string("launch: ") + variables.rank + " is " +
                                  std::to_string(*rank) +
                                  ", so this is one of several processes, but no variable says of "
                                  "how many; set RANK and WORLD_SIZE for each, or use another "
                                  "launcher");
  };
  for (launcher_variables const& variables : known_launchers)
    refuse(variables);
  if (!knows_pmix)
    refuse(pmix);
}

} // namespace detail

//! @brief Reads the environment for variables of torchrun, Open MPI, MVAPICH2, Flux, PALS, MPICH,
//! Intel MPI or Slurm. Without any of them there is only this process.
//!
//! `MASTER_ADDR` and `MASTER_PORT` are used under every launcher. In a Slurm job the host defaults
//! to the first of the node list, and under srun the port to one that follows from the numbers of
//! job and step, the same on all ranks.
//!
//! @param knows_pmix PMIx was asked already, by MPI for one, so its number says nothing new
//! @throws std::invalid_argument naming the variable that makes no sense; also where a launcher,
//! such as one of bare PMIx, says a number and not of how many; and in the batch script of a Slurm
//! job of several tasks, of which nobody would start the others.
//! @source docs of torchrun (torch.distributed.run), srun(1) "OUTPUT ENVIRONMENT VARIABLES",
//! mpirun(1) of Open MPI 4, the variables of MPICH's and Intel MPI's Hydra (PMI_RANK, PMI_SIZE,
//! MPI_LOCALRANKID, MPI_LOCALNRANKS), Slurm's src/plugins/mpi/pmi2/mpi_pmi2.c, which sets the first
//! two of these, flux-core's src/shell/task.c, flux-shell-cray-pals(1), and the user guide of
//! MVAPICH2.
[[nodiscard]] inline launch_environment read_launch_environment(bool knows_pmix = false) {
  launch_environment found;
  for (detail::launcher_variables const& variables : detail::known_launchers) {
    auto const rank = detail::environment_number(variables.rank);
    auto const size = detail::environment_number(variables.size);
    if (!rank || !size)
      continue;
    if (std::string_view(variables.launcher) == "MPICH" && detail::is_task_of_srun())
      continue;
    if (*rank >= *size)
      throw std::invalid_argument(std::string("launch: ") + variables.rank + " is " +
                                  std::to_string(*rank) + ", but must be below " + variables.size +
                                  ", which is " + std::to_string(*size));
    found.launcher = variables.launcher;
    found.rank = *rank;
    found.size = *size;
    found.local_rank = detail::environment_number(variables.local_rank).value_or(0);
    found.local_size = detail::size_of_machine(variables, found.size);
    break;
  }
  std::string_view const launcher = found.launcher;
  if (launcher == "none")
    detail::refuse_half_a_launcher(knows_pmix);
  bool const slurm = launcher == "Slurm";
  if (slurm && found.size > 1 && detail::is_batch_script())
    throw std::invalid_argument("launch: this is the script of a Slurm job of " +
                                std::to_string(found.size) +
                                " tasks, and not one of its tasks; start the program with srun");
  found.address = detail::environment_text("MASTER_ADDR");
  found.port = detail::environment_port();
  found.job = detail::name_of_job(launcher);
  found.restarts = detail::count_restarts(launcher);
  if (found.address.empty() && launcher != "none")
    for (char const* list : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"})
      if (found.address.empty() && (slurm || std::string_view(list) != "SLURM_STEP_NODELIST"))
        found.address = detail::first_host(detail::environment_text(list));
  // Ports from 20000 on are below the range that Linux hands out to outgoing connections.
  if (slurm && found.port == 0) {
    auto const job = static_cast<unsigned>(detail::environment_number("SLURM_JOB_ID").value_or(0));
    auto const step =
      static_cast<unsigned>(detail::environment_number("SLURM_STEP_ID").value_or(0));
    found.port = 20000 + static_cast<int>((job + 131 * step) % 10000);
  }
  return found;
}

//! @brief The address where ranks that a launcher has started meet, if they have no MPI.
//!
//! The job's name is the launcher's, so that two runs on one port refuse each other where the
//! launcher tells them apart; `PIPELINING_SECRET` in the environment of all ranks keeps strangers
//! out, `PIPELINING_LISTEN` says on which address of its machine rank 0 listens.
//!
//! @param default_port where the launcher names none.
//! @throws std::invalid_argument where the ranks are on several machines, and neither the launcher
//! nor MASTER_ADDR says which of them is rank 0's: to wait would be in vain.
[[nodiscard]] inline store_address store_address_of(launch_environment const& here,
                                                    int default_port = 29511) {
  std::string_view const launcher = here.launcher;
  bool const says_where = !here.address.empty();
  if (!says_where && here.local_size > 0 && here.local_size < here.size)
    throw std::invalid_argument(
      "launch: the " + std::to_string(here.size) + " ranks are on several machines, and " +
      here.launcher +
      " does not say which of them is rank 0's; set MASTER_ADDR for all of them, as in: " +
      (launcher == "MPICH"      ? "mpirun -genv MASTER_ADDR node0"
       : launcher == "MVAPICH2" ? "mpirun_rsh MASTER_ADDR=node0"
       : launcher == "Flux"     ? "flux run --env=MASTER_ADDR=node0"
       : launcher == "PALS"     ? "mpiexec --env MASTER_ADDR=node0"
                                : "mpirun -x MASTER_ADDR=node0"));
  store_address address;
  if (says_where)
    address.host = here.address;
  address.port = here.port == 0 ? default_port : here.port;
  if (launcher == "torchrun" && here.port != 0)
    address.port += address.port < 65535 ? 1 : -1; // torchrun itself serves on its port
  if (!here.job.empty())
    address.job = here.job;
  address.secret = detail::environment_text("PIPELINING_SECRET");
  address.listen = detail::environment_text("PIPELINING_LISTEN");
  address.ranks = here.size;
  return address;
}

} // namespace pipelining::inline v0_3
