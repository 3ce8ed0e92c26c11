// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What a checkpoint has: the state of training as named tensors, so that another number of
//! devices, stages or shards can go on from them; and the run that it is of, all that changes its
//! numbers, as lines that ranks and checkpoints compare.

#include <pipe/cluster/checkpoint.hpp>
#include <pipe/cluster/plan_agreement.hpp>
#include <pipe/cluster/tensor_checkpoint.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <exception>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "host/arithmetic.hpp"
#include "tools/support/termination.hpp"
#include "training.hpp"

namespace gpt {

//! Lines `key=value`.
struct run_lines {
  std::string text{};

  //! @param value of a number every bit
  void add(std::string_view key, auto const& value) { pp::append(text, key, "=", value, "\n"); }
  void add(std::string_view key, std::vector<int> const& values) {
    std::string list;
    for (int const value : values)
      list += (list.empty() ? "" : ",") + std::to_string(value);
    add(key, list);
  }
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
  learning.add("bytes-of-text", static_cast<std::int64_t>(text.bytes.size()));
  learning.add("digest-of-text", std::to_string(hash_of(text.bytes)));
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
  return {learning.text, cut.text};
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
  return about_parts("gpt", o, text).learning + lines.text;
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

//! All that the next step of a model depends on, as tensors of the whole one: what this process
//! writes between two steps, or reads to go on. The data follow from the number of the step.
//! @tparam Model has `for_each_stage`, whose stages have `parts` and `exchange`; and, where it has
//! an optimizer that leaves steps out, `counts` and `set_counts`
template <class Model>
class model_state {
public:
  //! An early step of the optimizer is validated before. Of ranks collective.
  explicit model_state(Model& model) : model_(model) {
    if constexpr (requires { model.finish(); })
      model.finish();
    if (model.counts_steps()) {
      if constexpr (requires { model.counts(); }) {
        auto const found = model.counts();
        counts_ = {found.taken, found.clipped, found.left_out};
      }
      tensors_.push_back(pp::tensor_of("optimizer.counts", counts_));
    }
    model.for_each_stage([this](std::size_t, auto& stage) {
      std::vector<tensor_part> const parts = stage.parts();
      std::size_t next = 0;
      stage.exchange([&](std::span<std::byte> numbers) {
        static constexpr char const* kinds[] = {".value", ".mean", ".square"};
        add(parts.at(next / 3), kinds[next % 3], numbers);
        ++next;
      });
      if (next != 3 * parts.size())
        throw std::logic_error("a stage has other parameters than its parts name");
    });
  }
  model_state(model_state const&) = delete;
  model_state& operator=(model_state const&) = delete;
  ~model_state() = default;

  [[nodiscard]] std::vector<pp::state_tensor> const& tensors() const { return tensors_; }
  //! What has been read takes the place of what the model had.
  void use() {
    if constexpr (requires { model_.counts(); })
      if (model_.counts_steps())
        model_.set_counts({counts_[0], counts_[1], counts_[2]});
    auto next = bytes_.begin();
    model_.for_each_stage([&](std::size_t, auto& stage) {
      stage.exchange([&](std::span<std::byte> to) {
        std::copy(next->begin(), next->end(), to.begin());
        ++next;
      });
    });
  }
  //! Writes it: of copies, which have the same numbers, one; boxes of one tensor in a file each.
  //! @throws std::runtime_error where a file cannot be written
  void save(pp::checkpoint_place place, std::int64_t step) const {
    std::map<std::string, std::set<std::vector<std::int64_t>>> seen;
    std::vector<std::vector<pp::state_tensor>> files(1);
    for (auto const& each : tensors_) {
      auto& boxes = seen[each.name];
      if (!boxes.insert(each.first).second)
        continue;
      files.resize(std::max(files.size(), boxes.size()));
      files[boxes.size() - 1].push_back(each);
    }
    for (auto const& each : files) {
      pp::save_tensors(place, step, each);
      place.owner += "-more";
    }
  }

private:
  //! @param numbers of the part, which may be more: padding
  void add(tensor_part const& part, char const* kind, std::span<std::byte> numbers) {
    auto const bytes = static_cast<std::size_t>(part.count()) * sizeof(float);
    if (bytes > numbers.size())
      throw std::logic_error("a stage has another parameter than " + part.name);
    bytes_.emplace_back(numbers.begin(), numbers.end());
    tensors_.push_back({part.name + kind,
                        "F32",
                        part.shape,
                        std::span(bytes_.back()).first(bytes),
                        part.whole,
                        part.first});
  }

