// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What a checkpoint has: the state of training as named tensors, so that another number of
//! devices, stages or shards can go on from them; and the run that it is of, all that changes its
//! numbers, as lines that ranks and checkpoints compare.

#include <pipe/cluster/plan_agreement.hpp>
#include <pipe/cluster/tensor_checkpoint.hpp>

#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "host/arithmetic.hpp"
#include "options.hpp"
#include "text.hpp"

namespace gpt {

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
    for (int const value : values)
      list += (list.empty() ? "" : ",") + std::to_string(value);
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

inline void add_lines(run_lines& lines, text_to_learn const& text) {
  lines.add("bytes-of-text", static_cast<std::int64_t>(text.bytes.size()));
  lines.add("digest-of-text", std::to_string(hash_of(text.bytes)));
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
               own,
               further_counts,
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
  learning.add("chunk-counts", own.chunk_counts); // with them, sequences have lengths of their own
  for (auto const& counts : further_counts)
    learning.add("further-chunk-counts", counts);
  detail::add_lines(learning, text);
  run_lines cut;
  cut.add("schedule", registry::in_adapter(schedule, own.adapted));
  cut.add("tensor", tensor);
  cut.add("microbatches", microbatches);
  for (registry::named_option const& each : registry::named_option::all())
    if (each.number != nullptr)
      cut.add(each.name, std::int64_t{(own.*each.number).value_or(0)});
  cut.add("memory-limit", own.memory_limit.value_or(0));
  cut.add("eager", std::int64_t{own.eager});
  cut.add("unfused", std::int64_t{own.unfused});
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

//! Adds the values of a stage and both averages of the optimizer to the tensors of a checkpoint.
//! @param stage must stay where it is while these are in use
template <class Stage>
void add_tensors(std::vector<pp::state_tensor>& tensors, Stage& stage) {
  auto const parts = stage.parts();
  std::size_t next = 0;
  stage.for_each_parameter([&](parameter<float>& p) {
    auto const& part = parts.at(next++);
    auto const add = [&](char const* kind, std::vector<float>& numbers) {
      tensors.push_back(pp::tensor_of(part.name + kind, numbers, part.shape));
      tensors.back().whole = part.whole;
      tensors.back().first = part.first;
    };
    add(".value", p.value);
    add(".mean", p.mean);
    add(".square", p.square);
  });
  if (next != parts.size())
    throw std::logic_error("a stage has other parameters than parts_of names");
}

//! Checkpoints of a process between the steps of a run.
struct saved_steps {
  pp::checkpoint_place files; //!< no folder: none are written
  std::int64_t every;         //!< steps between two
  std::int64_t steps;         //!< in all
  std::int64_t first = 0;     //!< the others are behind it

  //! Whether the state after so many steps is to be written.
  [[nodiscard]] bool wants(std::int64_t done) const {
    return !files.folder.empty() && (done % every == 0 || done == steps);
  }
  //! Reads the newest checkpoint, where there is one. @return whether there is
  //! @param find the step of it: `find(tensors)` of those that are wanted here
  template <class Find>
  bool load(std::vector<pp::state_tensor> const& tensors, Find find) {
    std::optional<std::int64_t> const newest = find(tensors);
    if (newest)
      (void)pp::load_tensors(files, first = *newest, tensors);
    return newest.has_value();
  }
  //! The same where no other process has a part in it.
  bool load_alone(std::vector<pp::state_tensor> const& tensors) {
    return load(tensors, [this](auto const& wanted) {
      auto const whole = pp::checkpoints_of(files, wanted);
      return whole.empty() ? std::nullopt : std::optional(whole.back());
    });
  }
};

//! All that the next step of a model depends on, as tensors of the whole one: what this process
//! writes between two steps, or reads to go on. The data follow from the number of the step.
//! @tparam Model has `for_each_stage`, and `counts` and `set_counts` where it `clips`
template <class Model>
struct training_state {
  Model& model;
  std::vector<std::int64_t> counts{}; // of the optimizer's steps, which leaves some out
  std::vector<pp::state_tensor> tensors{};

  //! Of ranks collective.
  //! @param copies with all copies of a stage, which have the same numbers, in place of one
  explicit training_state(Model& of, bool copies = true) : model(of) {
    if constexpr (Model::clips) {
      auto const found = model.counts();
      counts = {found.taken, found.clipped, found.left_out};
      tensors.push_back(pp::tensor_of("optimizer.counts", counts));
    }
    model.for_each_stage([&](std::size_t number, auto& stage) {
      if (copies || number < model.stage_count())
        add_tensors(tensors, stage);
    });
  }
  training_state(training_state const&) = delete;
  training_state& operator=(training_state const&) = delete;
  ~training_state() = default;

  void use() {
    if constexpr (Model::clips)
      model.set_counts({counts[0], counts[1], counts[2]});
    model.for_each_stage([](std::size_t, auto& stage) { stage.refresh(); });
  }
};

} // namespace gpt
