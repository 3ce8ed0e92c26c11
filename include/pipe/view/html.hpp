// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Timetables as an interactive page of one file. Header for pipelining::write_html.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/quote.hpp>
#include <pipe/flow/slot_class.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/view/append.hpp>
#include <pipe/view/html/control.hpp>
#include <pipe/view/html/data.hpp>
#include <pipe/view/html/model.hpp>
#include <pipe/view/html/timeline.hpp>
#include <pipe/view/html/view.hpp>

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace pipelining::inline v0_3 {

//! @brief The title and the units of a page.
struct html_options {
  std::string_view title;     //!< of the page
  std::string_view unit = ""; //!< of time, printed at the axis
  bool bytes = false;         //!< sizes of slots are bytes; else they are relative to each other
};

namespace detail {

//! True for a class whose slots lie on the host.
[[nodiscard]] inline bool lies_on_host(std::span<html_timeline const> timelines, int pool) {
  for (html_timeline const& line : timelines) {
    flow const& declared = *line.table.over.declared;
    for (int of = 0; of < declared.data_count; ++of)
      if (declared.data[of].pool == pool && declared.data[of].lives == residence::host)
        return true;
  }
  return false;
}

} // namespace detail

//! @brief Writes a page of one file, without anything from elsewhere, that browsers open from the
//! disk: the schedules one below the other on one time axis, with zoom and pan, what each pass
//! waits for and is needed by, messages, the critical path, the buffers in use on every device,
//! planned and measured times, and sliders that time the fixed orders anew for other costs.
//!
//! Sliders start at the costs of the first schedule; the costs of the others keep their ratio to
//! them. There is one slider for each time that passes of these flows take. The buffers are the
//! slots of a plan made from the times on the page, by class.
//!
//! @pre every timeline is from `make_html_timeline`, of a timetable that `verify` accepts.
//! @throws std::invalid_argument where there is no schedule, the sizes are not one for each class,
//! or measured passes are not the passes of the timetable.
//! @complexity O(n) for n passes; a browser draws some ten thousand passes at once with ease.
void write_html(text_sink auto& out,
                std::span<html_timeline const> timelines,
                html_options const& options = {}) {
  if (timelines.empty())
    throw std::invalid_argument("write_html: a page needs at least one timetable");
  for (html_timeline const& line : timelines)
    if (!line.slot_sizes.empty() && line.slot_sizes.size() != std::size_t{detail::slot_classes})
      throw std::invalid_argument("write_html: slot_sizes has one size for each class of slots, " +
                                  std::to_string(detail::slot_classes) + " in all");
  uniform_cost const& unit = timelines.front().about.cost;
  append(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>");
  for (std::string_view rest = options.title; !rest.empty();) {
    std::string_view const letter = detail::take_letter(rest);
    out.append(letter == "<" ? "&lt;" : letter == "&" ? "&amp;" : letter);
  }
  append(out, "</title>\n", detail::html_head);
  append(out, "<script type=\"application/json\" id=\"data\">\n{\"title\":");
  detail::append_html_text(out, options.title);
  append(out, ",\"unit\":");
  detail::append_html_text(out, options.unit);
  append(out, ",\n");
  detail::append_sliders(out, timelines, unit);
  append(out, ",\n\"bytes\":", options.bytes ? "true" : "false", ",\"classes\":[");
  for (int of = 0; of < detail::slot_classes; ++of) {
    append(out, of == 0 ? "" : ",", "[\"", detail::word(static_cast<slot_class>(of)), "\",");
    append(out, detail::lies_on_host(timelines, of) ? "1]" : "0]");
  }
  append(out, "],\n\"schedules\":[");
  for (std::size_t i = 0; i < timelines.size(); ++i) {
    append(out, i == 0 ? "\n" : ",\n");
    detail::append_timeline(out, timelines[i], unit);
  }
  append(out, "]}\n</script>\n<script>\n\"use strict\";");
  append(out, detail::html_model, detail::html_view, detail::html_control);
  append(out, "</script>\n</body>\n</html>\n");
}

} // namespace pipelining::inline v0_3
