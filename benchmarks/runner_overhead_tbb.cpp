// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief The passes of runner_overhead as a flow graph of oneTBB: a node for each pass, an edge
//! for each dependency and from each pass of a device to its next one. The graph is made once and
//! run step by step. No messages are moved.

#include <pipe/core/dependencies.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <atomic>
#include <benchmarks/step_times.hpp>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <memory>
#include <oneapi/tbb/flow_graph.h>
#include <stdexcept>
#include <utility>
#include <vector>

namespace {

namespace pp = pipelining;
namespace flow = oneapi::tbb::flow;

constexpr char const* usage = "usage: runner_overhead_tbb [DEVICES [MICROBATCHES]]\n";

//! The passes of a timetable as nodes. Each notes in which turn it ran, so that the order can be
//! checked.
class graph_of_passes {
public:
  explicit graph_of_passes(pp::timetable_view table)
      : turns_(static_cast<std::size_t>(table.size())) {
    for (std::size_t i = 0; i < turns_.size(); ++i)
      nodes_.push_back(std::make_unique<node>(graph_, [this, i](flow::continue_msg const&) {
        turns_[i].store(next_turn_.fetch_add(1, std::memory_order_relaxed),
                        std::memory_order_relaxed);
      }));
    // In a chain a pass waits for the stage before it, or behind it, and the last forward pass for
    // itself.
    auto const index_of = [&table](pp::pass_kind kind, int stage, int microbatch) {
      for (int i = 0; i < table.size(); ++i)
        if (table.passes[i].kind == kind && table.passes[i].stage == stage &&
            table.passes[i].microbatch == microbatch)
          return static_cast<std::size_t>(i);
      throw std::logic_error("runner_overhead_tbb: a pass is missing");
    };
    int const stages = pp::stages(table.extents);
    for (int device = 0; device < table.extents.devices; ++device)
      for (int i = table.offsets[device]; i < table.offsets[device + 1]; ++i) {
        pp::pass const& what = table.passes[i];
        auto const here = static_cast<std::size_t>(i);
        if (i > table.offsets[device])
          connect(here - 1, here);
        if (what.kind == pp::pass_kind::forward && what.stage > 0)
          connect(index_of(what.kind, what.stage - 1, what.microbatch), here);
        if (what.kind == pp::pass_kind::backward && what.stage + 1 < stages)
          connect(index_of(what.kind, what.stage + 1, what.microbatch), here);
      }
    std::vector<bool> waits(nodes_.size());
    for (auto const& [from, to] : edges_)
      waits[to] = true;
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      if (!waits[i])
        first_.push_back(i);
  }

  void step() {
    next_turn_.store(0, std::memory_order_relaxed);
    for (std::size_t const i : first_)
      nodes_[i]->try_put(flow::continue_msg{});
    graph_.wait_for_all();
  }

  //! Whether the last step ran every pass once, after all that it waits for.
  [[nodiscard]] bool in_order() const {
    if (next_turn_.load() != turns_.size())
      return false;
    for (auto const& [from, to] : edges_)
      if (turns_[from].load() >= turns_[to].load())
        return false;
    return true;
  }

private:
  using node = flow::continue_node<flow::continue_msg>;

  void connect(std::size_t from, std::size_t to) {
    flow::make_edge(*nodes_[from], *nodes_[to]);
    edges_.emplace_back(from, to);
  }

  flow::graph graph_;
  std::vector<std::unique_ptr<node>> nodes_;
  std::vector<std::pair<std::size_t, std::size_t>> edges_;
  std::vector<std::size_t> first_; //!< nodes that wait for nothing
  std::vector<std::atomic<std::size_t>> turns_;
  std::atomic<std::size_t> next_turn_ = 0;
};

} // namespace

int main(int count, char** words) {
  try {
    int const devices = benchmark::number_at(count, words, 1, 2, usage);
    int const microbatches = benchmark::number_at(count, words, 2, 128, usage);
    auto const table = pp::make_timetable<pp::OneFOneB>({devices, microbatches});
    graph_of_passes passes(table);
    benchmark::print_steps("oneTBB", pp::lower(table), true, [&] { passes.step(); });
    if (!passes.in_order())
      throw std::logic_error("runner_overhead_tbb: passes ran before what they wait for");
  } catch (std::exception const& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
  return 0;
}
