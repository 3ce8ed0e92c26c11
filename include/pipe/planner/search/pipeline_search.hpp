// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A search over cuts of layers, placements and orders together. Header for
//! pipelining::search_pipeline, its options and found_pipeline.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/sort_stably.hpp>
#include <pipe/planner/cut/layer_partition.hpp>
#include <pipe/planner/cut/layered_model.hpp>
#include <pipe/planner/search/order_graph.hpp>
#include <pipe/planner/search/order_search.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/cost_table.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/timetable/verify.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief The pipeline that a search over cuts, placements and orders has found.
struct found_pipeline {
  //! @brief The options of a search over cuts, placements and orders.
  struct options {
    std::uint64_t seed = 1; //!< the same seed gives the same pipeline, where nobody ends the search
    int rounds = 8;         //!< of tuning, each from another change by chance
    std::int64_t most_cuts = 20000;   //!< up to so many cuts of a schedule all are tried
    std::int64_t order_moves = 20000; //!< of each search for an order; 0: orders stay as they are
    bool split_backward = true;       //!< whether orders may take backward passes apart
  };

  //! @brief The progress of such a search, for its watcher.
  struct progress {
    std::int64_t looks = 0; //!< pipelines that were looked at
    double best = 0;        //!< the least makespan so far; infinite while nothing fits
    double bound = 0;       //!< no cut, placement and order takes less
  };

  dynamic_timetable table; //!< verified; as early as its order allows
  arrangement how;         //!< its layers and devices
  std::size_t start = 0;   //!< of the orders given, the one that it comes from
  bool own_order = false;  //!< whether its order was searched, not given
  double makespan = 0;     //!< of the table
  double excess = 0;       //!< bytes beyond the memory of a device; above 0 where nothing fits
  double bound = 0;        //!< no cut, placement and order takes less
  std::int64_t looks = 0;  //!< pipelines that were looked at

  //! True when nothing that fits takes less.
  [[nodiscard]] bool proven() const noexcept {
    return excess == 0 && makespan <= bound * (1 + 1e-9);
  }
};

namespace detail {

//! One pipeline that was looked at.
struct tried_pipeline {
  std::size_t start = 0;
  device_orders orders;
  bool own_order = false;
  arrangement how;
  double makespan = std::numeric_limits<double>::infinity();
  double excess = std::numeric_limits<double>::infinity();

  //! True when this pipeline is better: one that fits comes before one that does not.
  [[nodiscard]] bool better_than(tried_pipeline const& other) const noexcept {
    if (excess != other.excess && (excess > 0 || other.excess > 0))
      return excess < other.excess;
    return makespan < other.makespan * (1 - 1e-12);
  }
};

//! Simulates pipelines and remembers the best, until the bound is met or the watcher has enough.
template <layered_model Model, class Watch>
class pipeline_walk {
public:
  pipeline_walk(Model const& model,
                std::span<device_orders const> starts,
                found_pipeline::options const& options,
                Watch const& watch)
      : model_(model), starts_(starts), options_(options), watch_(watch), random_{options.seed} {
    for (device_orders const& each : starts)
      bound_ = std::min(bound_, double{model.least_time(each.over)});
  }

