// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Any schedule with weights that are gathered for their use. Header for
//! pipelining::with_sharded_weights and its rule pipelining::reshard.

#include <pipe/core/flow.hpp>
#include <pipe/core/pass.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/core/shard_weights.hpp>
#include <pipe/core/training.hpp>
#include <pipe/schedule/schedule.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <stdexcept>
#include <vector>

namespace pipelining::inline v0_2 {

//! @brief Says what stays between two passes of a stage that others of the device stand between,
//! and how many visits ahead the gather of weights may begin.
template <class Rule>
concept sharding_rule = std::copyable<Rule> && requires(Rule const rule, pass const what) {
  { rule.keeps_weights(what, what) } -> std::convertible_to<bool>;
  { rule.keeps_gradients(what, what) } -> std::convertible_to<bool>;
  { rule.prefetch } -> std::convertible_to<int>;
};

//! @brief The rules of FSDP and ZeRO. The default is ZeRO-3: weights are released behind every run
//! of passes of their stage, gradients scattered behind every run of passes that add to them, and
//! weights are gathered one visit ahead.
struct reshard {
  bool after_forward = true;  //!< false: weights stay behind a forward pass
  bool after_backward = true; //!< false: weights stay behind a backward pass
  bool scatter_once = false;  //!< whole gradients stay until the stage's last pass
  //! Visits ahead: the gather of the next so many may begin when a visit does. 0: none overlaps.
  int prefetch = 1;

  [[nodiscard]] constexpr bool keeps_weights(pass const& before, pass const&) const noexcept {
    return before.kind == pass_kind::forward || before.kind == pass_kind::checkpointed_forward
             ? !after_forward
             : !after_backward;
  }
  [[nodiscard]] constexpr bool keeps_gradients(pass const&, pass const&) const noexcept {
    return scatter_once;
  }
};

//! @brief ZeRO-2, or FSDP without resharding: the weights of a stage are gathered once and stay,
//! and so do its whole gradients until its last pass.
inline constexpr reshard gathered_once{
  .after_forward = false, .after_backward = false, .scatter_once = true};

namespace detail {

//! A run of passes of one stage on a device, by entries of its row; others may stand in between.
struct stage_visit {
  pass opener;
  int first;
  int end;
};

//! The visits of a row, in the order in which they begin.
//! @param needs `needs(pass)`: whether a pass is of a visit. @param keeps `keeps(before, next)`:
//! whether a visit goes on where other stages have been visited in between
template <class Needs, class Keeps>
[[nodiscard]] std::vector<stage_visit>
find_visits(std::vector<pass> const& row, int stage_count, Needs const& needs, Keeps const& keeps) {
  struct latest {
    int visit = -1;
    pass last{};
    std::size_t group = 0; // in which it stands, by the first entry
  };
  std::vector<stage_visit> result;
  std::vector<latest> of(static_cast<std::size_t>(stage_count));
  struct {
    int which = -1;
    std::size_t group = 0;
  } visited[2]; // the last two stages, the latest first
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
      auto const& other = visited[visited[0].which == what.stage ? 1 : 0];
      bool const alone = other.which < 0 || other.group <= mine.group;
      if (mine.visit < 0 || (!alone && !keeps(mine.last, what))) {
        mine.visit = static_cast<int>(result.size());
        result.push_back({what, static_cast<int>(first), 0});
      }
      result[static_cast<std::size_t>(mine.visit)].end = static_cast<int>(end);
      mine.last = what;
      mine.group = first;
    }
    for (std::size_t i = first; i < end; ++i)
      if (needs(row[i])) {
        if (visited[0].which != row[i].stage)
          visited[1] = visited[0];
        visited[0] = {row[i].stage, first};
      }
    first = end;
  }
  return result;
}

//! Writes the row of a device with its visits marked, and the row of its network engine, which
//! follows the order of the marks. Where several stand in one place, weights are released first, so
//! that what is gathered next can lie where they lay; gathers go before scatters, since passes wait
//! for them.
class visit_writer {
public:
  visit_writer(std::vector<pass> const& row, row_writer& compute, row_writer& network)
      : row_(row), compute_(compute), network_(network) {}

