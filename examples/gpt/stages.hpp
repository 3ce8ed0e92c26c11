// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The model cut into stages and run by the library, on threads, ranks or GPUs: which stages
//! a process has, a stage as a runner calls it, and these with their runner and the plans of the
//! sizes that iterations have.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "clipped_stage.hpp"
#include "slot_sizes.hpp"

namespace gpt {

//! [ways, stages]: two ways where pipelines enter at both ends, with a copy of every stage each; or
//! all ways where attention is on other devices than its layer, whose other stages are on the first
//! one alone. Null where a stage is not on a way, or of another process.
template <class Stage>
using stages_by_way = std::vector<std::vector<std::unique_ptr<Stage>>>;

//! Calls make(way, stage, device) for the stages of a device, or of all.
template <class Stage, class Make>
[[nodiscard]] stages_by_way<Stage>
make_by_way(pp::timetable_view table, std::optional<int> only, Make make) {
  auto const& extents = table.over.extents;
  stages_by_way<Stage> made(static_cast<std::size_t>(extents.routes()));
  for (std::size_t way = 0; way < made.size(); ++way)
    for (int stage = 0; stage < extents.stages(); ++stage) {
      bool const routed = extents.where == pp::placement::custom;
      int const first = routed ? static_cast<int>(way) : first_of_way(extents, way);
      int const device = pp::device_of(table, stage, first);
      made[way].push_back(device == only.value_or(device) ? make(way, stage, device) : nullptr);
    }
  return made;
}
//! The same of layers: calls make(stage, device, its layers, what of the step it sees).
template <class Stage, class Make>
[[nodiscard]] stages_by_way<Stage> make_layers_by_way(model_size const& size,
                                                      pp::timetable_view table,
                                                      step_cut const& cut,
                                                      std::optional<int> only,
                                                      Make make) {
  auto const& extents = table.over.extents;
  auto const held = cut_model(size, extents);
  bool const cuts_layers = extents.where == pp::placement::custom;
  return make_by_way<Stage>(table, only, [&](std::size_t way, int stage, int device) {
    auto const& layers = held[static_cast<std::size_t>(stage)];
    if (cuts_layers && way > 0 && layers.part != layer_part::attention)
      return std::unique_ptr<Stage>();
    int const first = first_of_way(extents, way);
    return make(
      stage, device, layers, cuts_layers ? cut : cut.seen(first, first_of_way(extents, way + 1)));
  });
}

//! For each way that microbatches take through the devices the stage that is there: its passes by
//! the names that the library has for them, each by `run_half`.
template <class Stage>
struct copies_of {
  static constexpr bool takes_chunks = true;
  static constexpr std::int64_t totals_bytes = 0; //!< the optimizer is not called by the library
  using stage_type = Stage;
  pp::shape extents;
  std::vector<Stage*> of; //!< by route; null in another process

  void forward(pp::context const& where, pp::input x, pp::output y) {
    at(where).run_half(pp::pass_kind::forward, {where, x, y}, 0);
  }
  void backward(pp::context const& where, pp::input dy, pp::output dx) {
    at(where).run_half(pp::pass_kind::backward, {where, dy, dx}, 0);
  }
  void backward_input(pp::context const& where, pp::input dy, pp::output dx) {
    at(where).run_half(pp::pass_kind::backward_input, {where, dy, dx}, 0);
  }
  void backward_weight(pp::context const& where) {
    at(where).run_half(pp::pass_kind::backward_weight, {where, {}, {}}, 0);
  }

  // With weights that are gathered.
  void gather_weights(pp::context const& where,
                      pp::output out) requires pp::detail::can_gather_weights<Stage> {
    at(where).gather_weights(where, out);
  }
  void use_weights(pp::context const& where,
                   pp::input in) requires pp::detail::can_gather_weights<Stage> {
    at(where).use_weights(where, in);
  }
  void collect_gradients(pp::context const& where,
                         pp::output out) requires pp::detail::can_scatter_gradients<Stage> {
    at(where).collect_gradients(where, out);
  }
  void scatter_gradients(pp::context const& where,
                         pp::input in) requires pp::detail::can_scatter_gradients<Stage> {
    at(where).scatter_gradients(where, in);
  }

  //! Two passes at once, of stages that can.
  void braid(pp::pass_kind kind,
             pp::composite_half const& half,
             pp::pass_kind other_kind,
             pp::composite_half const& other_half,
             copies_of& other) requires pp::detail::can_braid<Stage, Stage> {
    at(half.where).braid(kind, half, other_kind, other_half, other.at(other_half.where));
  }

  //! Whether any is in this process; the first of these.
  [[nodiscard]] Stage* here() const {
    for (Stage* const each : of)
      if (each != nullptr)
        return each;
    return nullptr;
  }

