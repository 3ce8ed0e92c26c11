// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The model cut into stages and run by the library: timetable, plan, threads.

#include <pipe/core/flow.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/model/device_memory.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/post_validated.hpp>
#include <pipe/plan/sizes.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/plan_cache.hpp>
#include <pipe/run/post_validated.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "clipped_stage.hpp"
#include "model.hpp"
#include "stage.hpp"
#include "text.hpp"

namespace gpt {

namespace pp = pipelining;

//! A stage as the library calls it: contexts become units, bytes become floats.
struct pipeline_stage : stage<float> {
  using stage<float>::stage;

  void forward(pp::context const& where, pp::input x, pp::output y) {
    auto const run = where.recomputing ? &stage<float>::recompute : &stage<float>::forward;
    (this->*run)(unit_of(where), x.as<float>().data(), y.as<float>().data(), kept_of(where));
  }
  void backward(pp::context const& where, pp::input dy, pp::output dx) {
    stage<float>::backward(
      unit_of(where), dy.as<float>().data(), dx.as<float>().data(), kept_of(where));
  }
  void backward_input(pp::context const& where, pp::input dy, pp::output dx) {
    stage<float>::backward_input(
      unit_of(where), dy.as<float>().data(), dx.as<float>().data(), kept_of(where));
  }
  void backward_weight(pp::context const& where) { stage<float>::backward_weight(unit_of(where)); }

  // With weights in shards.
  void gather_weights(pp::context const&, pp::output out) { gather(out.as<float>().data()); }
  void use_weights(pp::context const&, pp::input in) {
    use(const_cast<float*>(in.as<float>().data())); // which are read alone
  }
  void collect_gradients(pp::context const&, pp::output out) { collect(out.as<float>().data()); }
  void scatter_gradients(pp::context const&, pp::input in) { scatter(in.as<float>().data()); }

private:
  [[nodiscard]] static unit unit_of(pp::context const& where) {
    return {where.microbatch, where.chunk};
  }
  //! Null where the plan has no slots for what stages keep.
  [[nodiscard]] static float* kept_of(pp::context const& where) {
    return where.activation.as<float>().data();
  }
};

//! A stage as the library knows it: for each way that microbatches take through the devices the one
//! that is there.
struct stage_copies {
  pp::shape extents;
  std::vector<pipeline_stage*> of; //!< by route

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

  //! Of a stage that has one copy.
  template <class Visit>
  void for_each_parameter(Visit visit) {
    of.front()->for_each_parameter(visit);
  }
  void refresh() { of.front()->refresh(); }

  static constexpr std::int64_t totals_bytes = 0; //!< the optimizer is not called by the library

private:
  [[nodiscard]] pipeline_stage& at(pp::context const& where) const {
    return *of[static_cast<std::size_t>(pp::route_of(extents, where.microbatch))];
  }
};

//! Shards of the weights of a stage, where the schedule gathers them.
inline constexpr std::int64_t weight_shard_count = 2;

//! Bytes of the messages between stages, of activations where the library moves them, and of
//! weights and gradients where they are gathered and scattered. What stages keep beside, they keep
//! in buffers of their own.
struct slot_sizes {
  model_size size;
  step_cut cut;
  std::vector<layer_range> stages; //!< what each holds
  bool moved = false;              //!< activations lie in slots; else they stay
  std::int64_t totals_bytes = 0;   //!< of a stage's row
  //! Numbers of whole weights and gradients of every stage; empty: they are not in shards.
  std::vector<std::int64_t> weights{};
  std::vector<std::int64_t> gradients{};

  slot_sizes(model_size const& of, step_cut how, pp::timetable_view table)
      : size(of), cut(std::move(how)), stages(cut_model(of, table.extents)),
        moved(std::any_of(table.passes, table.passes + table.size(), [](pp::pass const& what) {
          return what.kind == pp::pass_kind::offloaded_forward;
        })) {
    if (table.declared->scatters) {
      step_cut const none(1, cut_sequence(of.sequence, 1));
      device_memory<float> memory;
      for (layer_range const& layers : stages) {
        stage<float> one(of, layers, none, 1, memory);
        one.shard(weight_shard_count);
        weights.push_back(one.weight_numbers());
        gradients.push_back(one.gradient_numbers());
      }
    }
  }

