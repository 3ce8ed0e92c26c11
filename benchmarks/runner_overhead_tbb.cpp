// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief The passes of runner_overhead as a flow graph of oneTBB: a node for each pass, an edge
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
#include <memory>
#include <oneapi/tbb/flow_graph.h>
#include <stdexcept>
#include <vector>

namespace {

namespace pp = pipelining;
namespace flow = oneapi::tbb::flow;

constexpr char const* usage = "usage: runner_overhead_tbb [DEVICES [MICROBATCHES]]\n";

class graph_of_nodes {
public:
  explicit graph_of_nodes(benchmark::pass_graph& passes) : passes_(passes) {
    for (std::size_t i = 0; i < passes.size(); ++i)
      nodes_.push_back(
        std::make_unique<node>(graph_, [this, i](flow::continue_msg const&) { passes_.run(i); }));
    for (auto const& [from, to] : passes.edges())
      make_edge(*nodes_[from], *nodes_[to]);
  }

  void step() {
    passes_.begin_step();
    for (std::size_t const i : first_)
      nodes_[i]->try_put(flow::continue_msg{});
    graph_.wait_for_all();
  }

private:
  using node = flow::continue_node<flow::continue_msg>;

  benchmark::pass_graph& passes_;
  flow::graph graph_;
  std::vector<std::unique_ptr<node>> nodes_;
  std::vector<std::size_t> first_ = passes_.first();
};

} // namespace

int main(int count, char** words) {
  try {
    int const devices = benchmark::number_at(count, words, 1, 2, usage);
    int const microbatches = benchmark::number_at(count, words, 2, 128, usage);
    auto const table = pp::make_timetable<pp::OneFOneB>({devices, microbatches});
    benchmark::pass_graph passes(table);
    graph_of_nodes nodes(passes);
    nodes.step();
    if (!passes.in_order())
      throw std::logic_error("runner_overhead_tbb: passes ran before what they wait for");
    benchmark::print_steps("oneTBB", pp::lower(table), true, [&] { nodes.step(); });
  } catch (std::exception const& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
  return 0;
}
