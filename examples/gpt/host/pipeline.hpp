// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The model cut into stages and run by the library: timetable, plan, threads.

#include <pipe/run/thread_workers.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "../clipped_stage.hpp"
#include "../sized_runner.hpp"

namespace gpt {

using pipeline_stage = host_stage<float>;

struct stage_copies : copies_of<pipeline_stage> {
  static constexpr std::int64_t totals_bytes = 0; //!< the optimizer is not called by the library
};

//! One copy of a stage, as its optimizer knows it.
struct stepping_copy {
  pipeline_stage* of = nullptr;

  template <class Visit>
  void for_each_parameter(Visit visit) {
    of->for_each_parameter(visit);
  }
  void refresh() { of->refresh(); }
  void join_replicas() {} // there are none
};

//! A stage as the library calls it, whose copies step in the iteration, each with its own
//! optimizer, on the sum of the gradients of all.
class clipped_copies : public stage_copies {
public:
  static constexpr std::int64_t totals_bytes = clipped_stage<stepping_copy>::totals_bytes;

  explicit clipped_copies(stage_copies all) : stage_copies(std::move(all)) {
    for (pipeline_stage* const each : of)
      steps_.emplace_back(stepping_copy{each});
  }

  //! @param chosen must outlive this
  void set_clipping(clipping const& chosen) {
    for (auto& each : steps_)
      each.set_clipping(chosen);
  }

  void copied_gradient(pp::context const& where, pp::output out) {
    copy_out(at(where), &parameter<float>::gradient, out.as<float>().data());
  }
  void add_copies(pp::context const& where, pp::totals const& all) {
    std::size_t next = 0;
    at(where).for_each_parameter([&](auto& p) {
      for (float& sum : p.gradient) {
        sum = all.row<float>(0)[next];
        for (int copy = 1; copy < all.rows; ++copy)
          sum += all.row<float>(copy)[next];
        ++next;
      }
    });
  }
  void contribute(pp::context const& where, pp::output out) {
    optimizer(where).contribute(where, out);
  }
  [[nodiscard]] bool accepts(pp::context const& where, pp::totals const& all) const {
    return optimizer(where).accepts(where, all);
  }
  void optimizer_step(pp::context const& where, pp::totals const& all) {
    optimizer(where).optimizer_step(where, all);
  }
  void roll_back(pp::context const& where, bool stepped) {
    optimizer(where).roll_back(where, stepped);
  }
  void begin_iteration(pp::context const& where) { optimizer(where).begin_iteration(where); }

  //! The same of all copies.
  [[nodiscard]] step_counts const& counts() const { return steps_.front().counts(); }
  //! @pre no step is still to be validated
  void set_counts(step_counts const& counts) {
    for (auto& each : steps_)
      each.set_counts(counts);
  }
  [[nodiscard]] std::int64_t rolled_back() const { return steps_.front().rolled_back(); }

private:
  [[nodiscard]] clipped_stage<stepping_copy>& optimizer(pp::context const& where) {
    return steps_[route(where)];
  }
  [[nodiscard]] clipped_stage<stepping_copy> const& optimizer(pp::context const& where) const {
    return steps_[route(where)];
  }

  std::vector<clipped_stage<stepping_copy>> steps_; // by route
};

//! A model in stages on the threads of this process, one per device of the timetable.
//! @tparam Called a stage as the library calls it: `stage_copies`, or `clipped_copies`.
template <class Called>
class basic_pipelined_model {
public:
  //! Whether the optimizer is part of the plan, and may leave steps out.
  static constexpr bool clips = Called::totals_bytes > 0;

  //! @param lengths tokens of the sequence of each microbatch
  //! @param early stages step before they know the norm of all gradients, and validate that in the
  //! next iteration
  basic_pipelined_model(model_size const& size,
                        pp::timetable_view table,
                        std::vector<std::int64_t> const& lengths,
                        std::uint64_t seed,
                        bool early = false)
      : work_(static_cast<std::size_t>(table.over.extents.devices)),
        stages_(make_stages(size, table, 0, lengths, seed, work_)),
        copies_(make_stages(size, table, 1, lengths, seed, work_)),
        called_(stages_to_call(size, table, lengths, seed)),
        plans_(
          plan_maker<host_slots>{{size, Called::totals_bytes}, early}, table, lengths, called_) {}

  //! The steps that follow are of this timetable, whose microbatches may have other numbers of
  //! chunks and lengths than those before. Plans of sizes that come back are there already.
  //! @pre the same schedule, devices and microbatches as before; one copy of every stage
  void use(pp::timetable_view table, std::vector<std::int64_t> const& lengths) {
    plans_.use(table, lengths);
    for (std::size_t s = 0; s < stages_.size(); ++s)
      stages_[s].set_cut(cut_for(table, lengths, static_cast<int>(s)));
  }
  [[nodiscard]] auto const& plans() const { return plans_.plans(); }

  double step(batch const& pieces) {
    for_each_stage([&](std::size_t, pipeline_stage& stage) { stage.set_batch(pieces); });
    plans_.step();
    add_copies(stages_, copies_);
    return stages_.back().loss() + (copies_.empty() ? 0 : copies_.back().loss());
  }

