// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The steps of a search over cuts, placements and orders. Header for
//! pipelining::detail::pipeline_walk.

#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/sort_stably.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/planner/cut/layer_partition.hpp>
#include <pipe/planner/cut/layered_model.hpp>
#include <pipe/planner/search/bounds.hpp>
#include <pipe/planner/search/found_pipeline.hpp>
#include <pipe/planner/search/order_graph.hpp>
#include <pipe/planner/search/order_search.hpp>
#include <pipe/planner/search/pipeline_trials.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/describe.hpp>
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

namespace pipelining::inline v0_3::detail {

template <layered_model Model, class Watch>
class pipeline_walk {
public:
  pipeline_walk(Model const& model,
                std::span<device_orders const> starts,
                pipeline_search_options const& options,
                Watch const& watch)
      : model_(model), starts_(starts), options_(options), random_{options.seed},
        trials_(model, least_of(model, starts), watch) {}

  [[nodiscard]] found_pipeline run() {
    std::vector<int> places(static_cast<std::size_t>(starts_.front().over.extents.devices));
    std::iota(places.begin(), places.end(), 0);
    bool all_cuts = true;
    std::vector<tried_pipeline> tried;
    for (std::size_t i = 0; i < starts_.size(); ++i) {
      tried.push_back({i, starts_[i], false, {model_.start(starts_[i].over, places), places}});
      trials_.look(tried.back());
    }
    detail::sort_stably(tried, [](auto const& a, auto const& b) { return a.better_than(b); });
    for (tried_pipeline& each : tried)
      all_cuts = cut_anew(each) && all_cuts;
    double const best_given = trials_.best_time();
    detail::sort_stably(tried, [](auto const& a, auto const& b) { return a.better_than(b); });
    for (std::size_t i = 0; i < std::min<std::size_t>(tried.size(), 4); ++i)
      tune(tried[i]);
    for (int round = 0; round < options_.rounds && trials_.going(); ++round) {
      tried_pipeline other = trials_.best();
      shake(other);
      tune(other);
    }
    return result(best_given, all_cuts);
  }

private:
  [[nodiscard]] static double least_of(Model const& model, std::span<device_orders const> starts) {
    double bound = std::numeric_limits<double>::infinity();
    for (device_orders const& each : starts)
      bound = std::min(bound, double{model.least_time(each.over)});
    return bound;
  }

  //! The best cut of an order, of few devices that differ at all places.
  //! @return whether all were tried
  bool cut_anew(tried_pipeline& one) {
    tried_pipeline best = one;
    tried_pipeline other = one;
    bool all = true;
    bool more = true;
    while (more) {
      auto const look_at = [&](std::vector<int> const& cut) {
        other.how.cut = cut;
        trials_.look(other);
        bool const better = other.better_than(best);
        if (better)
          best = other;
        return better;
      };
      all = try_cuts(model_.layers(),
                     stages(one.orders.over.extents),
                     options_.most_cuts,
                     look_at,
                     [&] { return model_.start(one.orders.over, other.how.places); }) &&
            all;
      bool const few = other.how.places.size() <= 4;
      all = all && (few || model_.equal_devices());
      more = few && !model_.equal_devices() && trials_.going() &&
             std::next_permutation(other.how.places.begin(), other.how.places.end());
    }
    one = std::move(best);
    return all && trials_.going();
  }

  //! Changes order, cut and places in turn as long as one of them helps.
  void tune(tried_pipeline& one) {
    trials_.look(one);
    for (bool better = true; better && trials_.going();) {
      better = order_anew(one); // first, or a changed cut would go back to the one its order is for
      better = move_layers(one) || better;
      better = change_places(one) || better;
    }
  }
  bool take(tried_pipeline& one, tried_pipeline&& other) {
    trials_.look(other);
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
    for (int from = 0; from < stages(over.extents); ++from) {
      std::vector<int> const holders = holders_of(over, from);
      bool const mine =
        one.excess > 0 || std::find(holders.begin(), holders.end(), worst) != holders.end();
      for (int to = 0; mine && to < stages(over.extents) && trials_.going(); ++to) {
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
      for (std::size_t j = i + 1; j < places.size() && trials_.going(); ++j) {
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
    bool better = false;
    for (int const limit : {unlimited, peak + over.extents.chunks, peak}) {
      found_order found =
        search_order(std::span<device_orders const>(&one.orders, 1),
                     costs,
                     {.memory_limit = limit,
                      .split_backward = options_.split_backward,
                      .seed = random_.next(),
                      .most_moves = options_.order_moves},
                     [this](order_search_progress const&) { return trials_.goes_on(); });
      tried_pipeline other = one;
      other.own_order = true;
      other.orders = {found.table.over, found.table.passes, found.table.offsets};
      if (take(one, std::move(other))) {
        better = true;
        break;
      }
    }
    return better;
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

  [[nodiscard]] found_pipeline result(double best_given, bool all_cuts) const {
    found_pipeline found;
    pipeline_view const over = trials_.best().orders.over;
    auto const costs = model_.costs(over, trials_.best().how);
    found.table = simulate(trials_.best().orders, costs);
    if (report const verdict = verify(found.table); !verdict)
      throw std::logic_error("search_pipeline: " + describe(verdict, over));
    found.how = trials_.best().how;
    found.start = trials_.best().start;
    found.own_order = trials_.best().own_order;
    found.makespan = trials_.best().makespan;
    found.best_given = best_given;
    found.excess = trials_.best().excess;
    found.bound = trials_.bound();
    if (over.first_units == nullptr)
      found.order_bound = least_times(over, costs, {.pairs = true}).makespan.least();
    found.all_cuts = all_cuts;
    found.looks = trials_.looks();
    return found;
  }

  Model const& model_;
  std::span<device_orders const> starts_;
  pipeline_search_options const& options_;
  random_numbers random_;
  pipeline_trials<Model, Watch> trials_;
};

} // namespace pipelining::inline v0_3::detail