  void join_replicas(pp::context const&) {} //!< there are none
  //! The same of all copies.
  [[nodiscard]] step_counts counts() const requires(requires(Stage const& s) { s.counts(); }) {
    return here()->counts();
  }
  [[nodiscard]] std::int64_t rolled_back() const { return here()->rolled_back(); }
  void set_counts(step_counts const& counts) {
    for (Stage* const each : of)
      if (each != nullptr)
        each->set_counts(counts);
  }
  [[nodiscard]] Stage& at(pp::context const& where) const {
    return *of[static_cast<std::size_t>(extents.route_of(where.microbatch))];
  }
};

//! What the slots of a model on the host take.
//! @param totals_bytes of a stage's row
//! @param moves_copies gradients of copies travel in the plan, next to totals
[[nodiscard]] inline sizes_of_plan
host_slots(model_size const& size, std::int64_t totals_bytes = 0, bool moves_copies = true) {
  return [=](pp::timetable_view table, std::vector<std::int64_t> const& lengths) {
    slot_sizes sizes(size, cut_for(table, lengths), table);
    if (totals_bytes > 0 && moves_copies && table.over.extents.routes() > 1)
      sizes.copied = parameter_counts(size, sizes.stages);
    return plan_sizes(sizes, sizes.shown(), totals_bytes);
  };
}

//! Lowers with a policy for messages.
template <class Policy>
[[nodiscard]] pp::plan lower_by(pp::timetable_view table, plan_sizes const& sizes) {
  return pp::lower<Policy>(table, sizes);
}

//! Makes plans of a model.
struct plan_maker {
  sizes_of_plan make_sizes;
  //! Stages step before they know the norm of all gradients, and validate that in the next
  //! iteration.
  bool early = false;
  pp::plan (*lower)(pp::timetable_view, plan_sizes const&) = lower_by<pp::communicators::per_pair>;

  //! Sizes of slots and the plans with these, of which the first is there without early steps, too.
  struct plans {
    plan_sizes of;
    pp::detail::post_validated_plans made;
  };
  [[nodiscard]] std::shared_ptr<plans const>
  operator()(pp::timetable_view table, std::vector<std::int64_t> const& lengths) const {
    plans all{make_sizes(table, lengths), {}};
    if (early)
      all.made = pp::lower_post_validated<pp::communicators::per_pair>(table, all.of);
    else
      all.made.first = lower(table, all.of);
    return std::make_shared<plans const>(std::move(all));
  }
};

//! The stages of this process and the runner that drives them, by one of its plans in each step.
//! Ranks of a run make the same calls.
//! @tparam Called a stage as the runner calls it: a `copies_of`, perhaps with its optimizer
template <class Called, class Runner>
class model_in_stages {
public:
  using stage_type = typename Called::stage_type;
  //! Whether the optimizer is part of the plan, and may leave steps out.
  static constexpr bool clips = Called::totals_bytes > 0;
  [[nodiscard]] static constexpr bool counts_steps() { return clips; }

  //! @param lengths tokens of the sequence of each microbatch
  //! @param call makes a Called: call(copies of the stage, number of the stage)
  //! @param more what the runner is made of next to its plan and the stages
  template <class Call, class... More>
  model_in_stages(stages_by_way<stage_type> ways,
                  pp::timetable_view table,
                  std::vector<std::int64_t> const& lengths,
                  plan_maker make,
                  Call call,
                  More&&... more)
      : ways_(std::move(ways)), called_(to_call(table.over.extents, call)),
        make_(std::move(make)), now_{make_(table, lengths)},
        runner_(now_.plans->made.first, called_, std::forward<More>(more)...), early_(runner_),
        plans_(plans_kept) {
    if (make_.early)
      now_.numbers = early_.add(now_.plans->made);
    (void)plans_.get(size_of(table, lengths), [this](numbered const*) { return now_; });
  }
  model_in_stages(model_in_stages const&) = delete;
  model_in_stages& operator=(model_in_stages const&) = delete;

