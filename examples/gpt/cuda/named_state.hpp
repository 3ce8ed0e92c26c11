// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The state of stages on GPUs as named tensors, which any other cut of the model loads.

#include <pipe/cluster/tensor_checkpoint.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpu_stage.hpp"

namespace gpt {

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

} // namespace gpt
