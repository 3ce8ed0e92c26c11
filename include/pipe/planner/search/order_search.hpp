// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A better order for a large pipeline under a memory limit. Header for
//! pipelining::search_goal, found_order and
//! search_order.

#include <pipe/flow/limits.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/sort_stably.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/planner/model/stage_memory.hpp>
#include <pipe/planner/search/bounds.hpp>
#include <pipe/planner/search/microbatch_names.hpp>
#include <pipe/planner/search/order_graph.hpp>
#include <pipe/planner/search/order_walk.hpp>
#include <pipe/planner/search/window_bound.hpp>
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
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief The time that a search makes least.
enum class search_goal : std::uint8_t { makespan, span };

//! @brief The order that a search has found.
struct found_order {
  //! @brief The options of a search for an order.
  struct options {
    //! Activations that a device may hold, in chunks of one stage.
    int memory_limit = detail::unlimited;
    std::vector<double> room{}; //!< in place of that: bytes that each device may hold, [P]
    stage_memory memory{};      //!< bytes of the stages, where there is `room`
    search_goal goal = search_goal::makespan; //!< what is made least
    //! True when backward passes may come apart into their halves. False: orders stay as whole as
    //! the ones to start from, and own ones have whole backward passes.
    bool split_backward = true;
    std::uint64_t seed = 1;            //!< the same seed gives the same order
    std::int64_t most_moves = 1 << 20; //!< moves that are tried in all
    bool own_starts = true;            //!< whether to start from own orders, too
  };

  //! @brief The progress of a search, for its watcher.
  struct progress {
    std::int64_t moves = 0; //!< that were tried
    double best = 0;        //!< time of the best order so far; infinite without one
    double bound = 0;       //!< no order takes less
  };

  dynamic_timetable table; //!< verified; as early as its order allows
  double time = 0;         //!< its makespan or span, as was the goal
  double bound = 0;        //!< no order with this placement and limit takes less
  double start = 0; //!< the least time of the orders given that keep the limit; infinite for none
  std::int64_t moves = 0; //!< that were tried

  //! True when nothing is left to find.
  [[nodiscard]] bool proven() const noexcept { return time <= bound * (1 + 1e-9); }
};

namespace detail {

//! Lets a search go on to its end.
struct unwatched {
  [[nodiscard]] constexpr bool operator()(auto const&) const noexcept { return true; }
};

//! An order of the pool, best first.
struct pooled_order {
  node_rows rows;
  double length;

  [[nodiscard]] static bool shorter(pooled_order const& a, pooled_order const& b) noexcept {
    return a.length < b.length;
  }
};

//! Searches over the orders of one graph.
class pool_search {
public:
  pool_search(order_graph const& graph, int microbatches, std::uint64_t seed, double bound)
      : graph_(graph), from_end_(reversed(graph)), random_{seed}, walk_(graph, {seed ^ 0x5bd1e995}),
        names_(graph, microbatches), bound_(bound), mean_(graph.mean_time()) {
    if (names_.matter()) { // the shortest get the first names, or the last ones
      std::vector<int> const shortest = names_.by_time();
      by_time_ = {shortest, {shortest.rbegin(), shortest.rend()}};
    }
  }

  //! Takes an order into the pool where it keeps the limit; others serve to be followed.
  void add(node_rows rows) {
    if (rows.empty())
      return;
    bool const fits = walk_.start(rows);
    if (walk_.timed())
      followed_.push_back({rows, walk_.length()});
    if (!fits)
      return;
    pool_.push_back({std::move(rows), walk_.length()});
    best_ = std::min(best_, pool_.back().length);
  }
  //! The same, and with other names of microbatches that take unlike times.
  void add_renamed(node_rows const& rows) {
    for (std::vector<int> const& names : by_time_)
      if (!rows.empty())
        add(names_.renamed(rows, names));
  }
  //! Adds orders of the list scheduler: own ones, and ones that follow the best so far. `watch`
  //! false ends it.
  void add_lists(int microbatches, auto const& watch) {
    auto const enough = [&] {
      going_ = !done() && watch(best_, moves_);
      return !going_;
    };
    for (list_taste const& taste : own_tastes()) {
      node_rows rows = list_order(graph_, microbatches, taste).make();
      add_renamed(rows);
      add(std::move(rows));
      if (enough())
        return;
    }
    for (int round = 0; round < 3; ++round)
      for (pooled_order const& leader : take_leaders()) {
        (void)walk_.start(leader.rows);
        std::vector<double> const times = walk_.starts();
        for (list_taste const& taste : followers(times)) {
          add(list_order(graph_, microbatches, taste).make());
          if (enough())
            return;
        }
      }
  }
  [[nodiscard]] bool any() const noexcept { return !pool_.empty(); }
  //! False where the watcher has ended it.
  [[nodiscard]] bool going() const noexcept { return going_; }
  //! Infinite without an order.
  [[nodiscard]] double best() const noexcept { return best_; }
  [[nodiscard]] bool done() const noexcept { return any() && best_ <= bound_ * (1 + 1e-12); }

