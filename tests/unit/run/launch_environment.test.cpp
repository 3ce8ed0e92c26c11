// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/run/launch_environment.hpp>

#include <doctest/doctest.h>

#include <cstdlib>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>

namespace pp = pipelining;

namespace {

constexpr char const* variables[] = {"RANK",
                                     "WORLD_SIZE",
                                     "LOCAL_RANK",
                                     "MASTER_ADDR",
                                     "MASTER_PORT",
                                     "OMPI_COMM_WORLD_RANK",
                                     "OMPI_COMM_WORLD_SIZE",
                                     "OMPI_COMM_WORLD_LOCAL_RANK",
                                     "SLURM_PROCID",
                                     "SLURM_NTASKS",
                                     "SLURM_LOCALID",
                                     "SLURM_JOB_ID",
                                     "SLURM_NODELIST",
                                     "SLURM_STEP_NODELIST"};

pp::launch_environment read(std::initializer_list<std::pair<char const*, char const*>> set) {
  for (char const* name : variables)
    ::unsetenv(name);
  for (auto const& [name, value] : set)
    ::setenv(name, value, 1);
  return pp::read_launch_environment();
}

} // namespace

TEST_CASE("each launcher is understood") {
  pp::launch_environment const alone = read({});
  CHECK(alone.rank == 0);
  CHECK(alone.size == 1);
  pp::launch_environment const torchrun = read({{"RANK", "5"},
                                                {"WORLD_SIZE", "8"},
                                                {"LOCAL_RANK", "1"},
                                                {"MASTER_ADDR", "10.0.0.1"},
                                                {"MASTER_PORT", "29500"}});
  CHECK(std::string(torchrun.launcher) == "torchrun");
  CHECK(torchrun.rank == 5);
  CHECK(torchrun.local_rank == 1);
  CHECK(torchrun.address == "10.0.0.1");
  CHECK(torchrun.port == 29500);
  pp::launch_environment const mpi =
    read({{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}});
  CHECK(std::string(mpi.launcher) == "Open MPI");
  CHECK(mpi.rank == 2);
  CHECK(mpi.address.empty());
}

TEST_CASE("Slurm gives no address: the first host of its list, and a port of the job") {
  auto const host_of = [](char const* list) {
    return read({{"SLURM_PROCID", "1"},
                 {"SLURM_NTASKS", "2"},
                 {"SLURM_NODELIST", list},
                 {"SLURM_JOB_ID", "123456"}});
  };
  CHECK(host_of("node7").address == "node7");
  CHECK(host_of("node7,node9").address == "node7");
  CHECK(host_of("node[07-09,11],other").address == "node07");
  CHECK(host_of("node[3,5]").address == "node3");
  CHECK(host_of("login,node[3,5]").address == "login");
  CHECK(host_of("node7").port == 23456);
}

TEST_CASE("a variable that makes no sense is named") {
  CHECK_THROWS_WITH_AS(read({{"RANK", "x"}, {"WORLD_SIZE", "2"}}),
                       "launch: the environment variable RANK must be a number, but is 'x'",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(read({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
                       "launch: RANK is 2, but must be below WORLD_SIZE, which is 2",
                       std::invalid_argument);
}
