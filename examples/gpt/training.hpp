// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The training loop: batches, steps, the progress line.

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>

#include "options.hpp"
#include "single_device.hpp"
#include "stages.hpp"

namespace gpt {

struct training {
  std::int64_t first = 0;     //!< steps before those here, of a checkpoint
  std::vector<double> losses; //!< by step
  bool interrupted = false;   //!< by Ctrl-C or SIGTERM
  double step_seconds = 0;    //!< mean without the first steps, optimizer not counted
  std::vector<double> idle;   //!< share of the step, by device, mean likewise
  std::vector<pp::dynamic_timetable> traces; //!< of the last steps, at least one
  std::vector<std::size_t> peaks;            //!< bytes, by device
  std::vector<device_row> slots;             //!< bytes, see report_slots
  std::optional<clipping_report> clipped{};
  long plans_made = 0; //!< of the sizes of iterations
  long plans_reused = 0;
};

//! Enough steps that their medians do not follow a single slow one.
inline constexpr std::size_t most_traces = 8;

//! Share of a step in which a device runs no pass.
inline double idle_share(pp::timetable_view table, int device) {
  return 1 - pp::busy(table, device) / pp::makespan(table);
}

//! The signal, Ctrl-C or SIGTERM, after which the step that runs is the last; 0: none has come. A
//! second one ends the program at once.
inline std::atomic<int> stop_wanted{0};

//! While it lives, these signals set `stop_wanted`; but SIGTERM not where the program has another
//! use for it.
class interruption {
public:
  interruption() {
    struct sigaction action {};
    action.sa_handler = [](int signal) { stop_wanted = signal; };
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    sigaction(SIGINT, &action, &interrupt_);
    sigaction(SIGTERM, nullptr, &terminate_);
    if (terminate_.sa_handler == SIG_DFL)
      sigaction(SIGTERM, &action, nullptr);
  }
  ~interruption() {
    sigaction(SIGINT, &interrupt_, nullptr);
    sigaction(SIGTERM, &terminate_, nullptr);
  }
  interruption(interruption const&) = delete;
  interruption& operator=(interruption const&) = delete;

private:
  struct sigaction interrupt_ {};
  struct sigaction terminate_ {};
};

static_assert(std::atomic<int>::is_always_lock_free);

//! What has been printed so far has arrived.
//! @throws std::runtime_error where it has not, on a full disk for example
inline void check_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    throw std::runtime_error(std::string("cannot write the output: ") + std::strerror(errno));
}

//! One line that is written over on terminals, and now and then elsewhere.
//! @param first step of this run
inline void show_progress(
  options const& o, std::int64_t step, std::int64_t first, double loss, double tokens_per_second) {
  static bool const on_terminal = isatty(STDOUT_FILENO) != 0;
  bool const terminal = on_terminal && o.tells == telling::in_a_line;
  bool const last = step + 1 == o.steps;
  bool const begins = o.tells == telling::line_by_line && step == first;
  if (o.tells == telling::nothing || (!terminal && !begins && !last && step % 10 != 0))
    return;
  std::printf("%sstep %lld/%lld   loss %.3f   %.0f tokens/s%s",
              terminal ? "\r" : "",
              static_cast<long long>(step + 1),
              static_cast<long long>(o.steps),
              loss,
              tokens_per_second,
              terminal && !last ? "   " : "\n");
  check_output();
}

//! A timetable of iterations of one size, and the tokens of their sequences.
struct sized_table {
  pp::dynamic_timetable table;
  std::vector<std::int64_t> lengths;
};

//! Which of the sizes a step has: they take turns, and the last step has the first.
[[nodiscard]] inline std::size_t
size_of_step(std::int64_t step, std::int64_t steps, std::size_t sizes) {
  return static_cast<std::size_t>(steps - 1 - step) % sizes;
}