  //! Rounds of tabu search where only names and times matter, and else of annealing, each longer
  //! than the one before, up to a limit. The worse half of the pool is dropped after each, until
  //! the best is left. `watch(best, moves)` false ends it.
  void improve(std::int64_t most_moves, auto const& watch) {
    most_ = most_moves;
    std::int64_t const size = graph_.size();
    std::int64_t length = 20 * size;
    bool const in_blocks = names_.matter() && has_room_for_all();
    for (int round = 0; going_; ++round) {
      sort_stably(pool_, pooled_order::shorter);
      pool_.resize(round == 0 ? std::min<std::size_t>(8, pool_.size())
                              : std::max<std::size_t>(1, pool_.size() / 2));
      for (pooled_order& each : pool_) {
        if (going_ && names_.matter()) {
          rename(each, length / (2 * size), watch);
          follow(each, length / (8 * size), watch);
        }
        if (going_ && in_blocks)
          walk_in_blocks(each, pool_.size() > 1 ? length : most_, watch);
        else if (going_)
          anneal(each, length, watch);
      }
      if (length < 2000 * size)
        length *= 2;
    }
  }
  [[nodiscard]] node_rows const& rows() const {
    return std::ranges::min_element(pool_, {}, &pooled_order::length)->rows;
  }
  [[nodiscard]] std::int64_t moves() const noexcept { return moves_; }

private:
  //! The shortest orders that have not been followed yet, over the limit or not.
  [[nodiscard]] std::vector<pooled_order> take_leaders() {
    sort_stably(followed_, pooled_order::shorter);
    followed_.resize(std::min<std::size_t>(4, followed_.size()));
    return std::exchange(followed_, {});
  }

  //! Gives microbatches other names where that is shorter. Moves of single passes do not get there
  //! where memory is tight.
  void rename(pooled_order& order, std::int64_t tries, auto const& watch) {
    for (std::int64_t i = 0; i < tries && going_; ++i) {
      if (walk_.start(names_.renamed(order.rows, names_.by_chance(random_))))
        take_shorter(order);
      spend(graph_.size() / 4 + 1, watch); // takes as long, about
    }
  }

  //! Makes orders that follow this one with passes at other times by chance, every other time with
  //! other names of microbatches, from the beginning or from the end. Keeps no longer one. Moves of
  //! single passes keep the limit at every step, and so stay near where it is tight.
  //! @source from both ends: forward-backward scheduling (Li and Willis, EJOR 1992)
  void follow(pooled_order& order, std::int64_t tries, auto const& watch) {
    for (std::int64_t i = 0; i < tries && going_; ++i) {
      (void)walk_.start(order.rows);
      std::vector<double> times = walk_.starts();
      bool const back = (random_.next() >> 63) != 0;
      for (std::size_t node = 0; back && node < times.size(); ++node)
        times[node] = -times[node] - graph_.times[node];
      if ((random_.next() >> 63) != 0)
        times = names_.renamed(times, names_.by_chance(random_));
      double const noise = mean_ * (1 << random_.below(5)) / 2;
      for (double& time : times)
        time += noise * random_.fraction() * random_.fraction();
      std::vector<list_taste> const tastes = followers(times);
      list_taste const& taste = tastes[at(random_.below(static_cast<int>(tastes.size())))];
      node_rows rows = list_order(back ? from_end_ : graph_, names_.count(), taste).make();
      for (std::vector<graph_node>& row : rows)
        if (back)
          std::reverse(row.begin(), row.end());
      if (!rows.empty() && walk_.start(rows) && walk_.length() <= order.length) {
        order = {std::move(rows), walk_.length()};
        best_ = std::min(best_, order.length);
      }
      spend(graph_.size() + 1, watch); // takes as long, about
    }
  }

