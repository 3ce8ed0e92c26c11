// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One timeline of a page, its times by what sliders say, and the sliders. Header for
//! pipelining::html_timeline and make_html_timeline.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/view/append.hpp>
#include <pipe/view/figures.hpp>
#include <pipe/view/trace.hpp>

#include <algorithm>
#include <array>
#include <compare>
#include <concepts>
#include <cstddef>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! A time of `uniform_cost` that a reader of a page may change.
struct page_slider {
  std::string_view key;  //!< in the data of the page
  std::string_view word; //!< next to the slider
  std::string_view title;
  double uniform_cost::*time;
};

//! The times that passes are made of.
inline constexpr page_slider pass_sliders[] = {
  {"F", "F", "a forward pass", &uniform_cost::forward},
  {"I", "I", "a backward pass for the input", &uniform_cost::backward_input},
  {"W", "W", "a backward pass for the weights", &uniform_cost::backward_weight},
  {"R", "recompute", "a recomputation", &uniform_cost::recompute},
  {"O", "copy out", "a copy to the host", &uniform_cost::copy_out},
  {"L", "copy in", "a copy from the host", &uniform_cost::copy_in},
  {"A", "gather", "a gather of weights", &uniform_cost::gather},
  {"Z", "scatter", "a scatter of gradients", &uniform_cost::scatter},
  {"E", "embed", "a shard of the embedding", &uniform_cost::embed},
  {"S", "logits", "a shard of the logits", &uniform_cost::logits},
  {"T", "logits' gradient", "the gradients of such a shard", &uniform_cost::logits_gradient},
  {"G",
   "embed's gradient",
   "the gradients of a shard of the embedding",
   &uniform_cost::embed_gradient},
};
inline constexpr std::size_t pass_slider_count = std::size(pass_sliders);

//! The times that passes share: exchanges inside them, pairs, and messages between them.
inline constexpr page_slider other_sliders[] = {
  {"all_reduce",
   "all-reduce",
   "the exchanges of a tensor parallel group in a pass",
   &uniform_cost::all_reduce},
  {"pair", "pair", "an overlapped pair of passes", &uniform_cost::overlapped_pair},
  {"broadcast", "broadcast", "a broadcast to all shards", &uniform_cost::broadcast},
  {"reduce", "reduce", "a reduction over all shards", &uniform_cost::reduce},
  {"latency", "message", "a message", &uniform_cost::communication},
};

//! The time of a pass: `always`, and so much of the value of each slider. Exchanges inside it are
//! hidden under a part of it, of which `hides` is as much of each slider.
struct pass_time {
  double always = 0;
  std::array<double, pass_slider_count> takes{};
  double exchanges = 0;
  std::array<double, pass_slider_count> hides{};

  friend auto operator<=>(pass_time const&, pass_time const&) = default;
};

//! Finds the times of passes by asking a cost model once for each slider by itself.
template <class Model>
class time_probe {
public:
  //! @param model_of `model_of(uniform_cost)`: the cost model for these times
  template <class ModelOf>
  time_probe(ModelOf const& model_of, bool exchanges) : free_(models(model_of, 0)) {
    if (exchanges)
      loaded_ = models(model_of, load);
  }
  [[nodiscard]] pass_time of(pass const& what) const {
    pass_time result;
    result.always = free_[0].duration(what);
    for (std::size_t i = 0; i < pass_slider_count; ++i)
      result.takes[i] = free_[i + 1].duration(what) - result.always;
    if (loaded_.empty())
      return result;
    double const added = loaded_[0].duration(what) - result.always; // with nothing to hide it
    result.exchanges = added / load;
    for (std::size_t i = 0; i < pass_slider_count; ++i) {
      double const hidden = result.always + result.takes[i] + added - loaded_[i + 1].duration(what);
      result.hides[i] = hidden > 1e-9 ? hidden : 0; // else what sums were rounded by
    }
    return result;
  }

private:
  static constexpr double load = 1024; // of exchanges: more than what hides them takes

  //! The models where only exchanges take time, and next to them the passes of each slider.
  [[nodiscard]] static std::vector<Model> models(auto const& model_of, double exchanges) {
    uniform_cost base;
    for (page_slider const& each : pass_sliders)
      base.*each.time = 0;
    base.all_reduce = exchanges;
    std::vector<Model> result{model_of(base)};
    for (page_slider const& each : pass_sliders) {
      uniform_cost one = base;
      one.*each.time = 1;
      result.push_back(model_of(one));
    }
    return result;
  }

  std::vector<Model> free_;
  std::vector<Model> loaded_;
};

} // namespace detail

//! @brief A cost model whose passes take as much more than in `of` as they take more in `now` than
//! in `mean`. A pass that takes no time in `mean` keeps its own.
template <cost_model Cost>
struct scaled_cost {
  Cost of;           //!< by stage and chunk; a fused backward takes the sum of its halves
  uniform_cost mean; //!< of all stages and chunks
  uniform_cost now;  //!< the same, as it is to be