  //! Of what a forward pass keeps, wherever it lies.
  [[nodiscard]] std::int64_t kept_bytes(pp::pass const& forward) const {
    return kept_numbers(
             size, stages[forward.stage], cut.range({forward.microbatch, forward.chunk}).count()) *
           static_cast<std::int64_t>(sizeof(float));
  }
  [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const& maker) const {
    auto const tokens = cut.range({maker.microbatch, maker.chunk}).count();
    std::size_t const stage = maker.stage;
    if (of == pp::slot_class::activation) {
      return moved ? kept_bytes(maker) : 0;
    }
    std::int64_t numbers = 0;
    if (of == pp::slot_class::output) {
      numbers = tokens * handed_on(size, stages[stage].part);
    } else if (of == pp::slot_class::input_gradient) {
      numbers = tokens * handed_on(size, stages[stage == 0 ? 0 : stage - 1].part);
    } else if (of == pp::slot_class::weights) {
      numbers = weights[stage];
    } else if (of == pp::slot_class::full_gradients) {
      numbers = gradients[stage];
    }
    return numbers * static_cast<std::int64_t>(sizeof(float));
  }
};

//! What of a device lies in slots, in bytes: what the plan reserves, and the most that was in use
//! at once when it ran.
struct slot_bytes {
  std::int64_t planned = 0; //!< of activations
  std::int64_t measured = 0;
  std::int64_t planned_on_host = 0;
  std::int64_t measured_on_host = 0;
  std::int64_t planned_weights = 0; //!< whole ones that have been gathered
  std::int64_t measured_weights = 0;
  std::int64_t planned_gradients = 0; //!< whole ones that have not been scattered
  std::int64_t measured_gradients = 0;
};

//! @param ran when each pass of a step ran
[[nodiscard]] inline std::vector<slot_bytes>
slot_bytes_of(pp::plan_view work, pp::timetable_view ran, slot_sizes const& sizes) {
  auto const bytes = [&sizes](pp::pass const& what) {
    return static_cast<double>(sizes.bytes(pp::slot_class::activation, what));
  };
  std::vector<slot_bytes> all;
  for (int device = 0; device < work.extents.devices; ++device) {
    auto const planned = [&](pp::slot_class of) {
      return work.layout(device, of).count * work.layout(device, of).bytes;
    };
    auto const measured = [&](pp::slot_class of) {
      return static_cast<std::int64_t>(
        pp::peak_slot_bytes(ran, device, of, [&](pp::pass const& what) {
          return static_cast<double>(sizes.bytes(of, what));
        }));
    };
    all.push_back({planned(pp::slot_class::activation),
                   measured(pp::slot_class::activation),
                   work.host_bytes == nullptr ? 0 : work.host_bytes[device],
                   static_cast<std::int64_t>(pp::peak_host_bytes(ran, device, bytes)),
                   planned(pp::slot_class::weights),
                   sizes.weights.empty() ? 0 : measured(pp::slot_class::weights),
                   planned(pp::slot_class::full_gradients),
                   sizes.weights.empty() ? 0 : measured(pp::slot_class::full_gradients)});
  }
  return all;
}

//! Bytes that forward passes keep on a device at the peak of a timetable without chunks: with the
//! keys and values of whole layers, which chunks would share.
[[nodiscard]] inline double
kept_at_peak(pp::timetable_view table, int device, slot_sizes const& sizes) {
  return pp::peak_activation_bytes(table, device, [&sizes](pp::pass const& what) {
    layer_range const& layers = sizes.stages[what.stage];
    auto const shared = (layers.last - layers.first) * sizes.cut.tokens(what.microbatch) * 2 *
                        sizes.size.key_width() * static_cast<std::int64_t>(sizeof(float));
    return static_cast<double>(sizes.kept_bytes(what) + shared);
  });
}

//! Tokens of the sequence of each microbatch: the longest have all, the others as many as their
//! chunks.
[[nodiscard]] inline std::vector<std::int64_t> lengths_of(model_size const& size,
                                                          pp::timetable_view table) {
  auto const whole = cut_sequence(size.sequence, table.extents.chunks);
  std::vector<std::int64_t> lengths;
  for (int m = 0; m < table.extents.microbatches; ++m) {
    auto const chunks = static_cast<std::size_t>(pp::chunks_of(table.over(), m));
    lengths.push_back(whole[chunks - 1].end);
  }
  return lengths;
}

//! Whether stages add gradients up from the last microbatch to the first, as schedules may that run
//! all forward passes first.
[[nodiscard]] inline bool adds_from_last(pp::timetable_view table) {
  auto const* const back =
    std::find_if(table.passes, table.passes + table.size(), [&table](pp::pass const& what) {
      return what.stage == 0 && pp::adds_gradients(*table.declared, what.kind);
    });
  return table.extents.where != pp::placement::bidirectional &&
         back != table.passes + table.size() && back->microbatch > 0;
}

//! How one device without chunks cuts sequences of these lengths.
[[nodiscard]] inline step_cut cut_whole(std::vector<std::int64_t> const& lengths) {
  std::vector<std::vector<chunk_range>> chunks;
  for (auto const length : lengths) {
    chunks.push_back(cut_sequence(length, 1));
  }
  return step_cut(std::move(chunks));
}

//! How a timetable cuts the work of a step, and which of it a stage recomputes.
//! @param stage -1: what any stage recomputes
[[nodiscard]] inline step_cut cut_for(pp::timetable_view table,
                                      std::vector<std::int64_t> const& lengths,
                                      int stage = -1) {
  std::vector<std::vector<chunk_range>> chunks;
  for (int m = 0; m < table.extents.microbatches; ++m) {
    chunks.push_back(
      cut_sequence(lengths[static_cast<std::size_t>(m)], pp::chunks_of(table.over(), m)));
  }
  step_cut cut(std::move(chunks));
  for (int i = 0; i < table.size(); ++i) {
    if (table.passes[i].kind == pp::pass_kind::checkpointed_forward &&
        (stage < 0 || table.passes[i].stage == stage)) {
      cut.recompute({table.passes[i].microbatch, table.passes[i].chunk});
    }
  }
  return cut.back_from_last(adds_from_last(table));
}

//! The first microbatch that takes the `way`-th way through the devices; M behind the last.
[[nodiscard]] inline int first_of_way(pp::shape const& extents, std::size_t way) {
  bool const both = extents.where == pp::placement::bidirectional;
  return way == 0 ? 0 : way == 1 && both ? extents.microbatches / 2 : extents.microbatches;
}

//! True for stages that some microbatches have on other devices than others. They have no weights,
//! but for those of pipelines that enter at both ends.
[[nodiscard]] inline bool is_shared_out(pp::timetable_view table, int stage) {
  for (int route = 1; route < pp::routes(table.extents); ++route) {
    if (table.extents.where == pp::placement::custom &&
        pp::device_of(table, stage, route) != pp::device_of(table, stage)) {
      return true;
    }
  }
  return false;
}

//! Stages add gradients up in the order of microbatches, or from the last one to the first, last
//! chunk first, as one device does: other sums would have other bits. Where there are two copies of
//! a stage, each does with its half.
//! @throws std::invalid_argument for a timetable whose backward passes come in another order
inline void check_order(pp::timetable_view table, std::string const& name) {
  auto const stages = static_cast<std::size_t>(pp::stages(table.extents));
  // [ways, 2, S]: the unit that gets its gradients of inputs next, and of weights.
  std::vector<int> next(2 * stages, 0);
  next.resize(4 * stages, pp::first_unit(table.over(), first_of_way(table.extents, 1)));
  bool const from_last = adds_from_last(table);
  std::vector<bool> shared;
  for (int stage = 0; stage < pp::stages(table.extents); ++stage) {
    shared.push_back(is_shared_out(table, stage));
  }
  for (int i = 0; i < table.size(); ++i) {
    pp::pass const& what = table.passes[i];
    int const chunks = pp::chunks_of(table.over(), what.microbatch);
    if (shared[what.stage]) {
      continue;
    }
    int const first = pp::first_unit(table.over(), what.microbatch);
    int const unit = from_last ? pp::units(table.over()) - 1 - first - what.chunk
                               : first + chunks - 1 - what.chunk;
    std::size_t const way = pp::enters_at_end(table.extents, what.microbatch) ? 1 : 0;
    for (bool const weights : {false, true}) {
      pp::pass_kind const half =
        weights ? pp::pass_kind::backward_weight : pp::pass_kind::backward_input;
      bool const counts = what.kind == pp::pass_kind::backward || what.kind == half;
      if (counts && next[(2 * way + (weights ? 1 : 0)) * stages + what.stage]++ != unit) {
        throw std::invalid_argument(name +
                                    " adds up the gradients of microbatches in another order than "
                                    "one device, with which the example compares every bit");
      }
    }
  }
}

//! A model in stages on the threads of this process, one per device of the timetable.
//! @tparam Called a stage as the library calls it: `stage_copies`, or with its optimizer.
template <class Called>
class basic_pipelined_model {
public:
  //! @param lengths tokens of the sequence of each microbatch
  //! @param early stages step before they know the norm of all gradients, and validate that in the
  //! next iteration
  basic_pipelined_model(model_size const& size,
                        pp::timetable_view table,
                        std::vector<std::int64_t> const& lengths,
                        std::uint64_t seed,
                        bool early = false)
      : memories_(static_cast<std::size_t>(table.extents.devices)),
        stages_(make_stages(size, table, 0, lengths, seed, memories_)),
        copies_(make_stages(size, table, 1, lengths, seed, memories_)),
        called_(stages_to_call(size, table, lengths, seed)), size_(size),
        validates_afterwards_(early), now_(lower(table, lengths)), runner_(*now_.first, called_),
        early_(runner_), plans_(plans_kept) {
    if (early) {
      now_.numbers = pp::add(runner_, pp::lower_post_validated(table, now_.sizes));
    }
    (void)plans_.get(size_of(table, lengths), [this](planned const*) { return now_; });
  }

