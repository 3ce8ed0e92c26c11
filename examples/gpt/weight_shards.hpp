// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The parameters of a stage in shards, as the devices of a data-parallel group hold them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "model.hpp"
#include "parameter.hpp"
#include "tensor_parts.hpp"

namespace gpt {

//! Every parameter of a stage in as many pieces as there are shards, with their gradients and the
//! averages of the optimizer. A real group has each shard on a device of its own; here all lie in
//! this process, and whole weights exist while they are gathered alone.
template <class Number>
class weight_shards {
public:
  //! Takes a parameter apart; what is left of it has a size alone.
  void take(parameter<Number>& whole, std::int64_t shards) {
    auto const count = static_cast<std::int64_t>(whole.value.size());
    for (std::int64_t shard = 0; shard < shards; ++shard) {
      auto const first = count * shard / shards;
      auto const last = count * (shard + 1) / shards;
      pieces_.emplace_back(last - first, Number{0}, whole.decays);
      std::copy(
        whole.value.begin() + first, whole.value.begin() + last, pieces_.back().value.begin());
    }
    numbers_ += count;
    whole = parameter<Number>(0, Number{0}, whole.decays);
  }

  [[nodiscard]] bool empty() const { return pieces_.empty(); }
  //! Of all parameters.
  [[nodiscard]] std::int64_t numbers() const { return numbers_; }

  //! Writes whole weights, one parameter behind the other.
  void gather(Number* to) const {
    for (auto const& piece : pieces_) {
      to = std::copy(piece.value.begin(), piece.value.end(), to);
    }
  }
  //! Adds whole gradients, laid out in the same way, to those of the shards.
  void scatter(Number const* from) {
    for (auto& piece : pieces_) {
      for (auto& x : piece.gradient) {
        x += *from++;
      }
    }
  }

  //! What the pieces are. @param parameters those that were taken
  [[nodiscard]] std::vector<tensor_part>
  pieces_of(std::vector<tensor_part> const& parameters) const {
    auto const shards = static_cast<std::int64_t>(pieces_.size() / parameters.size());
    std::vector<tensor_part> parts;
    for (auto const& each : parameters) {
      std::int64_t count = 1;
      for (auto const extent : each.shape) {
        count *= extent;
      }
      for (std::int64_t shard = 0; shard < shards; ++shard) {
        chunk_range const range{count * shard / shards, count * (shard + 1) / shards};
        parts.push_back(cut_part(each.name + ".flat." + std::to_string(shard), {count}, 0, range));
      }
    }
    return parts;
  }

  template <class Visit>
  void for_each_piece(Visit& visit) {
    for (auto& piece : pieces_) {
      visit(piece);
    }
  }

private:
  std::vector<parameter<Number>> pieces_; // parameter by parameter, shard by shard
  std::int64_t numbers_ = 0;
};

} // namespace gpt
