// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief The passes of runner_overhead as a flow graph of oneTBB: a node for each pass, an edge
//! for each dependency and from each pass of a device to its next one. The graph is made once and
//! run step by step. No messages are moved.

#include <benchmarks/pass_graph.hpp>
#include <cstddef>
#include <memory>
#include <oneapi/tbb/flow_graph.h>
#include <vector>

namespace {

namespace flow = oneapi::tbb::flow;

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
  return benchmark::time_peer<graph_of_nodes>("runner_overhead_tbb", "oneTBB", count, words);
}
