// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A schedule whose weights are gathered for visits of their stages. Header for
//! pipelining::with_sharded_weights, reshard and weights_on_host.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/sort_stably.hpp>
#include <pipe/flow/training_flows.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <stdexcept>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! A run of passes of one stage on a device, by entries of its row; others may stand in between.
struct stage_visit {
  pass opener;
  int first;
  int end;
};

//! The visits of a row, in the order in which they begin.
//! @param needs `needs(pass)`: whether a pass is of a visit.
//! @param resident stages; a visit goes on where fewer others have been visited in between.
//! @param keeps `keeps(before, next)`: whether it goes on elsewhere, too.
//! @complexity O(n V) for n passes and the V stages that the row visits
template <class Needs, class Keeps>
[[nodiscard]] owned_list<stage_visit> find_visits(std::vector<pass> const& row,
                                                  int stage_count,
                                                  Needs const& needs,
                                                  int resident,
                                                  Keeps const& keeps) {
  struct latest {
    int visit = -1;
    pass last{};
    std::size_t group = 0; // of passes that start together: the entry of the first
  };
  owned_list<stage_visit> result;
  std::vector<latest> of(static_cast<std::size_t>(stage_count));
  std::vector<int> visited; // stages
  for (std::size_t first = 0; first < row.size();) {
    std::size_t end = first + 1;
    while (end < row.size() && row[end].overlapped)
      ++end;
    for (std::size_t i = first; i < end; ++i) {
      if (!needs(row[i]))
        continue;
      pass what = row[i];
      what.overlapped = false;
      latest& mine = of[what.stage];
      auto const others = std::count_if(visited.begin(), visited.end(), [&](int other) {
        return of[static_cast<std::size_t>(other)].group > mine.group;
      });
      if (mine.visit < 0)
        visited.push_back(what.stage);
      if (mine.visit < 0 ||
          (result[static_cast<std::size_t>(mine.visit)].end != static_cast<int>(end) &&
           others >= resident && !keeps(mine.last, what))) {
        mine.visit = static_cast<int>(result.size());
        result.push_back({what, static_cast<int>(first), 0});
      }
      result[static_cast<std::size_t>(mine.visit)].end = static_cast<int>(end);
      mine.last = what;
    }
    for (std::size_t i = first; i < end; ++i) // what starts together knows nothing of each other
      if (needs(row[i]))
        of[row[i].stage].group = first;
    first = end;
  }
  return result;
}

//! A pass that marks a place among others of a device: before entry `at` of its row.
struct row_mark {
  int at;
  int rank;  //!< among those of one place
  bool asks; //!< from there on the network does what the next kind says
  pass what;
};

//! The marks of visits, in their order. Where several stand in one place, weights are released
//! first, so that what is gathered next can lie where they lay; gathers go before scatters, since
//! passes wait for them.
//! @param turns as `weights`, but with none of them longer because its stage is resident: when a
//! turn begins, the weights of the next `prefetch` other stages may be gathered
[[nodiscard]] inline owned_list<row_mark> marks_of(owned_list<stage_visit> const& weights,
                                                   owned_list<stage_visit> const& turns,
                                                   owned_list<stage_visit> const& gradients,
                                                   int prefetch) {
  owned_list<row_mark> marks;
  auto const add = [&](int at, int rank, pass_kind kind, stage_visit const& of) {
    bool const asks = kind == pass_kind::request_weights || kind == pass_kind::request_scatter;
    // A backward pass opens the visit.
    bool const again = rank < 2 && kinds_of_training[of.opener.kind].calls != stage_call::forward;
    int const step =
      again ? index_of(pass_kind::request_weights_again) - index_of(pass_kind::request_weights) : 0;
    marks.push_back({at, rank, asks, of.opener});
    marks.back().what.kind = static_cast<pass_kind>(index_of(kind) + step);
  };
  std::size_t used = 0;
  std::size_t requested = 0;
  std::vector<int> next;
  // Asks for the weights of visits that begin while the row is at so many stages.
  auto const request_next = [&](int at, std::size_t from, int stages) {
    next.clear();
    for (std::size_t i = from; i < turns.size() && requested < weights.size(); ++i) {
      int const stage = turns[i].opener.stage;
      if (std::find(next.begin(), next.end(), stage) == next.end()) {
        if (static_cast<int>(next.size()) == stages)
          return;
        next.push_back(stage);
      }
      if (weights[requested].opener == turns[i].opener)
        add(at, 1, pass_kind::request_weights, weights[requested++]);
    }
  };
  request_next(0, 0, prefetch);
  for (std::size_t turn = 0; turn < turns.size(); ++turn) {
    int const at = turns[turn].first;
    if (requested == used)
      request_next(at, turn, 1);
    if (used < weights.size() && weights[used].opener == turns[turn].opener)
      add(at, 1, pass_kind::use_weights, weights[used++]);
    request_next(at, turn, prefetch + 1);
  }
  for (stage_visit const& each : weights)
    add(each.end, 0, pass_kind::release_weights, each);
  for (stage_visit const& each : gradients) {
    add(each.end, 2, pass_kind::request_scatter, each);
    add(each.first, 3, pass_kind::collect_gradients, each);
  }
  sort_stably(marks, [](row_mark const& a, row_mark const& b) {
    return a.at != b.at ? a.at < b.at : a.rank < b.rank;
  });
  return marks;
}