  //! True where all passes fit at once, so that no order is over the limit.
  [[nodiscard]] bool has_room_for_all() const {
    std::vector<std::int64_t> room = graph_.room;
    for (std::size_t i = 0; i < graph_.passes.size(); ++i)
      room[at(graph_.holders[i])] -= graph_.taken[i];
    return std::all_of(room.begin(), room.end(), [](std::int64_t left) { return left >= 0; });
  }
  //! Counts moves, and asks the watcher now and then whether to go on.
  void spend(std::int64_t moves, auto const& watch) {
    constexpr std::int64_t between_looks = 2048;
    std::int64_t const looks = moves_ / between_looks;
    moves_ += moves;
    if (moves_ / between_looks != looks || done() || moves_ >= most_)
      going_ = !done() && moves_ < most_ && watch(best_, moves_);
  }
  //! Takes the order of the walk where it is shorter.
  bool take_shorter(pooled_order& order) {
    if (walk_.length() >= order.length * (1 - 1e-12))
      return false;
    order = {walk_.rows(), walk_.length()};
    best_ = std::min(best_, order.length);
    return true;
  }

  //! Tabu search from a few of the shortest orders, after microbatches have changed names on
  //! devices in a row. Where that is in vain for long, it begins anew with names by chance.
  //! @pre no order is over the limit.
  void walk_in_blocks(pooled_order& order, std::int64_t length, auto const& watch) {
    constexpr std::size_t most_kept = 4;
    constexpr int most_vain = 30;
    std::int64_t const end = moves_ + length;
    std::vector<pooled_order> kept{order}; // the shortest first
    for (int vain = -1; going_ && moves_ < end;) {
      pooled_order next = kept[at(random_.below(static_cast<int>(kept.size())))];
      bool const anew = vain >= most_vain;
      if (anew) {
        next.rows = names_.renamed(std::move(next.rows), names_.all_by_chance(random_));
      } else if (vain >= 0) {
        auto const [first, last] =
          std::minmax({random_.below(graph_.devices), random_.below(graph_.devices)});
        next.rows = names_.renamed(
          std::move(next.rows), names_.by_chance(random_), first, at(last - first + 1));
      }
      if (!descend(next, watch))
        continue;
      if (anew)
        kept.clear();
      vain = kept.empty() || next.length < kept.front().length ? 0 : vain + 1;
      if (next.length < order.length)
        order = next;
      if (std::none_of(kept.begin(), kept.end(), [&](pooled_order const& each) {
            return each.rows == next.rows;
          }))
        kept.push_back(std::move(next));
      sort_stably(kept, pooled_order::shorter);
      kept.resize(std::min(most_kept, kept.size()));
    }
  }
  //! Moves passes in blocks until nothing shorter was found for long.
  //! @return false where passes wait in a circle
  [[nodiscard]] bool descend(pooled_order& order, auto const& watch) {
    constexpr int patience = 500;
    bool const starts = walk_.start(order.rows);
    spend(graph_.size() / 4 + 1, watch); // takes as long, about
    if (!starts)
      return false;
    order.length = walk_.length();
    best_ = std::min(best_, order.length);
    for (int idle = 0; idle < patience && going_; ++idle) {
      int const tries = walk_.step_in_blocks(order.length);
      if (tries == 0)
        break;
      if (take_shorter(order))
        idle = 0;
      spend(tries, watch);
    }
    return true;
  }

  void anneal(pooled_order& order, std::int64_t length, auto const& watch) {
    (void)walk_.start(order.rows);
    // A round that begins cold keeps what is there, one that begins warm leaves it.
    double const warm = mean_ * (random_.next() % 2 == 0 ? 1.5 : 0.5);
    for (std::int64_t i = 0; i < length && going_; ++i) {
      double const left = 1 - static_cast<double>(i) / static_cast<double>(length);
      if (walk_.step(warm * left * left))
        take_shorter(order);
      spend(1, watch);
    }
  }

