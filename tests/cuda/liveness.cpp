// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Steps on the stand-in, but with the clock of the machine, that liveness_test.py stops, or that
// hang. Usage: liveness streams|graph|nccl|alone MILLISECONDS [STAGE CALL], a deadline and the call
// of that stage that never returns, where "alone" is NCCL with one rank; or liveness RUNNER
// MILLISECONDS PLANS DEVICE MEMBER, the name of plans that call every member, and the member that
// never returns on that device; "none" to be told which members it calls. Says "begun"; "hangs" and
// when, on the clock of the machine; "ended".
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
#include <mutex>
#include <set>
#include <simulators/cuda/standin.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tests/support/every_call.hpp>
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
      support::hang_in(where.stage);
    if (out.bytes > 0)
      (void)cudaMemsetAsync(
        out.data, 1, static_cast<std::size_t>(out.bytes), static_cast<cudaStream_t>(where.stream));
  }
  void forward(pp::context const& where, pp::input, pp::output out) { pass(where, out); }
  void backward(pp::context const& where, pp::input, pp::output out) { pass(where, out); }
};

using model_type = std::vector<slow_stage>;

//! Notes which members a device calls, and never returns from one.
struct member_trap {
  std::string_view member{};
  int device = 0;
  std::mutex lock{}; // of ranks that are threads
  std::set<std::string_view> seen{};

  void visit(pp::context const& at, std::string_view name) {
    if (at.device != device)
      return;
    {
      std::lock_guard const held(lock);
      seen.insert(name);
    }
    if (name == member)
      support::hang_in(at.stage);
  }
  static void fill(pp::context const& at, pp::output out) {
    (void)cudaMemsetAsync(
      out.data, 1, static_cast<std::size_t>(out.bytes), static_cast<cudaStream_t>(at.stream));
  }
};

using member_model = std::vector<support::observed_stage<member_trap>>;

struct request {
  std::string_view runner;
  std::chrono::milliseconds deadline;
  model_type model;
};

pp::plan work(int on = devices) {
  pp::uniform_sizes const sizes{.message = 8};
  return pp::lower(pp::make_timetable<pp::OneFOneB>({on, 4}), sizes);
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

//! Calls what a rank does, each on a thread, with its line to a store over TCP.
template <class Rank>
void run_ranks(int count, Rank const& of) {
  pp::store_server server({});
  std::atomic<bool> failed = false;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < count; ++rank)
    ranks.emplace_back([&, rank] {
      try {
        pp::cuda::current_device const scope(rank);
        pp::store line({.port = server.port()}, rank, std::chrono::seconds(20));
        of(rank, line);
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

void run_on_ranks(request& what) {
  int const count = what.runner == "alone" ? 1 : devices;
  run_ranks(count, [&](int rank, pp::store& line) {
    pp::cuda::nccl_runner<model_type> runner(
      work(count),
      what.model,
      line,
      rank,
      {.gpu = rank, .deadline = what.deadline, .abort_deadline = what.deadline});
    make_steps(runner, rank == 0);
  });
}

//! Two steps of plans in which a member may hang.
void run_members(std::string_view runner_name,
                 std::chrono::milliseconds deadline,
                 std::string_view plans,
                 member_trap& all) {
  support::calling_plans const work = support::plans_that_call(plans);
  member_model model(static_cast<std::size_t>(work.first.over.extents.stages()), {&all});
  if (runner_name == "nccl") {
    run_ranks(devices, [&](int rank, pp::store& line) {
      pp::cuda::nccl_runner<member_model> runner(
        pp::plan(work.first),
        model,
        line,
        rank,
        {.gpu = rank, .deadline = deadline, .abort_deadline = deadline / 4});
      support::make_two_steps(runner, work);
    });
  } else {
    pp::cuda::stream_runner<member_model> runner(
      pp::plan(work.first),
      model,
      {.graph = runner_name == "graph", .warm_up = 1, .deadline = deadline});
    support::make_two_steps(runner, work);
  }
  for (std::string_view const each : all.seen)
    std::printf("calls %d %s\n", all.device, std::string(each).c_str());
}

} // namespace

int main(int count, char** words) {
  if (count < 3)
    return 2;
  try {
    request what{words[1], std::chrono::milliseconds(std::atoi(words[2])), {}};
    what.model.resize(what.runner == "alone" ? 1 : devices);
    if (count == 5)
      what.model[static_cast<std::size_t>(std::atoi(words[3]))].hangs_at = std::atoi(words[4]);
    standin::configure(
      {.expect_more_threads = true, .overtaken_after = std::chrono::milliseconds(5)});
    if (count > 5) {
      member_trap all{.member = words[5], .device = std::atoi(words[4])};
      run_members(what.runner, what.deadline, words[3], all);
    } else if (what.runner == "nccl" || what.runner == "alone")
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