//! Writes the row of a device with its visits marked, and the row of its network engine, which
//! follows the order of the marks.
inline void write_visits(std::vector<pass> const& row,
                         owned_list<row_mark> const& marks,
                         row_writer& compute,
                         row_writer& network) {
  row_mark const* mark = marks.begin();
  for (std::size_t i = 0; i <= row.size(); ++i) {
    for (; mark != marks.end() && mark->at == static_cast<int>(i); ++mark) {
      compute.push(mark->what);
      pass asked = mark->what;
      asked.kind = static_cast<pass_kind>(index_of(asked.kind) + 1);
      if (mark->asks)
        network.push(asked);
    }
    if (i < row.size())
      compute.push(row[i]);
  }
}

} // namespace detail

//! @brief Says what stays between two passes of a stage that others of the device stand between,
//! the stages that are resident anyway, and how many stages ahead the gather of weights may begin.
//! `leaves(extents, stage)`, where the rule has it, names the stages that have visits; the weights
//! of the others stay. `prefetch_on(device)`, where the rule has it, stands for `prefetch`.
template <class Rule>
concept sharding_rule = detail::copyable<Rule> && requires(Rule const rule, pass const what) {
  { rule.keeps_weights(what, what) } -> std::convertible_to<bool>;
  { rule.keeps_gradients(what, what) } -> std::convertible_to<bool>;
  { rule.resident } -> std::convertible_to<int>;
  { rule.prefetch } -> std::convertible_to<int>;
};

//! @brief The rules of FSDP and ZeRO. The default is ZeRO-3 with the two stages that the slots of a
//! prefetch hold anyway: weights are released where their stage is not among the next two of the
//! device, gradients scattered after every run of passes that add to them, and weights are gathered
//! one stage ahead.
struct reshard {
  bool after_forward = true;  //!< false: weights stay after a forward pass
  bool after_backward = true; //!< false: weights stay after a backward pass
  bool scatter_once = false;  //!< whole gradients stay until the stage's last pass
  //! Stages ahead: when a stage's turn begins, the weights of the next so many other stages may be
  //! gathered. 0: none overlaps.
  int prefetch = 1;
  //! Stages whose weights lie on a device, at most; `prefetch` + 1 where that is more. Those of a
  //! stage stay while it is among the next so many of its device. 1: they never stay.
  int resident = 2;
  //! So many stages further ahead on each device than on the device before, up to `resident` - 1.
  int prefetch_step = 0;

  //! ZeRO-2, or FSDP without resharding: the weights of a stage are gathered once and stay, and so
  //! do its whole gradients until its last pass.
  [[nodiscard]] static constexpr reshard gathered_once() noexcept {
    return {.after_forward = false, .after_backward = false, .scatter_once = true};
  }

  //! Whether the weights stay from one pass of a stage to the next.
  [[nodiscard]] constexpr bool keeps_weights(pass const& before, pass const&) const noexcept {
    return before.kind == pass_kind::forward || before.kind == pass_kind::checkpointed_forward
             ? !after_forward
             : !after_backward;
  }
  //! Whether its whole gradients do.
  [[nodiscard]] constexpr bool keeps_gradients(pass const&, pass const&) const noexcept {
    return scatter_once;
  }
  //! The stages ahead on one device.
  [[nodiscard]] constexpr int prefetch_on(int device) const noexcept {
    int const wanted = prefetch + device * prefetch_step;
    int const most = resident - 1 > prefetch ? resident - 1 : prefetch;
    return wanted < most ? wanted : most;
  }
};

//! @brief The weights of the last stages of every device, with their gradients and their optimizer,
//! belong to the host (Chronos-Offload): they are loaded once, next to the passes of the stages
//! before, and their gradients go back after the stage's last pass, where the host steps its
//! optimizer.
//!
//! On a looped placement of V stages per device the last of them begins (V - 1) P passes after the
//! first at the earliest, and ends as many before the end. So with `count` 1 a load costs nothing
//! up to (V - 1) P (F + c), nor does the way back up to (V - 1) P (B + c), with messages of c, and
//! a schedule ends later by no more than what both take longer than that.
//! @source ChronosPipe (2025, arXiv:2503.03182), by its abstract: the weights of deep stages go to
//! the host. That their gradients and optimizer do as a whole, and when, is assumed.
struct weights_on_host {
  int count = 1;    //!< the last so many stages of a device
  int prefetch = 1; //!< as `reshard`