  order_graph const& graph_;
  order_graph from_end_;
  random_numbers random_;
  order_walk walk_;
  names_of_microbatches names_;
  std::vector<std::vector<int>> by_time_; // new names; none where names do not matter
  std::vector<pooled_order> pool_;
  std::vector<pooled_order> followed_; // not followed yet
  double bound_;
  double mean_;
  double best_ = std::numeric_limits<double>::infinity();
  bool going_ = true;
  std::int64_t moves_ = 0;
  std::int64_t most_ = 0;
};

//! The sentence that no order keeps the limit, and what one microbatch takes of a device: with as
//! much room, orders can be made.
[[nodiscard]] inline std::string describe_lack_of_room(order_graph const& graph, bool bytes) {
  std::vector<std::int64_t> taken(at(graph.devices), 0);
  for (std::size_t i = 0; i < graph.passes.size(); ++i)
    if (graph.passes[i].microbatch == 0)
      taken[at(graph.holders[i])] += graph.taken[i];
  std::size_t worst = 0;
  for (std::size_t i = 1; i < taken.size(); ++i)
    if (graph.room[i] - taken[i] < graph.room[worst] - taken[worst])
      worst = i;
  std::string const limit = std::to_string(graph.room[worst]);
  std::string const all = std::to_string(taken[worst]);
  if (bytes)
    return "search_order: no order keeps the limit of device " + std::to_string(worst) +
           ", which has " + limit + " bytes next to what is always there; a microbatch takes " +
           all + " of them";
  return "search_order: no order keeps the memory limit of " + limit +
         (graph.room[worst] == 1 ? " chunk" : " chunks") + "; a microbatch takes " + all +
         " on a device";
}

//! @throws std::invalid_argument for limits in bytes that do not fit the pipeline.
inline void check_room(pipeline_view const& over, found_order::options const& options) {
  if (options.room.empty())
    return;
  auto const stage_count = static_cast<std::size_t>(over.extents.stages());
  std::size_t const chunk_count = stage_count * static_cast<std::size_t>(over.extents.chunks);
  auto const fits = [](std::vector<double> const& all, std::size_t count) {
    return (all.empty() || all.size() == count) &&
           std::all_of(
             all.begin(), all.end(), [](double bytes) { return byte_range.contains(bytes); });
  };
  if (options.memory_limit != unlimited)
    throw std::invalid_argument(
      "search_order: the limit is in slots or in bytes; give one of them");
  if (options.room.size() != static_cast<std::size_t>(over.extents.devices) ||
      !fits(options.room, options.room.size()) || !fits(options.memory.activation, chunk_count) ||
      !fits(options.memory.weight_input, chunk_count) ||
      !fits(options.memory.resident, stage_count))
    throw std::invalid_argument(
      std::string("search_order: give room for each device, resident bytes for each stage and the "
                  "other bytes for each stage and chunk, all of them ") +
      byte_range.words);
  for (std::size_t i = 0; i < options.memory.weight_input.size(); ++i)
    if (options.memory.activation.empty() ||
        options.memory.weight_input[i] > options.memory.activation[i])
      throw std::invalid_argument("search_order: what waits for backward_weight is a part of the "
                                  "activation, and takes no more bytes than it");
  if (!is_of_training(*over.declared))
    throw std::invalid_argument("search_order: limits in bytes are for flows of training");
}

//! The order of a graph as a timetable, verified.
[[nodiscard]] dynamic_timetable table_of(device_orders const& like,
                                         order_graph const& graph,
                                         node_rows const& rows,
                                         cost_model auto const& cost,
                                         int memory_limit) {
  device_orders orders{like.over, {}, {0}};
  for (std::vector<graph_node> const& row : rows) {
    for (graph_node const node : row)
      orders.passes.push_back(graph.passes[at(node)]);
    orders.offsets.push_back(static_cast<int>(orders.passes.size()));
  }
  dynamic_timetable table = simulate(std::move(orders), cost);
  if (report const verdict = verify(table, memory_limit); !verdict)
    throw std::logic_error("search_order: " + describe(verdict, table.over));
  return table;
}

//! The time that no order can beat; 0 where none is known.
[[nodiscard]] double bound_of(pipeline_view const& over,
                              cost_model auto const& cost,
                              found_order::options const& options) {
  if (over.first_units != nullptr || !all_go_back(over))
    return 0;
  time_bounds::options bounds;
  if (options.memory_limit != unlimited)
    bounds.memory_limit = (options.memory_limit + 1e-9) / over.extents.chunks;
  time_bounds const least = least_times(over, cost, bounds);
  return options.goal == search_goal::span
           ? least.span.least()
           : std::max(least.makespan.least(), least_in_windows(over, cost, options.memory_limit));
}

[[nodiscard]] inline double time_of(timetable_view const& table, search_goal goal) noexcept {
  return goal == search_goal::span ? span_of(table) : makespan(table);
}

} // namespace detail