  [[nodiscard]] found_pipeline run() {
    std::vector<int> places(static_cast<std::size_t>(starts_.front().over.extents.devices));
    std::iota(places.begin(), places.end(), 0);
    std::vector<tried_pipeline> tried;
    for (std::size_t i = 0; i < starts_.size(); ++i) {
      tried.push_back({i, starts_[i], false, {model_.start(starts_[i].over, places), places}});
      look(tried.back());
    }
    detail::sort_stably(tried, [](auto const& a, auto const& b) { return a.better_than(b); });
    for (tried_pipeline& each : tried)
      cut_anew(each);
    detail::sort_stably(tried, [](auto const& a, auto const& b) { return a.better_than(b); });
    for (std::size_t i = 0; i < std::min<std::size_t>(tried.size(), 4); ++i)
      tune(tried[i]);
    for (int round = 0; round < options_.rounds && going_; ++round) {
      tried_pipeline other = best_;
      shake(other);
      tune(other);
    }
    return result();
  }

private:
  //! Simulates one and keeps it where it is the best so far.
  void look(tried_pipeline& one) {
    going_ = going_ && (looks_ == 0 || goes_on()); // something is always found
    if (!going_)
      return;
    ++looks_;
    pipeline_view const over = one.orders.over;
    auto const costs = model_.costs(over, one.how);
    one.makespan = std::numeric_limits<double>::infinity();
    one.excess = one.makespan;
    if (best_.excess == 0 && least_work(over, costs) >= best_.makespan)
      return;
    dynamic_timetable const table = simulate(one.orders, costs);
    one.makespan = makespan(table);
    one.excess = std::max(0.0, double{model_.excess(table, one.how)});
    if (one.better_than(best_))
      best_ = one;
    going_ = best_.makespan > bound_ * (1 + 1e-12) || best_.excess > 0;
  }
  [[nodiscard]] bool goes_on() const {
    double const none = std::numeric_limits<double>::infinity();
    return watch_(
      found_pipeline::progress{looks_, best_.excess > 0 ? none : best_.makespan, bound_});
  }
  //! The work of the busiest device, where every microbatch takes the same way.
  [[nodiscard]] static double least_work(pipeline_view const& over, auto const& costs) {
    shape const& extents = over.extents;
    if (extents.routes() > 1 || over.first_units != nullptr)
      return 0;
    std::vector<double> work(static_cast<std::size_t>(extents.devices));
    for (int stage = 0; stage < extents.stages(); ++stage)
      for (int microbatch = 0; microbatch < extents.microbatches; ++microbatch)
        for (int chunk = 0; chunk < extents.chunks; ++chunk)
          for (pass_kind const kind : split_kinds(*over.declared)) {
            pass const what = row_writer::make(kind, stage, microbatch, chunk);
            pass const other =
              row_writer::make(over.declared->kind_with(role::weights), stage, microbatch, chunk);
            // Next to another pass it may take less.
            work[static_cast<std::size_t>(device_of(over, stage))] += std::min(
              {double{costs.duration(what)},
               pair_duration(costs, kinds_of_training, what, what) / 2,
               pair_duration(costs, kinds_of_training, what, other) - costs.duration(other)});
          }
    return *std::max_element(work.begin(), work.end());
  }

  //! The best cut of an order, of few devices that differ at all places.
  void cut_anew(tried_pipeline& one) {
    tried_pipeline other = one;
    bool const at_all_places = other.how.places.size() <= 4 && !model_.equal_devices();
    do
      try_cuts(
        model_.layers(),
        one.orders.over.extents.stages(),
        options_.most_cuts,
        [&](std::vector<int> const& cut) {
          other.how.cut = cut;
          look(other);
          bool const better = other.better_than(one);
          if (better)
            one = other;
          return better;
        },
        [&] { return model_.start(one.orders.over, other.how.places); });
    while (at_all_places && going_ &&
           std::next_permutation(other.how.places.begin(), other.how.places.end()));
  }

  //! Changes order, cut and places in turn as long as one of them helps.
  void tune(tried_pipeline& one) {
    look(one);
    for (bool better = true; better && going_;) {
      better = order_anew(one); // first, or a changed cut would go back to the one its order is for
      better = move_layers(one) || better;
      better = change_places(one) || better;
    }
  }
  bool take(tried_pipeline& one, tried_pipeline&& other) {
    look(other);
    if (!other.better_than(one))
      return false;
    one = std::move(other);
    return true;
  }