  //! The steps that follow are of this timetable, whose microbatches may have other numbers of
  //! chunks and lengths than those before. Plans of sizes that come back are there already.
  //! @pre the same schedule, devices and microbatches as before; one copy of every stage
  void use(pp::timetable_view table, std::vector<std::int64_t> const& lengths) {
    now_ = plans_.get(size_of(table, lengths), [&](planned const* instead) {
      planned made = lower(table, lengths);
      if (!validates_afterwards_) {
        made.numbers.first = instead == nullptr
                               ? runner_.add(*made.first)
                               : runner_.replace(instead->numbers.first, *made.first);
        return made;
      }
      auto plans = pp::lower_post_validated(table, made.sizes);
      if (instead != nullptr) {
        made.numbers = pp::replace(runner_, instead->numbers, std::move(plans));
      } else {
        pp::plan_number const first = runner_.add(plans.first);
        made.numbers = pp::add(runner_, std::move(plans), first);
      }
      return made;
    });
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      stages_[s].set_cut(cut_for(table, lengths, static_cast<int>(s)));
    }
  }
  //! What was made and used again of them.
  [[nodiscard]] auto const& plans() const { return plans_; }

  //! Forward and backward of all microbatches, without the optimizer. Returns the mean loss.
  double step(batch const& pieces) {
    for (auto* const each : {&stages_, &copies_}) {
      for (auto& stage : *each) {
        stage.set_batch(pieces);
      }
    }
    if (validates_afterwards_) {
      early_.step(now_.numbers);
    } else {
      runner_.step(now_.numbers.first);
    }
    add_copies(stages_, copies_);
    return stages_.back().loss() + (copies_.empty() ? 0 : copies_.back().loss());
  }