  static constexpr int resident = 1; //!< all stay anyway
  //! Keeps weights from the first use to the last.
  [[nodiscard]] constexpr bool keeps_weights(pass const&, pass const&) const noexcept {
    return true;
  }
  //! So do their gradients.
  [[nodiscard]] constexpr bool keeps_gradients(pass const&, pass const&) const noexcept {
    return true;
  }
  //! Whether those of a stage are not on its device from the start.
  [[nodiscard]] constexpr bool leaves(shape const& extents, int stage) const noexcept {
    return stage >= extents.stages() - count * extents.devices;
  }
};

//! @brief A schedule whose weights lie in shards on the devices of a data-parallel group (FSDP,
//! ZeRO): those of a stage are gathered for each visit of the stage, next to passes, and its
//! gradients are scattered.
//!
//! Orders the passes as the schedule does. A visit is a run of passes of one stage on its device,
//! or several where the stage is resident or the rule keeps its weights in between. With times g of
//! a gather and r of a scatter, k stages resident and one gathered ahead:
//! - a schedule with one stage on a device gathers and scatters once per device and ends g + r
//! later;
//! - `BreadthFirst` with V > 1 stages on a device gathers 2 V - k times for k <= V, one visit for
//!   each stage and direction and one for both on the last k, and scatters V times. It ends g + r
//!   later as long as M forward passes of a stage take g at least and M backward passes g + r;
//! - schedules that go back and forth between more than k stages pay for every turn to a stage that
//!   is not among the last k.
//!
//! A device holds the weights of at most k stages at once (of `prefetch` + 1, where that is more),
//! where no composite passes need one more.
//!
//! @tparam Schedule any schedule of a flow of training without a vocabulary in shards.
//! @tparam Rule what stays between visits, and how far ahead weights are gathered.
//! @throws std::invalid_argument from `arrange` for a negative prefetch, else as the schedule does.
//! @complexity O(n (log n + V + r)) for n passes of a device, the V stages that it has, and the
//! most turns r that it takes among `prefetch` + 1 of them, on top of the schedule.
//! @source Lamy-Poirier, "Breadth-First Pipeline Parallelism", MLSys 2023 (arXiv:2211.05953),
//! section 4; Zhao et al., "PyTorch FSDP", VLDB 2023 (one visit ahead); PyTorch 2.15 (resident
//! stages, a prefetch per rank). The laws are own.
template <schedule Schedule, sharding_rule Rule = reshard>
struct with_sharded_weights {
  static_assert(!detail::flow_of<Schedule>().reads_in_groups,
                "with_sharded_weights: a vocabulary in shards does not go with sharded weights");
  static constexpr flow declared = detail::sharded_flow<detail::flow_of<Schedule>()>;

  Schedule of{};
  Rule rule{};

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    if (rule.prefetch < 0)
      throw std::invalid_argument(
        "with_sharded_weights: weights cannot be gathered a negative number of stages ahead");
    if (rule.resident < 1)
      throw std::invalid_argument(
        "with_sharded_weights: the stage of a pass is resident; let resident be 1 or more");
    return of.arrange(devices, microbatches);
  }
  void generate(shape const& extents, cost_model auto const& cost, row_writer* rows) const {
    detail::order_all(of, extents, cost, rows);
    constexpr int network = declared.engine_row[static_cast<int>(engine::network)];
    auto const leaves = [&](int stage) {
      if constexpr (requires { rule.leaves(extents, stage); })
        return bool{rule.leaves(extents, stage)};
      else
        return true;
    };
    auto const needs_weights = [&](pass const& what) {
      return detail::reads_weights(declared[what.kind]) && leaves(what.stage);
    };
    auto const needs_gradients = [&](pass const& what) {
      return detail::touches_gradients(declared, what.kind) && leaves(what.stage);
    };
    for (int device = 0; device < extents.devices; ++device) {
      row_writer& row = rows[device];
      std::vector<pass> const inner(row.passes, row.passes + row.count);
      row.count = 0;
      std::vector<char> kept(static_cast<std::size_t>(extents.stages()));
      for (pass what : inner)
        if (!leaves(what.stage) && kept[what.stage]++ == 0) {
          what.overlapped = false;
          what.kind = pass_kind::keep_weights;
          row.push(what);
        }
      int const ahead = prefetch_on(device);
      auto const visits_of = [&](int resident) {
        return detail::find_visits(inner,
                                   extents.stages(),
                                   needs_weights,
                                   resident,
                                   [this](pass const& before, pass const& next) {
                                     return rule.keeps_weights(before, next);
                                   });
      };
      auto const gradients = detail::find_visits(
        inner, extents.stages(), needs_gradients, 1, [this](pass const& before, pass const& next) {
          return next.kind == pass_kind::backward_weight || rule.keeps_gradients(before, next);
        });
      detail::write_visits(
        inner,
        detail::marks_of(
          visits_of(std::max(rule.resident, ahead + 1)), visits_of(1), gradients, ahead),
        row,
        rows[network * extents.devices + device]);
    }
  }

private:
  [[nodiscard]] constexpr int prefetch_on(int device) const noexcept {
    if constexpr (requires { rule.prefetch_on(device); })
      return rule.prefetch_on(device);
    else
      return rule.prefetch;
  }
};

} // namespace pipelining::inline v0_3
