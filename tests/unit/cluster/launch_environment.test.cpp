// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/cluster/launch_environment.hpp>
#include <pipe/cluster/store.hpp>

#include <doctest/doctest.h>

#include <chrono>
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
                                     "SLURM_JOB_NODELIST",
                                     "SLURM_STEP_NODELIST",
                                     "SLURM_STEP_NUM_TASKS",
                                     "SLURM_STEP_ID",
                                     "SLURM_RESTART_COUNT",
                                     "SLURM_NTASKS_PER_NODE",
                                     "LOCAL_WORLD_SIZE",
                                     "TORCHELASTIC_RUN_ID",
                                     "TORCHELASTIC_RESTART_COUNT",
                                     "OMPI_COMM_WORLD_LOCAL_SIZE",
                                     "PMIX_NAMESPACE",
                                     "PMI_RANK",
                                     "PMI_SIZE",
                                     "MPI_LOCALRANKID",
                                     "MPI_LOCALNRANKS",
                                     "FLUX_TASK_RANK",
                                     "FLUX_JOB_SIZE",
                                     "FLUX_TASK_LOCAL_ID",
                                     "FLUX_JOB_NNODES",
                                     "FLUX_JOB_ID",
                                     "PALS_RANKID",
                                     "PALS_LOCAL_RANKID",
                                     "PALS_LOCAL_SIZE",
                                     "PALS_APID",
                                     "MV2_COMM_WORLD_RANK",
                                     "MV2_COMM_WORLD_SIZE",
                                     "MV2_COMM_WORLD_LOCAL_RANK",
                                     "MV2_COMM_WORLD_LOCAL_SIZE",
                                     "PMIX_RANK",
                                     "PIPELINING_SECRET",
                                     "PIPELINING_LISTEN"};

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
                 {"SLURM_STEP_NUM_TASKS", "2"},
                 {"SLURM_NODELIST", list},
                 {"SLURM_JOB_ID", "123456"}});
  };
  CHECK(host_of("node7").address == "node7");
  CHECK(host_of("node7,node9").address == "node7");
  CHECK(host_of("node[07-09,11],other").address == "node07");
  CHECK(host_of("node[3,5]").address == "node3");
  CHECK(host_of("login,node[3,5]").address == "login");
  CHECK(host_of("node[1-4]-ib").address == "node1-ib");
  CHECK(host_of("node[1-4]-ib,other").address == "node1-ib");
  CHECK(host_of("node[3,5].local,other[1-2]").address == "node3.local");
  CHECK(host_of("rack[0-1]node[0-3]").address == "rack0node0");
  CHECK(host_of("rack[1,3]node[02-04]-ib,other").address == "rack1node02-ib");
  CHECK(host_of("node[7").address == "node7"); // not Slurm's, and no reason to read beyond its end
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

TEST_CASE("a port that is none is refused by every rank, under every launcher") {
  for (char const* const bad : {"99999", "65536", "0"})
    for (char const* const rank : {"0", "1"})
      CHECK_THROWS_WITH_AS(
        read({{"RANK", rank}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", bad}}),
        (std::string("launch: MASTER_PORT is ") + bad + ", but ports are 1 to 65535").c_str(),
        std::invalid_argument);
  CHECK_THROWS_AS(read({{"MASTER_PORT", "99999"}}), std::invalid_argument);
  // torchrun keeps its own port busy; there is none after the last one.
  auto const last = read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "65535"}});
  CHECK(pp::store_address_of(last).port == 65534);
}

TEST_CASE("Flux is understood, and is not MPICH for its PMI") {
  auto const task = [](char const* machines) {
    return read({{"FLUX_TASK_RANK", "5"},
                 {"FLUX_JOB_SIZE", "8"},
                 {"FLUX_TASK_LOCAL_ID", "1"},
                 {"FLUX_JOB_NNODES", machines},
                 {"FLUX_JOB_ID", "f2Sv8Kq"},
                 {"PMI_RANK", "5"},
                 {"PMI_SIZE", "8"}});
  };
  pp::launch_environment const here = task("3");
  CHECK(std::string(here.launcher) == "Flux");
  CHECK(here.rank == 5);
  CHECK(here.size == 8);
  CHECK(here.local_rank == 1);
  CHECK(here.local_size == 3); // at most
  CHECK(here.job == "Flux job f2Sv8Kq");
  CHECK_THROWS_WITH_AS(
    (void)pp::store_address_of(here),
    "launch: the 8 ranks are on several machines, and Flux does not say which of them is rank 0's; "
    "set MASTER_ADDR for all of them, as in: flux run --env=MASTER_ADDR=node0",
    std::invalid_argument);
  CHECK(task("1").local_size == 8);
  CHECK(pp::store_address_of(task("1")).host == "127.0.0.1");
}

