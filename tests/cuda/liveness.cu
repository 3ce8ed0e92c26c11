// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Steps on the stand-in, but with the clock of the machine, that liveness_test.py stops, or that
// hang. Usage: liveness streams|graph|nccl MILLISECONDS [STAGE CALL], a deadline and the call of
// that stage that never returns. Says "begun" and "ended".
#include <pipe/cluster/store.hpp>
#include <pipe/cuda/nccl.cuh>
#include <pipe/cuda/streams.cuh>
#include <pipe/plan/lower.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <simulators/cuda/standin.hpp>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <vector>

namespace pp = pipelining;

namespace {

constexpr auto pass_time = std::chrono::milliseconds(10);
constexpr int devices = 2;

struct slow_stage {
  int hangs_at = -1;
  int calls = 0;

  void pass(pp::context const& where, pp::output out) {
    std::this_thread::sleep_for(pass_time);
    if (calls++ == hangs_at)
      for (;;)
        std::this_thread::sleep_for(pass_time);
    if (out.bytes > 0)
      (void)cudaMemsetAsync(
        out.data, 1, static_cast<std::size_t>(out.bytes), static_cast<cudaStream_t>(where.stream));
  }
  void forward(pp::context const& where, pp::input, pp::output out) { pass(where, out); }
  void backward(pp::context const& where, pp::input, pp::output out) { pass(where, out); }
};

using model_type = std::vector<slow_stage>;

struct request {
  std::string_view runner;
  std::chrono::milliseconds deadline;
  model_type model;
};

pp::plan work() {
  pp::uniform_sizes const sizes{.message = 8};
  return pp::lower(pp::make_timetable<pp::OneFOneB>({devices, 4}), sizes);
}

void say(char const* word) {
  std::puts(word);
  std::fflush(stdout);
}

template <class Runner>
void make_steps(Runner& runner, bool speaks) {
  runner.step();
  if (speaks)
    say("begun");
  runner.step();
  runner.step();
}

void run_on_streams(request& what) {
  pp::cuda::stream_runner<model_type> runner(
    work(), what.model, {.graph = what.runner == "graph", .warm_up = 1, .deadline = what.deadline});
  make_steps(runner, true);
}

//! Ranks that are threads, and meet in a store over TCP.
void run_on_ranks(request& what) {
  pp::store_server server({});
  std::atomic<bool> failed = false;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < devices; ++rank)
    ranks.emplace_back([&, rank] {
      try {
        pp::cuda::current_device const scope(rank);
        pp::store line({.port = server.port()}, rank, std::chrono::seconds(20));
        pp::cuda::nccl_runner<model_type> runner(
          work(),
          what.model,
          line,
          rank,
          {.gpu = rank, .deadline = what.deadline, .abort_deadline = what.deadline});
        make_steps(runner, rank == 0);
      } catch (std::exception const& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        failed = true;
      }
    });
  for (std::thread& rank : ranks)
    rank.join();
  if (failed)
    throw std::runtime_error("a rank has failed");
}

} // namespace

int main(int count, char** words) {
  if (count < 3)
    return 2;
  try {
    request what{words[1], std::chrono::milliseconds(std::atoi(words[2])), model_type(devices)};
    if (count > 4)
      what.model[static_cast<std::size_t>(std::atoi(words[3]))].hangs_at = std::atoi(words[4]);
    standin::configure(
      {.expect_more_threads = true, .overtaken_after = std::chrono::milliseconds(5)});
    if (what.runner == "nccl")
      run_on_ranks(what);
    else
      run_on_streams(what);
    say("ended");
    return 0;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