//! @brief Searches for a shorter order than any of some orders of one pipeline, under a memory
//! limit.
//!
//! Starts from all of the orders that are given and from own ones of a list scheduler, and changes
//! them by local moves: a pass goes past others of its device. The found order is never longer than
//! any given order that keeps the limit, and is the same for the same seed and number of moves.
//! With `room` no device holds more bytes than it may at any time.
//!
//! @param starts orders of the same pipeline, at least one; those over the limit still serve by
//! their placement. @param cost any cost model. @param watch told the progress after each own order
//! and every few thousand moves; where it returns false, the search ends with the best so far.
//! @throws std::invalid_argument without orders, for orders of different pipelines or of a flow
//! with several engines, for costs that cannot be, and where nothing keeps the limit, or did before
//! the watcher ended the search.
//! @complexity O(n) memory for n passes; a move takes about as many steps as passes run while the
//! moved one changes its place.
//! @source own derivation: neighbourhoods and longest paths as in tabu search for job shops
//! (Nowicki and Smutnicki, Management Science 1996; Taillard, ORSA Journal on Computing 1994). That
//! search itself where microbatches take unlike times and memory has room for all; else annealing,
//! with memory as a limit on each move.
template <cost_model Cost, class Watch = detail::unwatched>
[[nodiscard]] found_order search_order(std::span<device_orders const> starts,
                                       Cost const& cost,
                                       found_order::options const& options = {},
                                       Watch const& watch = {}) {
  if (starts.empty())
    throw std::invalid_argument("search_order: give at least one order to start from");
  if (options.memory_limit < 1)
    throw std::invalid_argument("search_order: the memory limit must be at least 1 chunk");
  device_orders const& like = starts.front();
  pipeline_view const over = like.over;
  detail::check_cost(over, cost);
  if (over.declared->engines > 1)
    throw std::invalid_argument("search_order: orders of several engines per device cannot be "
                                "searched; give the schedule without copies");
  std::vector<std::vector<std::vector<pass>>> rows;
  for (device_orders const& each : starts) {
    if (!(each.over.extents == like.over.extents) || !(each.over.declared == like.over.declared) ||
        each.over.holders != like.over.holders || each.over.first_units != like.over.first_units ||
        each.over.edges != like.over.edges)
      throw std::invalid_argument("search_order: the orders to start from are of different "
                                  "pipelines; search each pipeline by itself");
    rows.push_back(detail::plain_rows(each, options.split_backward));
  }
  int const limit = std::min(options.memory_limit, over.pass_indices());
  detail::check_room(over, options);
  detail::order_graph graph = detail::make_graph(over, cost, rows.front(), limit);
  if (!options.room.empty())
    detail::count_bytes(graph, over, options.memory, options.room);
  if (options.goal == search_goal::span)
    detail::count_spans(graph);

  found_order result;
  result.bound = detail::bound_of(over, cost, options);
  detail::pool_search search(graph, over.extents.microbatches, options.seed, result.bound);
  for (std::vector<std::vector<pass>> const& each : rows)
    search.add(detail::nodes_of(over, graph, each));
  result.start = search.best();
  for (std::vector<std::vector<pass>> const& each : rows)
    search.add_renamed(detail::nodes_of(over, graph, each));
  auto const tell = [&](double best, std::int64_t moves) {
    return watch(found_order::progress{moves, best, result.bound});
  };
  if (!search.done() && (options.own_starts || !search.any()))
    search.add_lists(over.extents.microbatches, tell);
  if (!search.any() && !search.going())
    throw std::invalid_argument("search_order: it was ended before any order kept the memory "
                                "limit; let it go on, or allow more memory");
  if (!search.any())
    throw std::invalid_argument(detail::describe_lack_of_room(graph, !options.room.empty()));
  if (!search.done())
    search.improve(options.most_moves, tell);
  result.moves = search.moves();
  result.table = detail::table_of(like, graph, search.rows(), cost, options.memory_limit);
  result.time = detail::time_of(result.table, options.goal);
  return result;
}

} // namespace pipelining::inline v0_3
