// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What a run is of: all that changes its numbers, as lines that ranks and checkpoints
//! compare.

#include <pipe/cluster/plan_agreement.hpp>

#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "adamw.hpp"
#include "matrix.hpp"
#include "options.hpp"
#include "text.hpp"

namespace gpt {

namespace pp = pipelining;

//! Lines `key=value`.
class run_lines {
public:
  void add(std::string_view key, std::string_view value) {
    text_.append(key).append("=").append(value).append("\n");
  }
  void add(std::string_view key, std::int64_t value) { add(key, std::to_string(value)); }
  //! Every bit of it.
  void add(std::string_view key, double value) {
    char digits[32];
    auto const end = std::to_chars(digits, digits + sizeof digits, value).ptr;
    add(key, std::string_view(digits, static_cast<std::size_t>(end - digits)));
  }
  void add(std::string_view key, std::vector<int> const& values) {
    std::string list;
    for (int const value : values) {
      list += (list.empty() ? "" : ",") + std::to_string(value);
    }
    add(key, list);
  }

  [[nodiscard]] std::string const& text() const { return text_; }

private:
  std::string text_;
};

namespace detail {

inline void add_lines(run_lines& lines, model_size const& size) {
  auto const& [layers, width, heads, key_heads, sequence] = size;
  lines.add("layers", layers);
  lines.add("width", width);
  lines.add("heads", heads);
  lines.add("key-heads", key_heads);
  lines.add("sequence", sequence);
}

inline void add_lines(run_lines& lines, adamw const& optimizer) {
  auto const& [rate, mean_decay, square_decay, weight_decay, warm_up, steps] = optimizer;
  lines.add("peak-rate", rate);
  lines.add("mean-decay", mean_decay);
  lines.add("square-decay", square_decay);
  lines.add("weight-decay", weight_decay);
  lines.add("warm-up", warm_up);
  lines.add("steps", steps); // the learning rate follows from it
}

//! A number that differs where texts do.
[[nodiscard]] inline std::string digest_of(std::vector<std::uint8_t> const& bytes) {
  std::uint64_t hash = 14695981039346656037u;
  for (auto const byte : bytes) {
    hash = (hash ^ byte) * 1099511628211u;
  }
  return std::to_string(hash);
}

inline void add_lines(run_lines& lines, text_to_learn const& text) {
  lines.add("bytes-of-text", static_cast<std::int64_t>(text.bytes.size()));
  lines.add("digest-of-text", digest_of(text.bytes));
}

} // namespace detail

//! All of a run that changes its numbers, but for the layout of its ranks.
struct about_numbers {
  std::string learning{}; //!< what is learnt, and how
  std::string cut{};      //!< into stages and passes, which leave no trace in gradients
};

//! @param program that trains
[[nodiscard]] inline about_numbers
about_parts(std::string_view program, options const& o, text_to_learn const& text) {
  // All members: one that is new does not compile before it has its place here.
  auto const& [schedule,
               devices, // of the layout
               microbatches,
               chunks,
               stages_per_device,
               group,
               forwards,
               chunk_counts,
               further_counts,
               keep,
               forward_stages,
               backward_stages,
               memory_limit,
               eager,
               unfused,
               adapted,
               clip,
               post_validation,
               tensor,
               steps,
               size,
               seed,
               path_of_text, // the bytes count, wherever they lie
               output,       // what comes out changes no numbers
               costs,
               checkpoint,
               every,
               help,
               tells,
               lengths] = o; // follow from the schedule
  run_lines learning;
  learning.add("program", program);
  detail::add_lines(learning, size);
  learning.add("seed", seed);
  detail::add_lines(learning, adamw{.steps = steps});
  learning.add("clip", clip);
  learning.add("chunk-counts", chunk_counts); // with them, sequences have lengths of their own
  for (auto const& counts : further_counts) {
    learning.add("further-chunk-counts", counts);
  }
  detail::add_lines(learning, text);
  run_lines cut;
  cut.add("schedule", registry::in_adapter(schedule, adapted));
  cut.add("tensor", tensor);
  cut.add("microbatches", microbatches);
  cut.add("chunks", chunks);
  cut.add("stages-per-device", stages_per_device);
  cut.add("group", group);
  cut.add("forwards", forwards);
  cut.add("keep", keep);
  cut.add("forward-stages", forward_stages);
  cut.add("backward-stages", backward_stages);
  cut.add("memory-limit", memory_limit);
  cut.add("eager", std::int64_t{eager});
  cut.add("unfused", std::int64_t{unfused});
  cut.add("post-validation", std::int64_t{post_validation});
  return {learning.text(), cut.text()};
}

//! What a checkpoint of named tensors is of. Stages, devices and shards may be others in the run
//! that goes on, and so may threads and processes.
//! @param replicas of the pipeline, which share a step
[[nodiscard]] inline std::string
about_state(options const& o, int replicas, text_to_learn const& text) {
  run_lines lines;
  lines.add("sequences-of-step", replicas * o.microbatches);
  // Versions of the loops round differently; who reads the difference sees what would make them the
  // same.
  lines.add("PIPELINING_VECTORS", vectors().name());
  return about_parts("gpt", o, text).learning + lines.text();
}

//! Both.
[[nodiscard]] inline std::string
about_run(std::string_view program, options const& o, text_to_learn const& text) {
  auto const parts = about_parts(program, o, text);
  return parts.learning + parts.cut;
}

//! Ends here where not all ranks are of the same run: before they make groups, plans or files.
//! Collective.
//! @param name tells the agreements of one store apart
//! @throws std::runtime_error that names the first difference
template <class Store>
void agree_on_run(Store& line,
                  std::string const& text,
                  int rank,
                  int ranks,
                  std::string const& name,
                  std::chrono::nanoseconds deadline) {
  try {
    pp::agree_on_text(line, text, rank, name, deadline);
    line.barrier(name + "/agreed", ranks, deadline);
  } catch (std::exception const& error) {
    line.abort(error.what());
    throw;
  }
}

} // namespace gpt
