// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The model cut into stages and run by the library: timetable, plan, threads.

#include <pipe/run/thread_workers.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "../stages.hpp"

namespace gpt {

using pipeline_stage = host_stage<float>;

using stage_copies = copies_of<pipeline_stage>;

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

//! The stages of a timetable on the host, all or those of a device.
//! @param work by device, or that of the only one
[[nodiscard]] inline stages_by_way<pipeline_stage>
make_host_stages(model_size const& size,
                 pp::timetable_view table,
                 std::vector<std::int64_t> const& lengths,
                 std::uint64_t seed,
                 std::vector<host::device_work<float>>& work,
                 std::optional<int> only = {}) {
  return make_layers_by_way<pipeline_stage>(
    size,
    table,
    cut_for(table, lengths),
    only,
    [&](int stage, int device, layer_range const& layers, step_cut const& seen) {
      auto& space = work[only ? 0 : static_cast<std::size_t>(device)];
      auto made = std::make_unique<pipeline_stage>(size, layers, seen, seed, space);
      if (gathers_weights_of(table, stage))
        made->shard(weight_shard_count);
      return made;
    });
}
//! What the stages of devices share, made before these.
struct with_device_work {
  std::vector<host::device_work<float>> work;
};

//! A model in stages on the threads of this process, one per device of the timetable.
//! @tparam Called a stage as the library calls it: `stage_copies`, or `clipped_copies`.
template <class Called>
class basic_pipelined_model
    : with_device_work,
      public model_in_stages<Called, pp::thread_runner<std::vector<Called>>> {
public:
  //! @param lengths tokens of the sequence of each microbatch
  //! @param early stages step before they know the norm of all gradients, and validate that in the
  //! next iteration
  basic_pipelined_model(model_size const& size,
                        pp::timetable_view table,
                        std::vector<std::int64_t> const& lengths,
                        std::uint64_t seed,
                        bool early = false)
      : with_device_work{std::vector<host::device_work<float>>(
          static_cast<std::size_t>(table.over.extents.devices))},
        model_in_stages<Called, pp::thread_runner<std::vector<Called>>>(
          make_host_stages(size, table, lengths, seed, this->work),
          table,
          lengths,
          {{size, Called::totals_bytes}, early},
          [](stage_copies all, int) { return Called(std::move(all)); }) {}

  double step(batch const& pieces) {
    this->for_each_stage([&](std::size_t, pipeline_stage& stage) { stage.set_batch(pieces); });
    this->run_plan();
    double loss = 0;
    for (Called const& each : this->called())
      if (each.of.front() != each.of.back())
        add_copies(*each.of.front(), *each.of.back());
    for (auto const& way : this->ways())
      loss += way.back() != nullptr ? way.back()->loss() : 0;
    return loss;
  }
  //! On all cores.
  void update(adamw const& optimizer, std::int64_t step) {
    if (this->counts_steps())
      return; // it is part of the plan
    std::vector<pipeline_stage*> all;
    this->for_each_stage([&](std::size_t, pipeline_stage& stage) { all.push_back(&stage); });
    auto const parts = std::min(all.size(), static_cast<std::size_t>(workers_.count()));
    workers_.run(static_cast<int>(parts), [&](int part) {
      for (auto i = static_cast<std::size_t>(part); i < all.size(); i += parts)
        all[i]->update(optimizer, step);
    });
  }
  //! Of the stages; not of their copies, where microbatches enter at both ends.
  template <class Visit>
  void for_each_parameter(Visit visit) {
    for (auto const& each : this->ways().front())
      each->for_each_parameter(visit);
  }

private:
  pp::thread_workers workers_{}; // of update, for all steps
};

using pipelined_model = basic_pipelined_model<stage_copies>;
using clipped_model = basic_pipelined_model<clipped_copies>;

} // namespace gpt