  void run(std::vector<stage_visit> const& weights,
           std::vector<stage_visit> const& gradients,
           int prefetch) {
    auto const ahead = static_cast<std::size_t>(prefetch);
    std::size_t used = 0;
    std::size_t collected = 0;
    auto const released = by_end(weights);
    auto const scattered = by_end(gradients);
    auto release = released.begin();
    auto scatter = scattered.begin();
    for (std::size_t k = 0; k < weights.size() && k < ahead; ++k)
      request(weights[k]);
    for (std::size_t first = 0;; ++first) {
      if (first < row_.size() && row_[first].overlapped) {
        compute_.push(row_[first]);
        continue;
      }
      int const at = static_cast<int>(first);
      for (; release != released.end() && release->end == at; ++release)
        mark(*release, pass_kind::release_weights);
      for (; used < weights.size() && weights[used].first == at; ++used) {
        if (ahead == 0)
          request(weights[used]);
        mark(weights[used], pass_kind::use_weights);
        if (ahead > 0 && used + ahead < weights.size())
          request(weights[used + ahead]);
      }
      for (; scatter != scattered.end() && scatter->end == at; ++scatter) {
        push(compute_, *scatter, pass_kind::request_scatter);
        push(network_, *scatter, pass_kind::scatter_gradients);
      }
      for (; collected < gradients.size() && gradients[collected].first == at; ++collected)
        push(compute_, gradients[collected], pass_kind::collect_gradients);
      if (first == row_.size())
        return;
      compute_.push(row_[first]);
    }
  }

private:
  static void push(row_writer& to, stage_visit const& of, pass_kind kind) {
    pass what = of.opener;
    what.kind = kind;
    to.push(what);
  }
  [[nodiscard]] static std::vector<stage_visit> by_end(std::vector<stage_visit> visits) {
    std::stable_sort(visits.begin(), visits.end(), [](stage_visit const& a, stage_visit const& b) {
      return a.end < b.end;
    });
    return visits;
  }
  //! The kind for visits that are opened as this one is.
  [[nodiscard]] static pass_kind kind_for(stage_visit const& of, pass_kind first) {
    bool const again = training_kind(of.opener.kind).calls != stage_call::forward;
    int const step =
      index_of(pass_kind::request_weights_again) - index_of(pass_kind::request_weights);
    return static_cast<pass_kind>(index_of(first) + (again ? step : 0));
  }
  void mark(stage_visit const& of, pass_kind first) { push(compute_, of, kind_for(of, first)); }
  void request(stage_visit const& of) {
    mark(of, pass_kind::request_weights);
    push(network_, of, kind_for(of, pass_kind::gather_weights));
  }

  std::vector<pass> const& row_;
  row_writer& compute_;
  row_writer& network_;
};

} // namespace detail

//! @brief A schedule whose weights lie in shards on the devices of a data-parallel group (FSDP,
//! ZeRO): those of a stage are gathered for each visit of the stage, beside passes, and its
//! gradients are scattered.
//!
//! Orders the passes as the schedule does. A visit is a run of passes of one stage on its device,
//! or several where the rule keeps the weights in between. With times g of a gather and r of a
//! scatter, and one visit gathered ahead:
//! - a schedule with one stage on a device gathers and scatters once per device and ends g + r
//! later;
//! - `BreadthFirst` with V > 1 stages on a device gathers 2 V - 1 times and scatters V times: a
//! visit
//!   for each stage and direction, and one for both on the last. It ends g + r later as long as M
//!   forward passes of a stage take g at least and M backward passes g + r;
//! - schedules that go back and forth between their stages pay for every run of passes:
//! Interleaved,
//!   but for its ends, for every pass.
//! A device holds the weights of at most two stages at once (of `prefetch` + 1), where no composite
//! passes need more.
//!
//! @tparam Schedule any schedule of a flow of training without a vocabulary in shards.
//! @tparam Rule what stays between visits, and how far ahead weights are gathered.
//! @throws std::invalid_argument from `arrange` for a negative prefetch, else as the schedule does.
//! @complexity O(n log n) for n passes of a device, on top of the schedule.
//! @source Lamy-Poirier, "Breadth-First Pipeline Parallelism", MLSys 2023 (arXiv:2211.05953),
//! section 4; Zhao et al., "PyTorch FSDP", VLDB 2023 (one visit ahead). The laws are own.
template <schedule Schedule, sharding_rule Rule = reshard>
struct with_sharded_weights {
  static_assert(!flow_of<Schedule>().reads_in_groups,
                "with_sharded_weights: a vocabulary in shards does not go with sharded weights");
  static constexpr flow declared = shard_weights(flow_of<Schedule>());

  Schedule of{};
  Rule rule{};

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    if (rule.prefetch < 0)
      throw std::invalid_argument(
        "with_sharded_weights: weights cannot be gathered a negative number of visits ahead");
    return of.arrange(devices, microbatches);
  }
  template <cost_model Cost>
  void generate(shape const& extents, Cost const& cost, row_writer* rows) const {
    if constexpr (closed_form_schedule<Schedule>)
      for (int device = 0; device < extents.devices; ++device)
        of.order(extents, device, rows[device]);
    else
      of.generate(extents, cost, rows);
    constexpr int network = declared.engine_row[static_cast<int>(engine::network)];
    auto const needs_weights = [](pass const& what) {
      return detail::reads_weights(declared[what.kind]);
    };
    auto const needs_gradients = [](pass const& what) {
      return detail::touches_gradients(declared, what.kind);
    };
    for (int device = 0; device < extents.devices; ++device) {
      row_writer& row = rows[device];
      std::vector<pass> const inner(row.passes, row.passes + row.count);
      row.count = 0;
      auto const weights = detail::find_visits(
        inner, stages(extents), needs_weights, [this](pass const& before, pass const& next) {
          return rule.keeps_weights(before, next);
        });
      auto const gradients = detail::find_visits(
        inner, stages(extents), needs_gradients, [this](pass const& before, pass const& next) {
          return next.kind == pass_kind::backward_weight || rule.keeps_gradients(before, next);
        });
      detail::visit_writer(inner, row, rows[network * extents.devices + device])
        .run(weights, gradients, rule.prefetch);
    }
  }
};

} // namespace pipelining::inline v0_2
