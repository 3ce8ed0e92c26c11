// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The sliders of an interactive page, and the times of passes by them. Used by
//! <pipe/view/html.hpp>.

#include <pipe/timetable/cost.hpp>
#include <pipe/view/append.hpp>
#include <pipe/view/html/timeline.hpp>
#include <pipe/view/html/times.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace pipelining::inline v0_3::detail {

//! The value of a slider: a time that is not given is that of the passes that it stands for.
[[nodiscard]] inline double slider_value(page_slider const& slider, uniform_cost const& cost) {
  double const time = cost.*slider.time;
  return slider.time == &uniform_cost::recompute && time < 0 ? cost.forward : time;
}
//! What the value of a slider is multiplied with, so that a schedule of other costs keeps its ratio
//! to those of the page.
[[nodiscard]] inline double
slider_ratio(page_slider const& slider, uniform_cost const& page, uniform_cost const& own) {
  double const value = slider_value(slider, page);
  return value > 0 ? slider_value(slider, own) / value : 1;
}

//! The parts of a time that are not zero.
template <text_sink Sink>
void append_parts(Sink& out,
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

template <text_sink Sink>
void append_times(Sink& out, html_timeline const& line, uniform_cost const& page) {
  append(out, ",\n\"times\":[");
  for (std::size_t i = 0; i < line.times.size(); ++i) {
    pass_time const& time = line.times[i];
    append(out, i == 0 ? "" : ",", "{\"always\":", time.always);
    append_parts(out, "takes", time.takes, line, page);
    if (time.exchanges != 0) {
      append(out, ",\"exchanges\":");
      append(out, time.exchanges * slider_ratio(other_sliders[0], page, line.about.cost));
      append_parts(out, "hides", time.hides, line, page);
    }
    append(out, "}");
  }
  append(out, "]");
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
template <text_sink Sink>
void append_sliders(Sink& out, std::span<html_timeline const> timelines, uniform_cost const& cost) {
  append(out, "\"sliders\":[");
  bool first = true;
  auto const append_one = [&](page_slider const& each) {
    append(out, first ? "{" : ",{", "\"key\":\"", each.key, "\",\"word\":\"", each.word);
    append(out, "\",\"title\":\"", each.title, "\",\"value\":", slider_value(each, cost), "}");
    first = false;
  };
  for (std::size_t i = 0; i < pass_slider_count; ++i)
    if (is_in_use(timelines, i))
      append_one(pass_sliders[i]);
  for (page_slider const& each : other_sliders)
    if (cost.*each.time >= 0 && (each.time != &uniform_cost::all_reduce || cost.all_reduce > 0))
      append_one(each);
  append(out, "]");
}

} // namespace pipelining::inline v0_3::detail
