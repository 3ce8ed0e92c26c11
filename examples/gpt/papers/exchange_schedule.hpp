// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The schedule whose devices take over attention of each other, with sizes known at run
//! time, and how it cuts the model.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../model.hpp"

namespace gpt {

using exchange_schedule = pp::SlimPipeExchange<pp::dynamic, pp::dynamic>;

//! A part of a layer for one chunk of sequences in every stage.
struct exchange_cut {
  model_size size;
  exchange_schedule schedule;
  pp::shape extents;
  std::vector<chunk_range> chunks;

  exchange_cut(model_size const& of, exchange_schedule const& with, pp::shape const& over)
      : size(of), schedule(with), extents(over),
        chunks(cut_sequence(of.sequence, with.inner.chunks)) {}

  [[nodiscard]] pp::exchange_stage stage(int number) const {
    return schedule.stage_at(extents, number);
  }
  [[nodiscard]] chunk_range range(int chunk) const {
    return chunks[static_cast<std::size_t>(chunk)];
  }
  //! The oldest tokens, whose keys are given away.
  [[nodiscard]] chunk_range given(pp::exchange_stage const& of) const {
    return {0, range(of.taken).begin};
  }
  [[nodiscard]] std::int64_t tokens(pp::exchange_stage const& of) const {
    return range(of.chunk).count();
  }
  [[nodiscard]] layer_range held(std::int64_t layer) const {
    return {layer, layer + 1, layer == 0, layer + 1 == size.layers};
  }
};

} // namespace gpt