TEST_CASE("PALS and MVAPICH2 are understood") {
  pp::launch_environment const pals = read({{"PALS_RANKID", "5"},
                                            {"PMI_RANK", "5"},
                                            {"PMI_SIZE", "8"},
                                            {"PALS_LOCAL_RANKID", "1"},
                                            {"PALS_LOCAL_SIZE", "4"},
                                            {"PALS_APID", "0a1b"}});
  CHECK(std::string(pals.launcher) == "PALS");
  CHECK(pals.rank == 5);
  CHECK(pals.size == 8);
  CHECK(pals.local_rank == 1);
  CHECK(pals.local_size == 4);
  CHECK(pals.job == "PALS application 0a1b");
  pp::launch_environment const mvapich = read({{"MV2_COMM_WORLD_RANK", "5"},
                                               {"MV2_COMM_WORLD_SIZE", "8"},
                                               {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
                                               {"MV2_COMM_WORLD_LOCAL_SIZE", "4"}});
  CHECK(std::string(mvapich.launcher) == "MVAPICH2");
  CHECK(mvapich.rank == 5);
  CHECK(mvapich.size == 8);
  CHECK(mvapich.local_rank == 1);
  CHECK(mvapich.local_size == 4);
}

TEST_CASE("a process that is one of several is never taken for one alone") {
  CHECK_THROWS_WITH_AS(read({{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "prterun-7@1"}}),
                       "launch: PMIX_RANK is 0, so this is one of several processes, but no "
                       "variable says of how many; set RANK and WORLD_SIZE for each, or use "
                       "another launcher",
                       std::invalid_argument);
  for (char const* const rank : {"RANK",
                                 "OMPI_COMM_WORLD_RANK",
                                 "MV2_COMM_WORLD_RANK",
                                 "FLUX_TASK_RANK",
                                 "PALS_RANKID",
                                 "PMI_RANK"})
    CHECK_THROWS_WITH_AS(read({{rank, "1"}}),
                         doctest::Contains("but no variable says of how many"),
                         std::invalid_argument);
  // Slurm gives its scripts a number, too; its plugin for Cray gives tasks that of PALS.
  CHECK(read({{"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "7"}}).size == 1);
  CHECK(read({{"PALS_RANKID", "1"},
              {"SLURM_PROCID", "1"},
              {"SLURM_NTASKS", "2"},
              {"SLURM_STEP_NUM_TASKS", "2"}})
          .rank == 1);
  CHECK(read({{"PMIX_RANK", "1"},
              {"SLURM_PROCID", "1"},
              {"SLURM_NTASKS", "2"},
              {"SLURM_STEP_NUM_TASKS", "2"}})
          .rank == 1);
}

TEST_CASE("MPICH and Intel MPI are understood, also where srun starts their processes") {
  pp::launch_environment const hydra = read({{"PMI_RANK", "5"},
                                             {"PMI_SIZE", "8"},
                                             {"MPI_LOCALRANKID", "1"},
                                             {"MPI_LOCALNRANKS", "4"},
                                             {"SLURM_PROCID", "1"},
                                             {"SLURM_NTASKS", "2"},
                                             {"SLURM_JOB_ID", "77"},
                                             {"SLURM_JOB_NODELIST", "node[7-8]"},
                                             {"SLURM_STEP_NUM_TASKS", "2"},
                                             {"SLURM_STEP_NODELIST", "node8"}});
  CHECK(std::string(hydra.launcher) == "MPICH");
  CHECK(hydra.rank == 5);
  CHECK(hydra.size == 8);
  CHECK(hydra.local_rank == 1);
  CHECK(hydra.local_size == 4);
  CHECK(hydra.address == "node7");
  CHECK(hydra.job == "Slurm job 77");
}

TEST_CASE("tasks of srun --mpi=pmi2 are Slurm's: each has its own GPU, and the step a port and a "
          "name") {
  pp::launch_environment const task = read({{"PMI_RANK", "5"},
                                            {"PMI_SIZE", "8"},
                                            {"SLURM_PROCID", "5"},
                                            {"SLURM_NTASKS", "8"},
                                            {"SLURM_LOCALID", "1"},
                                            {"SLURM_NTASKS_PER_NODE", "4"},
                                            {"SLURM_JOB_ID", "77"},
                                            {"SLURM_STEP_ID", "3"},
                                            {"SLURM_STEP_NUM_TASKS", "8"},
                                            {"SLURM_STEP_NODELIST", "node[8-9]"},
                                            {"SLURM_JOB_NODELIST", "node[7-9]"}});
  CHECK(std::string(task.launcher) == "Slurm");
  CHECK(task.rank == 5);
  CHECK(task.size == 8);
  CHECK(task.local_rank == 1);
  CHECK(task.local_size == 4);
  CHECK(task.address == "node8");
  CHECK(task.port == 20000 + 77 + 131 * 3);
  CHECK(task.job == "Slurm job 77, step 3");
  // Hydra of a release that says no number on the machine, in the batch script and after srun.
  pp::launch_environment const script = read({{"PMI_RANK", "0"},
                                              {"PMI_SIZE", "8"},
                                              {"SLURM_PROCID", "0"},
                                              {"SLURM_NTASKS", "8"},
                                              {"SLURM_LOCALID", "0"},
                                              {"SLURM_JOB_ID", "77"}});
  CHECK(std::string(script.launcher) == "MPICH");
  pp::launch_environment const proxy = read({{"PMI_RANK", "5"},
                                             {"PMI_SIZE", "8"},
                                             {"SLURM_PROCID", "1"},
                                             {"SLURM_NTASKS", "2"},
                                             {"SLURM_LOCALID", "0"},
                                             {"SLURM_STEP_NUM_TASKS", "2"}});
  CHECK(std::string(proxy.launcher) == "MPICH");
  CHECK(proxy.rank == 5);
  CHECK(proxy.size == 8);
}

TEST_CASE("a batch script that forgot srun is told so at once") {
  CHECK_THROWS_WITH_AS(
    read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "7"}}),
    "launch: this is the script of a Slurm job of 8 tasks, and not one of its tasks; start the "
    "program with srun",
    std::invalid_argument);
  // sbatch hands on the environment of a step that it is called from.
  CHECK_THROWS_AS(read({{"SLURM_PROCID", "0"},
                        {"SLURM_NTASKS", "8"},
                        {"SLURM_STEP_NUM_TASKS", "8"},
                        {"SLURM_STEP_ID", "4294967291"}}),
                  std::invalid_argument);
  CHECK(read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_JOB_ID", "7"}}).size == 1);
  // mpirun in a batch script starts its processes itself.
  CHECK(read({{"SLURM_PROCID", "0"},
              {"SLURM_NTASKS", "8"},
              {"OMPI_COMM_WORLD_RANK", "3"},
              {"OMPI_COMM_WORLD_SIZE", "8"}})
          .rank == 3);
}

TEST_CASE("runs, steps and restarts have names of their own") {
  auto const step = [](char const* number, char const* restart) {
    return read({{"SLURM_PROCID", "1"},
                 {"SLURM_NTASKS", "2"},
                 {"SLURM_STEP_NUM_TASKS", "2"},
                 {"SLURM_JOB_ID", "123456"},
                 {"SLURM_STEP_ID", number},
                 {"SLURM_RESTART_COUNT", restart}});
  };
  CHECK(step("0", "").job == "Slurm job 123456, step 0");
  CHECK(step("0", "").port == 23456);
  CHECK(step("1", "2").job == "Slurm job 123456, step 1, restart 2");
  CHECK(step("1", "2").port != step("0", "2").port);
  CHECK(step("1", "2").restarts == 2);
  CHECK(read({{"RANK", "0"},
              {"WORLD_SIZE", "2"},
              {"TORCHELASTIC_RUN_ID", "abc"},
              {"TORCHELASTIC_RESTART_COUNT", "3"}})
          .job == "run abc, restart 3");
  CHECK(read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TORCHELASTIC_RESTART_COUNT", "3"}}).restarts ==
        3);
  CHECK(read({{"RANK", "0"}, {"WORLD_SIZE", "2"}}).restarts == 0);
  // A job that was put into the queue again, whoever starts its processes.
  auto const again = read(
    {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"SLURM_JOB_ID", "77"}, {"SLURM_RESTART_COUNT", "1"}});
  CHECK(again.job == "Slurm job 77, restart 1");
  CHECK(again.restarts == 1);
  auto const both = read({{"RANK", "0"},
                          {"WORLD_SIZE", "2"},
                          {"TORCHELASTIC_RUN_ID", "abc"},
                          {"TORCHELASTIC_RESTART_COUNT", "3"},
                          {"SLURM_JOB_ID", "77"},
                          {"SLURM_RESTART_COUNT", "1"}});
  CHECK(both.job == "run abc, restart 3, Slurm job 77, restart 1");
  CHECK(both.restarts == 4);
  CHECK(
    read({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"PMIX_NAMESPACE", "6"}})
      .job == "job 6");
}

TEST_CASE("where ranks meet follows from the launcher, or a sentence says what is missing") {
  pp::store_address const alone = pp::store_address_of(read({}), 29511);
  CHECK(alone.host == "127.0.0.1");
  CHECK(alone.port == 29511);
  CHECK(alone.ranks == 1);
  CHECK(alone.secret.empty());
  pp::store_address const torchrun = pp::store_address_of(read({{"RANK", "5"},
                                                                {"WORLD_SIZE", "8"},
                                                                {"LOCAL_WORLD_SIZE", "4"},
                                                                {"MASTER_ADDR", "node0"},
                                                                {"MASTER_PORT", "29500"},
                                                                {"PIPELINING_SECRET", "s"},
                                                                {"PIPELINING_LISTEN", "::1"}}));
  CHECK(torchrun.host == "node0");
  CHECK(torchrun.port == 29501);
  CHECK(torchrun.secret == "s");
  CHECK(torchrun.listen == "::1");
  CHECK(torchrun.ranks == 8);
  pp::launch_environment near = read({{"OMPI_COMM_WORLD_RANK", "2"},
                                      {"OMPI_COMM_WORLD_SIZE", "4"},
                                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                      {"PMIX_NAMESPACE", "6"}});
  CHECK(pp::store_address_of(near).host == "127.0.0.1");
  CHECK(pp::store_address_of(near).job == "job 6");
  near.local_size = 2;
  CHECK_THROWS_WITH_AS(
    (void)pp::store_address_of(near),
    "launch: the 4 ranks are on several machines, and Open MPI does not say which of them is rank "
    "0's; set MASTER_ADDR for all of them, as in: mpirun -x MASTER_ADDR=node0",
    std::invalid_argument);
  near.address = "node0";
  CHECK(pp::store_address_of(near).host == "node0");
}

TEST_CASE("a process of an earlier start is turned away by the next one") {
  auto const address_of = [](char const* rank, char const* restart) {
    return pp::store_address_of(read({{"RANK", rank},
                                      {"WORLD_SIZE", "2"},
                                      {"TORCHELASTIC_RUN_ID", "abc"},
                                      {"TORCHELASTIC_RESTART_COUNT", restart}}));
  };
  pp::store_address here = address_of("0", "1");
  here.port = 0;
  pp::store_server server(here);
  pp::store_address left_behind = address_of("1", "0");
  left_behind.port = server.port();
  CHECK_THROWS_WITH_AS(pp::store(left_behind, 1, std::chrono::seconds(20)),
                       doctest::Contains("rank 1 was turned away"),
                       std::runtime_error);
  pp::store_address now = address_of("1", "1");
  now.port = server.port();
  pp::store line(now, 1, std::chrono::seconds(20));
  CHECK(line.answers(std::chrono::seconds(20)));
}