[[nodiscard]] inline adamw optimizer_of(options const& o) {
  adamw optimizer;
  optimizer.steps = o.steps;
  return optimizer;
}
//! @throws std::invalid_argument where a plan cannot validate steps that have been taken early
inline void check_early_steps(options const& o, pp::timetable_view table) {
  if (o.post_validation && (table.over.extents.routes() > 1 || has_shards_of_stages(o))) {
    throw std::invalid_argument(
      "--post-validation validates steps that are part of the plan, which "
      "wants one copy of every stage and no shards; leave it out");
  }
}
[[nodiscard]] inline clipping clipping_of(options const& o) {
  return {optimizer_of(o), o.clip, o.post_validation};
}

//! The same with the microbatches of all replicas of a pipeline.
[[nodiscard]] inline options of_all_replicas(options o, int replicas) {
  o.microbatches *= replicas;
  auto const own = o.lengths;
  for (int replica = 1; replica < replicas; ++replica)
    o.lengths.insert(o.lengths.end(), own.begin(), own.end());
  return o;
}

//! What steps learn from, one batch after the other.
class batches {
public:
  //! @param text must outlive this. @param more than the seed: of others than the run trains with
  batches(options const& o, text_to_learn const& text, std::uint64_t more)
      : text_(&text.bytes), microbatches_(o.microbatches), sequence_(o.size.sequence),
        random_(seed_of(o) + more) {}

  [[nodiscard]] batch next() { return random_batch(*text_, microbatches_, sequence_, random_); }

private:
  std::vector<std::uint8_t> const* text_;
  std::int64_t microbatches_;
  std::int64_t sequence_;
  std::mt19937_64 random_;
};

//! All steps of a model that has `step` and `trace`.
//! @param begin called before each step; says whether the step is one to be measured
//! @param update what comes after the passes of a step, next to what the plan does
//! @param first the step to begin with, where the model has done those before it
template <class Model, class Begin, class Update>
training train_steps(options const& o,
                     text_to_learn const& text,
                     Model& model,
                     Begin begin,
                     Update update,
                     std::int64_t first = 0) {
  using clock = std::chrono::steady_clock;
  batches all(o, text, 0);
  training result;
  result.first = first;
  result.idle.assign(static_cast<std::size_t>(o.devices), 0.0);
  std::int64_t const warm_up = std::min<std::int64_t>(first + 3, o.steps - 1);
  std::int64_t measured = 0;
  interruption const watched;
  for (std::int64_t step = 0; step < o.steps && !result.interrupted; ++step) {
    auto const pieces = all.next();
    if (step < first)
      continue; // the data go on after it, too
    bool const counts = begin(step);
    auto const start = clock::now();
    result.losses.push_back(model.step(pieces));
    std::chrono::duration<double> const took = clock::now() - start;
    update(step);
    std::chrono::duration<double> const whole = clock::now() - start;
    result.interrupted = stop_wanted != 0 && step + 1 < o.steps;
    if (counts && (step >= warm_up || result.interrupted)) {
      auto const trace = model.trace();
      result.step_seconds += took.count();
      for (int device = 0; device < trace.over.extents.devices; ++device)
        result.idle[static_cast<std::size_t>(device)] += idle_share(trace, device);
      if (result.traces.size() == most_traces)
        result.traces.erase(result.traces.begin());
      result.traces.push_back(trace);
      ++measured;
    }
    show_progress(
      o, step, first, result.losses.back(), static_cast<double>(tokens_of(o)) / whole.count());
  }
  measured = std::max<std::int64_t>(measured, 1);
  result.step_seconds /= static_cast<double>(measured);
  for (double& idle : result.idle)
    idle /= static_cast<double>(measured);
  return result;
}

//! The same with an optimizer that steps between iterations, by `update` of the model.
template <class Model>
training train_model(options const& o, text_to_learn const& text, Model& model) {
  auto const optimizer = optimizer_of(o);
  auto const measured = [](std::int64_t) { return true; };
  auto const update = [&](std::int64_t step) { model.update(optimizer, step); };
  auto result = train_steps(o, text, model, measured, update);
  if (result.traces.empty())
    result.traces.push_back(model.trace());
  return result;
}

} // namespace gpt
