// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// NCCL between two processes that share one GPU. NCCL takes processes with different NCCL_HOSTID
// for two machines and goes through the network, here the loopback; whether it does is not
// documented, so a refusal is no failure.
#include <pipe/cluster/store.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/v_shape.hpp>

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <spawn.h>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <tests/cuda/schedules.hpp>
#include <tests/gpu/machine.hpp>
#include <tests/gpu/ranks.hpp>
#include <thread>
#include <unistd.h>
#include <vector>

extern char** environ;

namespace {

constexpr int steps = 3;

std::vector<named_plan> plans_of_two() {
  std::vector<named_plan> plans;
  add_plans<pipelining::OneFOneB>(plans, "1F1B", 2, 4);
  add_plans<pipelining::VHalf>(plans, "V-Half", 2, 3);
  plans.erase(plans.begin() + 3); // one communicator once
  return plans;
}

std::string variable(char const* name) {
  char const* const value = std::getenv(name);
  REQUIRE_MESSAGE(
    value != nullptr, name, " is not set: this case is for processes that the others start");
  return value;
}

//! The processes of a run, and the files in which they say what they found.
class processes {
public:
  explicit processes(std::string const& task) {
    char path[] = "/tmp/pipelining-ranks-XXXXXX";
    REQUIRE(mkdtemp(path) != nullptr);
    folder_ = path;
    for (int rank = 0; rank < 2; ++rank)
      start(rank, task);
  }
  processes(processes const&) = delete;
  processes& operator=(processes const&) = delete;
  ~processes() {
    for (pid_t const each : running_)
      if (each > 0) {
        (void)kill(each, SIGKILL);
        (void)waitpid(each, nullptr, 0);
      }
    std::filesystem::remove_all(folder_);
  }

  //! Waits for one process; false when it is killed for taking too long.
  bool wait_for(int rank) {
    pid_t& child = running_.at(static_cast<std::size_t>(rank));
    for (int tenths = 0; tenths < 800; ++tenths) {
      int status = 0;
      if (waitpid(child, &status, WNOHANG) == child) {
        child = 0;
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return false;
  }
  std::vector<std::string> lines_of(int rank) const {
    std::ifstream file(folder_ + "/" + std::to_string(rank));
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);)
      lines.push_back(line);
    return lines;
  }

private:
  void start(int rank, std::string const& task) {
    std::string const number = std::to_string(rank);
    std::vector<std::string> settings{"PIPELINING_RANK=" + number,
                                      "PIPELINING_PORT=" + std::to_string(server_.port()),
                                      "PIPELINING_TASK=" + task,
                                      "PIPELINING_FILE=" + folder_ + "/" + number,
                                      "NCCL_HOSTID=pipelining-" + number,
                                      "NCCL_SOCKET_IFNAME=lo",
                                      "NCCL_IB_DISABLE=1",
                                      "NCCL_DEBUG=WARN"};
    std::vector<char*> environment;
    for (std::string& each : settings)
      environment.push_back(each.data());
    for (char** each = environ; *each != nullptr; ++each)
      environment.push_back(*each);
    environment.push_back(nullptr);
    std::array<std::string, 3> words{
      "/proc/self/exe", "--no-skip", "--test-case=one process of a run"};
    std::array<char*, 4> arguments{words[0].data(), words[1].data(), words[2].data(), nullptr};
    pid_t child = 0;
    std::string const self = std::filesystem::read_symlink("/proc/self/exe").string();
    REQUIRE(posix_spawn(
              &child, self.c_str(), nullptr, nullptr, arguments.data(), environment.data()) == 0);
    running_.push_back(child);
  }

  pipelining::store_server server_{{}};
  std::string folder_;
  std::vector<pid_t> running_;
};

} // namespace

TEST_CASE("one process of a run" * doctest::skip()) {
  int const rank = std::stoi(variable("PIPELINING_RANK"));
  bool const dies = variable("PIPELINING_TASK") == "death" && rank == 1;
  std::ofstream file(variable("PIPELINING_FILE"));
  auto plans = plans_of_two();
  if (variable("PIPELINING_TASK") == "death")
    plans.resize(1);
  for (std::size_t i = 0; i < plans.size(); ++i)
    for (bool const graph : {false, true}) {
      auto const result = run_rank({.work = plans[i].work,
                                    .rank = rank,
                                    .where = {.port = std::stoi(variable("PIPELINING_PORT"))},
                                    .name = "run" + std::to_string(2 * i + (graph ? 1 : 0)),
                                    .graph = graph,
                                    .steps = steps,
                                    .dies_at = dies ? 1 : -1});
      for (std::uint64_t const gradient : result.gradients)
        file << gradient << ' ';
      file << result.losses << ' ' << (result.connected ? "connected" : "alone") << ' ';
      for (char const each : result.failure)
        file << (each == '\n' ? ' ' : each);
      file << std::endl;
      if (!result.failure.empty())
        return; // after a failure the process is to end
    }
}

TEST_CASE("one rank alone runs a plan of one device") {
  std::vector<named_plan> plans;
  add_plans<pipelining::OneFOneB>(plans, "1F1B", 1, 3);
  for (bool const graph : {false, true}) {
    machine::begin();
    pipelining::store_server const server{{}};
    auto const result = run_rank(
      {.work = plans[0].work, .where = {.port = server.port()}, .graph = graph, .steps = steps});
    CHECK(result.failure == "");
    CHECK(result.gradients[0] == steps * plans[0].expected.gradients[0]);
    CHECK(result.losses == steps * plans[0].expected.losses);
    CHECK(machine::findings() == "");
  }
}

TEST_CASE("two processes on one GPU compute what one device computes") {
  if (machine::on_model())
    return; // which is one process
  processes both("sums");
  CHECK(both.wait_for(0));
  CHECK(both.wait_for(1));
  auto const plans = plans_of_two();
  std::array const said{both.lines_of(0), both.lines_of(1)};
  for (std::size_t i = 0; i < 2 * plans.size(); ++i) {
    named_plan const& plan = plans[i / 2];
    CAPTURE(plan.name);
    CAPTURE(i % 2); // 1: as a graph
    std::vector<std::uint64_t> sums(plan.expected.gradients.size() + 1);
    for (std::vector<std::string> const& lines : said) {
      REQUIRE(i < lines.size());
      std::istringstream line(lines[i]);
      for (std::uint64_t& sum : sums) {
        std::uint64_t part = 0;
        line >> part;
        sum += part;
      }
      std::string connected;
      std::string failure;
      line >> connected >> std::ws;
      std::getline(line, failure);
      if (i == 0 && connected == "alone") {
        machine::skip("NCCL does not join two processes on one GPU here: " + failure);
        return;
      }
      REQUIRE(failure == "");
    }
    for (std::size_t s = 0; s < plan.expected.gradients.size(); ++s)
      CHECK(sums[s] == steps * plan.expected.gradients[s]);
    CHECK(sums.back() == steps * plan.expected.losses);
  }
}

TEST_CASE("a process that is killed ends the other one, which names it") {
  if (machine::on_model())
    return;
  processes both("death");
  CHECK(both.wait_for(1));
  CHECK(both.wait_for(0));
  auto const lines = both.lines_of(0);
  REQUIRE(lines.size() == 1);
  CAPTURE(lines[0]);
  if (lines[0].find(" alone ") != std::string::npos) {
    machine::skip("NCCL does not join two processes on one GPU here: " + lines[0]);
    return;
  }
  CHECK(lines[0].find("the process of rank 1 has ended") != std::string::npos);
}
