// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The passes of a timetable as a graph for other libraries to run: what waits for what, a
//! check that a run kept to it, and the program that times it.

#include <pipe/flow/dependencies.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/timetable.hpp>

#include <atomic>
#include <benchmarks/step_times.hpp>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace benchmark {

//! Passes by number, each after what it waits for and after the pass before it on its device.
//! They do nothing but note in which turn they ran.
class pass_graph {
public:
  explicit pass_graph(pipelining::timetable_view table)
      : turns_(static_cast<std::size_t>(table.size())) {
    pipelining::pipeline_view const over = table.over;
    std::vector<std::size_t> maker_of(static_cast<std::size_t>(over.pass_indices()));
    for (std::size_t i = 0; i < turns_.size(); ++i)
      maker_of[static_cast<std::size_t>(pipelining::detail::pass_index(over, table.passes[i]))] = i;
    for (int device = 0; device < table.over.extents.devices; ++device)
      for (int entry = table.offsets[device]; entry < table.offsets[device + 1]; ++entry) {
        auto const here = static_cast<std::size_t>(entry);
        if (entry > table.offsets[device])
          edges_.emplace_back(here - 1, here);
        pipelining::detail::dependency_list const needed(over, table.passes[entry]);
        for (int k = 0; k < needed.count; ++k)
          if (std::size_t const maker = maker_of[static_cast<std::size_t>(needed.index(k))];
              maker + 1 != here)
            edges_.emplace_back(maker, here);
      }
  }

  [[nodiscard]] std::size_t size() const noexcept { return turns_.size(); }
  //! Pairs of passes, of which the second waits for the first.
  [[nodiscard]] std::vector<std::pair<std::size_t, std::size_t>> const& edges() const noexcept {
    return edges_;
  }
  //! Passes that wait for nothing.
  [[nodiscard]] std::vector<std::size_t> first() const {
    std::vector<bool> waits(size());
    for (auto const& [from, to] : edges_)
      waits[to] = true;
    std::vector<std::size_t> result;
    for (std::size_t i = 0; i < size(); ++i)
      if (!waits[i])
        result.push_back(i);
    return result;
  }

  void begin_step() noexcept { next_turn_.store(0, std::memory_order_relaxed); }
  void run(std::size_t number) noexcept {
    turns_[number].store(next_turn_.fetch_add(1, std::memory_order_relaxed),
                         std::memory_order_relaxed);
  }
  //! Whether the last step ran every pass once, after all that it waits for.
  [[nodiscard]] bool in_order() const noexcept {
    if (next_turn_.load() != size())
      return false;
    for (auto const& [from, to] : edges_)
      if (turns_[from].load() >= turns_[to].load())
        return false;
    return true;
  }

private:
  std::vector<std::pair<std::size_t, std::size_t>> edges_;
  std::vector<std::atomic<std::size_t>> turns_;
  std::atomic<std::size_t> next_turn_ = 0;
};

//! The program of a peer: runs the passes of 1F1B as its `Graph`, made from a pass_graph, and
//! prints what a step takes once one has kept the order.
//! @param program of the command line, which may go on with devices and microbatches
//! @return the exit status
template <class Graph>
int time_peer(char const* program, char const* peer, int count, char** words) {
  namespace pp = pipelining;
  try {
    std::string const usage = "usage: " + std::string(program) + " [DEVICES [MICROBATCHES]]\n";
    int const devices = number_at(count, words, 1, 2, usage.c_str());
    int const microbatches = number_at(count, words, 2, 128, usage.c_str());
    auto const table = pp::make_timetable<pp::OneFOneB>({devices, microbatches});
    pass_graph passes(table);
    Graph graph(passes);
    graph.step();
    if (!passes.in_order())
      throw std::logic_error(std::string(program) + ": passes ran before what they wait for");
    print_steps(peer, pp::lower(table), true, [&] { graph.step(); });
  } catch (std::exception const& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
  return 0;
}

} // namespace benchmark