  //! To be called before anyone looks at the weights.
  void finish() { early_.finish(); }
  //! Steps of the optimizer that were found wrong and made right; iterations that began again.
  [[nodiscard]] pp::post_validated_steps<pp::thread_runner<std::vector<Called>>> const&
  early_steps() const {
    return early_;
  }
  //! The stages as the library calls them.
  [[nodiscard]] std::vector<Called>& called() { return called_; }

  //! One step of the optimizer on every stage.
  void update(adamw const& optimizer, std::int64_t step) {
    for (auto* const each : {&stages_, &copies_}) {
      for (auto& stage : *each) {
        stage.update(optimizer, step);
      }
    }
  }

  [[nodiscard]] std::vector<pipeline_stage>& stages() { return stages_; }

  //! When each pass of the last step ran, in seconds.
  [[nodiscard]] pp::dynamic_timetable trace() const { return runner_.trace(); }

  //! What of each device lay in slots in the last step.
  [[nodiscard]] std::vector<slot_bytes> slots() const {
    return slot_bytes_of(*now_.first, runner_.trace(), now_.sizes);
  }

  //! The most bytes that each device has kept between passes so far, and in slots in the last step.
  [[nodiscard]] std::vector<std::size_t> peak_bytes() const {
    std::vector<std::size_t> peaks;
    auto const in_slots = slots();
    for (auto const& memory : memories_) {
      peaks.push_back(memory.pool.peak_bytes() +
                      static_cast<std::size_t>(in_slots[peaks.size()].measured));
    }
    return peaks;
  }

private:
  static constexpr std::size_t plans_kept = 8; // sizes of iterations

