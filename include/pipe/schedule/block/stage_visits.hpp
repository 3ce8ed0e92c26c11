// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The visits of the stages of a device: where its weights and gradients come and go.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/sort_stably.hpp>
#include <pipe/schedule/schedule.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace pipelining::inline v0_3::detail {

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
[[nodiscard]] std::vector<stage_visit> find_visits(std::vector<pass> const& row,
                                                   int stage_count,
                                                   Needs const& needs,
                                                   int resident,
                                                   Keeps const& keeps) {
  struct latest {
    int visit = -1;
    pass last{};
    std::size_t group = 0; // in which it stands, by the first entry
  };
  std::vector<stage_visit> result;
  std::vector<latest> of(static_cast<std::size_t>(stage_count));
  struct visited_stage {
    int which;
    std::size_t group;
  };
  std::vector<visited_stage> visited; // the latest last
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
      int others = 0;
      for (auto other = visited.rbegin(); other != visited.rend() && other->group > mine.group;
           ++other)
        others += other->which != what.stage ? 1 : 0;
      if (mine.visit < 0 || (others >= resident && !keeps(mine.last, what))) {
        mine.visit = static_cast<int>(result.size());
        result.push_back({what, static_cast<int>(first), 0});
      }
      result[static_cast<std::size_t>(mine.visit)].end = static_cast<int>(end);
      mine.last = what;
      mine.group = first;
    }
    for (std::size_t i = first; i < end; ++i)
      if (needs(row[i])) {
        int const stage = row[i].stage;
        visited.erase(std::remove_if(visited.begin(),
                                     visited.end(),
                                     [&](visited_stage const& one) { return one.which == stage; }),
                      visited.end());
        visited.push_back({stage, first});
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

  //! @param turns as `weights`, but with none of them longer because its stage is resident: when a
  //! turn begins, the weights of the next `prefetch` other stages may be gathered
  void run(std::vector<stage_visit> const& weights,
           std::vector<stage_visit> const& turns,
           std::vector<stage_visit> const& gradients,
           int prefetch) {
    std::size_t used = 0;
    std::size_t turn = 0;
    std::size_t requested = 0;
    std::size_t collected = 0;
    std::vector<int> next;
    // Asks for the weights of visits that begin while the row is at so many stages.
    auto const request_next = [&](std::size_t from, int stages) {
      next.clear();
      for (std::size_t i = from; i < turns.size() && requested < weights.size(); ++i) {
        int const stage = turns[i].opener.stage;
        if (std::find(next.begin(), next.end(), stage) == next.end()) {
          if (static_cast<int>(next.size()) == stages)
            return;
          next.push_back(stage);
        }
        if (weights[requested].opener == turns[i].opener)
          request(weights[requested++]);
      }
    };
    auto const released = by_end(weights);
    auto const scattered = by_end(gradients);
    auto release = released.begin();
    auto scatter = scattered.begin();
    request_next(0, prefetch);
    for (std::size_t first = 0;; ++first) {
      if (first < row_.size() && row_[first].overlapped) {
        compute_.push(row_[first]);
        continue;
      }
      int const at = static_cast<int>(first);
      for (; release != released.end() && release->end == at; ++release)
        mark(*release, pass_kind::release_weights);
      for (; turn < turns.size() && turns[turn].first == at; ++turn) {
        if (requested == used)
          request_next(turn, 1);
        if (used < weights.size() && weights[used].opener == turns[turn].opener)
          mark(weights[used++], pass_kind::use_weights);
        request_next(turn, prefetch + 1);
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
    detail::sort_stably(visits,
                        [](stage_visit const& a, stage_visit const& b) { return a.end < b.end; });
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

} // namespace pipelining::inline v0_3::detail
