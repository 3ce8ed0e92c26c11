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
#include "host_stage.hpp"

namespace gpt {

using pipeline_stage = host_stage<float>;

using stage_copies = copies_of<pipeline_stage>;

//! The same, whose copies step in the iteration on the sum of the gradients of all.
struct clipped_copies : clipped_stage<stage_copies> {
  using clipped_stage<stage_copies>::clipped_stage;

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
};

//! The stages of a timetable on the host, all or those of a device.
//! @param work by device
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
      auto made = std::make_unique<pipeline_stage>(
        size, layers, seen, seed, work[static_cast<std::size_t>(device)]);
      if (gathers_weights_of(table, stage))
        made->shard(weight_shard_count);
      return made;
    });
}
//! What the stages of each device share, made before these.
struct with_device_work {
  std::vector<host::device_work<float>> work;

  explicit with_device_work(pp::timetable_view table)
      : work(static_cast<std::size_t>(table.over.extents.devices)) {}
};

//! A model in stages on the threads of this process, one per device of the timetable.
//! @tparam Called a stage as the library calls it: a `copies_of`, perhaps with its optimizer
template <class Called>
class model_on_threads : with_device_work,
                         public model_in_stages<Called, pp::thread_runner<std::vector<Called>>> {
public:
  using stage_type = typename Called::stage_type;

  //! @param lengths tokens of the sequence of each microbatch
  //! @param make_stages gives them by way, of what the stages of each device share
  template <class MakeStages>
  model_on_threads(pp::timetable_view table,
                   std::vector<std::int64_t> const& lengths,
                   plan_maker plans,
                   MakeStages make_stages)
      : with_device_work(table), model_in_stages<Called, pp::thread_runner<std::vector<Called>>>(
                                   make_stages(this->work),
                                   table,
                                   lengths,
                                   std::move(plans),
                                   [](copies_of<stage_type> all, int) {
                                     return Called(std::move(all));
                                   }) {}

  double step(batch const& pieces) {
    this->for_each_stage([&](std::size_t, stage_type& stage) { stage.set_batch(pieces); });
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
    std::vector<stage_type*> all;
    this->for_each_stage([&](std::size_t, stage_type& stage) { all.push_back(&stage); });
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

//! The same of whole layers, or of layers cut at their attention.
//! @tparam Called `stage_copies`, or `clipped_copies`
template <class Called>
struct basic_pipelined_model : model_on_threads<Called> {
  //! @param early stages step before they know the norm of all gradients, and validate that in the
  //! next iteration
  basic_pipelined_model(model_size const& size,
                        pp::timetable_view table,
                        std::vector<std::int64_t> const& lengths,
                        std::uint64_t seed,
                        bool early = false)
      : model_on_threads<Called>(
          table, lengths, {host_slots(size, Called::totals_bytes), early}, [&](auto& shared) {
            return make_host_stages(size, table, lengths, seed, shared);
          }) {}
};

using pipelined_model = basic_pipelined_model<stage_copies>;
using clipped_model = basic_pipelined_model<clipped_copies>;

} // namespace gpt
