// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A schedule of an interactive page, and what its passes take. Header for
//! pipelining::html_timeline.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/view/html/times.hpp>
#include <pipe/view/timetable_caption.hpp>
#include <pipe/view/trace.hpp>

#include <concepts>
#include <cstddef>
#include <map>
#include <span>
#include <type_traits>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief A cost model whose passes take as much more than in `of` as they take more in `now` than
//! in `mean`. What takes no time in `mean` keeps its own.
template <cost_model Cost>
struct scaled_cost {
  Cost of;           //!< by stage and chunk; a fused backward takes the sum of its halves
  uniform_cost mean; //!< of all stages and chunks
  uniform_cost now;  //!< the same, as it is to be

  [[nodiscard]] double duration(pass const& what) const {
    if (what.kind != kind_with(training, role::backward))
      return scaled(what, what.kind);
    return scaled(what, kind_with(training, role::input)) +
           scaled(what, kind_with(training, role::weights));
  }
  [[nodiscard]] double latency() const { return now.latency(); }

private:
  [[nodiscard]] double scaled(pass what, pass_kind kind) const {
    what.kind = kind;
    double const time = of.duration(what);
    double const usual = mean.duration(what);
    return usual > 0 ? time * (now.duration(what) / usual) : time;
  }
};

//! @brief One schedule of a page: its order, its costs and, where it has run, when its passes ran.
struct html_timeline {
  timetable_view table;    //!< its order; the page times it again. Not owned
  timetable_caption about; //!< name, mean costs, shares of chunks. Not owned
  //! The same entries as a reader should see them: other than `table` where what it calls stages
  //! are none, as in WeiPipe. Not owned
  timetable_view shown;
  std::vector<detail::pass_time> times = {};    //!< those that differ, by what sliders say
  std::vector<int> time_of = {};                //!< of each entry, the number of its time
  std::span<measured_pass const> measured = {}; //!< every pass once, in any order, or none
  double measured_unit = 1; //!< units of planned time of one unit of measured time
  //! The size of a slot of each class of a plan, [slot_classes], in the order of `slot_class`.
  //! Empty: 1 each, so that curves count slots.
  std::vector<double> slot_sizes = {};
};

//! @brief A schedule of a page, with times that its reader may change.
//! @param about its `cost` are the times of now.
//! @param model_of `model_of(uniform_cost)`: a cost model for these times; that of `about.cost`
//! gives the times of `table`. Passes take so much of each of them, but for exchanges.
//! @complexity O(n) for n passes, and as many questions to models as pages have sliders for each
//! kind, stage and chunk.
template <class ModelOf>
requires cost_model<std::invoke_result_t<ModelOf const&, uniform_cost const&>>
[[nodiscard]] html_timeline
make_html_timeline(timetable_view table, timetable_caption const& about, ModelOf const& model_of) {
  html_timeline result{table, about, table};
  detail::time_probe<std::invoke_result_t<ModelOf const&, uniform_cost const&>> const probe(
    model_of, about.cost.all_reduce > 0);
  auto const stage_count = static_cast<std::size_t>(stages(table.over.extents));
  auto const chunks = static_cast<std::size_t>(table.over.extents.chunks);
  std::vector<int> known(most_kinds * stage_count * chunks, -1);
  std::map<detail::pass_time, int> numbers;
  for (pass const& what : std::span(table.passes, static_cast<std::size_t>(table.size()))) {
    auto const kind = static_cast<std::size_t>(what.kind);
    int& number = known[(kind * stage_count + what.stage) * chunks + what.chunk];
    if (number == -1) {
      detail::pass_time const time = probe.of(what);
      number = numbers.emplace(time, static_cast<int>(numbers.size())).first->second;
      if (number == static_cast<int>(result.times.size()))
        result.times.push_back(time);
    }
    result.time_of.push_back(number);
  }
  return result;
}

//! @brief The same for one cost model: passes take as much more as the sliders say of the times
//! that `about` has.
//! @param cost what `table` was timed with; a fused backward must take the sum of its halves.
template <cost_model Cost>
[[nodiscard]] html_timeline
make_html_timeline(timetable_view table, timetable_caption const& about, Cost const& cost) {
  if constexpr (std::same_as<Cost, uniform_cost>)
    return make_html_timeline(table, about, [](uniform_cost const& now) { return now; });
  else
    return make_html_timeline(table, about, [&](uniform_cost const& now) {
      return scaled_cost<Cost>{cost, about.cost, now};
    });
}

} // namespace pipelining::inline v0_3
