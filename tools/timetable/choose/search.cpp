// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "search.hpp"

namespace pp = pipelining;

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
    return pp::least_of_cuts(bound_.layers, bound_.speeds, 0, over);
  }
  //! Not where a layer is cut, or moves.
  [[nodiscard]] bool is_bounded(candidate const& one) const {
    return !one.choice.has_shards() && !is_apart(one.choice);
  }

private:
  choose_command const& asked_;
  layer_speeds bound_;
};

} // namespace

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
