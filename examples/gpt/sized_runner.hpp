// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A runner, of threads, ranks or GPUs, with the plans of the sizes that iterations have,
//! and a stage as it calls it, where several places run its passes.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "slot_sizes.hpp"

namespace gpt {

//! For each way that microbatches take through the devices the stage that is there.
template <class Stage>
struct copies_of {
  static constexpr bool takes_chunks = true;
  pp::shape extents;
  std::vector<Stage*> of; //!< by route; null in another process

  void forward(pp::context const& where, pp::input x, pp::output y) {
    at(where).forward(where, x, y);
  }
  void backward(pp::context const& where, pp::input dy, pp::output dx) {
    at(where).backward(where, dy, dx);
  }
  void backward_input(pp::context const& where, pp::input dy, pp::output dx) {
    at(where).backward_input(where, dy, dx);
  }
  void backward_weight(pp::context const& where) { at(where).backward_weight(where); }

  // With weights that are gathered.
  void gather_weights(pp::context const& where, pp::output out) {
    at(where).gather_weights(where, out);
  }
  void use_weights(pp::context const& where, pp::input in) { at(where).use_weights(where, in); }
  void collect_gradients(pp::context const& where, pp::output out) {
    at(where).collect_gradients(where, out);
  }
  void scatter_gradients(pp::context const& where, pp::input in) {
    at(where).scatter_gradients(where, in);
  }

protected:
  [[nodiscard]] std::size_t route(pp::context const& where) const {
    return static_cast<std::size_t>(extents.route_of(where.microbatch));
  }
  [[nodiscard]] Stage& at(pp::context const& where) const { return *of[route(where)]; }
};

//! A plan as the runner knows it, and what it was made of.
template <class Sizes>
struct sized_plan {
  Sizes sizes;
  std::shared_ptr<pp::plan const> first;
  pp::plan_number::post_validated numbers{};
};

//! What the slots of a model on the host take.
struct host_slots {
  model_size size;
  std::int64_t totals_bytes = 0; //!< of a stage's row

  //! @param lengths tokens of the sequence of each microbatch
  [[nodiscard]] slot_sizes operator()(pp::timetable_view table,
                                      std::vector<std::int64_t> const& lengths) const {
    slot_sizes sizes(size, cut_for(table, lengths), table);
    sizes.totals_bytes = totals_bytes;
    if (totals_bytes > 0 && table.over.extents.routes() > 1)
      sizes.copied = parameter_counts(size, sizes.stages);
    return sizes;
  }
};

//! Makes plans of a model.
//! @tparam MakeSizes gives the sizes of slots for a timetable and the lengths of sequences
template <class MakeSizes>
struct plan_maker {
  using sizes =
    std::invoke_result_t<MakeSizes const&, pp::timetable_view, std::vector<std::int64_t> const&>;

  MakeSizes make_sizes;
  //! Stages step before they know the norm of all gradients, and validate that in the next
  //! iteration.
  bool early = false;

  [[nodiscard]] sized_plan<sizes> operator()(pp::timetable_view table,
                                             std::vector<std::int64_t> const& lengths) const {
    sizes of = make_sizes(table, lengths);
    auto const when = early ? pp::step_validation::next : pp::step_validation::at_once;
    auto const made = std::make_shared<pp::plan const>(pp::lower(table, of, {.validation = when}));
    return {std::move(of), made};
  }
};

//! Runs one of its plans in each step. Ranks of a run make the same calls.
template <class Runner, class MakeSizes = host_slots>
class sized_runner {
public:
  using plan_made = sized_plan<typename plan_maker<MakeSizes>::sizes>;

  //! @param more what the runner is made of beside its first plan
  template <class... More>
  sized_runner(plan_maker<MakeSizes> make,
               pp::timetable_view table,
               std::vector<std::int64_t> const& lengths,
               More&&... more)
      : make_(std::move(make)), now_(make_(table, lengths)),
        runner_(*now_.first, std::forward<More>(more)...), early_(runner_), plans_(plans_kept) {
    if (make_.early)
      now_.numbers = early_.add(pp::lower_post_validated(table, now_.sizes));
    (void)plans_.get(size_of(table, lengths), [this](plan_made const*) { return now_; });
  }

  //! The steps that follow are of this timetable, whose microbatches may have other numbers of
  //! chunks and lengths than those before. Plans of sizes that come back are there already.
  void use(pp::timetable_view table, std::vector<std::int64_t> const& lengths) {
    now_ = plans_.get(size_of(table, lengths), [&](plan_made const* instead) {
      plan_made made = make_(table, lengths);
      if (!make_.early) {
        made.numbers.first = instead == nullptr
                               ? runner_.add(*made.first)
                               : runner_.replace(instead->numbers.first, *made.first);
        return made;
      }
      auto plans = pp::lower_post_validated(table, made.sizes);
      if (instead != nullptr) {
        made.numbers = early_.replace(instead->numbers, std::move(plans));
      } else {
        pp::plan_number const first = runner_.add(plans.first);
        made.numbers = early_.add(std::move(plans), first);
      }
      return made;
    });
  }

  void step() {
    if (make_.early)
      early_.step(now_.numbers);
    else
      runner_.step(now_.numbers.first);
  }
  void finish() { early_.finish(); }

  //! What of each device lay in slots in the last step. Of ranks collective.
  [[nodiscard]] std::vector<device_row> slots() {
    auto const pools = now_.sizes.pools();
    return pools.empty() ? std::vector<device_row>()
                         : pool_rows(*now_.first, runner_.trace(), now_.sizes, pools);
  }
  //! The most bytes that each device has kept between passes in it. Of ranks collective.
  [[nodiscard]] std::vector<std::size_t> peak_bytes() {
    return peaks_of(runner_.trace(), now_.sizes);
  }

  [[nodiscard]] Runner& runner() { return runner_; }
  [[nodiscard]] Runner const& runner() const { return runner_; }
  [[nodiscard]] plan_made const& now() const { return now_; }
  //! Steps of the optimizer that were found wrong and made right; iterations that began again.
  [[nodiscard]] pp::post_validated_steps<Runner> const& early_steps() const { return early_; }
  [[nodiscard]] auto const& plans() const { return plans_; }

private:
  static constexpr std::size_t plans_kept = 8; // sizes of iterations
  //! What plans depend on: the chunks and the tokens of every microbatch.
  using iteration_size = std::vector<std::int64_t>;

  static iteration_size size_of(pp::timetable_view table,
                                std::vector<std::int64_t> const& lengths) {
    iteration_size result = lengths;
    for (int m = 0; m < table.over.extents.microbatches; ++m)
      result.push_back(table.over.chunks_of(m));
    return result;
  }

  plan_maker<MakeSizes> make_;
  plan_made now_; // of the step to come
  Runner runner_;
  pp::post_validated_steps<Runner> early_;
  pp::plan_cache<iteration_size, plan_made> plans_;
};

} // namespace gpt
