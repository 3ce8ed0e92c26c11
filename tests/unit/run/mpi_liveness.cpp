// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Ranks that liveness_test.py stops, or that hang. Usage: mpi_liveness MILLISECONDS [RANK CALL], a
// deadline and the call of that rank that never returns. Says "begun", its rank and its process,
// and "ended".
#include <pipe/plan/lower.hpp>
#include <pipe/mpi/mpi.hpp>
#include <pipe/mpi/store.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>
#include <unistd.h>
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
      for (;;)
        std::this_thread::sleep_for(pass_time);
  }
  void forward(pp::context const&, pp::input, pp::output) { pass(); }
  void backward(pp::context const&, pp::input, pp::output) { pass(); }
  void contribute(pp::context const&, pp::output) {}
  void optimizer_step(pp::context const&, pp::totals) { pass(); }
};

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
  bool const hangs = count > 3 && std::atoi(words[2]) == rank;
  int const status = run(
    rank, ranks, std::chrono::milliseconds(std::atoi(words[1])), hangs ? std::atoi(words[3]) : -1);
  if (status != 0) {
    // mpirun ends the others at once, and returns the status of the first.
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    std::_Exit(status);
  }
  std::puts("ended");
  MPI_Finalize();
  return status;
}
