// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Timetables as an interactive page of one file. Header for pipelining::write_html.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/quote.hpp>
#include <pipe/flow/shades.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/stage_graph.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/plan/lower/data_uses.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/view/append.hpp>
#include <pipe/view/figures.hpp>
#include <pipe/view/html/control.hpp>
#include <pipe/view/html/model.hpp>
#include <pipe/view/html/timeline.hpp>
#include <pipe/view/html/view.hpp>
#include <pipe/view/trace.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief The title and the units of a page.
struct html_options {
  std::string_view title;     //!< of the page
  std::string_view unit = ""; //!< of time, printed at the axis
  bool bytes = false;         //!< sizes of slots are bytes; else they are relative to each other
};

namespace detail {

//! A slot of a pool, from the start of an entry to the last end of others. A datum that arrives is
//! held from the end of its maker on, on the device of its readers.
struct slot_hold {
  int pool;
  int from;
  bool arrives;
  std::vector<int> until; //!< of each row one; empty: to the end of the iteration
};

//! The memory that a timetable holds, as its flow declares.
class slot_holds {
public:
  //! @pre `verify` accepts the timetable
  explicit slot_holds(timetable_view const& table) : table_(table) {
    for (int row = 0; row < table.rows(); ++row)
      rows_.insert(rows_.end(), static_cast<std::size_t>(table.row_size(row)), row);
  }

  //! Slots are taken and given back as in plans. A slot that is sent stays taken through the next
  //! pass of its row. @complexity O(n) for n entries, O(n P) with groups
  [[nodiscard]] std::vector<slot_hold> all() const {
    std::vector<slot_hold> result;
    data_uses const uses(table_.over);
    std::vector<instance> all(static_cast<std::size_t>(uses.instances()));
    for (int i = 0; i < table_.size(); ++i)
      for (data_use const& use : uses[table_.passes[i]])
        enter(i, uses, use, all);
    int const each = uses.width * uses.unit_count; // instances of a datum on a stage
    for (int line = 0; line < uses.lines; ++line)  // datum after datum
      for (int stage = 0; stage < uses.stage_count; ++stage)
        for (int at = stage * uses.row_size + line * each, end = at + each; at < end; ++at)
          if (instance const& made = all[static_cast<std::size_t>(at)]; made.maker != -1)
            append_holds(table_.over.declared->data[uses.datum_on[line]], made, result);
    return result;
  }

private:
  struct instance {
    int maker = -1;
    std::vector<int> users{}; // the last of them gives it back
  };

  //! Notes what an entry does with a datum that lies in a slot.
  void
  enter(int entry, data_uses const& uses, data_use const& use, std::vector<instance>& all) const {
    pass const& what = table_.passes[entry];
    pass_place const place = uses.place_of(what);
    for (int number = 0, count = use.lies ? uses.count(use, what) : 0; number < count; ++number) {
      instance& datum = all[static_cast<std::size_t>(uses.index(use, what, place, number))];
      if (use.stage == 0 && uses.brings(use, what))
        datum.maker = entry;
      if (uses.gives_back(use, what))
        datum.users.push_back(entry);
    }
  }

  [[nodiscard]] int device_of_entry(int entry) const {
    return rows_[static_cast<std::size_t>(entry)] % table_.over.extents.devices;
  }
  //! The entry after an entry and its other half, or the entry where it is the last of its row.
  [[nodiscard]] int next(int entry) const {
    int const end = table_.offsets[rows_[static_cast<std::size_t>(entry)] + 1];
    int behind = entry + 1;
    while (behind < end && table_.passes[behind].overlapped)
      ++behind;
    return behind < end ? behind : entry;
  }

  //! Holds a slot until a user ends. Of one row, the last user ends last.
  void hold_until(slot_hold& hold, int user) const {
    for (int& other : hold.until)
      if (rows_[static_cast<std::size_t>(other)] == rows_[static_cast<std::size_t>(user)]) {
        other = std::max(other, user);
        return;
      }
    hold.until.push_back(user);
  }
  void append_holds(datum const& of, instance const& made, std::vector<slot_hold>& out) const {
    int const here = device_of_entry(made.maker);
    std::size_t const own = out.size();
    out.push_back({of.pool, made.maker, false, {}});
    for (int const user : made.users) {
      std::size_t at = own;
      if (int const device = device_of_entry(user); device != here) {
        for (++at; at < out.size() && device_of_entry(out[at].until[0]) != device;)
          ++at;
        if (at == out.size())
          out.push_back({of.arrives_in, made.maker, true, {}});
      }
      hold_until(out[at], user);
    }
    if (out.size() > own + 1)
      hold_until(out[own], next(made.maker));
  }

