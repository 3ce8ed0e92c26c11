// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief What the runners for CPUs cost: steps of 1F1B whose stages do nothing, on threads, and over MPI where the
//! program is started by mpirun.

#include <pipe/plan/lower.hpp>
#include <pipe/plan/sizes.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/make_timetable.hpp>

#ifdef BENCHMARK_WITH_MPI
#include <pipe/run/mpi.hpp>
#include <pipe/run/mpi_store.hpp>

#include <mpi.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
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

//! The least and the median time of a step, over the passes of a device, in microseconds.
template <class Step>
void measure(char const* name, pp::plan const& work, bool prints, Step step) {
  constexpr int repeats = 2001;
  int const passes = 2 * work.extents.microbatches;
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    auto const start = std::chrono::steady_clock::now();
    step();
    std::chrono::duration<double, std::micro> const taken =
      std::chrono::steady_clock::now() - start;
    times.push_back(taken.count() / passes);
  }
  std::sort(times.begin(), times.end());
  if (prints)
    std::printf("%-8s %d devices, %d microbatches: %.3f us per pass at best, %.3f in the median\n",
                name,
                work.extents.devices,
                work.extents.microbatches,
                times.front(),
                times[times.size() / 2]);
}

int number_at(int count, char** words, int index, int otherwise) {
  int const given = index < count ? std::atoi(words[index]) : otherwise;
  if (given < 1)
    throw std::invalid_argument(usage);
  return given;
}

} // namespace

int main(int count, char** words) {
  try {
    int const devices = number_at(count, words, 1, 2);
    int const microbatches = number_at(count, words, 2, 128);
    std::int64_t const bytes = number_at(count, words, 3, 64);
    pp::plan const work = pp::lower(pp::make_timetable<pp::OneFOneB>({devices, microbatches}),
                                    pp::uniform_sizes{.message = bytes});
    std::vector<idle_stage> stages(static_cast<std::size_t>(devices));
#ifdef BENCHMARK_WITH_MPI
    int provided = 0;
    MPI_Init_thread(&count, &words, MPI_THREAD_FUNNELED, &provided);
    {
      pp::mpi_store meeting;
      pp::mpi_runner runner(work, stages, meeting.line());
      measure("MPI", work, runner.rank() == 0, [&] { runner.step(); });
    }
    MPI_Finalize();
#else
    pp::thread_runner runner(work, stages);
    measure("threads", work, true, [&] { runner.step(); });
#endif
  } catch (std::exception const& failure) {
    std::fprintf(stderr, "runner_overhead: %s\n", failure.what());
    return 1;
  }
  return 0;
}
