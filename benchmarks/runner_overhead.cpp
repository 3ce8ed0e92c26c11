// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief What the runners for CPUs cost: steps of 1F1B whose stages do nothing, on threads, and
//! over MPI where the program is started by mpirun. Prints microseconds per pass of a device.

#include <pipe/plan/lower.hpp>
#include <pipe/plan/sizes.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/make_timetable.hpp>

#ifdef BENCHMARK_WITH_MPI
#include <pipe/mpi/mpi.hpp>
#include <pipe/mpi/store.hpp>

#include <mpi.h>
#endif

#include <benchmarks/step_times.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <vector>

namespace {

namespace pp = pipelining;

constexpr char const* usage =
  "usage: runner_overhead [DEVICES [MICROBATCHES [MESSAGE_BYTES]]]\n"
  "On threads; over MPI where mpirun starts DEVICES processes of runner_overhead_mpi.\n";

struct idle_stage {
  void forward(pp::context const&, pp::input, pp::output) {}
  void backward(pp::context const&, pp::input, pp::output) {}
};

} // namespace

int main(int count, char** words) {
  try {
    int const devices = benchmark::number_at(count, words, 1, 2, usage);
    int const microbatches = benchmark::number_at(count, words, 2, 128, usage);
    std::int64_t const bytes = benchmark::number_at(count, words, 3, 64, usage);
    pp::plan const work = pp::lower(pp::make_timetable<pp::OneFOneB>({devices, microbatches}),
                                    pp::uniform_sizes{.message = bytes});
    std::vector<idle_stage> stages(static_cast<std::size_t>(devices));
#ifdef BENCHMARK_WITH_MPI
    int provided = 0;
    MPI_Init_thread(&count, &words, MPI_THREAD_FUNNELED, &provided);
    {
      pp::mpi_store meeting;
      pp::mpi_runner runner(work, stages, meeting.line());
      benchmark::print_steps("MPI", work, runner.rank() == 0, [&] { runner.step(); });
    }
    MPI_Finalize();
#else
    pp::thread_runner runner(work, stages);
    benchmark::print_steps("threads", work, true, [&] { runner.step(); });
#endif
  } catch (std::exception const& failure) {
    std::fprintf(stderr, "runner_overhead: %s\n", failure.what());
    return 1;
  }
  return 0;
}
