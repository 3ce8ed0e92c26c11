// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What a checkpoint is of.

#include <pipe/run/rank_layout.hpp>

#include <cstdint>
#include <string>

#include "options.hpp"
#include "text.hpp"

namespace gpt {

namespace pp = pipelining;

//! All that must be the same to go on from a checkpoint, as one line.
//! @param program what else must be, in words
[[nodiscard]] inline std::string about_run(std::string const& program,
                                           options const& o,
                                           pp::rank_layout const& layout,
                                           text_to_learn const& text) {
  std::string line = program + ' ' + name_of(o);
  auto const add = [&](char const* word, std::int64_t number) {
    line += std::string(", ") + word + ' ' + std::to_string(number);
  };
  add("devices", layout.devices);
  add("replicas", layout.replicas);
  add("shards", layout.shards);
  add("microbatches", o.microbatches);
  add("chunks", o.chunks);
  add("stages per device", o.stages_per_device);
  add("group", o.group);
  add("forwards", o.forwards);
  for (int const chunks : o.chunk_counts) {
    add("chunks of a microbatch", chunks);
  }
  for (auto const& counts : o.further_counts) {
    line += ", or";
    for (int const chunks : counts) {
      add("chunks of a microbatch", chunks);
    }
  }
  add("keep", o.keep);
  add("memory limit", o.memory_limit);
  add("steps", o.steps); // the learning rate follows from it
  add("layers", o.size.layers);
  add("width", o.size.width);
  add("heads", o.size.heads);
  add("key heads", o.size.key_heads);
  add("sequence", o.size.sequence);
  add("seed", o.seed);
  line += ", clip " + std::to_string(o.clip);
  add("bytes of text", static_cast<std::int64_t>(text.bytes.size()));
  return line;
}

} // namespace gpt
