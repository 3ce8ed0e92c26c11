// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief How a model with its vocabulary in shards is cut, and what the shards tell each other.

#include <pipe/flow/shape.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model.hpp"
#include "slot_sizes.hpp"
#include "stage.hpp"

namespace gpt {

//! How the model is cut: P shards of the embedding, then the stages of layers, then P shards of the
//! output layer, as with_vocabulary numbers them.
struct sharded_cut {
  std::int64_t shards = 1;
  std::int64_t stages = 1; //!< of layers
  int barriers = 2;        //!< those of with_vocabulary
  step_cut step;
};

//! How a timetable of a with_vocabulary schedule cuts the model.
[[nodiscard]] inline sharded_cut
cut_around(model_size const& size, pp::timetable_view table, int barriers) {
  int const shards = table.over.extents.devices;
  std::vector<std::int64_t> const lengths(static_cast<std::size_t>(table.over.extents.microbatches),
                                          size.sequence);
  return {shards, table.over.extents.stages() - 2 * shards, barriers, cut_for(table, lengths)};
}

//! Bytes [first, last) of the vocabulary.
struct byte_range {
  std::int64_t first = 0;
  std::int64_t last = 0;

  [[nodiscard]] std::int64_t count() const { return last - first; }
  [[nodiscard]] bool holds(std::uint8_t byte) const { return byte >= first && byte < last; }
};

[[nodiscard]] inline byte_range bytes_of_shard(std::int64_t shard, std::int64_t shards) {
  return {vocabulary * shard / shards, vocabulary * (shard + 1) / shards};
}

//! What a shard of the output layer tells the others of a token.
struct token_statistics {
  float largest; //!< logit
  float sum;     //!< of exp(logit - largest)
  float next;    //!< the logit of the byte that comes next; 0 where another shard has it
};
inline constexpr std::int64_t statistics_width = 3;

} // namespace gpt
