// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief The passes of runner_overhead as a task graph of Taskflow: a task for each pass, an edge
//! for each dependency and from each pass of a device to its next one. The graph is made once and
//! run step by step. No messages are moved.

#include <pipe/plan/lower.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <benchmarks/pass_graph.hpp>
#include <benchmarks/step_times.hpp>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <taskflow/taskflow.hpp>
#include <vector>

namespace {

namespace pp = pipelining;

constexpr char const* usage = "usage: runner_overhead_taskflow [DEVICES [MICROBATCHES]]\n";

class graph_of_tasks {
public:
  explicit graph_of_tasks(benchmark::pass_graph& passes) : passes_(passes) {
    std::vector<tf::Task> tasks;
    for (std::size_t i = 0; i < passes.size(); ++i)
      tasks.push_back(graph_.emplace([this, i] { passes_.run(i); }));
    for (auto const& [from, to] : passes.edges())
      tasks[from].precede(tasks[to]);
  }

  void step() {
    passes_.begin_step();
    executor_.run(graph_).wait();
  }

private:
  benchmark::pass_graph& passes_;
  tf::Taskflow graph_;
  tf::Executor executor_;
};

} // namespace

int main(int count, char** words) {
  try {
    int const devices = benchmark::number_at(count, words, 1, 2, usage);
    int const microbatches = benchmark::number_at(count, words, 2, 128, usage);
    auto const table = pp::make_timetable<pp::OneFOneB>({devices, microbatches});
    benchmark::pass_graph passes(table);
    graph_of_tasks tasks(passes);
    tasks.step();
    if (!passes.in_order())
      throw std::logic_error("runner_overhead_taskflow: passes ran before what they wait for");
    benchmark::print_steps("Taskflow", pp::lower(table), true, [&] { tasks.step(); });
  } catch (std::exception const& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
  return 0;
}