  void finish() { plans_.finish(); }
  //! Steps of the optimizer that were found wrong and made right; iterations that began again.
  [[nodiscard]] pp::post_validated_steps<pp::thread_runner<std::vector<Called>>> const&
  early_steps() const {
    return plans_.early_steps();
  }
  [[nodiscard]] std::vector<Called>& called() { return called_; }
  //! Steps of the optimizer so far, which all stages know. @pre none is still to be validated
  [[nodiscard]] step_counts counts() const { return called_.front().counts(); }
  void set_counts(step_counts const& counts) {
    for (auto& each : called_)
      each.set_counts(counts);
  }

  //! On all cores.
  void update(adamw const& optimizer, std::int64_t step) {
    std::vector<pipeline_stage*> all;
    for_each_stage([&](std::size_t, pipeline_stage& stage) { all.push_back(&stage); });
    auto const parts = std::min(all.size(), static_cast<std::size_t>(workers_.count()));
    workers_.run(static_cast<int>(parts), [&](int part) {
      for (auto i = static_cast<std::size_t>(part); i < all.size(); i += parts)
        all[i]->update(optimizer, step);
    });
  }
  //! Calls visit(number, stage) of all, then of their copies, which have further numbers.
  template <class Visit>
  void for_each_stage(Visit visit) {
    for (std::size_t s = 0; s < stages_.size(); ++s)
      visit(s, stages_[s]);
    for (std::size_t s = 0; s < copies_.size(); ++s)
      visit(stages_.size() + s, copies_[s]);
  }
  [[nodiscard]] std::size_t stage_count() const { return stages_.size(); }

  [[nodiscard]] std::vector<pipeline_stage>& stages() { return stages_; }
  //! The same of the microbatches that enter at the last device, if any do.
  [[nodiscard]] std::vector<pipeline_stage>& copies() { return copies_; }

  [[nodiscard]] pp::dynamic_timetable trace() const { return plans_.runner().trace(); }

  [[nodiscard]] std::vector<device_row> slots() { return plans_.slots(); }
  [[nodiscard]] std::vector<std::size_t> peak_bytes() { return plans_.peak_bytes(); }

private:
  //! The stages of a way, or none where there is no such way.
  static std::vector<pipeline_stage> make_stages(model_size const& size,
                                                 pp::timetable_view table,
                                                 std::size_t way,
                                                 std::vector<std::int64_t> const& lengths,
                                                 std::uint64_t seed,
                                                 std::vector<host::device_work<float>>& work) {
    pp::shape const& extents = table.over.extents;
    int const first = first_of_way(extents, way);
    std::vector<pipeline_stage> stages;
    if (way > 0 && first == extents.microbatches)
      return stages;
    for (auto const& layers : cut_model(size, extents)) {
      int const stage = static_cast<int>(stages.size());
      auto const cut = cut_for(table, lengths, stage).seen(first, first_of_way(extents, way + 1));
      auto const device = pp::device_of(table, stage, first);
      stages.emplace_back(size, layers, cut, seed, work[static_cast<std::size_t>(device)]);
      if (gathers_weights_of(table, stage))
        stages.back().shard(weight_shard_count);
    }
    return stages;
  }

  //! Who runs the passes of each stage. Makes those that some microbatches have elsewhere.
  std::vector<Called> stages_to_call(model_size const& size,
                                     pp::timetable_view table,
                                     std::vector<std::int64_t> const& lengths,
                                     std::uint64_t seed) {
    auto const held = cut_model(size, table.over.extents);
    std::vector<Called> result;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      int const stage = static_cast<int>(s);
      std::vector<pipeline_stage*> at(work_.size(), nullptr);
      at[static_cast<std::size_t>(pp::device_of(table, stage))] = &stages_[s];
      stage_copies all{{table.over.extents, {}}};
      for (int route = 0; route < table.over.extents.routes(); ++route) {
        auto const device = static_cast<std::size_t>(pp::device_of(table, stage, route));
        if (!copies_.empty()) {
          all.of.push_back(route == 0 ? &stages_[s] : &copies_[s]);
          continue;
        }
        if (at[device] == nullptr) {
          elsewhere_.push_back(std::make_unique<pipeline_stage>(
            size, held[s], cut_for(table, lengths, stage), seed, work_[device]));
          at[device] = elsewhere_.back().get();
        }
        all.of.push_back(at[device]);
      }
      result.push_back(Called(std::move(all)));
    }
    return result;
  }

  std::vector<host::device_work<float>> work_; // by device
  std::vector<pipeline_stage> stages_;
  std::vector<pipeline_stage> copies_; // those of the microbatches that enter at the last device
  std::vector<std::unique_ptr<pipeline_stage>> elsewhere_; // attention on further devices
  std::vector<Called> called_;
  sized_runner<pp::thread_runner<std::vector<Called>>> plans_;
  pp::thread_workers workers_{}; // of update, for all steps
};

using pipelined_model = basic_pipelined_model<stage_copies>;
using clipped_model = basic_pipelined_model<clipped_copies>;

} // namespace gpt