  //! A plan as the runner knows it, and what it was made of.
  struct planned {
    slot_sizes sizes;
    std::shared_ptr<pp::plan const> first;
    pp::post_validated_numbers numbers{};
  };
  //! What plans depend on: the chunks and the tokens of every microbatch.
  using iteration_size = std::vector<std::int64_t>;

  static iteration_size size_of(pp::timetable_view table,
                                std::vector<std::int64_t> const& lengths) {
    iteration_size result = lengths;
    for (int m = 0; m < table.extents.microbatches; ++m) {
      result.push_back(pp::chunks_of(table.over(), m));
    }
    return result;
  }
  planned lower(pp::timetable_view table, std::vector<std::int64_t> const& lengths) const {
    slot_sizes sizes(size_, cut_for(table, lengths), table);
    sizes.totals_bytes = Called::totals_bytes;
    auto const when =
      validates_afterwards_ ? pp::step_validation::next : pp::step_validation::at_once;
    auto const made =
      std::make_shared<pp::plan const>(pp::lower(table, sizes, {.validation = when}));
    return {std::move(sizes), made};
  }

  //! The stages of a way, or none where there is no such way.
  static std::vector<pipeline_stage> make_stages(model_size const& size,
                                                 pp::timetable_view table,
                                                 std::size_t way,
                                                 std::vector<std::int64_t> const& lengths,
                                                 std::uint64_t seed,
                                                 std::vector<device_memory<float>>& memories) {
    pp::shape const& extents = table.extents;
    int const first = first_of_way(extents, way);
    std::vector<pipeline_stage> stages;
    if (way > 0 && first == extents.microbatches) {
      return stages;
    }
    for (auto const& layers : cut_model(size, extents)) {
      int const stage = static_cast<int>(stages.size());
      auto const cut = cut_for(table, lengths, stage).seen(first, first_of_way(extents, way + 1));
      auto const device = pp::device_of(table, stage, first);
      stages.emplace_back(size, layers, cut, seed, memories[static_cast<std::size_t>(device)]);
      if (table.declared->scatters) {
        stages.back().shard(weight_shard_count);
      }
    }
    return stages;
  }

  //! Who runs the passes of each stage. Makes those that some microbatches have elsewhere.
  std::vector<Called> stages_to_call(model_size const& size,
                                     pp::timetable_view table,
                                     std::vector<std::int64_t> const& lengths,
                                     std::uint64_t seed) {
    auto const held = cut_model(size, table.extents);
    std::vector<Called> result;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      int const stage = static_cast<int>(s);
      std::vector<pipeline_stage*> at(memories_.size(), nullptr);
      at[static_cast<std::size_t>(pp::device_of(table, stage))] = &stages_[s];
      stage_copies all{table.extents, {}};
      for (int route = 0; route < pp::routes(table.extents); ++route) {
        auto const device = static_cast<std::size_t>(pp::device_of(table, stage, route));
        if (!copies_.empty()) {
          all.of.push_back(route == 0 ? &stages_[s] : &copies_[s]);
          continue;
        }
        if (at[device] == nullptr) {
          elsewhere_.push_back(std::make_unique<pipeline_stage>(
            size, held[s], cut_for(table, lengths, stage), seed, memories_[device]));
          at[device] = elsewhere_.back().get();
        }
        all.of.push_back(at[device]);
      }
      result.push_back(Called(std::move(all)));
    }
    return result;
  }

  std::vector<device_memory<float>> memories_; // by device
  std::vector<pipeline_stage> stages_;
  std::vector<pipeline_stage> copies_; // those of the microbatches that enter at the last device
  std::vector<std::unique_ptr<pipeline_stage>> elsewhere_; // attention on further devices
  std::vector<Called> called_;
  model_size size_;
  bool validates_afterwards_ = false;
  planned now_; // of the step to come
  pp::thread_runner<std::vector<Called>> runner_;
  pp::post_validated_steps<pp::thread_runner<std::vector<Called>>> early_;
  pp::plan_cache<iteration_size, planned> plans_;
};

//! The optimizer steps between iterations.
using pipelined_model = basic_pipelined_model<stage_copies>;
//! It steps in them, on clipped gradients.
using clipped_model = basic_pipelined_model<clipped_stage<stage_copies>>;

} // namespace gpt
