// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Ranks that liveness_test.py stops, or that hang. Usage: mpi_liveness MILLISECONDS [RANK CALL], a
// deadline and the call of that rank that never returns; or mpi_liveness MILLISECONDS PLANS RANK
// MEMBER, the name of plans that call every member, and the member of that rank that never returns;
// "none" to be told which members it calls. Says "begun", its rank and its process; "hangs" and
// when, on the clock of the machine; "ended".
#include <pipe/mpi/mpi.hpp>
#include <pipe/mpi/store.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/lower/hooks.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <set>
#include <string>
#include <string_view>
#include <tests/support/every_call.hpp>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace pp = pipelining;

namespace {

constexpr auto pass_time = std::chrono::milliseconds(25);

struct slow_stage {
  int* calls = nullptr;
  int hangs_at = -1;

  void pass() const {
    std::this_thread::sleep_for(pass_time);
    if ((*calls)++ == hangs_at)
      support::hang();
  }
  void forward(pp::context const&, pp::input, pp::output) { pass(); }
  void backward(pp::context const&, pp::input, pp::output) { pass(); }
  void contribute(pp::context const&, pp::output) {}
  void optimizer_step(pp::context const&, pp::totals) { pass(); }
};

//! Notes which members a rank calls, and never returns from one.
struct member_trap {
  std::string_view member{};
  std::set<std::string_view> seen{};

  void visit(pp::context const& at, std::string_view name) {
    seen.insert(name);
    if (name == member)
      support::hang_in(at.stage);
  }
  static void fill(pp::context const&, pp::output out) {
    std::fill_n(out.as<std::uint8_t>().data(), out.bytes, std::uint8_t{1});
  }
};

int run_members(std::chrono::milliseconds deadline,
                int rank,
                std::string_view plans,
                std::string_view member) {
  pp::mpi_store meeting(MPI_COMM_WORLD, std::chrono::seconds(20));
  try {
    member_trap all{.member = member};
    support::calling_plans work = support::plans_that_call(plans);
    std::vector<support::observed_stage<member_trap>> model(
      static_cast<std::size_t>(work.first.over.extents.stages()), {&all});
    pp::mpi_runner runner(
      pp::plan(work.first), model, meeting.line(), MPI_COMM_WORLD, {.deadline = deadline});
    support::make_two_steps(runner, std::move(work));
    for (std::string_view const each : all.seen)
      std::printf("calls %d %s\n", rank, std::string(each).c_str());
    return 0;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return 1;
  }
}

int run(int rank, int ranks, std::chrono::milliseconds deadline, int hangs_at) {
  pp::mpi_store meeting(MPI_COMM_WORLD, std::chrono::seconds(20));
  try {
    int calls = 0;
    std::vector<slow_stage> model(static_cast<std::size_t>(ranks), slow_stage{&calls, hangs_at});
    pp::uniform_sizes const sizes{.message = 8, .totals_bytes = 8};
    pp::mpi_runner runner(pp::lower(pp::make_timetable<pp::OneFOneB>({ranks, 4}), sizes),
                          model,
                          meeting.line(),
                          MPI_COMM_WORLD,
                          {.deadline = deadline});
    std::printf("begun %d %d\n", rank, static_cast<int>(::getpid()));
    std::fflush(stdout);
    for (int step = 0; step < 3; ++step)
      runner.step();
    return 0;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return 1;
  }
}

} // namespace

int main(int count, char** words) {
  MPI_Init(&count, &words);
  int rank = 0;
  int ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  std::chrono::milliseconds const deadline(std::atoi(words[1]));
  bool const of_members = count > 4;
  bool const hangs = count > 3 && std::atoi(words[of_members ? 3 : 2]) == rank;
  int const status = of_members ? run_members(deadline, rank, words[2], hangs ? words[4] : "")
                                : run(rank, ranks, deadline, hangs ? std::atoi(words[3]) : -1);
  if (status != 0) {
    // mpirun ends the others at once, and returns the status of the first.
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    std::_Exit(status);
  }
  std::puts("ended");
  MPI_Finalize();
  return status;
}