  //! The steps that follow are of this timetable, whose microbatches may have other numbers of
  //! chunks and lengths than those before. Plans of sizes that come back are there already. Of
  //! ranks collective.
  //! @pre the same schedule, devices and microbatches as before; one copy of every stage
  void use(pp::timetable_view table, std::vector<std::int64_t> const& lengths) {
    now_ = plans_.get(size_of(table, lengths), [&](numbered const* instead) {
      numbered put{make_(table, lengths)};
      auto const& made = put.plans->made;
      if (make_.early && instead != nullptr) {
        put.numbers = early_.replace(instead->numbers, made);
        return put;
      }
      auto& first = put.numbers.first;
      first = instead == nullptr ? runner_.add(made.first)
                                 : runner_.replace(instead->numbers.first, made.first);
      if (make_.early)
        put.numbers = early_.add(made, first);
      return put;
    });
    auto const cut = cut_for(table, lengths);
    for_each_stage([&](std::size_t, stage_type& each) { each.set_cut(cut); });
  }
  //! All passes of an iteration.
  void run_plan() {
    if (make_.early)
      early_.step(now_.numbers);
    else
      runner_.step(now_.numbers.first);
  }
  //! To be called before anyone looks at the weights. Of ranks collective.
  void finish() { early_.finish(); }
  //! What of each device lay in slots in the last step. Of ranks collective.
  [[nodiscard]] std::vector<device_row> slots() {
    auto const& [sizes, made] = *now_.plans;
    return sizes.pools.empty() ? std::vector<device_row>()
                               : pool_rows(made.first, trace(), sizes, sizes.pools);
  }
  //! The most bytes that each device has kept between passes in it. Of ranks collective.
  [[nodiscard]] std::vector<std::size_t> peak_bytes() { return peaks_of(trace(), now_.plans->of); }
  [[nodiscard]] auto const& plans() const { return plans_; }
  //! Steps of the optimizer that were found wrong and made right; iterations that began again.
  [[nodiscard]] pp::post_validated_steps<Runner> const& early_steps() const { return early_; }
  [[nodiscard]] Runner& runner() { return runner_; }
  [[nodiscard]] Runner const& runner() const { return runner_; }
  [[nodiscard]] pp::dynamic_timetable trace() { return runner_.trace(); }
  //! Ends the run on all ranks.
  void fail(std::string const& why) requires(requires(Runner& of) { of.fail(why); }) {
    runner_.fail(why);
  }

  [[nodiscard]] std::vector<Called>& called() { return called_; }
  [[nodiscard]] stages_by_way<stage_type> const& ways() const { return ways_; }
  [[nodiscard]] std::size_t stage_count() const { return called_.size(); }
  //! Calls visit(number, stage) of all that are here, way by way.
  template <class Visit>
  void for_each_stage(Visit visit) const {
    std::size_t number = 0;
    for (auto const& way : ways_)
      for (auto const& each : way) {
        if (each != nullptr)
          visit(number, *each);
        ++number;
      }
  }
  //! Calls visit(called) of those with a copy here, in the order of the stages.
  template <class Visit>
  void for_each_called(Visit visit) {
    for (Called& each : called_)
      if (each.here() != nullptr)
        visit(each);
  }

  //! @param how must outlive this
  void set_clipping(clipping const& how) {
    if constexpr (clips)
      for_each_called([&](Called& each) { each.set_clipping(how); });
  }
  //! Steps of the optimizer so far, which all stages know; an early one is validated before. Of
  //! ranks collective.
  [[nodiscard]] step_counts counts() requires(requires(Called const& each) { each.counts(); }) {
    finish();
    step_counts found;
    for_each_called([&](Called& each) { found = each.counts(); });
    return found;
  }
  void set_counts(step_counts const& counts) {
    for_each_called([&](Called& each) { each.set_counts(counts); });
  }
  //! What clipping has done to the stages here. Of ranks collective.
  [[nodiscard]] clipping_report clipping_done() {
    auto const steps = counts();
    clipping_report found{.clipped = steps.clipped, .left_out = steps.left_out};
    for_each_called([&](Called& each) { found.rolled_back += each.rolled_back(); });
    found.corrected = early_steps().corrected();
    found.repeated = early_steps().repeated();
    return found;
  }

private:
  static constexpr std::size_t plans_kept = 8; // sizes of iterations
  //! What plans depend on: the chunks and the tokens of every microbatch.
  using iteration_size = std::vector<std::int64_t>;
  //! Plans, and their numbers in the runner.
  struct numbered {
    std::shared_ptr<plan_maker::plans const> plans;
    pp::plan_number::post_validated numbers{};
  };

  static iteration_size size_of(pp::timetable_view table,
                                std::vector<std::int64_t> const& lengths) {
    iteration_size result = lengths;
    for (int m = 0; m < table.over.extents.microbatches; ++m)
      result.push_back(table.over.chunks_of(m));
    return result;
  }
  template <class Call>
  [[nodiscard]] std::vector<Called> to_call(pp::shape const& extents, Call& call) const {
    std::vector<Called> called;
    for (std::size_t s = 0; s < ways_.front().size(); ++s) {
      copies_of<stage_type> all{extents, {}};
      for (auto const& way : ways_) {
        bool const elsewhere = extents.where == pp::placement::custom && way[s] == nullptr;
        all.of.push_back((elsewhere ? ways_.front() : way)[s].get());
      }
      called.push_back(call(std::move(all), static_cast<int>(s)));
    }
    return called;
  }

  stages_by_way<stage_type> ways_;
  std::vector<Called> called_;
  plan_maker make_;
  numbered now_; // of the step to come
  Runner runner_;
  pp::post_validated_steps<Runner> early_;
  pp::plan_cache<iteration_size, numbered> plans_;
};

} // namespace gpt
