// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "choose_search.hpp"

#include <pipe/io/append.hpp>
#include <pipe/search/layered_model.hpp>
#include <pipe/search/pipeline_search.hpp>
#include <pipe/timetable/metrics.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "progress_line.hpp"

namespace pp = pipelining;

namespace examples {
namespace {

//! The model and the GPUs of a command, for the search.
class asked_model {
public:
  explicit asked_model(choose_command const& asked) : asked_(asked) {
    double const least = std::numeric_limits<double>::max();
    layers_ = layer_times(asked, asked.gpu(0), true, false);
    // Of a GPU that differs, how much faster it is at best.
    for (int device = 0; device < asked.devices; ++device) {
      double fastest = 1;
      if (asked.gpu(device) != asked.gpu(0)) {
        std::vector<pp::layer_cost> const here = layer_times(asked, asked.gpu(device), true, false);
        fastest = 1 / least;
        for (std::size_t i = 0; i < here.size(); ++i)
          for (double pp::layer_cost::*const time : {&pp::layer_cost::forward,
                                                     &pp::layer_cost::backward_input,
                                                     &pp::layer_cost::backward_weight})
            fastest = std::max(fastest, layers_[i].*time / here[i].*time);
      }
      speeds_.push_back(fastest);
    }
  }

  [[nodiscard]] int layers() const { return asked_.model.layers; }
  [[nodiscard]] bool equal_devices() const {
    return std::all_of(asked_.gpus.begin(), asked_.gpus.end(), [this](pp::gpu const& each) {
      return each == asked_.gpus.front();
    });
  }
  [[nodiscard]] std::vector<int> start(pp::pipeline const& over,
                                       std::vector<int> const& places) const {
    return cut_layers(placed(places), over.extents, false);
  }
  [[nodiscard]] pp::cost_table costs(pp::pipeline const& over, pp::arrangement const& how) const {
    return costs_of(placed(how.places), candidate_of(over.extents, how));
  }
  [[nodiscard]] double excess(pp::timetable_view table, pp::arrangement const& how) const {
    candidate one = candidate_of(table.extents, how);
    count_memory(placed(how.places), table, one);
    return std::max(0.0, one.gigabytes - asked_.memory_gb);
  }
  [[nodiscard]] double least_time(pp::pipeline const& over) const {
    return pp::least_of_cuts(layers_, speeds_, 0, over);
  }

  //! The command with its GPUs at their places.
  [[nodiscard]] choose_command placed(std::vector<int> const& places) const {
    choose_command result = asked_;
    if (asked_.gpus.size() > 1)
      for (std::size_t place = 0; place < places.size(); ++place)
        result.gpus[place] = asked_.gpus[static_cast<std::size_t>(places[place])];
    return result;
  }
  [[nodiscard]] candidate candidate_of(pp::shape const& extents, pp::arrangement const& how) const {
    candidate one;
    one.extents = extents;
    one.layers = how.cut;
    one.chunk_lengths = cut_sequence(asked_, extents.chunks);
    return one;
  }

private:
  choose_command const& asked_;
  std::vector<pp::layer_cost> layers_;
  std::vector<double> speeds_;
};

} // namespace

void add_searched(choose_command const& asked,
                  std::span<choose_start const> starts,
                  candidates& found) {
  asked_model const model(asked);
  std::vector<pp::device_orders> orders;
  for (choose_start const& each : starts)
    orders.push_back(each.orders);
  constexpr int for_ever = std::numeric_limits<int>::max();
  progress_line line(asked.rounds > 0 ? HUGE_VAL : asked.seconds);
  pp::found_pipeline const best = pp::search_pipeline(
    model,
    orders,
    {.seed = asked.seed, .rounds = asked.rounds > 0 ? asked.rounds : for_ever, .most_cuts = 2000},
    [&](pp::pipeline_search_progress const& at) {
      std::string text = "searching: ";
      pp::append(text, at.looks, " pipelines, best ");
      pp::append_rounded(text, at.best, 4);
      text += " s, none below ";
      pp::append_rounded(text, at.bound, 4);
      line.say(text + " s");
      return line.time_left();
    });
  line.end();
  double fastest = HUGE_VAL;
  for (candidate& each : found.all) {
    if (!has_shards(each.choice.adapted) && !is_apart(each.choice)) // those cut a layer, or move it
      each.any_bound = best.bound;
    if (each.gigabytes <= asked.memory_gb)
      fastest = std::min(fastest, each.any_bound > 0 ? each.seconds : HUGE_VAL);
  }
  // Predictions are not so good that less would be a gain.
  constexpr double least_gain = 1e-3;
  if (best.excess > 0 || best.makespan > fastest * (1 - least_gain))
    return;
  candidate const& from = found.all[starts[best.start].candidate];
  choose_command const placed = model.placed(best.how.places);
  candidate one = model.candidate_of(best.table.extents, best.how);
  one.choice = from.choice;
  one.label = from.label + (best.own_order ? ", order searched" : ", cut anew");
  if (!std::is_sorted(best.how.places.begin(), best.how.places.end()))
    one.places = best.how.places;
  if (best.own_order)
    one.own_order = std::make_shared<pp::dynamic_timetable const>(best.table);
  else
    one.type = from.type;
  pp::cost_table const cost = costs_of(placed, one);
  one.latency = cost.latency();
  measure(placed, best.table, cost, one);
  one.any_bound = best.bound;
  found.all.push_back(std::move(one));
}

} // namespace examples
