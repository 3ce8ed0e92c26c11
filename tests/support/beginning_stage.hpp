// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A stage of any flow that computes in its slots, and begins some of its passes on other
//! engines than compute: their work is done at once, at their end, or on a thread of its own.

#include <pipe/flow/pipeline.hpp>
#include <pipe/run/context.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <stdexcept>
#include <tests/support/flow_interpreter.hpp>
#include <utility>
#include <vector>

namespace support {

//! @brief Where the work of a pass is done that a stage begins; `whole`: the stage begins none.
enum class begun_work { whole, at_begin, at_finish, elsewhere };

//! @brief A context with lists of its own, which outlives the call.
class kept_context {
public:
  explicit kept_context(pipelining::context const& of)
      : where_(of), inputs_(of.inputs.begin(), of.inputs.end()),
        outputs_(of.outputs.begin(), of.outputs.end()) {}
  [[nodiscard]] pipelining::context where() const {
    pipelining::context result = where_;
    result.inputs = inputs_;
    result.outputs = outputs_;
    return result;
  }

private:
  pipelining::context where_;
  std::vector<pipelining::input> inputs_;
  std::vector<pipelining::output> outputs_;
};

//! @brief Several devices may run it at once.
struct beginning_stage {
  pipelining::pipeline_view over{};
  std::function<begun_work(pipelining::pass const&)> how = [](auto const&) {
    return begun_work::whole;
  };
  std::function<void(pipelining::pass const&)> at_work = [](auto const&) {}; //!< before the work
  digests read{};
  int began = 0;     //!< passes
  int abandoned = 0; //!< passes that it finished in a step that had failed
  std::map<std::array<int, 5>, std::future<void>> under_way{};
  std::mutex both{};

  void perform(pipelining::pass_kind kind,
               pipelining::context const& where,
               pipelining::input,
               pipelining::output) {
    work(pass_of(kind, where), where);
  }
  bool begin_pass(pipelining::pass_kind kind,
                  pipelining::context const& where,
                  pipelining::input,
                  pipelining::output) {
    pipelining::pass const what = pass_of(kind, where);
    auto const where_to = how(what);
    if (where_to == begun_work::whole)
      return false;
    std::future<void> job;
    if (where_to == begun_work::at_begin)
      work(what, where);
    if (where_to == begun_work::elsewhere)
      job = std::async(std::launch::async,
                       [this, what, kept = kept_context(where)] { work(what, kept.where()); });
    std::scoped_lock const lock(both);
    ++began;
    under_way.emplace(at(what, where), std::move(job));
    return true;
  }
  void finish_pass(pipelining::pass_kind kind,
                   pipelining::context const& where,
                   pipelining::input,
                   pipelining::output) {
    pipelining::pass const what = pass_of(kind, where);
    std::future<void> job;
    {
      std::scoped_lock const lock(both);
      auto const found = under_way.find(at(what, where));
      if (found == under_way.end())
        throw std::logic_error("a pass ends that has not begun");
      job = std::move(found->second);
      under_way.erase(found);
      abandoned += where.abandoned ? 1 : 0;
    }
    if (job.valid())
      job.get();
    else if (how(what) == begun_work::at_finish && !where.abandoned)
      work(what, where);
  }

  void forward(pipelining::context const&, pipelining::input, pipelining::output) {}
  void backward(pipelining::context const&, pipelining::input, pipelining::output) {}
  void backward_input(pipelining::context const&, pipelining::input, pipelining::output) {}
  void backward_weight(pipelining::context const&) {}

private:
  static std::array<int, 5> at(pipelining::pass const& what, pipelining::context const& where) {
    auto const key = key_of(what);
    return {where.device, key[0], key[1], key[2], key[3]};
  }
  void work(pipelining::pass const& what, pipelining::context const& where) {
    at_work(what);
    auto const found = compute_in_slots(over, what, where);
    std::scoped_lock const lock(both);
    read[key_of(what)] = found;
  }
};

//! @brief Chance for each pass, which stays the same.
inline std::uint64_t by_chance(unsigned seed, pipelining::pass const& what) {
  std::uint64_t word = seed;
  for (int const part : key_of(what))
    word = mixed(word, static_cast<std::uint64_t>(part));
  return word;
}

//! @brief The stages of a plan, with delays by chance of up to 64 microseconds. By chance they
//! begin passes, and in three ways.
inline std::vector<beginning_stage> beginning_model(pipelining::plan const& work, unsigned seed) {
  std::vector<beginning_stage> model(static_cast<std::size_t>(work.over.extents.stages()));
  for (beginning_stage& stage : model) {
    stage.over = work.over;
    stage.how = [seed](pipelining::pass const& what) {
      return static_cast<begun_work>(by_chance(seed, what) >> 62U);
    };
    stage.at_work = [seed](pipelining::pass const& what) {
      auto const delay = std::chrono::microseconds((by_chance(seed, what) >> 32U) % 64);
      auto const end = std::chrono::steady_clock::now() + delay;
      while (std::chrono::steady_clock::now() < end) {
      }
    };
  }
  return model;
}

//! @brief What the passes of all stages have read.
inline digests read_by(std::vector<beginning_stage> const& model) {
  digests all;
  for (beginning_stage const& stage : model)
    all.insert(stage.read.begin(), stage.read.end());
  return all;
}

} // namespace support