  [[nodiscard]] double duration(pass const& what) const {
    if (what.kind != training.kind_with(role::backward))
      return scaled(what, what.kind);
    return scaled(what, training.kind_with(role::input)) +
           scaled(what, training.kind_with(role::weights));
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
  //! The same entries as a reader should see them: other than `table` where its stages
  //! are no stages of the model, as in WeiPipe. Not owned
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
//! @param model_of `model_of(uniform_cost)`: a cost model for these times; the model of
//! `about.cost` gives the times of `table`. Passes take so much of each of them, but for exchanges.
//! @complexity O(n) for n passes, and as many questions to models as pages have sliders for each
//! kind, stage and chunk.
template <class ModelOf>
requires cost_model<std::invoke_result_t<ModelOf const&, uniform_cost const&>>
[[nodiscard]] html_timeline
make_html_timeline(timetable_view table, timetable_caption const& about, ModelOf const& model_of) {
  html_timeline result{table, about, table};
  detail::time_probe<std::invoke_result_t<ModelOf const&, uniform_cost const&>> const probe(
    model_of, about.cost.all_reduce > 0);
  auto const stage_count = static_cast<std::size_t>(table.over.extents.stages());
  auto const chunks = static_cast<std::size_t>(table.over.extents.chunks);
  std::vector<int> known(flow::most_kinds * stage_count * chunks, -1);
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
//! @param cost the costs of `table`; a fused backward must take the sum of its halves.
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

namespace detail {

//! The value of a slider. A recomputation without a time takes as long as a forward pass.
[[nodiscard]] inline double slider_value(page_slider const& slider, uniform_cost const& cost) {
  double const time = cost.*slider.time;
  return slider.time == &uniform_cost::recompute && time < 0 ? cost.forward : time;
}
//! The factor of the value of a slider. By it a schedule of other costs keeps its ratio to the
//! costs of the page.
[[nodiscard]] inline double
slider_ratio(page_slider const& slider, uniform_cost const& page, uniform_cost const& own) {
  double const value = slider_value(slider, page);
  return value > 0 ? slider_value(slider, own) / value : 1;
}

//! The parts of a time that are not zero.
void append_parts(text_sink auto& out,
                  std::string_view name,
                  std::array<double, pass_slider_count> const& parts,
                  html_timeline const& line,
                  uniform_cost const& page) {
  std::string list;
  for (std::size_t i = 0; i < pass_slider_count; ++i)
    if (parts[i] != 0)
      append(list,
             list.empty() ? "\"" : ",\"",
             pass_sliders[i].key,
             "\":",
             parts[i] * slider_ratio(pass_sliders[i], page, line.about.cost));
  if (!list.empty())
    append(out, ",\"", name, "\":{", list, "}");
}

void append_times(text_sink auto& out, html_timeline const& line, uniform_cost const& page) {
  append(out, ",\n\"times\":");
  append_list(out, line.times, [&](pass_time const& time) {
    append(out, "{\"always\":", time.always);
    append_parts(out, "takes", time.takes, line, page);
    if (time.exchanges != 0) {
      append(out, ",\"exchanges\":");
      append(out, time.exchanges * slider_ratio(other_sliders[0], page, line.about.cost));
      append_parts(out, "hides", time.hides, line, page);
    }
    append(out, "}");
  });
}

//! True where a slider moves something on a page.
[[nodiscard]] inline bool is_in_use(std::span<html_timeline const> timelines, std::size_t slider) {
  return std::any_of(timelines.begin(), timelines.end(), [slider](html_timeline const& line) {
    return std::any_of(line.times.begin(), line.times.end(), [slider](pass_time const& time) {
      return time.takes[slider] != 0;
    });
  });
}

//! The sliders that move something, and where they stand.
void append_sliders(text_sink auto& out,
                    std::span<html_timeline const> timelines,
                    uniform_cost const& cost) {
  std::vector<page_slider> shown;
  for (std::size_t i = 0; i < pass_slider_count; ++i)
    if (is_in_use(timelines, i))
      shown.push_back(pass_sliders[i]);
  for (page_slider const& each : other_sliders)
    if (cost.*each.time >= 0 && (each.time != &uniform_cost::all_reduce || cost.all_reduce > 0))
      shown.push_back(each);
  append(out, "\"sliders\":");
  append_list(out, shown, [&](page_slider const& each) {
    append(out, "{\"key\":\"", each.key, "\",\"word\":\"", each.word);
    append(out, "\",\"title\":\"", each.title, "\",\"value\":", slider_value(each, cost), "}");
  });
}

} // namespace detail

} // namespace pipelining::inline v0_3