  //! The device that works longest.
  [[nodiscard]] int worst_device(tried_pipeline const& one) const {
    dynamic_timetable const table = simulate(one.orders, model_.costs(one.orders.over, one.how));
    int worst = 0;
    for (int device = 1; device < table.over.extents.devices; ++device)
      if (busy(table, device) > busy(table, worst))
        worst = device;
    return worst;
  }
  //! A layer of the worst device goes to any other stage, those in between move by one.
  bool move_layers(tried_pipeline& one) {
    pipeline_view const over = one.orders.over;
    int const worst = worst_device(one);
    std::vector<int> const cut = one.how.cut;
    bool better = false;
    for (int from = 0; from < over.extents.stages(); ++from) {
      std::vector<int> const holders = holders_of(over, from);
      bool const mine =
        one.excess > 0 || std::find(holders.begin(), holders.end(), worst) != holders.end();
      for (int to = 0; mine && to < over.extents.stages() && going_; ++to) {
        tried_pipeline other = one;
        other.how.cut = cut;
        if (to == from || cut[static_cast<std::size_t>(from)] < 1)
          continue;
        --other.how.cut[static_cast<std::size_t>(from)];
        ++other.how.cut[static_cast<std::size_t>(to)];
        better = take(one, std::move(other)) || better;
      }
    }
    return better;
  }
  //! Two devices change places, with the same cut and with a new one.
  bool change_places(tried_pipeline& one) {
    if (model_.equal_devices())
      return false;
    bool better = false;
    std::vector<int> const places = one.how.places;
    for (std::size_t i = 0; i < places.size(); ++i)
      for (std::size_t j = i + 1; j < places.size() && going_; ++j) {
        tried_pipeline other = one;
        other.how.places = places;
        std::swap(other.how.places[i], other.how.places[j]);
        tried_pipeline cut = other;
        cut.how.cut = model_.start(cut.orders.over, cut.how.places);
        better = take(one, std::move(other)) || better;
        better = take(one, std::move(cut)) || better;
      }
    return better;
  }
  //! A new order, with the activations that the devices hold now at most, and with any number.
  bool order_anew(tried_pipeline& one) {
    if (options_.order_moves < 1 || one.orders.over.declared.engines > 1)
      return false;
    pipeline_view const over = one.orders.over;
    auto const costs = model_.costs(over, one.how);
    dynamic_timetable const table = simulate(one.orders, costs);
    int peak = 1;
    for (int device = 0; device < over.extents.devices; ++device)
      peak = std::max(peak, peak_activation_chunks(table, device));
    for (int const limit : {unlimited, peak + over.extents.chunks, peak}) {
      found_order found = search_order(std::span<device_orders const>(&one.orders, 1),
                                       costs,
                                       {.memory_limit = limit,
                                        .split_backward = options_.split_backward,
                                        .seed = random_.next(),
                                        .most_moves = options_.order_moves},
                                       [this](found_order::progress const&) { return goes_on(); });
      tried_pipeline other = one;
      other.own_order = true;
      other.orders = {found.table.over, found.table.passes, found.table.offsets};
      if (take(one, std::move(other)))
        return true;
    }
    return false;
  }
  //! Some layers and devices change places by chance.
  void shake(tried_pipeline& one) {
    auto const count = static_cast<int>(one.how.cut.size());
    for (int i = 0; i < 2 + count / 4; ++i) {
      auto const from = static_cast<std::size_t>(random_.below(count));
      auto const to = static_cast<std::size_t>(random_.below(count));
      if (one.how.cut[from] < 1)
        continue;
      --one.how.cut[from];
      ++one.how.cut[to];
    }
    if (model_.equal_devices())
      return;
    auto const devices = static_cast<int>(one.how.places.size());
    std::swap(one.how.places[static_cast<std::size_t>(random_.below(devices))],
              one.how.places[static_cast<std::size_t>(random_.below(devices))]);
  }

  [[nodiscard]] found_pipeline result() const {
    found_pipeline found{.table =
                           simulate(best_.orders, model_.costs(best_.orders.over, best_.how)),
                         .how = best_.how,
                         .start = best_.start,
                         .own_order = best_.own_order,
                         .makespan = best_.makespan,
                         .excess = best_.excess,
                         .bound = bound_,
                         .looks = looks_};
    if (report const verdict = verify(found.table); !verdict)
      throw std::logic_error("search_pipeline: " + describe(verdict, best_.orders.over));
    return found;
  }

  Model const& model_;
  std::span<device_orders const> starts_;
  found_pipeline::options const& options_;
  Watch const& watch_;
  random_numbers random_;
  tried_pipeline best_{};
  double bound_ = std::numeric_limits<double>::infinity(); // no pipeline takes less
  std::int64_t looks_ = 0;
  bool going_ = true; // false at the end of the search
};

} // namespace detail

//! @brief Searches for the cut of layers into stages, the places of devices and the order of passes
//! that take the least time together and fit the memory of every device.
//!
//! First every order that is given gets its best cut (all cuts where there are few, else moves of
//! single layers from a balanced one; where at most four devices differ, at all places). Then the
//! best ones are tuned in turn: a layer of the busiest device goes to another stage, two devices
//! change places, `search_order` changes the order; and again from changes by chance. Everything
//! is simulated, and only better pipelines are kept: the result is never longer than any given
//! order with its best cut.
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
template <layered_model Model, class Watch = detail::unwatched>
[[nodiscard]] found_pipeline search_pipeline(Model const& model,
                                             std::span<device_orders const> starts,
                                             found_pipeline::options const& options = {},
                                             Watch const& watch = {}) {
  if (starts.empty())
    throw std::invalid_argument("search_pipeline: give at least one order to start from");
  for (device_orders const& each : starts)
    if (each.over.extents.devices != starts.front().over.extents.devices ||
        each.over.extents.microbatches != starts.front().over.extents.microbatches)
      throw std::invalid_argument("search_pipeline: the orders to start from must have as many "
                                  "devices and microbatches each");
  return detail::pipeline_walk<Model, Watch>(model, starts, options, watch).run();
}

} // namespace pipelining::inline v0_3
