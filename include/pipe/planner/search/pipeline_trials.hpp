// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Pipelines that a search looks at, and the best of them. Header for
//! pipelining::detail::tried_pipeline and pipeline_trials.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/planner/cut/layered_model.hpp>
#include <pipe/planner/search/found_pipeline.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! One pipeline that was looked at.
struct tried_pipeline {
  std::size_t start = 0;
  device_orders orders;
  bool own_order = false;
  arrangement how;
  double makespan = std::numeric_limits<double>::infinity();
  double excess = std::numeric_limits<double>::infinity();

  //! What fits comes before what does not.
  [[nodiscard]] bool better_than(tried_pipeline const& other) const noexcept {
    if (excess != other.excess && (excess > 0 || other.excess > 0))
      return excess < other.excess;
    return makespan < other.makespan * (1 - 1e-12);
  }
};

//! Simulates pipelines and remembers the best, until the bound is met or whoever watches has
//! enough.
template <layered_model Model, class Watch>
class pipeline_trials {
public:
  //! @param bound no pipeline takes less.
  pipeline_trials(Model const& model, double bound, Watch const& watch)
      : model_(model), bound_(bound), watch_(watch) {}

  //! Simulates one and keeps it where it is the best. @return whether it is the best so far
  bool look(tried_pipeline& one) {
    going_ = going_ && (looks_ == 0 || goes_on()); // something is always found
    if (!going_)
      return false;
    ++looks_;
    pipeline_view const over = one.orders.over;
    auto const costs = model_.costs(over, one.how);
    one.makespan = std::numeric_limits<double>::infinity();
    one.excess = one.makespan;
    if (best_.excess == 0 && least_work(over, costs) >= best_.makespan)
      return false;
    dynamic_timetable const table = simulate(one.orders, costs);
    one.makespan = makespan(table);
    one.excess = std::max(0.0, double{model_.excess(table, one.how)});
    bool const best = one.better_than(best_);
    if (best)
      best_ = one;
    going_ = best_.makespan > bound_ * (1 + 1e-12) || best_.excess > 0;
    return best;
  }
  [[nodiscard]] bool goes_on() const {
    return watch_(pipeline_search_progress{looks_, best_time(), bound_});
  }
  [[nodiscard]] bool going() const noexcept { return going_; }
  [[nodiscard]] tried_pipeline const& best() const noexcept { return best_; }
  [[nodiscard]] double best_time() const noexcept {
    return best_.excess > 0 ? std::numeric_limits<double>::infinity() : best_.makespan;
  }
  [[nodiscard]] double bound() const noexcept { return bound_; }
  [[nodiscard]] std::int64_t looks() const noexcept { return looks_; }

private:
  //! The work of the busiest device, where every microbatch takes the same way.
  template <class Costs>
  [[nodiscard]] static double least_work(pipeline_view const& over, Costs const& costs) {
    shape const& extents = over.extents;
    if (routes(extents) > 1 || over.first_units != nullptr)
      return 0;
    std::vector<double> work(static_cast<std::size_t>(extents.devices));
    for (int stage = 0; stage < stages(extents); ++stage)
      for (int microbatch = 0; microbatch < extents.microbatches; ++microbatch)
        for (int chunk = 0; chunk < extents.chunks; ++chunk)
          for (pass_kind const kind : split_kinds(*over.declared)) {
            pass const what = row_writer::make(kind, stage, microbatch, chunk);
            pass const other =
              row_writer::make(kind_with(*over.declared, role::weights), stage, microbatch, chunk);
            // Beside another pass it may take less.
            work[static_cast<std::size_t>(device_of(over, stage))] +=
              std::min({double{costs.duration(what)},
                        pair_duration(costs, what, what) / 2,
                        pair_duration(costs, what, other) - costs.duration(other)});
          }
    return *std::max_element(work.begin(), work.end());
  }

  Model const& model_;
  double bound_;
  Watch const& watch_;
  tried_pipeline best_;
  std::int64_t looks_ = 0;
  bool going_ = true;
};

} // namespace pipelining::inline v0_3::detail
