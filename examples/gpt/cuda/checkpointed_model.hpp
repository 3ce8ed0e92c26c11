// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A model on GPUs in training, with checkpoints between its steps: the state of its stages
//! as named tensors, which any other cut of the model loads.

#include <pipe/cluster/checkpoint.hpp>
#include <pipe/cluster/rank_layout.hpp>
#include <pipe/cluster/tensor_checkpoint.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "../saved_state.hpp"
#include "gpu_report.hpp"

namespace gpt {

//! Where a process keeps its checkpoints, which another cut of the model may go on from.
[[nodiscard]] inline pp::checkpoint_place checkpoints_in(gpu_options const& o,
                                                         std::string const& owner,
                                                         pp::rank_layout const& layout,
                                                         text_to_learn const& text) {
  char const* const program = o.numbers == operands::bf16 ? "gpt on GPUs in bf16" : "gpt on GPUs";
  run_lines lines;
  lines.add("sequences-of-step", layout.replicas * o.common.microbatches);
  return {o.common.checkpoint,
          owner,
          about_parts(program, o.common, text).learning + lines.text(),
          layout};
}

//! All that must be the same on all ranks.
[[nodiscard]] inline std::string
about_ranks(gpu_options const& o, pp::checkpoint_place const& files, text_to_learn const& text) {
  // All members: one that is new does not compile before it has its place here.
  auto const& [common, numbers, graph, deadline] = o; // patience is a rank's own
  run_lines lines;
  lines.add("graph", graph ? "yes" : "no");
  lines.add("checkpoints", common.checkpoint.empty() ? "no" : "yes");
  lines.add("every", common.every);
  return about_run("gpt over NCCL", common, text) + files.about + pp::lines_of(files.layout) +
         lines.text();
}

//! The state of all stages of a process, in memory of its own.
class named_state {
public:
  //! @param parts of its stages, in the order in which the model exchanges them
  //! @param clips a stage counts its steps behind its parameters
  template <class Model>
  named_state(Model& model, std::vector<std::vector<tensor_part>> const& parts, bool clips) {
    model.exchange([this](std::span<std::byte> of) { bytes_.emplace_back(of.begin(), of.end()); });
    std::size_t next = 0;
    for (auto const& stage : parts) {
      for (tensor_part const& part : stage)
        for (char const* const kind : {".value", ".mean", ".square"})
          add(next++, part, kind);
      if (clips)
        add(next++, whole_part("optimizer.counts", {3}), "");
    }
    if (next != bytes_.size())
      throw std::logic_error("stages on GPUs have other parameters than its parts name");
  }
  named_state(named_state const&) = delete;
  named_state& operator=(named_state const&) = delete;

  //! To be saved, one list for each file: of copies, which have the same numbers, one; boxes of one
  //! tensor in a file each.
  [[nodiscard]] std::vector<std::vector<pp::state_tensor>> in_files() const {
    std::map<std::string, std::set<std::vector<std::int64_t>>> seen;
    std::vector<std::vector<pp::state_tensor>> files(1);
    for (auto const& each : tensors_) {
      auto& boxes = seen[each.name];
      if (!boxes.insert(each.first).second)
        continue;
      files.resize(std::max(files.size(), boxes.size()));
      files[boxes.size() - 1].push_back(each);
    }
    return files;
  }
  [[nodiscard]] std::vector<pp::state_tensor> const& all() const { return tensors_; }
  template <class Model>
  void use(Model& model) const {
    std::size_t next = 0;
    model.exchange([&](std::span<std::byte> to) {
      std::copy(bytes_[next].begin(), bytes_[next].end(), to.begin());
      ++next;
    });
  }

private:
  //! @param number of a tensor, which may have more numbers than the part: padding
  void add(std::size_t number, tensor_part const& part, char const* kind) {
    auto const numbers = std::span(bytes_.at(number));
    bool const counts = *kind == '\0';
    std::int64_t bytes = counts ? 8 : 4;
    for (auto const extent : part.shape)
      bytes *= extent;
    if (bytes > static_cast<std::int64_t>(numbers.size()))
      throw std::logic_error("a stage on a GPU has another parameter than " + part.name);
    tensors_.push_back({part.name + kind,
                        counts ? "I64" : "F32",
                        part.shape,
                        numbers.first(static_cast<std::size_t>(bytes)),
                        part.whole,
                        part.first});
  }

  std::vector<std::vector<std::byte>> bytes_{}; // of each tensor
  std::vector<pp::state_tensor> tensors_{};
};

//! What has the stages of one process. Ranks that have theirs elsewhere make the same calls.
template <class Model>
struct checkpointed_model {
  Model& model;
  saved_steps saved;
  std::int64_t done = 0; //!< steps so far

  //! Goes on from a checkpoint, where there is one. @param load of `saved`: `load(tensors)`
  template <class Load>
  void restore(Load load) {
    named_state const state(model, model.parts(), model.counts_steps());
    if (load(state.all())) {
      done = saved.first;
      state.use(model);
    }
  }
  //! Whether there are steps left. @param tells where they begin, if not at the beginning
  [[nodiscard]] bool has_steps(bool tells) const {
    if (tells && saved.first > 0)
      std::printf("goes on after step %lld\n", static_cast<long long>(saved.first));
    return saved.first < saved.steps;
  }

  double step(batch const& pieces) { return model.step(pieces); }
  void update(adamw const& optimizer, std::int64_t step) {
    model.update(optimizer, step);
    done = step + 1;
  }
  void use(pp::timetable_view table, std::vector<std::int64_t> const& lengths) {
    model.use(table, lengths);
  }
  [[nodiscard]] auto const& plans() const { return model.plans(); }
  [[nodiscard]] std::vector<device_row> slots() { return model.slots(); }
  //! Between steps, when the times of the last one have been read.
  void begin_step() {
    if (done > saved.first && saved.wants(done)) {
      named_state const state(model, model.parts(), model.counts_steps());
      try {
        pp::checkpoint_place place = saved.files;
        for (auto const& each : state.in_files()) {
          pp::save_tensors(place, done, each);
          place.owner += "-more";
        }
      } catch (std::runtime_error const& error) {
        if constexpr (requires { model.runner().fail(error.what()); }) // on all ranks
          model.runner().fail(std::string("could not save its state: ") + error.what());
        throw;
      }
    }
  }
  void finish() {
    begin_step(); // there is none
    model.finish();
  }
  [[nodiscard]] pp::dynamic_timetable trace() { return model.trace(); }
};

} // namespace gpt
