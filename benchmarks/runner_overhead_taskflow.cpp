// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief The passes of runner_overhead as a task graph of Taskflow: a task for each pass, an edge
//! for each dependency and from each pass of a device to its next one. The graph is made once and
//! run step by step. No messages are moved.

#include <benchmarks/pass_graph.hpp>
#include <cstddef>
#include <taskflow/taskflow.hpp>
#include <vector>

namespace {

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
  return benchmark::time_peer<graph_of_tasks>("runner_overhead_taskflow", "Taskflow", count, words);
}
