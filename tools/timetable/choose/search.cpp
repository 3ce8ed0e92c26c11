// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "search.hpp"

namespace examples {
namespace {

//! Times of the layers and the output layer on the first GPU, and how much faster each GPU is at
//! best.
struct layer_speeds {
  std::vector<pp::layer_cost> layers;
  std::vector<double> speeds; // [P]
};

layer_speeds speeds_of(choose_command const& asked) {
  auto const parts_on = [&](pp::gpu const& on) {
    part_times parts = times_of_parts(asked, on, false);
    parts.layers.push_back(parts.output);
    return parts.layers;
  };
  layer_speeds result{parts_on(asked.gpu(0)), {}};
  double const least = std::numeric_limits<double>::max();
  for (int device = 0; device < asked.devices; ++device) {
    double fastest = 1;
    if (asked.gpu(device) != asked.gpu(0)) {
      std::vector<pp::layer_cost> const here = parts_on(asked.gpu(device));
      fastest = 1 / least;
      for (std::size_t i = 0; i < here.size(); ++i)
        for (double pp::layer_cost::*const time : {&pp::layer_cost::forward,
                                                   &pp::layer_cost::backward_input,
                                                   &pp::layer_cost::backward_weight})
          fastest = std::max(fastest, result.layers[i].*time / here[i].*time);
    }
    result.speeds.push_back(fastest);
  }
  return result;
}

//! Microbatches that are alike.
class equal_work {
public:
  explicit equal_work(choose_command const& asked) : asked_(asked), bound_(speeds_of(asked)) {}

  [[nodiscard]] std::vector<int> chunk_lengths(pp::shape const& extents) const {
    return cut_sequence(asked_, extents.chunks);
  }
  [[nodiscard]] pp::cost_table
  costs(choose_command const& asked, pp::pipeline_view const&, candidate const& one) const {
    return costs_of(asked, one);
  }
  void count_memory(choose_command const& asked, pp::timetable_view table, candidate& one) const {
    examples::count_memory(asked, table, one);
  }
  void
  measure(choose_command const& asked, pp::dynamic_timetable const& table, candidate& one) const {
    pp::cost_table const cost = costs_of(asked, one);
    one.latency = cost.latency();
    examples::measure(asked, table, cost, one);
  }
  [[nodiscard]] double least_time(pp::pipeline_view const& over) const {
    bool const frozen = asked_.frozen > 0;
    if (!asked_.keeps_cut() || asked_.gpus.size() > 1 || (frozen && asked_.measured))
      return frozen ? 0 : pp::least_of_cuts(bound_.layers, bound_.speeds, 0, over);
    candidate one;
    one.extents = over.extents;
    one.layers = cuts_of_layers(asked_, one.extents, false).front();
    one.chunk_lengths = chunk_lengths(one.extents);
    pp::cost_table const cost = costs_of(asked_, one).without_exchanges();
    return frozen ? shared_work(over, cost) : pp::least_times(over, cost).makespan.least();
  }
  //! Not where a layer is cut, or moves.
  [[nodiscard]] bool is_bounded(candidate const& one) const {
    return !one.choice.has_shards() && !is_apart(one.choice);
  }

private:
  //! All passes, spread evenly over the devices; frozen stages have none that go back.
  [[nodiscard]] static double shared_work(pp::pipeline_view const& over,
                                          pp::cost_table const& cost) {
    double work = 0;
    for (int stage = 0; stage < over.extents.stages(); ++stage)
      for (int chunk = 0; chunk < over.extents.chunks; ++chunk)
        for (pp::pass_kind const kind : pp::detail::split_kinds(pp::training))
          work += cost.duration(pp::row_writer::make(kind, stage, 0, chunk));
    return work * over.extents.microbatches / over.extents.devices;
  }

  choose_command const& asked_;
  layer_speeds bound_;
};

//! Tries every move of a layer to another stage, until none helps or time is over.
//! @return whether one has helped
bool move_layers(choose_command const& asked,
                 evaluate_again const& evaluate,
                 progress_line& line,
                 evaluated& best) {
  bool better = false;
  auto const stages = best.what.layers.size();
  for (std::size_t from = 0; from < stages; ++from)
    for (std::size_t to = 0; to < stages; ++to) {
      std::vector<int> cut = best.what.layers;
      int const least = from + 1 == stages ? staying_modules(asked, false) : 0;
      if (to == from || cut[from] == least || !line.time_left())
        continue;
      --cut[from];
      ++cut[to];
      line.say("moving layers, best " + rounded(best.what.seconds, 4) + " s");
      try {
        evaluated other = evaluate(best.what, best.what.choice, cut);
        if (!other.what.cannot.empty() || !is_better_cut(asked, other.what, best.what))
          continue;
        best = std::move(other);
        better = true;
      } catch (std::invalid_argument const&) {
        // Its schedule has no order in which this cut fits.
      }
    }
  return better;
}

} // namespace

void add_searched_experts(choose_command const& asked,
                          evaluate_again const& evaluate,
                          candidates& found) {
  constexpr std::size_t most = 4;
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < found.all.size(); ++i)
    if (found.all[i].cannot.empty() && found.all[i].gigabytes <= asked.memory_gb)
      order.push_back(i);
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return found.all[i].seconds; });
  order.resize(std::min(order.size(), most));
  progress_line line(asked.rounds > 0 ? HUGE_VAL : asked.seconds);
  double fastest = order.empty() ? 0 : found.all[order.front()].seconds;
  for (std::size_t const i : order) {
    evaluated best{found.all[i], {}};
    int rounds = asked.rounds > 0 ? asked.rounds : std::numeric_limits<int>::max();
    while (rounds-- > 0 && move_layers(asked, evaluate, line, best)) {
    }
    if (best.what.seconds > fastest * (1 - least_gain))
      continue;
    fastest = best.what.seconds;
    best.what.label += ", cut anew";
    add_candidate(asked, best, found);
  }
  line.end();
}

choose_command placed_gpus(choose_command const& asked, std::vector<int> const& places) {
  choose_command result = asked;
  if (asked.gpus.size() > 1)
    for (std::size_t place = 0; place < places.size(); ++place)
      result.gpus[place] = asked.gpus[static_cast<std::size_t>(places[place])];
  return result;
}

void add_searched(choose_command const& asked,
                  std::span<choose_start const> starts,
                  candidates& found) {
  add_searched(asked, equal_work(asked), starts, found);
}

} // namespace examples
