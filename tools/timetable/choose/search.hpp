// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief `timetable choose --search`: cut, places of devices and order searched together.

#include "choose.hpp"
#include "tools/timetable/progress_line.hpp"

namespace examples {

//! The order of a candidate, for a search to start from.
struct choose_start {
  std::size_t candidate = 0; //!< its number
  pp::device_orders orders;
};

//! The command with its GPUs at their places.
[[nodiscard]] choose_command placed_gpus(choose_command const& asked,
                                         std::vector<int> const& places);

//! The model and the GPUs of a command, for the search.
//! @tparam Work what the microbatches are: `chunk_lengths(extents)`, `costs(asked, over, one)`,
//! `count_memory(asked, table, one)`, `measure(asked, table, one)`, `least_time(over)` and
//! `is_bounded(one)`, whether that bounds a candidate, too.
template <class Work>
class searched_model {
public:
  searched_model(choose_command const& asked, Work const& work) : asked_(asked), work_(work) {}

  [[nodiscard]] int layers() const { return asked_.keeps_cut() ? 0 : asked_.parts(); }
  [[nodiscard]] bool equal_devices() const {
    return std::all_of(asked_.gpus.begin(), asked_.gpus.end(), [this](pp::gpu const& each) {
      return each == asked_.gpus.front();
    });
  }
  [[nodiscard]] std::vector<int> start(pp::pipeline_view const& over,
                                       std::vector<int> const& places) const {
    if (asked_.keeps_cut())
      return std::vector<int>(static_cast<std::size_t>(over.extents.stages()));
    return cuts_of_layers(placed_gpus(asked_, places), over.extents, false).front();
  }
  [[nodiscard]] auto costs(pp::pipeline_view const& over, pp::arrangement const& how) const {
    return work_.costs(placed_gpus(asked_, how.places), over, candidate_of(over.extents, how));
  }
  [[nodiscard]] double excess(pp::timetable_view table, pp::arrangement const& how) const {
    candidate one = candidate_of(table.over.extents, how);
    work_.count_memory(placed_gpus(asked_, how.places), table, one);
    return std::max(0.0, one.gigabytes - asked_.memory_gb);
  }
  [[nodiscard]] double least_time(pp::pipeline_view const& over) const {
    return work_.least_time(over);
  }
  [[nodiscard]] candidate candidate_of(pp::shape const& extents, pp::arrangement const& how) const {
    candidate one;
    one.extents = extents;
    one.layers = asked_.keeps_cut() ? cuts_of_layers(asked_, extents, false).front() : how.cut;
    one.chunk_lengths = work_.chunk_lengths(extents);
    return one;
  }

private:
  choose_command const& asked_;
  Work const& work_;
};

//! Predictions are not so good that less would be a gain.
constexpr double least_gain = 1e-3;

//! Searches from these orders and adds what it finds where that is better than they are. Says on
//! stderr what it is at.
template <class Work>
void add_searched(choose_command const& asked,
                  Work const& work,
                  std::span<choose_start const> starts,
                  candidates& found) {
  searched_model<Work> const model(asked, work);
  std::vector<pp::device_orders> orders;
  for (choose_start const& each : starts)
    orders.push_back(each.orders);
  constexpr int for_ever = std::numeric_limits<int>::max();
  progress_line line(asked.rounds > 0 ? HUGE_VAL : asked.seconds);
  pp::found_pipeline const best = pp::search_pipeline(
    model,
    orders,
    {.seed = asked.seed, .rounds = asked.rounds > 0 ? asked.rounds : for_ever, .most_cuts = 2000},
    [&](pp::found_pipeline::progress const& at) {
      std::string text = "searching: ";
      pp::append(text, at.looks, " pipelines, best ");
      if (std::isfinite(at.best)) // else nothing fits so far
        pp::append_rounded(text, at.best, 4);
      text += std::isfinite(at.best) ? " s, none below " : "none that fits, none below ";
      pp::append_rounded(text, at.bound, 4);
      line.say(text + " s");
      return line.time_left();
    });
  line.end();
  double fastest = HUGE_VAL;
  for (candidate& each : found.all) {
    if (work.is_bounded(each))
      each.any_bound = best.bound;
    if (each.gigabytes <= asked.memory_gb && each.cannot.empty())
      fastest = std::min(fastest, each.any_bound > 0 ? each.seconds : HUGE_VAL);
  }
  if (best.excess > 0 || best.makespan > fastest * (1 - least_gain))
    return;
  candidate const& from = found.all[starts[best.start].candidate];
  candidate one = model.candidate_of(best.table.over.extents, best.how);
  one.choice = from.choice;
  one.label = from.label + (best.own_order ? ", order searched" : ", cut anew");
  if (!std::is_sorted(best.how.places.begin(), best.how.places.end()))
    one.places = best.how.places;
  if (best.own_order)
    one.own_order = std::make_shared<pp::dynamic_timetable const>(best.table);
  else
    one.type = from.type;
  work.measure(placed_gpus(asked, best.how.places), best.table, one);
  one.any_bound = best.bound;
  add_candidate(asked, {std::move(one), best.table}, found);
}

//! The same for microbatches that are alike.
void add_searched(choose_command const& asked,
                  std::span<choose_start const> starts,
                  candidates& found);

//! Other cuts of candidates whose layers are cut at their experts: single layers move to other
//! stages of the fastest few as long as that makes one of them faster.
void add_searched_experts(choose_command const& asked,
                          evaluate_again const& evaluate,
                          candidates& found);

} // namespace examples