  timetable_view table_;
  std::vector<int> rows_; // of each entry
};

//! A text of the data. A letter that could end the script is escaped.
[[nodiscard]] inline std::string html_text(std::string_view text) {
  std::string result;
  std::string const quoted = json_text(text);
  for (char const& letter : quoted)
    result.append(letter == '<' ? "\\u003c" : std::string_view(&letter, 1));
  return result;
}

//! A member that is a list of numbers. @param name with all that stands before the list
void append_numbers(text_sink auto& out, std::string_view name, auto const& values) {
  append(out, name);
  append_list(out, values, [&](auto const& value) { append(out, value); });
}

//! The member of `group_times` that lies between two entries; null: the time of a message.
[[nodiscard]] inline char const*
word_between(timetable_view const& table, int maker, int reader) noexcept {
  if (table.over.in_group(table.passes[maker].stage))
    return table.groups.reduce >= 0 ? "reduce" : nullptr;
  bool const reads = table.over.in_group(table.passes[reader].stage);
  return reads && table.groups.broadcast >= 0 ? "broadcast" : nullptr;
}

//! Appends the entries that each entry waits for, and the memory that is held: the class and the
//! entry, or ~entry for data that arrive at its end. Then come the entries that end the hold, each
//! as how many entries later it stands.
void append_links(text_sink auto& out, timetable_view const& table) {
  std::vector<std::vector<int>> const makers = makers_of(table);
  append(out, ",\n\"needs\":");
  append_numbered(out, table.size(), [&](int reader) {
    append_list(out, makers[static_cast<std::size_t>(reader)], [&](int maker) {
      char const* const word = word_between(table, maker, reader);
      if (word == nullptr)
        return append(out, maker);
      append(out, "[", maker, ",\"", word, "\"]");
    });
  });
  append(out, ",\n\"holds\":");
  append_list(out, slot_holds(table).all(), [&](slot_hold const& hold) {
    append(out, "[", hold.pool, ",", hold.arrives ? ~hold.from : hold.from);
    for (int const end : hold.until)
      append(out, ",", end - hold.from);
    append(out, "]");
  });
}

//! The kinds of a flow: their words, and how they are drawn.
void append_kinds(text_sink auto& out, flow const& declared) {
  append(out, "\"kinds\":");
  int const count = std::max(declared.kind_count, kinds_of_training.kind_count);
  append_numbered(out, count, [&](int number) {
    auto const kind = static_cast<pass_kind>(number);
    if (!declared[kind].exists())
      return append(out, "0");
    colour const plain = plain_colour(declared[kind]);
    append(out, "{\"word\":", html_text(declared.word(kind)));
    append(out, ",\"legend\":", html_text(legend_word(declared[kind])));
    append(out, ",\"colour\":[", plain.red, ",", plain.green, ",", plain.blue, "]");
    append(out, declared[kind].on == engine::network ? ",\"by_stage\":true}" : "}");
  });
}

//! The measured times by entry of the table, from 0 on.
void append_measured(text_sink auto& out, html_timeline const& line) {
  timetable_view const& table = line.table;
  double first = line.measured.empty() ? 0 : line.measured.front().start;
  for (measured_pass const& ran : line.measured) {
    if (!table.over.contains(ran.what))
      throw std::invalid_argument("write_html: a measured pass is not of the timetable: " +
                                  describe(ran.what, table.over));
    first = std::min(first, ran.start);
  }
  std::vector<measured_pass const*> const found = measured_entries(table, line.measured);
  for (bool const ends : {false, true}) {
    append(out, ends ? ",\"ends\":" : ",\n\"measured\":{\"starts\":");
    append_numbered(out, table.size(), [&](int i) {
      measured_pass const* const ran = found[static_cast<std::size_t>(i)];
      if (ran == nullptr)
        throw std::invalid_argument("write_html: a pass of the timetable was not measured: " +
                                    describe(table.passes[i], table.over));
      append(out, ((ends ? ran->end : ran->start) - first) * line.measured_unit);
    });
  }
  append(out, "}");
}

//! "V-Half: 4 devices, 8 microbatches, 8 stages, 2 chunks".
[[nodiscard]] inline std::string html_heading(html_timeline const& line) {
  std::string text(line.about.schedule);
  append_counts(text, line.shown.over.extents, true);
  for (std::size_t chunk = 0; chunk < line.about.chunk_lengths.size(); ++chunk)
    append(text, chunk == 0 ? " of tokens " : ", ", line.about.chunk_lengths[chunk]);
  return text;
}

//! The extents, and facts besides the passes from which colours and figures follow.
void append_extents(text_sink auto& out, html_timeline const& line) {
  timetable_view const& shown = line.shown;
  shape const& extents = shown.over.extents;
  std::vector<int> const locals = local_stages(shown);
  append(out, ",\"devices\":", extents.devices, ",\"microbatches\":", extents.microbatches);
  append(out, ",\"chunks\":", extents.chunks, ",\"stages_per_device\":", device_share(shown));
  append_numbers(out, ",\"locals\":", locals);
  append(out, ",\"local_count\":", most_local_stages(extents, locals));
  if (extents.where == placement::bidirectional) {
    append(out, ",\"directions\":");
    append_numbered(out, extents.microbatches, [&](int unit) {
      append(out, extents.enters_at_end(unit) ? 1 : 0);
    });
  }
  if (!line.about.chunk_shares.empty())
    append_numbers(out, ",\"shares\":", line.about.chunk_shares);
  append(out, ",\n\"engines\":[\"passes\"");
  for (int engine = 1; engine < shown.over.declared->engines; ++engine)
    append(out, ",\"", engine_row_name(shown, engine * extents.devices), "\"");
  append(out, "]");
}

//! Every entry: its kind, or ~kind where it completes a pair; stage, microbatch and chunk; the
//! number of its time.
void append_rows(text_sink auto& out, html_timeline const& line) {
  append(out, ",\n\"rows\":");
  append_numbered(out, line.shown.rows(), [&](int row) {
    append(out, "\n[");
    for (int i = line.shown.offsets[row]; i < line.shown.offsets[row + 1]; ++i) {
      pass const& what = line.shown.passes[i];
      int const kind = index_of(what.kind);
      append(out, i == line.shown.offsets[row] ? "" : ",", what.overlapped ? ~kind : kind);
      append(out, ",", what.stage, ",", what.microbatch, ",", what.chunk);
      append(out, ",", line.time_of[static_cast<std::size_t>(i)]);
    }
    append(out, "]");
  });
}

void append_timeline(text_sink auto& out, html_timeline const& line, uniform_cost const& page) {
  timetable_view const& table = line.table;
  uniform_cost const& cost = line.about.cost;
  append(out, "{\"name\":", html_text(line.about.schedule));
  append(out, ",\"heading\":", html_text(html_heading(line)));
  append_extents(out, line);
  append(out, ",\n");
  append_kinds(out, *table.over.declared);
  append_times(out, line, page);
  append(out, ",\n\"between\":{");
  for (page_slider const& each : other_sliders)
    append(
      out, &each == other_sliders ? "\"" : ",\"", each.key, "\":", slider_ratio(each, page, cost));
  append(out, "}");
  if (table.links != nullptr) {
    auto const pairs =
      static_cast<std::size_t>(table.over.extents.devices * table.over.extents.devices);
    append_numbers(out, ",\n\"links\":", std::span(table.links, pairs));
  }
  if (!line.slot_sizes.empty())
    append_numbers(out, ",\n\"slot_sizes\":", line.slot_sizes);
  if (!line.measured.empty())
    append_measured(out, line);
  append_rows(out, line);
  append_links(out, table);
  append(out, "}");
}

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
  append(
    out, detail::html_text(options.title), ",\"unit\":", detail::html_text(options.unit), ",\n");
  detail::append_sliders(out, timelines, unit);
  append(out, ",\n\"bytes\":", options.bytes ? "true" : "false", ",\"classes\":");
  detail::append_numbered(out, detail::slot_classes, [&](int of) {
    append(out, "[\"", detail::word(static_cast<slot_class>(of)), "\",");
    append(out, detail::lies_on_host(timelines, of) ? "1]" : "0]");
  });
  append(out, ",\n\"schedules\":");
  detail::append_list(out, timelines, [&](html_timeline const& line) {
    append(out, "\n");
    detail::append_timeline(out, line, unit);
  });
  append(out, "}\n</script>\n<script>\n\"use strict\";");
  append(out, detail::html_model, detail::html_view, detail::html_control);
  append(out, "</script>\n</body>\n</html>\n");
}

} // namespace pipelining::inline v0_3
