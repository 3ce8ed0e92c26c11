// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "choose.hpp"

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

//! No cut, placement and order takes less for sequences of unequal length: all devices at work all
//! the time, on what no padding and no exchange adds to.
double least_of_sequences(choose_command const& asked) {
  if (asked.frozen > 0 && asked.measures_shares())
    return 0;       // the file does not say what of a share is frozen
  double speed = 0; // of all devices together, in that of the first
  for (int device = 0; device < asked.devices; ++device) {
    double const rate = asked.gpu(device).peak_tflops / asked.gpu(0).peak_tflops;
    double const link = asked.gpu(device).link_gb_per_s / asked.gpu(0).link_gb_per_s;
    speed += asked.setup.expert > 1 ? std::max(rate, link) : rate; // what experts get is sent
  }
  packed_sequences alone;
  for (std::size_t i = 0; i < asked.lengths.size(); ++i)
    alone.whole.push_back({{{static_cast<int>(i), 0, asked.lengths[i]}}});
  choose_command first = asked;
  first.gpus.resize(1);
  first.devices = 1;
  candidate one;
  one.sequences = std::make_shared<packed_sequences const>(std::move(alone));
  one.extents = {.devices = 1, .microbatches = static_cast<int>(asked.lengths.size())};
  one.layers = {asked.parts()};
  pp::cost_table const cost = costs_of(first, one).without_exchanges();
  double work = 0; // seconds of the first device
  for (int i = 0; i < one.extents.microbatches; ++i)
    for (pp::pass_kind const kind : pp::detail::split_kinds(pp::training))
      work += cost.duration(pp::row_writer::make(kind, 0, i));
  return work / speed;
}

//! The command with its GPUs at their places.
choose_command placed_gpus(choose_command const& asked, std::vector<int> const& places) {
  choose_command result = asked;
  if (asked.gpus.size() > 1)
    for (std::size_t place = 0; place < places.size(); ++place)
      result.gpus[place] = asked.gpus[static_cast<std::size_t>(places[place])];
  return result;
}

//! The model, the GPUs and the sequences of a command, for the search.
class searched_model {
public:
  searched_model(choose_command const& asked, std::shared_ptr<packed_sequences const> sequences)
      : asked_(asked), sequences_(std::move(sequences)),
        least_(sequences_ ? least_of_sequences(asked) : 0),
        bound_(sequences_ ? layer_speeds{} : speeds_of(asked)) {}

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
  [[nodiscard]] pp::cost_table costs(pp::pipeline_view const& over,
                                     pp::arrangement const& how) const {
    return costs_of(placed_gpus(asked_, how.places), candidate_of(over.extents, how));
  }
  [[nodiscard]] double excess(pp::timetable_view table, pp::arrangement const& how) const {
    candidate one = candidate_of(table.over.extents, how);
    count_memory(placed_gpus(asked_, how.places), table, one);
    return std::max(0.0, one.gigabytes - asked_.memory_gb);
  }
  [[nodiscard]] double least_time(pp::pipeline_view const& over) const {
    if (sequences_)
      return least_;
    bool const frozen = asked_.frozen > 0;
    if (!asked_.keeps_cut() || asked_.gpus.size() > 1 || (frozen && asked_.measured))
      return frozen ? 0 : pp::least_of_cuts(bound_.layers, bound_.speeds, 0, over);
    pp::cost_table const cost =
      costs_of(asked_, candidate_of(over.extents, {})).without_exchanges();
    return frozen ? shared_work(over, cost) : pp::least_times(over, cost).makespan.least();
  }
  [[nodiscard]] candidate candidate_of(pp::shape const& extents, pp::arrangement const& how) const {
    candidate one;
    one.sequences = sequences_;
    one.extents = extents;
    one.layers = asked_.keeps_cut() ? cuts_of_layers(asked_, extents, false).front() : how.cut;
    one.chunk_lengths = chunk_lengths_of(asked_, sequences_.get(), extents.chunks);
    return one;
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
  std::shared_ptr<packed_sequences const> sequences_;
  double least_;
  layer_speeds bound_;
};

//! Predictions are not so good that less would be a gain.
constexpr double least_gain = 1e-3;

} // namespace

void add_searched_experts(choose_command const& asked, candidates& found) {
  constexpr std::size_t most = 4;
  std::vector<std::size_t> order = numbers_of(
    found,
    [&](candidate const& one) { return one.cannot.empty() && one.gigabytes <= asked.memory_gb; },
    &candidate::seconds);
  order.resize(std::min(order.size(), most));
  progress_line line(asked.rounds > 0 ? HUGE_VAL : asked.seconds);
  double fastest = order.empty() ? 0 : found.all[order.front()].seconds;
  for (std::size_t const i : order) {
    evaluated best{found.all[i], {}};
    std::vector<int> cut = best.what.layers;
    auto const helps = [&](std::vector<int> const& moved) {
      line.say("moving layers, best " + rounded(best.what.seconds, 4) + " s");
      try {
        evaluated other =
          evaluate(asked, {best.what.choice, best.what.sequences}, *found.orders, moved);
        if (!other.what.cannot.empty() || !is_better_cut(asked, other.what, best.what))
          return false;
        best = std::move(other);
        return true;
      } catch (std::invalid_argument const&) {
        return false; // its schedule has no order in which this cut fits
      }
    };
    int rounds = asked.rounds > 0 ? asked.rounds : std::numeric_limits<int>::max();
    int const stages = static_cast<int>(cut.size());
    int const staying = staying_modules(asked, best.what.choice.has_shards());
    auto const time_left = [&line] { return line.time_left(); };
    while (rounds-- > 0 && move_layers(cut, stages, staying, time_left, helps)) {
    }
    if (best.what.seconds > fastest * (1 - least_gain))
      continue;
    fastest = best.what.seconds;
    best.what.label += ", cut anew";
    add_candidate(asked, best, found);
  }
  line.end();
}

void add_searched(choose_command const& asked,
                  std::span<choose_start const> starts,
                  candidates& found) {
  searched_model const model(asked, found.all[starts.front().candidate].sequences);
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
      text += std::isfinite(at.best) ? rounded(at.best, 4) + " s" : "none that fits"; // so far
      line.say(text + ", none below " + rounded(at.bound, 4) + " s");
      return line.time_left();
    });
  line.end();
  double fastest = HUGE_VAL;
  for (candidate& each : found.all) {
    // Not where a layer is cut, or moves.
    if (each.groups.empty() && !each.choice.has_shards() && !is_apart(each.choice))
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
  choose_command const placed = placed_gpus(asked, best.how.places);
  measure(placed, best.table, costs_of(placed, one), one);
  one.any_bound = best.bound;
  add_candidate(asked, {std::move(one), best.table}, found);
}

} // namespace examples
