// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Cut, placement and order of a pipeline, searched together. Header for
//! pipelining::search_pipeline.

#include <pipe/flow/shape.hpp>
#include <pipe/planner/cut/layered_model.hpp>
#include <pipe/planner/search/found_pipeline.hpp>
#include <pipe/planner/search/pipeline_walk.hpp>
#include <pipe/timetable/timetable.hpp>

#include <span>
#include <stdexcept>
#include <string>

namespace pipelining::inline v0_3 {

//! @brief Searches for the cut of layers into stages, the places of devices and the order of passes
//! that take the least time together and fit the memory of every device.
//!
//! First every order that is given gets its best cut (all cuts where there are few, else moves of
//! single layers from a balanced one; where at most four devices differ, at all places). Then the
//! best ones are tuned in turn: a layer of the busiest device goes to another stage, two devices
//! change places, `search_order` changes the order; and again from changes by chance. Everything
//! is simulated, and only what is better is kept: the result is never longer than any given order
//! with its best cut.
//!
//! @param model layers and devices. @param starts orders of pipelines with as many devices and
//! microbatches: their placements, numbers of stages and chunks are the ones that are tried.
//! @param watch told the progress at every step; where it returns false, the search ends.
//! @return `excess` above 0 where nothing fits; the nearest to it is there then.
//! @throws std::invalid_argument without orders, or for ones that differ in devices or
//! microbatches; std::logic_error never, unless an order waits in a circle.
//! @complexity O(n) for each look at n passes, besides what `search_order` takes.
//! @source own derivation after the structure of AdaPtis (arXiv:2509.23722), which tunes partition,
//! placement and schedule in turn from the worst device.
template <layered_model Model, class Watch>
[[nodiscard]] found_pipeline search_pipeline(Model const& model,
                                             std::span<device_orders const> starts,
                                             pipeline_search_options const& options,
                                             Watch const& watch) {
  if (starts.empty())
    throw std::invalid_argument("search_pipeline: give at least one order to start from");
  for (device_orders const& each : starts)
    if (each.over.extents.devices != starts.front().over.extents.devices ||
        each.over.extents.microbatches != starts.front().over.extents.microbatches)
      throw std::invalid_argument("search_pipeline: the orders to start from must have as many "
                                  "devices and microbatches each");
  return detail::pipeline_walk<Model, Watch>(model, starts, options, watch).run();
}

//! @brief The same, without anybody who watches.
template <layered_model Model>
[[nodiscard]] found_pipeline search_pipeline(Model const& model,
                                             std::span<device_orders const> starts,
                                             pipeline_search_options const& options = {}) {
  return search_pipeline(
    model, starts, options, [](pipeline_search_progress const&) { return true; });
}

} // namespace pipelining::inline v0_3