  Model& model_;
  std::vector<std::int64_t> counts_{
    0, 0, 0}; // of the optimizer's steps, some of which it leaves out
  std::deque<std::vector<std::byte>> bytes_{}; // of each tensor
  std::vector<pp::state_tensor> tensors_{};
};

//! A model in training, with checkpoints between its steps, which any other cut of the model loads.
//! Ranks that have stages elsewhere make the same calls.
template <class Model>
struct checkpointed_model {
  Model& model;
  pp::checkpoint_place files; //!< no folder: none are written
  std::int64_t every;         //!< steps between two
  std::int64_t steps;         //!< in all
  std::int64_t first = 0;     //!< steps of the checkpoint that it goes on from
  std::int64_t done = 0;      //!< steps so far

  //! Goes on from the newest checkpoint, where there is one. @return what was read for it
  //! @param find the step of it: `find(tensors)` of those that are wanted here
  template <class Find>
  pp::loaded_bytes restore(Find find) {
    if (files.folder.empty())
      return {};
    // [snippet restore]
    model_state state(model);
    std::optional<std::int64_t> const newest = find(state.tensors());
    if (!newest)
      return {};
    pp::loaded_bytes const bytes = pp::load_tensors(files, *newest, state.tensors());
    state.use();
    // [snippet restore]
    first = done = *newest;
    return bytes;
  }
  //! The same where no other process has a part in it.
  void restore_alone() {
    restore([this](auto const& wanted) {
      auto const whole = pp::checkpoints_of(files, wanted);
      return whole.empty() ? std::nullopt : std::optional(whole.back());
    });
  }
  //! Whether there are steps left. @param tells where they begin, if not at the beginning
  [[nodiscard]] bool has_steps(bool tells = true) const {
    if (tells && first > 0)
      std::printf("goes on after step %lld\n", static_cast<long long>(first));
    return first < steps;
  }

  double step(batch const& pieces) { return model.step(pieces); }
  void update(adamw const& optimizer, std::int64_t step) {
    model.update(optimizer, step);
    done = step + 1;
  }
  //! To be called between steps, when the times of the last one have been read. Returns whether
  //! there was something to save.
  bool save() {
    bool const wants = done % every == 0 || done == steps || stop_wanted != 0;
    if (done <= first || files.folder.empty() || !wants)
      return false;
    model_state const state(model);
    try {
      state.save(files, done);
    } catch (std::runtime_error const& error) {
      if constexpr (requires { model.fail(error.what()); }) // on all ranks
        model.fail(std::string("could not save its state: ") + error.what());
      throw;
    }
    return true;
  }
  [[nodiscard]] pp::dynamic_timetable trace() { return model.trace(); }
};

//! The same on one of several ranks, which end together, or not at all.
template <class Model, class Store>
struct rank_in_training : checkpointed_model<Model> {
  Store& line; //!< of the pipeline
  int replica;
  std::int64_t microbatches; //!< of one replica

  //! Goes on from the newest checkpoint that all ranks of a store have. Collective.
  //! @param name of the start, or of the attempt
  template <class All>
  pp::loaded_bytes
  agree(All& everyone, int rank, std::string const& name, std::chrono::nanoseconds deadline) {
    // [snippet agree]
    return this->restore([&](std::vector<pp::state_tensor> const& wanted) {
      pp::checkpoint_place const& place = this->files;
      return pp::agree_on_checkpoint(
        everyone, place, wanted, rank, pp::ranks_of(place.layout), name, deadline);
    });
    // [snippet agree]
  }
  //! @param pieces of all replicas
  double step(batch const& pieces) {
    if (example::asked_to_end(line))
      this->model.fail("was told to end (SIGTERM)");
    return this->model.step(share_of(pieces, replica, microbatches));
  }
  void update(adamw const& optimizer, std::int64_t step) {
    checkpointed_model<Model>::update(optimizer, step);
    if (stop_wanted) // after this step here, perhaps after another one elsewhere
      this->model.fail("was interrupted");
  }
};

//! All steps of a schedule of stages, and what its devices kept; the optimizer's are between them,
//! or part of their plans.
//! @param sizes of iterations, which take turns. @param saved a `checkpointed_model`
template <class Saved>
training train_checkpointed(options const& o,
                            text_to_learn const& text,
                            std::vector<sized_table> const& sizes,
                            Saved& saved) {
  auto& model = saved.model;
  auto const optimizer = optimizer_of(o);
  auto const begin = [&](std::int64_t step) {
    (void)saved.save();
    auto const at = size_of_step(step, o.steps, sizes.size());
    if (sizes.size() > 1)
      model.use(sizes[at].table, sizes[at].lengths);
    return at == 0;
  };
  auto const update = [&](std::int64_t step) { saved.update(optimizer, step); };
  auto result = train_steps(o, text, saved, begin, update, saved.first);
  if (result.traces.empty())
    result.traces.push_back(model.trace());
  result.peaks = model.peak_bytes();
  result.slots = model.slots();
  result.plans_made = model.plans().made();
  result.plans_reused = model.plans().reused();
  (void)saved.save();
  model.finish();
  return result;
}

} // namespace gpt
